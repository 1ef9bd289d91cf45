"""The interval of a mean AUC over folds contains the true value as often as it says."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from scmil.stats.fold_intervals import (
    FoldScores,
    mean_fold_auc,
    mean_fold_auc_interval,
    mean_fold_decision_interval,
)
from scmil.stats.metrics import auc, score_all
from scmil.stats.small_samples import metric_intervals


def simulated(
    generator: np.random.Generator, value: float, per_class: int, folds: int, slides: int = 1
) -> list[FoldScores]:
    """Folds whose patients have several slides with correlated scores."""
    shift = math.sqrt(2) * NormalDist().inv_cdf(value)
    made = []
    for fold in range(folds):
        units = np.repeat(np.arange(2 * per_class), slides)
        labels = units % 2
        shared = generator.normal(size=2 * per_class)[units]
        own = generator.normal(size=len(units))
        noise = 0.8 * shared + 0.6 * own if slides > 1 else shared
        p = 1 / (1 + np.exp(-(noise + shift * labels)))
        names = [(fold, unit) for unit in units.tolist()]
        made.append(FoldScores(labels, np.stack([1 - p, p], 1), names))
    return made


@pytest.mark.parametrize(
    ("value", "per_class", "folds", "slides"),
    [(0.7, 4, 5, 1), (0.85, 10, 5, 2), (0.95, 4, 5, 1)],
)
def test_the_coverage_is_near_95_percent(
    value: float, per_class: int, folds: int, slides: int
) -> None:
    generator = np.random.default_rng(0)
    hits = []
    for _ in range(120):
        low, high = mean_fold_auc_interval(simulated(generator, value, per_class, folds, slides))
        hits.append(low <= value <= high)
    assert np.mean(hits) >= 0.9


def test_one_fold_has_the_interval_of_a_single_auc() -> None:
    [fold] = simulated(np.random.default_rng(1), 0.8, 15, 1)
    single = metric_intervals(fold.labels, fold.probabilities, 0.5)["auc"]
    assert mean_fold_auc_interval([fold]) == pytest.approx(tuple(single), abs=0.01)


def test_perfect_folds_have_an_interval_with_a_width() -> None:
    p = np.array([[0.9, 0.1], [0.2, 0.8]])
    folds = [FoldScores(np.array([0, 1]), p, [2 * f, 2 * f + 1]) for f in range(4)]
    low, high = mean_fold_auc_interval(folds)
    assert mean_fold_auc(folds) == high == 1
    assert 0.3 < low < 0.8


def test_repeats_add_no_patients() -> None:
    folds = simulated(np.random.default_rng(2), 0.8, 5, 4)
    assert mean_fold_auc_interval(folds * 3, repeats=3) == pytest.approx(
        mean_fold_auc_interval(folds)
    )


def test_two_equal_slides_of_a_patient_do_not_narrow_the_interval() -> None:
    folds = simulated(np.random.default_rng(3), 0.8, 8, 3)
    doubled = [
        FoldScores(
            np.repeat(fold.labels, 2),
            np.repeat(fold.probabilities, 2, axis=0),
            [unit for unit in fold.units for _ in range(2)],
        )
        for fold in folds
    ]
    assert mean_fold_auc_interval(doubled) == pytest.approx(mean_fold_auc_interval(folds), abs=0.01)


def test_a_fold_with_one_class_is_left_out() -> None:
    folds = simulated(np.random.default_rng(4), 0.8, 8, 2)
    empty = FoldScores(np.array([1, 1]), np.array([[0.5, 0.5]] * 2), ["x", "y"])
    assert mean_fold_auc([*folds, empty]) == mean_fold_auc(folds)
    assert mean_fold_auc_interval([*folds, empty]) == mean_fold_auc_interval(folds)
    assert math.isnan(mean_fold_auc([empty]))
    assert math.isnan(mean_fold_auc_interval([empty]).low)
    assert math.isnan(mean_fold_auc_interval([]).low)


def test_several_classes_are_each_against_the_rest() -> None:
    generator = np.random.default_rng(5)
    p = generator.dirichlet([1, 1, 1], size=30)
    labels = np.arange(30) % 3
    fold = FoldScores(labels, p, list(range(30)))
    low, high = mean_fold_auc_interval([fold])
    assert low < auc(labels, p) < high
    single = metric_intervals(labels, p, None)["auc"]
    assert (low, high) == pytest.approx(tuple(single), abs=0.02)


def decided(generator: np.random.Generator, rates: tuple[float, float]) -> list[FoldScores]:
    """Five folds of eight patients of each class, of which a share is right."""
    labels = np.repeat([0, 1], 8)
    made = []
    for fold in range(5):
        right = generator.random(16) < np.array(rates)[labels]
        p = np.eye(2)[np.where(right, labels, 1 - labels)]
        made.append(FoldScores(labels, p, [(fold, i) for i in range(16)]))
    return made


@pytest.mark.parametrize("metric", ["balanced_accuracy", "f1"])
@pytest.mark.parametrize("rates", [(0.7, 0.7), (0.9, 0.6), (0.95, 0.95)])
def test_decisions_of_folds_have_intervals_that_contain_the_true_value(
    metric: str, rates: tuple[float, float]
) -> None:
    generator = np.random.default_rng(0)
    samples = [decided(generator, rates) for _ in range(400)]
    values = [np.mean([score_all(f.labels, f.probabilities)[metric] for f in s]) for s in samples]
    true = float(np.mean(values))
    limits = [mean_fold_decision_interval(metric, sample) for sample in samples[:200]]
    covered = np.mean([low <= true <= high for low, high in limits])
    assert 0.9 <= covered <= 0.99
    assert all(low <= v <= high for v, (low, high) in zip(values, limits, strict=False))


def test_perfect_decisions_have_an_interval_with_a_width() -> None:
    perfect = decided(np.random.default_rng(0), (1.0, 1.0))
    for metric in ("balanced_accuracy", "f1"):
        low, high = mean_fold_decision_interval(metric, perfect)
        assert high == 1
        assert 0.85 < low < 0.99
