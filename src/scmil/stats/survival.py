"""Times to an event with censoring: Kaplan-Meier estimate and log-rank test, in NumPy.

A time is the follow-up of a patient. An event of 1 says that it ended with the event; with 0 the
patient was lost to follow-up (censored), and the event came later, if at all. An event and a
censoring at the same time count in this order.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scmil.core.shapes import Numbers
from scmil.errors import DataError
from scmil.stats.bootstrap import Z


@dataclass(frozen=True)
class KaplanMeier:
    """The share of patients without the event as a step function of time.

    Attributes:
        times: The distinct times, ascending.
        at_risk: Number of patients who are followed up to each time.
        events: Number of events at each time.
        censored: Number of patients who are censored at each time.
        survival: Share without the event after each time.
        low: Lower limits, 95 %, by the log-log transformation of Greenwood's variance.
        high: Upper limits.
    """

    times: Numbers
    at_risk: NDArray[np.int64]
    events: NDArray[np.int64]
    censored: NDArray[np.int64]
    survival: Numbers
    low: Numbers
    high: Numbers

    def at(self, times: ArrayLike) -> Numbers:
        """The share without the event after each of the given times; 1 before the first."""
        return np.append(1.0, self.survival)[np.searchsorted(self.times, times, side="right")]

    def at_risk_at(self, times: ArrayLike) -> NDArray[np.int64]:
        """The number of patients who are followed up to each of the given times."""
        return np.append(self.at_risk, 0)[np.searchsorted(self.times, times, side="left")]

    @property
    def median(self) -> float:
        """The first time at which the share is at most one half; NaN if it is never reached."""
        below = np.flatnonzero(self.survival <= 0.5)
        return float(self.times[below[0]]) if len(below) else math.nan


class LogRank(NamedTuple):
    """The log-rank test of equal survival in all groups."""

    chi_square: float
    degrees: int
    p_value: float


def kaplan_meier(times: ArrayLike, events: ArrayLike) -> KaplanMeier:
    """The Kaplan-Meier estimate with numbers at risk.

    Args:
        times: Positive follow-up times (n,).
        events: 1 for an event, 0 for a censored time (n,).

    Returns:
        The estimate at each distinct time.

    Raises:
        DataError: If the times are not finite, or the events are not 0 or 1.

    >>> estimate = kaplan_meier([1, 2, 2, 3], [1, 1, 0, 1])
    >>> estimate.survival.tolist(), estimate.at_risk.tolist()
    ([0.75, 0.5, 0.0], [4, 3, 1])
    """
    t, e = check_survival(times, events)
    distinct, position = np.unique(t, return_inverse=True)
    ended = np.bincount(position, minlength=len(distinct))
    died = np.bincount(position, e, minlength=len(distinct)).astype(np.int64)
    at_risk = len(t) - np.append(0, np.cumsum(ended)[:-1])
    survival = np.cumprod(1 - died / at_risk)
    low, high = _log_log_limits(survival, at_risk, died)
    return KaplanMeier(distinct, at_risk, died, ended - died, survival, low, high)


def censoring_distribution(times: ArrayLike, events: ArrayLike) -> KaplanMeier:
    """The Kaplan-Meier estimate of not being censored, for inverse probability weights.

    Patients with an event are not at risk of a censoring at the same time.

    Args:
        times: Positive follow-up times (n,).
        events: 1 for an event, 0 for a censored time (n,).

    Returns:
        The estimate at each distinct time; its events are the censorings.

    >>> censoring_distribution([1, 2, 2, 3], [1, 1, 0, 1]).survival.tolist()
    [1.0, 0.5, 0.5]
    """
    direct = kaplan_meier(times, events)
    at_risk = np.maximum(direct.at_risk - direct.events, 1)
    survival = np.cumprod(1 - direct.censored / at_risk)
    low, high = _log_log_limits(survival, at_risk, direct.censored)
    return KaplanMeier(direct.times, at_risk, direct.censored, direct.events, survival, low, high)


def log_rank(times: ArrayLike, events: ArrayLike, groups: Sequence[Hashable]) -> LogRank:
    """The log-rank test of two or more groups.

    Args:
        times: Positive follow-up times (n,).
        events: 1 for an event, 0 for a censored time (n,).
        groups: The group of each patient.

    Returns:
        The statistic, its degrees of freedom and its p-value.

    Raises:
        DataError: If there are fewer than two groups, or the input is invalid.

    >>> round(log_rank([1, 2, 3, 4, 5, 6], [1] * 6, ["a"] * 3 + ["b"] * 3).p_value, 4)
    0.0246
    """
    t, e = check_survival(times, events)
    names = list(dict.fromkeys(groups))
    if len(groups) != len(t) or len(names) < 2:
        raise DataError(
            f"{len(groups)} groups with {len(names)} different values for {len(t)} times: a group "
            "for each time and at least two groups are expected. Choose another cut-off."
        )
    member = np.array([[group == name for name in names] for group in groups], dtype=float)
    distinct = np.unique(t[e])
    at_risk = (t >= distinct[:, None]).astype(float) @ member  # (times, groups)
    died = ((t == distinct[:, None]) & e).astype(float) @ member
    n, d = at_risk.sum(1), died.sum(1)
    share = at_risk / n[:, None]
    surplus = (died - d[:, None] * share).sum(0)
    factor = d * np.divide(n - d, n - 1, out=np.zeros_like(n), where=n > 1)
    covariance = np.diag(factor @ share) - (share * factor[:, None]).T @ share
    # The surpluses add up to zero: one group says nothing new.
    inverse = np.linalg.pinv(covariance[1:, 1:], hermitian=True)
    statistic = float(surplus[1:] @ inverse @ surplus[1:])
    degrees = len(names) - 1
    return LogRank(statistic, degrees, chi_square_tail(statistic, degrees))


def majority_of_patients(units: NDArray[np.int64], high: ArrayLike) -> NDArray[np.bool_]:
    """Whether more than half of the slides of each patient have a high risk.

    Args:
        units: The number of the patient of each slide, from 0.
        high: Whether the risk of each slide is high (n,).

    Returns:
        One value for each patient.

    >>> majority_of_patients(np.array([0, 0, 1, 2]), [True, False, True, False]).tolist()
    [False, True, False]
    """
    share = np.bincount(units, np.asarray(high, dtype=float)) / np.bincount(units)
    return np.asarray(share > 0.5)


def chi_square_tail(statistic: float, degrees: int) -> float:
    """The probability that a chi-square variable is larger than the statistic.

    Args:
        statistic: The value of the statistic.
        degrees: Degrees of freedom, at least 1.

    Returns:
        The p-value of a test with this statistic.

    >>> round(chi_square_tail(3.841459, 1), 4), round(chi_square_tail(5.991465, 2), 4)
    (0.05, 0.05)
    """
    half = max(statistic, 0.0) / 2
    if degrees % 2:
        tail, term = math.erfc(math.sqrt(half)), math.exp(-half) * math.sqrt(half / math.pi) * 2
        first = 1.5
    else:
        tail, term = math.exp(-half), math.exp(-half) * half
        first = 2.0
    for step in range((degrees - 1) // 2):
        tail += term
        term *= half / (first + step)
    return min(tail, 1.0)


def check_survival(times: ArrayLike, events: ArrayLike) -> tuple[Numbers, NDArray[np.bool_]]:
    """The times and events as arrays of numbers and of True and False.

    Raises:
        DataError: If the shapes differ, a time is not finite, or an event is not 0 or 1.

    >>> check_survival([1, 2], [True, False])[1].tolist()
    [True, False]
    """
    t, e = np.asarray(times, dtype=float), np.asarray(events)
    if t.ndim != 1 or t.shape != e.shape or not len(t):
        raise DataError(
            f"times {t.shape} and events {e.shape}: both must have the shape (n,) with n > 0."
        )
    if not np.isfinite(t).all():
        raise DataError(
            f"{(~np.isfinite(t)).sum()} of {len(t)} times are not finite. Leave them out."
        )
    if e.dtype.kind not in "iufb" or not np.isin(e, (0, 1)).all():
        raise DataError("events must be 1 (event) or 0 (censored). Recode them.")
    return t, e.astype(bool)


def _log_log_limits(
    survival: Numbers, at_risk: NDArray[np.int64], died: NDArray[np.int64]
) -> tuple[Numbers, Numbers]:
    inside = (survival > 0) & (survival < 1)
    left = at_risk * (at_risk - died)
    variance = np.cumsum(np.divide(died, left, out=np.zeros(len(left)), where=left > 0))
    log = np.log(survival, out=np.full(len(survival), -1.0), where=inside)
    shift = Z * np.sqrt(variance) / log
    low, high = (np.where(inside, np.exp(log * np.exp(s)), survival) for s in (-shift, shift))
    return low, high
