from __future__ import annotations

import numpy as np
import pytest

from scmil.stats.metrics import METRICS
from scmil.studies.protocols import Scored, choose_nested, choose_on_test, summarise

LABELS = np.array([0, 0, 1, 1])
# Epoch 1 ranks well and is badly placed, epoch 2 ranks badly, epoch 3 ranks as well as 1 with a lower loss.
EPOCHS_P = np.array([[0.1, 0.2, 0.3, 0.4], [0.6, 0.5, 0.4, 0.7], [0.2, 0.4, 0.6, 0.9]])
P = np.stack([1 - EPOCHS_P, EPOCHS_P], -1)


def test_nested_takes_the_best_auc_then_the_lowest_loss_then_youdens_threshold() -> None:
    assert choose_nested(LABELS, P) == (2, 0.5)
    assert choose_nested(LABELS, P[:2]) == (0, pytest.approx(0.25))


def test_test_tuned_takes_the_first_best_epoch() -> None:
    assert choose_on_test(LABELS, P) == (0, pytest.approx(0.25))


def test_a_summary_by_hand() -> None:
    def fold(repeat: int, number: int, test: tuple[int, ...], p: list[float]) -> Scored:
        return Scored("last", repeat, number, 1, 0.5, test, np.array([[1 - value, value] for value in p]))

    folds = [
        fold(0, 0, (0, 2), [0.1, 0.9]), fold(0, 1, (1, 3), [0.6, 0.9]),  # 1 and 1/2
        fold(1, 0, (0, 3), [0.6, 0.4]), fold(1, 1, (1, 2), [0.1, 0.9]),  # 0 and 1
    ]  # fmt: skip
    row = summarise(folds, LABELS, None)
    assert row["accuracy"] == pytest.approx(0.625)
    assert row["accuracy_sd_repeats"] == pytest.approx(np.std([0.75, 0.5], ddof=1), abs=1e-6)
    assert row["accuracy_sd_folds"] == pytest.approx(np.std([1, 0.5, 0, 1], ddof=1), abs=1e-6)
    assert row["accuracy_low"] <= 0.625 <= row["accuracy_high"]
    assert (row["repeats"], row["folds"], row["bags"]) == (2, 2, 4)
    assert set(METRICS) <= set(row)
