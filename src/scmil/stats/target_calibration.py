"""Calibration of predicted numbers and of predicted survival, beside that of probabilities in
`calibration`.

A number is calibrated if the observed numbers scatter around the predicted ones. Survival is
calibrated at a time if as many events occur up to it as predicted, for low and for high risks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scmil.core.shapes import Numbers
from scmil.errors import DataError
from scmil.stats.bootstrap import Groups, Interval, statistic_intervals
from scmil.stats.regression import check_numbers
from scmil.stats.small_samples import UNKNOWN
from scmil.stats.survival import KaplanMeier, check_survival, kaplan_meier

DRAWS = 1000  # of the bootstrap
STEPS = 40  # of the search for a slope
STEEPEST = 50.0  # a slope beyond it has no maximum of the likelihood


class NumberCalibration(NamedTuple):
    """Observed against predicted numbers. Perfect: intercept 0 and slope 1.

    `intercept` is the mean of observed minus predicted; `slope` is that of the regression of the
    observed on the predicted numbers: below 1 the predictions are too extreme.
    """

    intercept: float
    slope: float
    intervals: tuple[Interval, Interval]


class SurvivalGroup(NamedTuple):
    """Patients of similar predicted survival: their number, the mean prediction, and the
    Kaplan-Meier estimate at the same time.
    """

    patients: int
    predicted: float
    observed: float
    interval: Interval


class EventRatio(NamedTuple):
    """Observed events up to a time divided by the predicted ones; 1 is perfect."""

    value: float
    interval: Interval


def calibrate_numbers(
    truth: ArrayLike, predicted: ArrayLike, groups: Groups | None = None, seed: int = 0
) -> NumberCalibration:
    """The calibration intercept and slope of predicted numbers.

    Args:
        truth: Observed numbers (n,).
        predicted: Predicted numbers (n,).
        groups: The patient of each slide; None is a patient of its own.
        seed: Seed of the resamples.

    Returns:
        Intercept and slope with 95 % bootstrap intervals over patients; the slope is NaN if all
        predictions are equal.

    Raises:
        DataError: If the input is invalid.

    >>> found = calibrate_numbers([1.0, 3.0, 5.0], [2.0, 3.0, 4.0])
    >>> found.intercept, found.slope
    (0.0, 2.0)
    """
    y, p = check_numbers(truth, predicted)

    def both(rows: NDArray[np.int64]) -> tuple[float, float]:
        own, other = y[rows], p[rows]
        centred = other - other.mean()
        spread = float(centred @ centred)
        slope = float(centred @ own) / spread if spread > 1e-12 else math.nan
        return float((own - other).mean()), slope

    intervals = statistic_intervals(both, len(y), groups, DRAWS, seed)
    return NumberCalibration(*both(np.arange(len(y))), (intervals[0], intervals[1]))


def survival_slope(
    times: ArrayLike, events: ArrayLike, log_hazard: ArrayLike, seed: int = 0
) -> tuple[float, Interval]:
    """The coefficient of predicted logarithms of hazards in a Cox regression of the outcome.

    1 is perfect: below 1 the predicted risks are too extreme, at 0 they say nothing.

    Args:
        times: Positive follow-up times of patients (n,).
        events: 1 for an event, 0 for a censored time (n,).
        log_hazard: Log hazard ratios, or log(-log S) of the survival S at a time (n,).
        seed: Seed of the resamples.

    Returns:
        The slope, which is infinite if the order of the events is predicted without an error, and
        its 95 % bootstrap interval; NaN without events or with equal predictions.

    Raises:
        DataError: If the input is invalid.

    >>> slope, interval = survival_slope([1, 2, 3, 4], [1, 1, 1, 1], [1.0, 0.0, 0.5, 0.2])
    >>> round(slope, 2), interval.low < slope < interval.high
    (2.38, True)
    """
    t, e = check_survival(times, events)
    x = np.asarray(log_hazard, dtype=float)
    if x.shape != t.shape or not np.isfinite(x).all():
        raise DataError(f"log hazards {x.shape} for times {t.shape}: a finite number for each.")
    found = statistic_intervals(
        lambda rows: _cox_slope(t[rows], e[rows], x[rows]), len(t), None, DRAWS, seed
    )
    return _cox_slope(t, e, x), found[0]


def calibrate_survival(
    times: ArrayLike, events: ArrayLike, survival: ArrayLike, at: float, parts: int = 3
) -> tuple[EventRatio, list[SurvivalGroup]]:
    """Predicted survival at a time against the Kaplan-Meier estimate.

    Args:
        times: Positive follow-up times of patients (n,).
        events: 1 for an event, 0 for a censored time (n,).
        survival: Predicted probability of no event up to the time `at` (n,).
        at: The time.
        parts: Number of groups of equal size by predicted survival.

    Returns:
        The ratio of observed and predicted events of all patients, and predicted and observed
        survival of each group, lowest first. Limits are those of Kaplan-Meier, which do not exist
        at a time without a patient at risk.

    Raises:
        DataError: If the input is invalid.

    >>> ratio, groups = calibrate_survival([1, 2, 3, 4], [1, 0, 1, 0], [0.6, 0.7, 0.8, 0.9], 1.5, 2)
    >>> round(ratio.value, 3), [(group.patients, group.observed) for group in groups]
    (1.0, [(2, 0.5), (2, 1.0)])
    """
    t, e = check_survival(times, events)
    s = np.asarray(survival, dtype=float)
    if s.shape != t.shape or not ((s >= 0) & (s <= 1)).all():
        raise DataError(f"survival {s.shape} for times {t.shape}: a probability for each.")
    observed, (low, high) = _at(kaplan_meier(t, e), at)
    expected = float(1 - s.mean())
    ratio, limits = math.nan, UNKNOWN
    if expected > 0:
        ratio = (1 - observed) / expected
        limits = Interval((1 - high) / expected, (1 - low) / expected)
    order = np.argsort(s, kind="stable")
    groups = [
        SurvivalGroup(len(rows), float(s[rows].mean()), *_at(kaplan_meier(t[rows], e[rows]), at))
        for rows in np.array_split(order, parts)
        if len(rows)
    ]
    return EventRatio(ratio, limits), groups


def horizon(times: ArrayLike, events: ArrayLike, candidates: Sequence[float] = ()) -> float | None:
    """The time at which survival is judged: the middle candidate, or the median time of events.

    >>> horizon([1, 2, 3], [1, 1, 1]), horizon([1, 2], [0, 0]), horizon([1, 2], [1, 1], [1, 1.5, 2])
    (2.0, None, 1.5)
    """
    t, e = check_survival(times, events)
    if not e.any():
        return None
    return float(np.median(t[e])) if not len(candidates) else candidates[len(candidates) // 2]


def _at(estimate: KaplanMeier, time: float) -> tuple[float, Interval]:
    """The estimate at a time with its limits; unknown beyond the last follow-up."""
    place = int(np.searchsorted(estimate.times, time, side="right")) - 1
    if time > estimate.times[-1]:
        return math.nan, UNKNOWN
    if place < 0 or estimate.survival[place] == 1:
        return 1.0, UNKNOWN
    own = float(estimate.survival[place])
    return own, Interval(float(estimate.low[place]), float(estimate.high[place]))


def _cox_slope(t: Numbers, e: NDArray[np.bool_], x: Numbers) -> float:
    """The root of the score of Cox's partial likelihood with Breslow's ties, by bisection."""
    if not e.any() or np.ptp(x) < 1e-12:
        return math.nan
    order = np.argsort(-t, kind="stable")
    time, event, value = t[order], e[order], x[order] - x.min()
    log_value = np.log(np.maximum(value, 1e-300))
    # The last row with at least this time: all of the risk set are before it.
    ends = np.searchsorted(-time, -time[event], side="right") - 1

    def score(slope: float) -> float:
        sums = [
            np.logaddexp.accumulate(slope * value + add)[ends] for add in (log_value, 0.0)
        ]  # logarithms: a steep slope would overflow
        return float((value[event] - np.exp(sums[0] - sums[1])).sum())

    low, high = -STEEPEST / np.std(value), STEEPEST / np.std(value)
    nothing = 1e-9 * float(np.ptp(value)) * len(value)
    if score(high) > -nothing:  # every event has the highest value of its risk set
        return math.inf
    if score(low) < nothing:
        return -math.inf
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if score(middle) >= 0 else (low, middle)
    return float((low + high) / 2)
