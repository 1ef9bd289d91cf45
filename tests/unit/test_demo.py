from __future__ import annotations

import pytest
from sklearn.metrics import roc_auc_score

from scmil.demo import Outcome, auc, verdict


def test_auc_agrees_with_scikit_learn() -> None:
    labels, scores = [0, 1, 0, 1, 1, 0, 1], [0.2, 0.2, 0.4, 0.9, 0.3, 0.1, 0.4]
    assert auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores))


def test_the_verdict_counts_folds_and_claims_no_more_than_two_standard_errors() -> None:
    without, control = Outcome("without", (0.8, 0.9, 0.7), 0.9), Outcome("control", (0.8, 0.8, 0.8), 0.9)
    same = verdict([without, Outcome("with", (0.9, 0.9, 0.6), 0.9), control])
    assert (
        "by +0.000 ± 0.058 (better in 1 folds, worse in 1, equal in 1): within two standard errors of nothing" in same
    )
    better = verdict([without, Outcome("with", (0.9, 0.99, 0.8), 0.9), control])
    assert "more than two standard errors" in better
