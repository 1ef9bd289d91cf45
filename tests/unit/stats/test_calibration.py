"""Calibration, decision curves and conformal sets agree with their definitions and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scmil.errors import DataError
from scmil.stats.bootstrap import statistic_intervals
from scmil.stats.calibration import (
    brier_parts,
    error_intervals,
    fit_temperature,
    recalibrate,
    recalibration_intervals,
    reliability_table,
    temper,
)
from scmil.stats.conformal import conformal_threshold, prediction_sets, set_coverage
from scmil.stats.decision_curve import decision_curve
from scmil.stats.metrics import brier, calibration_error

RANDOM = np.random.default_rng(5)
SCORES = RANDOM.random(300)
LABELS = (RANDOM.random(300) < SCORES**2).astype(int)
BOTH = np.stack([1 - SCORES, SCORES], axis=1)


def logit(p: np.ndarray) -> np.ndarray:
    return np.log(p / (1 - p))


def test_the_parts_of_the_brier_score_add_up_to_it() -> None:
    parts = brier_parts(LABELS, SCORES)
    total = parts.reliability - parts.resolution + parts.uncertainty + parts.within
    assert total == pytest.approx(brier(LABELS, BOTH), abs=1e-12)
    assert parts.uncertainty == pytest.approx(LABELS.mean() * (1 - LABELS.mean()))
    # Scores on a grid of one value per bin leave nothing out.
    grid = (np.floor(SCORES * 10) + 0.5) / 10
    assert brier_parts(LABELS, grid).within == pytest.approx(0, abs=1e-12)


def test_the_reliability_table_gives_the_calibration_error() -> None:
    table = reliability_table(LABELS, SCORES)
    assert sum(row.slides for row in table) == 300
    error = sum(row.slides * abs(row.predicted - row.observed) for row in table) / 300
    assert error == pytest.approx(calibration_error(LABELS, BOTH), abs=1e-12)
    for row in table:
        assert row.low <= row.predicted <= row.high
        assert row.interval.low <= row.observed <= row.interval.high
    pairs = reliability_table(LABELS, SCORES, groups=[i // 2 for i in range(300)])
    assert [row.observed for row in pairs] == [row.observed for row in table]


def test_intercept_and_slope_are_those_of_scikit_learn() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    x = logit(SCORES)[:, None]
    theirs = linear.LogisticRegression(C=np.inf, tol=1e-12, max_iter=1000).fit(x, LABELS)
    ours = recalibrate(LABELS, SCORES)
    assert ours.slope == pytest.approx(float(theirs.coef_[0, 0]), abs=1e-6)
    shifted = 1 / (1 + np.exp(-(logit(SCORES) + ours.intercept)))
    assert shifted.mean() == pytest.approx(LABELS.mean(), abs=1e-9)


def test_true_probabilities_are_calibrated_and_halved_logits_have_slope_two() -> None:
    random = np.random.default_rng(0)
    p = random.random(20_000)
    y = random.random(20_000) < p
    assert recalibrate(y, p) == pytest.approx((0.0, 1.0), abs=0.06)
    halved = 1 / (1 + np.exp(-logit(p) / 2))
    assert recalibrate(y, halved).slope == pytest.approx(2 * recalibrate(y, p).slope, abs=1e-6)


def test_separated_constant_and_single_classes_are_marked() -> None:
    assert recalibrate([0, 0, 1], [0.1, 0.2, 0.3]).slope == math.inf
    assert recalibrate([1, 1, 0], [0.1, 0.2, 0.3]).slope == -math.inf
    assert math.isnan(recalibrate([0, 1], [0.3, 0.3]).slope)
    assert math.isnan(recalibrate([1, 1], [0.3, 0.4]).intercept)
    assert math.isfinite(recalibrate([0, 1, 0, 1], [0.0, 1.0, 1.0, 0.0]).slope)


def test_recalibration_intervals_contain_the_estimates() -> None:
    ours = recalibrate(LABELS, SCORES)
    intervals = recalibration_intervals(LABELS, SCORES, draws=100)
    assert intervals["slope"].low < ours.slope < intervals["slope"].high
    assert intervals["intercept"].low < ours.intercept < intervals["intercept"].high


def test_the_temperature_maximises_the_likelihood() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    random = np.random.default_rng(0)
    logits = random.normal(size=(200, 3)) * 3
    labels = np.array([random.choice(3, p=p) for p in temper(logits, 2.0)])

    def loss(t: float) -> float:
        return -np.log(temper(logits, t)[np.arange(200), labels]).mean()

    ours = fit_temperature(labels, logits)
    theirs = optimize.minimize_scalar(loss, bounds=(0.1, 20), method="bounded").x
    assert ours == pytest.approx(theirs, abs=1e-4)
    assert loss(ours) <= loss(theirs) + 1e-12
    assert ours == pytest.approx(2.0, abs=0.5)
    assert (temper(logits, ours).argmax(1) == logits.argmax(1)).all()


def test_the_temperature_stays_between_its_limits() -> None:
    assert fit_temperature([0, 1], [[5.0, 0.0], [0.0, 5.0]]) == pytest.approx(0.01)
    assert fit_temperature([1, 0], [[5.0, 0.0], [0.0, 5.0]]) == pytest.approx(100)
    assert fit_temperature([1, 0], [[1.0, 1.0], [2.0, 2.0]]) == 1.0


def test_net_benefit_follows_its_definition() -> None:
    thresholds = [0.1, 0.3, 0.8]
    curve = decision_curve(LABELS, SCORES, thresholds, draws=200)
    for i, t in enumerate(thresholds):
        acted = t < SCORES
        true, false = (acted & (LABELS == 1)).sum(), (acted & (LABELS == 0)).sum()
        assert curve.model[i] == pytest.approx((true - false * t / (1 - t)) / 300)
        assert curve.low[i] < curve.model[i] < curve.high[i]
        base = LABELS.mean()
        assert curve.everybody[i] == pytest.approx(base - (1 - base) * t / (1 - t))
    assert len(decision_curve(LABELS, SCORES, draws=10).thresholds) == 99
    assert np.isnan(decision_curve([0, 1], [0.2, 0.8], [0.5], ["a", "a"]).low).all()


def test_conformal_sets_cover_patients_as_often_as_they_say() -> None:
    """Over many splits the coverage is at least 1 - error, and not much more."""
    random = np.random.default_rng(0)
    covered = []
    for _ in range(200):
        p = random.dirichlet(np.ones(3), size=240)
        labels = np.array([random.choice(3, p=row) for row in p])
        threshold = conformal_threshold(labels[:40], p[:40], error=0.2)
        covered.append(set_coverage(labels[40:], p[40:], threshold).coverage)
    assert 0.80 <= np.mean(covered) + 0.005 < 0.835


def test_too_few_patients_give_sets_of_all_classes() -> None:
    assert conformal_threshold([0] * 8, [[0.9, 0.1]] * 8, error=0.1) == 0.0
    assert conformal_threshold([0] * 9, [[0.9, 0.1]] * 9, error=0.1) == 0.9
    assert prediction_sets([[0.9, 0.1]], 0.0).all()


def test_slides_of_one_patient_count_as_one() -> None:
    labels = np.repeat([0, 1, 0, 1, 1], 2)
    p = RANDOM.dirichlet([1, 1], 10)
    groups = np.repeat(np.arange(5), 2).tolist()
    mean = p.reshape(5, 2, 2).mean(1)
    expected = conformal_threshold(labels[::2], mean, error=0.4)
    assert conformal_threshold(labels, p, 0.4, groups) == pytest.approx(expected)
    coverage = set_coverage(labels, p, 0.3, groups)
    assert coverage.patients == 5
    assert coverage.interval.low < coverage.coverage <= coverage.interval.high
    with pytest.raises(DataError, match="1 patients have slides of different classes"):
        conformal_threshold([0, 1, 1], [[0.5, 0.5]] * 3, 0.1, ["a", "a", "b"])


@pytest.mark.parametrize("classes", [2, 3])
def test_intervals_of_errors_are_those_of_the_metrics_of_each_resample(classes: int) -> None:
    random = np.random.default_rng(classes)
    labels, p = random.integers(0, classes, 40), random.dirichlet(np.ones(classes), 40)
    patients = [*range(20), *random.integers(0, 20, 20).tolist()]
    found = error_intervals(labels, p, np.array(patients), draws=60, seed=3)
    expected = statistic_intervals(
        lambda rows: [metric(labels[rows], p[rows]) for metric in (brier, calibration_error)],
        *(40, patients, 60, 3),
    )
    assert found["brier"] == pytest.approx(expected[0], abs=1e-12)
    assert found["calibration_error"] == pytest.approx(expected[1], abs=1e-12)
    alone = error_intervals(labels, p, np.zeros(40, np.int64))
    assert np.isnan([*alone["brier"], *alone["calibration_error"]]).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: recalibrate([0, 1], [0.5]), "shape"),
        (lambda: recalibrate([0, 2], [0.5, 0.5]), "labels must be 0 or 1"),
        (lambda: brier_parts([0, 1], [0.5, 1.5]), "between 0 and 1"),
        (lambda: fit_temperature([0], [0.5]), "shapes"),
        (lambda: fit_temperature([2], [[0.5, 0.5]]), "integers from 0 to 1"),
        (lambda: decision_curve([0, 1], [0.2, 0.8], [1.0]), "above 0 and below 1"),
        (lambda: conformal_threshold([0], [[0.5, 0.5]], 0.0), "above 0 and below 1"),
        (lambda: conformal_threshold([2], [[0.5, 0.5]]), "integers from 0 to 1"),
        (lambda: conformal_threshold([0, 1], [[0.5, 0.5]]), "shapes"),
        (lambda: set_coverage([0], [[math.nan, 0.5]], 0.5), "finite"),
    ],
)
def test_invalid_input_is_rejected(call: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        call()
