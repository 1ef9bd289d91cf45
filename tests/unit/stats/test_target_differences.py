"""Paired differences of the main metric of each task, over whole patients."""

from __future__ import annotations

import numpy as np
import pytest

from scmil.errors import DataError
from scmil.stats.concordance import concordance
from scmil.stats.multilabel import macro_scores
from scmil.stats.ordinal import quadratic_kappa
from scmil.stats.regression import score_regression
from scmil.stats.target_differences import (
    compare_scorers,
    multilabel_scorer,
    ordinal_scorer,
    regression_scorer,
    survival_scorer,
)

PATIENTS = [f"p{i // 2}" for i in range(24)]  # two slides each


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """How often each of 12 patients counts, and the rows of their slides."""
    counts = np.random.default_rng(seed).multinomial(12, np.full(12, 1 / 12))
    rows = np.concatenate([np.repeat([2 * i, 2 * i + 1], n) for i, n in enumerate(counts)])
    return counts[None].astype(float), rows.astype(int)


@pytest.mark.parametrize("seed", range(3))
def test_a_scorer_is_the_metric_of_the_resampled_slides(seed: int) -> None:
    random = np.random.default_rng(seed)
    counts, rows = drawn(seed)
    y, p = random.normal(size=24), random.normal(size=24)
    assert regression_scorer(y, p, PATIENTS)(counts)[0] == pytest.approx(
        score_regression(y[rows], p[rows])["r2"]
    )
    grades, found = random.integers(0, 4, 24), random.integers(0, 4, 24)
    assert ordinal_scorer(grades, found, 4, PATIENTS)(counts)[0] == pytest.approx(
        quadratic_kappa(grades[rows], found[rows], 4)
    )
    labels = random.integers(0, 2, (24, 2)).astype(float)
    labels[:5, 1] = np.nan
    chances = random.random((24, 2))
    assert multilabel_scorer(labels, chances, PATIENTS)(counts)[0] == pytest.approx(
        macro_scores(labels[rows], chances[rows])["auc"]
    )


def test_the_concordance_is_that_of_mean_risks_of_patients() -> None:
    random = np.random.default_rng(0)
    units = np.array([0, 0, 0, *range(12)])  # the first patient has four slides
    times, events = random.random(12) + 0.1, random.integers(0, 2, 12)
    risk = random.random(15) + 1
    means = [risk[units == i].mean() for i in range(12)]
    expected = concordance(times, events, means)
    scorer = survival_scorer(times[units], events[units], risk, units.tolist())
    assert scorer(np.ones((1, 12)))[0] == pytest.approx(expected)


def test_equal_methods_differ_by_nothing() -> None:
    y = np.arange(10.0)
    scorer = regression_scorer(y, y + 1)
    same = compare_scorers([scorer], [scorer], patients=10, draws=100)
    assert (same.difference, tuple(same.interval), same.p) == (0.0, (0.0, 0.0), 1.0)


def test_a_clear_difference_is_significant_and_its_interval_excludes_zero() -> None:
    random = np.random.default_rng(0)
    y = random.normal(size=60)
    good, bad = (regression_scorer(y, y + s * random.normal(size=60)) for s in (0.2, 1.0))
    found = compare_scorers([good], [bad], patients=60)
    assert found.difference == pytest.approx(found.value_a - found.value_b)
    assert found.interval.low > 0
    assert found.p < 0.01
    reverse = compare_scorers([bad], [good], patients=60)
    assert reverse.p == found.p
    assert reverse.interval.high == pytest.approx(-found.interval.low)


def test_equally_good_methods_are_rarely_significant() -> None:
    random = np.random.default_rng(0)
    small = 0
    for seed in range(120):
        y = random.normal(size=40)
        a, b = (regression_scorer(y, y + random.normal(size=40)) for _ in "ab")
        small += compare_scorers([a], [b], 40, draws=200, seed=seed).p < 0.05
    assert small / 120 < 0.12


def test_slides_of_one_patient_do_not_count_as_independent() -> None:
    random = np.random.default_rng(1)
    y, noise = random.normal(size=20), random.normal(size=(2, 20))
    y4, patients = np.repeat(y, 4), [f"p{i // 4}" for i in range(80)]
    p4 = [np.repeat(y + scale * own, 4) for scale, own in zip((0.8, 1.0), noise, strict=True)]

    def width(groups: list[str] | None, units: int) -> float:
        a, b = ([regression_scorer(y4, p, groups)] for p in p4)
        found = compare_scorers(a, b, patients=units)
        return found.interval.high - found.interval.low

    assert width(patients, 20) > 1.5 * width(None, 80)


def test_repeats_must_agree_and_one_patient_has_no_interval() -> None:
    scorer = regression_scorer([1.0, 2.0], [1.0, 2.0], ["p", "p"])
    with pytest.raises(DataError, match="1 repeats against 2"):
        compare_scorers([scorer], [scorer, scorer], 1)
    assert np.isnan(compare_scorers([scorer], [scorer], 1).p)
    with pytest.raises(DataError, match="the same shape"):
        multilabel_scorer([[1.0]], [[1.0, 0.0]])
