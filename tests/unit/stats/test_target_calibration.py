"""Calibration of numbers and of survival, compared with independent numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from scmil.errors import DataError
from scmil.models.target_losses import cox_loss
from scmil.stats.survival import kaplan_meier
from scmil.stats.target_calibration import (
    calibrate_numbers,
    calibrate_survival,
    horizon,
    survival_slope,
)


def survival(n: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, events and the true log hazards."""
    random = np.random.default_rng(seed)
    log_hazard = random.normal(size=n)
    times, ends = random.exponential(np.exp(-log_hazard)), random.exponential(3.0, n)
    return np.minimum(times, ends), (times <= ends).astype(float), log_hazard


def test_the_slope_is_that_of_a_cox_regression() -> None:
    times, events, x = survival(60)
    weight = torch.zeros(1, dtype=torch.double, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight], 0.5, 200, tolerance_change=1e-15)
    values = [torch.tensor(own) for own in (x, times, events)]

    def closure() -> float:
        optimiser.zero_grad()
        loss = cox_loss(values[0] * weight, values[1], values[2] > 0)
        loss.backward()
        return float(loss.detach())

    optimiser.step(closure)
    slope, interval = survival_slope(times, events, x)
    assert slope == pytest.approx(float(weight.detach()), abs=1e-6)
    assert interval.low < slope < interval.high


def test_risks_that_are_twice_too_large_have_half_the_slope() -> None:
    times, events, x = survival()
    right, twice = (survival_slope(times, events, factor * x) for factor in (1, 2))
    assert right[1].low < 1 < right[1].high
    assert twice[0] == pytest.approx(right[0] / 2, abs=1e-6)
    assert twice[1].high < 1


def test_slopes_that_do_not_exist_are_infinite_or_unknown() -> None:
    times = [1.0, 2.0, 3.0, 4.0]
    assert survival_slope(times, [1] * 4, [4.0, 3.0, 2.0, 1.0])[0] == math.inf
    assert survival_slope(times, [1] * 4, [1.0, 2.0, 3.0, 4.0])[0] == -math.inf
    assert math.isnan(survival_slope(times, [0] * 4, [1.0, 2.0, 3.0, 4.0])[0])
    assert math.isnan(survival_slope(times, [1] * 4, [1.0] * 4)[0])
    with pytest.raises(DataError, match="a finite number for each"):
        survival_slope(times, [1] * 4, [1.0, math.nan, 0.0, 0.0])


def test_true_survival_is_calibrated_and_halved_risks_are_not() -> None:
    times, events, x = survival(3000)
    at = 1.0
    truth = np.exp(-np.exp(x) * at)
    ratio, groups = calibrate_survival(times, events, truth, at)
    assert ratio.interval.low < 1 < ratio.interval.high
    for group in groups:
        assert group.observed == pytest.approx(group.predicted, abs=0.04)
        assert group.interval.low < group.observed < group.interval.high
    assert [group.patients for group in groups] == [1000] * 3
    assert groups[0].predicted < groups[1].predicted < groups[2].predicted
    doubled, _ = calibrate_survival(times, events, 1 - (1 - truth) / 2, at)
    assert doubled.value == pytest.approx(2 * ratio.value)
    assert doubled.interval.low > 1.5
    whole = kaplan_meier(times, events).at([at])[0]
    assert ratio.value == pytest.approx((1 - whole) / (1 - truth.mean()))


def test_survival_beyond_the_follow_up_is_unknown() -> None:
    ratio, groups = calibrate_survival([1, 2, 3], [1, 0, 1], [0.5, 0.6, 0.7], at=9)
    assert math.isnan(ratio.value)
    assert math.isnan(groups[0].observed)
    with pytest.raises(DataError, match="a probability for each"):
        calibrate_survival([1, 2], [1, 0], [0.5, 1.5], at=1)


def test_the_horizon_is_the_middle_time_or_that_of_the_events() -> None:
    assert horizon([1, 2, 9], [1, 1, 0]) == 1.5
    assert horizon([1, 2, 9], [1, 1, 0], (1.0, 3.0, 5.0)) == 3.0
    assert horizon([1, 2], [0, 0], (1.0,)) is None


def test_slope_and_intercept_of_numbers_are_those_of_a_regression() -> None:
    random = np.random.default_rng(0)
    predicted = random.normal(size=50)
    truth = 0.5 * predicted + 2 + random.normal(size=50) / 10
    found = calibrate_numbers(truth, predicted)
    assert found.slope == pytest.approx(np.polyfit(predicted, truth, 1)[0])
    assert found.intercept == pytest.approx(float((truth - predicted).mean()))
    assert found.intervals[1].low < found.slope < found.intervals[1].high < 0.6
    pairs = calibrate_numbers(np.repeat(truth, 4), np.repeat(predicted, 4), np.repeat(range(50), 4))
    once = found.intervals[1].high - found.intervals[1].low
    assert pairs.intervals[1].high - pairs.intervals[1].low == pytest.approx(once, rel=0.2)
    assert math.isnan(calibrate_numbers([1.0, 2.0], [3.0, 3.0]).slope)
