"""Metrics of numbers, grades and several labels agree with scikit-learn and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scmil.errors import DataError
from scmil.stats.bootstrap import statistic_intervals
from scmil.stats.metrics import auc, score_all
from scmil.stats.multilabel import score_multilabel
from scmil.stats.ordinal import (
    grade_confusion,
    ordinal_intervals,
    quadratic_kappa,
    score_ordinal,
)
from scmil.stats.regression import regression_intervals, score_regression, t_quantile
from scmil.stats.small_samples import metric_intervals

RANDOM = np.random.default_rng(3)
TRUTH = RANDOM.normal(size=60).round(1)  # with ties
PREDICTED = (TRUTH + RANDOM.normal(size=60)).round(1)
GRADES = RANDOM.integers(4, size=80)
GUESSED = np.clip(GRADES + RANDOM.integers(-1, 2, size=80), 0, 3)


def test_regression_is_that_of_scikit_learn_and_scipy() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    stats = pytest.importorskip("scipy.stats")
    expected = {
        "r2": metrics.r2_score(TRUTH, PREDICTED),
        "pearson": stats.pearsonr(TRUTH, PREDICTED).statistic,
        "spearman": stats.spearmanr(TRUTH, PREDICTED).statistic,
        "mae": metrics.mean_absolute_error(TRUTH, PREDICTED),
    }
    assert score_regression(TRUTH, PREDICTED) == pytest.approx(expected, abs=1e-12)


def test_constants_leave_correlations_undefined() -> None:
    scores = score_regression([2, 2, 2], [1, 2, 3])
    assert math.isnan(scores["r2"])
    assert math.isnan(scores["pearson"])
    assert scores["mae"] == pytest.approx(2 / 3)


def test_regression_intervals_contain_the_values_and_are_over_patients() -> None:
    values = score_regression(TRUTH, PREDICTED)
    intervals = regression_intervals(TRUTH, PREDICTED)
    for name, (low, high) in intervals.items():
        assert low < values[name] < high, name
    twice = np.repeat(np.arange(60), 2)
    double = regression_intervals(TRUTH[twice], PREDICTED[twice], twice.tolist())
    for name, ends in intervals.items():
        assert double[name] == pytest.approx(ends, abs=1e-9), name


def test_regression_intervals_contain_the_true_values_of_small_samples() -> None:
    """Normal pairs with a correlation of 0.8 that are predicted by their conditional mean."""
    random = np.random.default_rng(0)
    # R² = 0.64, and the absolute error of a normal variable with variance 0.36.
    true = {"r2": 0.64, "pearson": 0.8, "mae": 0.6 * math.sqrt(2 / math.pi)}
    hits = dict.fromkeys(true, 0)
    for _ in range(400):
        x = random.normal(size=20)
        found = regression_intervals(0.8 * x + 0.6 * random.normal(size=20), 0.8 * x)
        for name, value in true.items():
            hits[name] += found[name].low <= value <= found[name].high
    for name, number in hits.items():
        assert 0.92 * 400 <= number <= 0.98 * 400, name


def test_the_quantile_of_t_is_that_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for degrees in (3, 4, 7, 20, 200):
        assert t_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=2e-3)


def test_few_patients_and_constants_have_no_interval() -> None:
    for intervals in (
        regression_intervals([1, 2, 3], [1, 2, 4]),
        regression_intervals([1, 2, 3, 4], [1, 2, 4, 4], ["a", "a", "b", "c"]),
    ):
        assert all(math.isnan(end) for ends in intervals.values() for end in ends)
    constant = regression_intervals([2, 2, 2, 2], [1, 2, 3, 4])
    assert math.isnan(constant["r2"].low)
    assert math.isnan(constant["pearson"].low)
    assert regression_intervals([1, 2, 3, 4], [1, 2, 3, 4])["pearson"].low == 1.0


def test_right_grades_of_few_patients_are_not_certain() -> None:
    for low, high in ordinal_intervals([0, 1, 2, 1], [0, 1, 2, 1], 3, draws=50).values():
        assert high - low > 0.2


def test_kappa_is_that_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    expected = metrics.cohen_kappa_score(GRADES, GUESSED, weights="quadratic")
    assert quadratic_kappa(GRADES, GUESSED, 4) == pytest.approx(expected, abs=1e-12)
    scores = score_ordinal(GRADES, GUESSED, 4)
    assert scores["mae"] == pytest.approx(np.abs(GRADES - GUESSED).mean())
    assert scores["accuracy"] == pytest.approx((GRADES == GUESSED).mean())
    assert grade_confusion(GRADES, GUESSED, 4).tolist() == (
        metrics.confusion_matrix(GRADES, GUESSED, labels=range(4)).tolist()
    )


def test_kappa_of_one_grade_is_undefined() -> None:
    assert math.isnan(quadratic_kappa([1, 1], [1, 1], 3))


def test_ordinal_intervals_contain_the_values() -> None:
    values = score_ordinal(GRADES, GUESSED, 4)
    for name, (low, high) in ordinal_intervals(GRADES, GUESSED, 4, draws=300).items():
        assert low < values[name] < high, name


def several_labels() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    truth = random.integers(2, size=(40, 3)).astype(float)
    truth[:, 2] = 0.0  # a label that is never present
    p = np.clip(0.5 * truth + 0.6 * random.random((40, 3)), 0, 1)
    truth[random.random((40, 3)) < 0.2] = math.nan
    return truth, p


def test_a_label_is_scored_on_the_slides_that_have_it() -> None:
    truth, p = several_labels()
    scores = score_multilabel(["a", "b", "c"], truth, p, draws=100)
    known = ~np.isnan(truth[:, 0])
    labels, both = truth[known, 0].astype(int), np.stack([1 - p[known, 0], p[known, 0]], axis=1)
    row = scores.labels["a"]
    assert row.present == known.sum()
    assert row.positive == labels.sum()
    assert row.scores == score_all(labels, both)
    assert row.intervals["auc"] == metric_intervals(labels, both, 0.5)["auc"]
    assert row.intervals["brier"].low < row.scores["brier"] < row.intervals["brier"].high


def test_macro_averages_leave_out_labels_with_one_value() -> None:
    truth, p = several_labels()
    scores = score_multilabel(["a", "b", "c"], truth, p, draws=100)
    assert math.isnan(scores.labels["c"].scores["auc"])
    assert math.isnan(scores.labels["c"].intervals["auc"].low)
    both = [scores.labels[name].scores["auc"] for name in "ab"]
    assert scores.macro["auc"] == pytest.approx(np.mean(both))
    assert scores.macro_intervals["auc"].low < scores.macro["auc"]
    nothing = score_multilabel(["c"], truth[:, 2:], p[:, 2:], draws=10)
    assert math.isnan(nothing.macro["auc"])


def test_any_statistic_is_resampled_by_patient() -> None:
    labels, scores = np.array([0, 1] * 10), RANDOM.random(20)
    p = np.stack([1 - scores, scores], axis=1)
    groups = [f"p{i // 2}" for i in range(20)]
    drawn: list[int] = []

    def statistic(rows: np.ndarray) -> float:
        pairs = rows.reshape(-1, 2)
        assert (pairs[:, 0] + 1 == pairs[:, 1]).all()
        drawn.append(len(rows))
        return auc(labels[rows], p[rows])

    (interval,) = statistic_intervals(statistic, 20, groups, draws=50)
    assert interval.low < interval.high
    assert drawn == [20] * 50
    assert math.isnan(statistic_intervals(lambda rows: 1.0, 2, ["a", "a"])[0].low)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: score_regression([1, 2], [1]), "shape"),
        (lambda: score_regression([1, math.nan], [1, 2]), "1 of 2 pairs"),
        (lambda: score_ordinal([0, 3], [0, 1], 3), "from 0 to 2"),
        (lambda: score_ordinal([0.5, 1], [0, 1], 3), "integers"),
        (lambda: score_ordinal([0, 1], [0], 3), "shape"),
        (lambda: score_multilabel(["a"], [[2.0]], [[0.5]]), "1, 0, or NaN"),
        (lambda: score_multilabel(["a"], [[1.0]], [[1.5]]), "between 0 and 1"),
        (lambda: score_multilabel(["a", "b"], [[1.0]], [[0.5]]), "a name for each label"),
    ],
)
def test_invalid_input_is_rejected(call: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        call()


def test_perfect_labels_have_macro_intervals_with_a_width() -> None:
    truth = np.array([[1, 0], [0, 1]] * 5)
    scores = score_multilabel(["a", "b"], truth, 0.1 + 0.8 * truth, draws=50)
    for metric in ("auc", "balanced_accuracy", "f1"):
        low, high = scores.macro_intervals[metric]
        assert scores.macro[metric] == high == 1
        assert 0.6 < low < 0.95
        assert low > scores.labels["a"].intervals[metric].low  # two labels say more than one
    [alone] = [score_multilabel(["a"], truth[:, :1], 0.1 + 0.8 * truth[:, :1], draws=50)]
    assert alone.macro_intervals["auc"] == pytest.approx(alone.labels["a"].intervals["auc"])


def test_one_grade_alone_that_is_always_right_has_no_kappa() -> None:
    intervals = ordinal_intervals([1] * 6, [1] * 6, 3, draws=20)
    assert np.isnan(intervals["kappa"].low)
    assert intervals["accuracy"].low > 0.5
