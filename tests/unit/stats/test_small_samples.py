"""Intervals of small samples have a width, and contain the true value as often as they say."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from scmil.errors import DataError
from scmil.stats.metrics import score_all
from scmil.stats.small_samples import (
    auc_interval,
    auc_variance,
    auc_variance_scale,
    f1_interval,
    mean_interval,
    metric_intervals,
    proportion_interval,
    wilson_interval,
)

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
PERFECT = np.array([[0.9, 0.1], [0.2, 0.8]] * 4)
LABELS = np.array([0, 1] * 4)


def test_wilson_agrees_with_published_intervals() -> None:
    """Newcombe (1998), Table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29."""
    for hits, n, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        assert wilson_interval(hits / n, n) == pytest.approx((low, high), abs=5e-5)


def test_eight_right_answers_out_of_eight_are_not_certain() -> None:
    for metric, (low, high) in metric_intervals(LABELS, PERFECT, 0.5).items():
        assert high == 1.0, metric
        assert 0.3 < low < 0.8, metric


def test_the_interval_contains_the_value() -> None:
    generator = np.random.default_rng(0)
    for classes in (2, 3):
        labels = generator.integers(classes, size=40)
        p = generator.dirichlet(np.ones(classes), 40)
        p[:, :] += np.eye(classes)[labels]
        p /= p.sum(1, keepdims=True)
        values = score_all(labels, p)
        for metric, (low, high) in metric_intervals(labels, p, 0.5).items():
            assert low < values[metric] <= high, metric
            assert high - low < 0.5, metric


def test_slides_of_one_patient_count_as_one_if_they_are_alike() -> None:
    patients = [f"p{i // 2}" for i in range(8)]
    alike = np.repeat([0, 1, 1, 0], 2)
    p = np.stack([1 - 0.8 * alike, 0.8 * alike], 1) + 0.1
    single = metric_intervals(alike[::2], p[::2], 0.5)
    double = metric_intervals(alike, p, 0.5, patients)
    for metric in single:
        assert double[metric] == pytest.approx(single[metric]), metric


def test_repeated_slides_do_not_change_the_interval_of_an_auc() -> None:
    generator = np.random.default_rng(1)
    labels = np.repeat([0, 1], 15)
    scores = np.where(labels, generator.normal(0.8, 2, 30), generator.normal(0, 1, 30))
    p = np.stack([-scores, scores], axis=1)
    twice = np.repeat(np.arange(30), 2)
    single = metric_intervals(labels, p, 0.0)["auc"]
    double = metric_intervals(labels[twice], p[twice], 0.0, twice.tolist())["auc"]
    assert double == pytest.approx(single, abs=1e-9)


def test_the_design_effect_is_that_of_the_patients() -> None:
    """Each patient has two slides, both right or both wrong: half of the slides are information."""
    values = np.repeat([1.0, 0.0, 1.0, 1.0, 0.0, 1.0] * 20, 2)
    patients = [i // 2 for i in range(len(values))]
    assert proportion_interval(values, patients) == pytest.approx(
        wilson_interval(float(values.mean()), len(values) / 2)
    )
    assert proportion_interval(values) == wilson_interval(float(values.mean()), len(values))


def test_one_patient_and_one_class_have_no_interval() -> None:
    assert all(map(math.isnan, proportion_interval([1, 1], ["a", "a"])))
    one_patient = metric_intervals(LABELS, PERFECT, 0.5, ["a"] * 8)
    assert all(math.isnan(end) for ends in one_patient.values() for end in ends)
    one_class = metric_intervals(np.zeros(8, dtype=int), PERFECT, 0.5)
    assert all(map(math.isnan, one_class["auc"]))
    assert not any(map(math.isnan, one_class["accuracy"]))
    assert all(map(math.isnan, auc_interval(0.5, 0, 3)))


def test_values_that_are_no_proportions_are_rejected() -> None:
    with pytest.raises(DataError, match="numbers from 0 to 1"):
        proportion_interval([0.5, 1.5])


def test_f1_is_a_monotone_function_of_its_proportion() -> None:
    low, high = wilson_interval(0.5, 10)
    assert f1_interval(0.5, 10) == pytest.approx((2 * low / (1 + low), 2 * high / (1 + high)))


def test_the_mean_of_equal_estimates_is_narrower_by_the_root_of_their_number() -> None:
    one = wilson_interval(0.5, 1000)
    low, high = mean_interval([0.5] * 4, [one] * 4)
    assert high - low == pytest.approx((one.high - one.low) / 2)


@pytest.mark.parametrize("n", [20, 50, 200])
@pytest.mark.parametrize("true", [0.7, 0.9, 0.99])
def test_auc_intervals_contain_the_true_value_as_often_as_they_say(n: int, true: float) -> None:
    """Normal scores; `benchmarks/coverage.py` has more samples and other distributions."""
    generator = np.random.default_rng(0)
    shift = NormalDist().inv_cdf(true) * math.sqrt(2)
    labels, hits = np.repeat([1, 0], n // 2), 0
    for _ in range(500):
        scores = generator.normal(0, 1, n) + shift * labels
        p = np.stack([-scores, scores], axis=1)
        low, high = metric_intervals(labels, p, 0.0)["auc"]
        hits += low <= true <= high
    assert 0.92 * 500 <= hits <= 0.98 * 500


def test_the_committed_simulation_has_93_to_97_percent_for_normal_scores() -> None:
    content = json.loads((RESULTS / "coverage.json").read_text())
    assert content["samples"] >= 3000  # a standard error of 0.4 %
    reference = [row for row in content["auc"] if row["scores"] == "normal"]
    assert {(row["share"], row["n"], row["true"]) for row in reference} == {
        (share, n, true)
        for share in (0.5, 0.25)
        for n in (20, 50, 200)
        for true in (0.7, 0.8, 0.9, 0.95, 0.99)
    }
    assert all(93 <= row["coverage"] <= 97 for row in reference)


@pytest.mark.slow
def test_the_committed_simulation_is_that_of_these_intervals() -> None:
    """A change of the intervals requires another run of `benchmarks/coverage.py`."""
    content = json.loads((RESULTS / "coverage.json").read_text())
    known = {
        (row["n"], row["true"]): row["coverage"]
        for row in content["auc"]
        if (row["scores"], row["share"]) == ("normal", 0.5)
    }
    shift = math.sqrt(2)
    for n, true in ((20, 0.99), (50, 0.7)):
        generator, hits = np.random.default_rng(0), 0
        labels = np.repeat([1, 0], n // 2)
        for _ in range(content["samples"]):
            above = generator.normal(NormalDist().inv_cdf(true) * shift, 1, n // 2)
            scores = np.concatenate([above, generator.normal(0, 1, n // 2)])
            low, high = metric_intervals(labels, np.stack([-scores, scores], 1), 0.0)["auc"]
            hits += low <= true <= high
        assert round(100 * hits / content["samples"], 1) == known[n, true]


def test_the_variance_of_an_auc_is_that_of_normal_scores() -> None:
    generator = np.random.default_rng(0)
    for x in (0.0, 0.5, 1.5):
        positive = generator.normal(x * math.sqrt(2), 1, (4000, 6, 1))
        values = (positive > generator.normal(0, 1, (4000, 1, 9))).mean((1, 2))
        assert auc_variance(x, 6, 9) == pytest.approx(values.var(), rel=0.08)


def test_unequal_spreads_widen_the_interval_of_an_auc() -> None:
    generator = np.random.default_rng(0)
    labels = np.repeat([1, 0], [50, 150]).astype(bool)
    scores = np.where(labels, generator.normal(2, 3, 200), generator.normal(0, 1, 200))
    value = float((scores[labels][:, None] > scores[~labels]).mean())
    scale = auc_variance_scale(labels, scores, value)
    assert scale > 1.2
    plain, scaled = auc_interval(value, 50, 150), auc_interval(value, 50, 150, scale)
    assert scaled.low < plain.low < value < plain.high < scaled.high
    assert auc_variance_scale(np.array([True, False]), np.array([1.0, 0.0]), 1.0) == 1.0
