"""The expected interval of a study is the mean of those that simulated studies get."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from scmil.errors import DataError
from scmil.stats.concordance import concordance, concordance_interval
from scmil.stats.metrics import auc
from scmil.stats.sample_size import (
    expected_auc_interval,
    expected_concordance_interval,
    expected_correlation_interval,
    expected_intervals,
)
from scmil.stats.small_samples import metric_intervals


def two_columns(scores: np.ndarray) -> np.ndarray:
    p = 1 / (1 + np.exp(-scores))
    return np.stack([1 - p, p], axis=1)


@pytest.mark.parametrize(
    ("value", "negative", "positive"), [(0.6, 6, 6), (0.8, 30, 10), (0.95, 40, 60)]
)
def test_the_width_of_an_auc_is_that_of_simulated_samples(
    value: float, negative: int, positive: int
) -> None:
    generator = np.random.default_rng(0)
    labels = np.repeat([0, 1], [negative, positive])
    shift = math.sqrt(2) * NormalDist().inv_cdf(value)
    widths = []
    for _ in range(150):
        scores = generator.normal(size=len(labels)) + shift * labels
        low, high = metric_intervals(labels, two_columns(scores), 0.5)["auc"]
        widths.append(high - low)
    low, high = expected_auc_interval(value, [negative, positive])
    assert high - low == pytest.approx(np.mean(widths), rel=0.06)


def test_the_width_of_a_concordance_is_that_of_simulated_samples() -> None:
    generator = np.random.default_rng(1)
    widths, values, events = [], [], []
    for _ in range(120):
        risk = generator.normal(size=60)
        times = generator.exponential(size=60) * np.exp(-risk)
        ends = generator.exponential(size=60)
        happened = times <= ends
        low, high = concordance_interval(np.minimum(times, ends), happened, risk)
        widths.append(high - low)
        values.append(concordance(np.minimum(times, ends), happened, risk))
        events.append(happened.sum())
    low, high = expected_concordance_interval(float(np.mean(values)), float(np.mean(events)))
    assert high - low == pytest.approx(np.mean(widths), rel=0.08)


def test_the_mean_over_folds_varies_as_its_interval_says() -> None:
    """Half of the width is 1.96 standard deviations of the mean AUC over simulated folds."""
    generator = np.random.default_rng(2)
    labels = np.repeat([0, 1], [8, 8])
    shift = math.sqrt(2) * NormalDist().inv_cdf(0.8)
    means = [
        np.mean(
            [auc(labels, two_columns(generator.normal(size=16) + shift * labels)) for _ in range(5)]
        )
        for _ in range(400)
    ]
    low, high = expected_auc_interval(0.8, [40, 40], folds=5)
    assert high - low == pytest.approx(2 * 1.96 * np.std(means), rel=0.1)


def test_a_cross_validation_needs_fewer_patients_than_a_test_split() -> None:
    split, folds = expected_intervals({"a": 50, "b": 50}, 0.8, test=0.25)
    assert split.needed is not None
    assert folds.needed is not None
    assert split.needed == pytest.approx(4 * folds.needed, rel=0.03)
    half = folds.needed // 2
    again = expected_intervals({"a": half, "b": folds.needed - half}, 0.8)[1]
    assert again.width == pytest.approx(0.1, abs=0.001)


def test_of_several_classes_it_is_the_mean_over_classes() -> None:
    pairs = [expected_auc_interval(0.8, [90 - n, n]) for n in (20, 30, 40)]
    found = expected_auc_interval(0.8, [20, 30, 40])
    assert found == pytest.approx(np.mean(pairs, axis=0))


def test_more_events_give_a_narrower_interval_and_censored_patients_do_not() -> None:
    few = expected_intervals({"events": 20, "censored": 80}, 0.7, metric="concordance")[1]
    same = expected_intervals({"events": 20, "censored": 800}, 0.7, metric="concordance")[1]
    more = expected_intervals({"events": 80, "censored": 20}, 0.7, metric="concordance")[1]
    assert few.width == same.width > 1.5 * more.width


def test_a_width_that_no_cohort_reaches_is_said_to_be_out_of_reach() -> None:
    assert expected_intervals({"a": 50, "b": 50}, 0.8, width=1e-5)[0].needed is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"value": 0.4}, r"assumed AUC = 0\.4: a number from 0\.5"),
        ({"value": 1.0}, r"assumed AUC = 1\.0"),
        ({"value": 0.8, "test": 1.0}, r"test = 1\.0"),
        ({"value": 0.8, "width": 0.0}, r"width = 0\.0"),
        ({"value": 0.8, "folds": 6}, "folds = 6, with 5 patients of the rarest class"),
    ],
)
def test_impossible_designs_are_rejected(options: dict[str, float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        expected_intervals({"a": 5, "b": 20}, **options)  # type: ignore[arg-type]


def test_one_class_has_no_auc_and_no_event_no_concordance() -> None:
    with pytest.raises(DataError, match="at least two"):
        expected_auc_interval(0.8, [10])
    with pytest.raises(DataError, match="0 patients with an event"):
        expected_intervals({"events": 0, "censored": 9}, 0.7, metric="concordance")
    assert math.isnan(expected_concordance_interval(0.7, 0).low)


def test_the_interval_of_a_correlation_is_that_of_the_reports() -> None:
    from scmil.stats.regression import regression_intervals, score_regression

    random = np.random.default_rng(0)
    truth = random.normal(size=60)
    predicted = truth + random.normal(size=60)
    value = score_regression(truth, predicted)["pearson"]
    expected = regression_intervals(truth, predicted)["pearson"]
    assert expected_correlation_interval(value, 60) == pytest.approx(expected)
    split, folds = expected_intervals({"patients": 60}, 0.6, metric="correlation")
    assert (split.tested, folds.tested) == ({"patients": 12}, {"patients": 60})
    assert folds.width < split.width
    low, high = expected_correlation_interval(0.6, folds.needed or 0)
    assert high - low == pytest.approx(0.1, abs=0.001)
    with pytest.raises(DataError, match=r"assumed correlation = 1\.5: a number from 0"):
        expected_correlation_interval(1.5, 60)
    assert math.isnan(expected_correlation_interval(0.6, 3).low)
