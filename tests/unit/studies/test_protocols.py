from __future__ import annotations

import numpy as np
import pytest

from scmil.bags.splits import Split
from scmil.stats.fold_intervals import FoldScores, mean_fold_auc_interval
from scmil.stats.metrics import METRICS
from scmil.studies.protocols import ScoredFold, choose_nested, choose_on_test, score, summarise

LABELS = np.array([0, 0, 1, 1])
# Epoch 1 ranks well and is badly placed, epoch 2 ranks badly, epoch 3 ranks as well as 1 with a
# lower loss.
EPOCHS_P = np.array([[0.1, 0.2, 0.3, 0.4], [0.6, 0.5, 0.4, 0.7], [0.2, 0.4, 0.6, 0.9]])
P = np.stack([1 - EPOCHS_P, EPOCHS_P], -1)


def test_nested_takes_the_best_auc_then_the_lowest_loss_then_youdens_threshold() -> None:
    assert choose_nested(LABELS, P) == (2, 0.5)
    assert choose_nested(LABELS, P[:2]) == (0, pytest.approx(0.25))


def test_nested_prefers_the_better_auc_to_the_lower_loss() -> None:
    """Epoch 1 ranks all bags correctly with a high loss, epoch 2 ranks one pair wrongly with a low
    loss.
    """
    scores = np.array([[0.40, 0.41, 0.42, 0.43], [0.02, 0.55, 0.54, 0.98]])
    p = np.stack([1 - scores, scores], -1)
    losses = [-np.log(np.take_along_axis(one, LABELS[:, None], 1)).mean() for one in p]
    assert losses[0] > losses[1]
    assert choose_nested(LABELS, p)[0] == 0
    assert choose_nested(LABELS, p[::-1])[0] == 1


def test_nested_chooses_on_the_validation_split_and_test_tuned_on_the_test_split() -> None:
    """Epoch 1 is right on the validation bags and wrong on the test bags, epoch 2 the reverse."""
    labels = np.array([0, 1, 0, 1, 0, 1])
    split = Split(train=(0, 1), test=(2, 3), valid=(4, 5))
    good, bad = [0.1, 0.3], [0.9, 0.6]
    scores = np.array([[0.5, 0.5, *bad, *good], [0.5, 0.5, *good, *bad]])
    p = np.stack([1 - scores, scores], -1)
    nested = score("nested", 0, 0, split, p, labels)
    assert (nested.epoch, nested.threshold) == (1, pytest.approx(0.2))
    assert nested.probabilities[:, 1].tolist() == bad
    tuned = score("test-tuned", 0, 0, split, p, labels)
    assert (tuned.epoch, tuned.threshold) == (2, pytest.approx(0.2))
    assert tuned.probabilities[:, 1].tolist() == good
    last = score("last", 0, 0, split, p, labels)
    assert (last.epoch, last.threshold) == (2, 0.5)


def test_test_tuned_takes_the_first_best_epoch() -> None:
    assert choose_on_test(LABELS, P) == (0, pytest.approx(0.25))


def test_a_summary_by_hand() -> None:
    def fold(repeat: int, number: int, test: tuple[int, ...], p: list[float]) -> ScoredFold:
        return ScoredFold(
            "last", repeat, number, 1, 0.5, test, np.array([[1 - value, value] for value in p])
        )

    folds = [
        fold(0, 0, (0, 2), [0.1, 0.9]), fold(0, 1, (1, 3), [0.6, 0.9]),  # 1 and 1/2
        fold(1, 0, (0, 3), [0.6, 0.4]), fold(1, 1, (1, 2), [0.1, 0.9]),  # 0 and 1
    ]  # fmt: skip
    row = summarise(folds, LABELS, None)
    assert row["accuracy"] == pytest.approx(0.625)
    assert row["accuracy_sd_repeats"] == pytest.approx(np.std([0.75, 0.5], ddof=1), abs=1e-6)
    assert row["accuracy_sd_folds"] == pytest.approx(np.std([1, 0.5, 0, 1], ddof=1), abs=1e-6)
    for metric in ("accuracy", "balanced_accuracy", "f1"):
        assert row[f"{metric}_low"] <= row[metric] <= row[f"{metric}_high"]
    assert (row["repeats"], row["folds"], row["bags"]) == (2, 2, 4)
    assert set(METRICS) <= set(row)


def test_the_mean_auc_over_folds_has_an_interval_over_patients() -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(40) // 4 % 2
    p = 1 / (1 + np.exp(-generator.normal(size=40) - labels))
    both = np.stack([1 - p, p], 1)
    folds = [
        ScoredFold("last", 0, f, 1, 0.5, own := tuple(range(f, 40, 4)), both[list(own)])
        for f in range(4)
    ]
    patients = [f"p{i // 2}" for i in range(40)]
    row = summarise(folds, labels, patients)
    expected = mean_fold_auc_interval(
        [
            FoldScores(labels[list(f.test)], f.probabilities, [patients[i] for i in f.test])
            for f in folds
        ]
    )
    assert (row["auc_low"], row["auc_high"]) == pytest.approx(tuple(expected), abs=1e-6)
    assert row["auc_low"] < row["auc"] < row["auc_high"]
