"""Concordance of predicted risks with times to an event, with an interval for small samples.

A metric is a function of how often each patient counts, so that a block of bootstrap resamples
is one matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scmil.core.shapes import Numbers
from scmil.errors import DataError
from scmil.stats.bootstrap import Groups, Interval, number_groups
from scmil.stats.small_samples import UNKNOWN, auc_interval, auc_variance
from scmil.stats.survival import censoring_distribution, check_survival

PAIRS_PER_BLOCK = 4_000_000
SIZE_PER_EVENT = 1.5  # samples of each class of an AUC with the variance of a concordance
PRIOR_EVENTS = 5  # weight of the model variance of a concordance against the observed one
Censoring = tuple[ArrayLike, ArrayLike]
Scorer = Callable[[Numbers], Numbers]  # counts (k, n) of the patients to k values


class Pairs(NamedTuple):
    """Pairs of patients to be ranked: the risks, the weight of each patient who is the first of a
    pair, and with whom (rows to True and False).
    """

    risk: Numbers
    weights: Numbers
    comparable: Callable[[NDArray[np.int64]], NDArray[np.bool_]]

    def blocks(self) -> Iterator[tuple[NDArray[np.int64], Numbers, Numbers]]:
        """Positions of first patients, their comparable pairs and those ranked correctly."""
        cases = np.flatnonzero(self.weights)
        step = max(1, PAIRS_PER_BLOCK // len(self.risk))
        for start in range(0, len(cases), step):
            rows = cases[start : start + step]
            pairs = self.comparable(rows).astype(float)
            own = self.risk[rows, None]
            yield rows, pairs, pairs * ((own > self.risk) + 0.5 * (own == self.risk))


def concordance(times: ArrayLike, events: ArrayLike, risk: ArrayLike) -> float:
    """Harrell's C: the share of comparable pairs in which the earlier event has the higher risk.

    A pair is comparable if the earlier time is an event, or at equal times one is an event and the
    other is censored. Equal risks count half.

    Args:
        times: Positive follow-up times (n,).
        events: 1 for an event, 0 for a censored time (n,).
        risk: Predicted risks (n,); higher means an earlier event.

    Returns:
        The concordance; NaN if no pair is comparable.

    Raises:
        DataError: If the input is invalid.

    >>> concordance([1, 2, 3], [1, 1, 0], [0.9, 0.1, 0.5])
    0.666...
    """
    t, e, r = check_risk(times, events, risk)
    return single_value(harrell_pairs(t, e, r), len(t))


def concordance_ipcw(
    times: ArrayLike,
    events: ArrayLike,
    risk: ArrayLike,
    tau: float | None = None,
    censoring: Censoring | None = None,
) -> float:
    """Uno's C: Harrell's C with weights that remove its dependence on the censoring.

    Args:
        times: Positive follow-up times (n,).
        events: 1 for an event, 0 for a censored time (n,).
        risk: Predicted risks (n,); higher means an earlier event.
        tau: Only events before this time count; None is all up to the end of the follow-up of
            `censoring`.
        censoring: Times and events of the sample that the censoring is estimated on, such as the
            training split; None is this sample.

    Returns:
        The concordance; NaN if no pair is comparable.

    Raises:
        DataError: If the input is invalid.

    >>> concordance_ipcw([1, 2, 3], [1, 1, 0], [0.9, 0.1, 0.5])
    0.666...
    """
    t, e, r = check_risk(times, events, risk)
    return single_value(uno_pairs(t, e, r, tau, censoring), len(t))


def concordance_interval(
    times: ArrayLike,
    events: ArrayLike,
    risk: ArrayLike,
    groups: Groups | None = None,
    *,
    ipcw: bool = False,
    censoring: Censoring | None = None,
) -> Interval:
    """The 95 % interval of a concordance, which has a width at a concordance of 1.

    It is the score interval of an AUC (`small_samples.auc_interval`) with 1.5 samples of each class
    for each event. The variance is scaled to that of the sample, patient by patient; the model
    counts as much as 5 events.

    Args:
        times: Positive follow-up times (n,).
        events: 1 for an event, 0 for a censored time (n,).
        risk: Predicted risks (n,); higher means an earlier event.
        groups: The patient of each row; None is a patient of its own.
        ipcw: Uno's concordance instead of Harrell's.
        censoring: Times and events of the sample that the censoring is estimated on.

    Returns:
        The interval; (NaN, NaN) for fewer than two patients or without a comparable pair.

    Raises:
        DataError: If the input is invalid.

    >>> times, risk = [1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1]
    >>> [round(end, 3) for end in concordance_interval(times, [1] * 6, risk)]
    [0.785, 1.0]
    """
    t, e, r = check_risk(times, events, risk)
    units = number_groups(groups, len(t))
    pairs = uno_pairs(t, e, r, None, censoring) if ipcw else harrell_pairs(t, e, r)
    events_of_patients = len(np.unique(units[e]))
    size = SIZE_PER_EVENT * events_of_patients
    weight = events_of_patients / (events_of_patients + PRIOR_EVENTS)
    return pairs_interval(pairs, units, (size, size), weight)


def pairs_interval(
    pairs: Pairs,
    units: NDArray[np.int64],
    sizes: tuple[float, float],
    weight: float,
    least_scale: float = 0.0,
) -> Interval:
    """The score interval of a share of pairs.

    Args:
        pairs: The pairs.
        units: The number of the patient of each row.
        sizes: Numbers of samples of an AUC with a similar variance.
        weight: Weight of the observed variance against that of the AUC, from 0 to 1.
        least_scale: Lower bound of the ratio of the two.

    Returns:
        The interval; (NaN, NaN) for fewer than two patients or without a comparable pair.
    """
    value, patients = single_value(pairs, len(units)), len(np.unique(units))
    if patients < 2 or not np.isfinite(value):
        return UNKNOWN
    influence, total = _pair_influence(pairs, value)
    by_patient = np.bincount(units, influence)
    observed = float(by_patient @ by_patient) * patients / (patients - 1)
    least = 0.5 / total
    x = NormalDist().inv_cdf(min(max(value, least), 1 - least))
    # Of pairs that are all ranked alike the observed variance is zero and says nothing.
    scale = weight * observed / auc_variance(x, *sizes) + 1 - weight if 0 < value < 1 else 1.0
    return auc_interval(value, *sizes, max(scale, least_scale))


def harrell_pairs(t: Numbers, e: NDArray[np.bool_], risk: Numbers) -> Pairs:
    """The pairs of Harrell's concordance."""
    return _later_pairs(t, e, risk, e.astype(float))


def uno_pairs(
    t: Numbers,
    e: NDArray[np.bool_],
    risk: Numbers,
    tau: float | None,
    censoring: Censoring | None,
) -> Pairs:
    """The pairs of Uno's concordance, with their weights."""
    weights, end = inverse_weights(t, e, censoring)
    used = (t < tau) & (t <= end) if tau is not None else t <= end
    return _later_pairs(t, e, risk, np.where(used, weights**2, 0.0))


def single_value(pairs: Pairs, n: int) -> float:
    """The share of correctly ranked pairs of n patients, each counted once."""
    return float(share_of_pairs(pairs, np.ones((1, n)))[0])


def share_of_pairs(pairs: Pairs, counts: Numbers) -> Numbers:
    """The weighted share of comparable pairs in which the first patient has the higher risk, for
    each way of counting the patients (k, n).
    """
    right, total = np.zeros(len(counts)), np.zeros(len(counts))
    for rows, comparable, ranked in pairs.blocks():
        case_counts = counts[:, rows] * pairs.weights[rows]
        right += (case_counts * (counts @ ranked.T)).sum(1)
        total += (case_counts * (counts @ comparable.T)).sum(1)
    return np.divide(right, total, out=np.full(len(counts), np.nan), where=total > 0)


def _pair_influence(pairs: Pairs, value: float) -> tuple[Numbers, float]:
    """How far each patient moves the share, and the number of comparable pairs."""
    influence, weighted, number = np.zeros(len(pairs.risk)), 0.0, 0.0
    for rows, comparable, ranked in pairs.blocks():
        surplus = (ranked - value * comparable) * pairs.weights[rows, None]
        influence += surplus.sum(0)
        influence[rows] += surplus.sum(1)
        weighted += float(pairs.weights[rows] @ comparable.sum(1))
        number += float(comparable.sum())
    return influence / weighted, number


def _later_pairs(t: Numbers, e: NDArray[np.bool_], risk: Numbers, weights: Numbers) -> Pairs:
    def comparable(rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        return (t > t[rows, None]) | ((t == t[rows, None]) & ~e)

    return Pairs(risk, weights, comparable)


def inverse_weights(
    t: Numbers, e: NDArray[np.bool_], censoring: Censoring | None
) -> tuple[Numbers, float]:
    """The inverse probability of each event not to be censored, 0 for censored times, and the end
    of the follow-up that it is known for.
    """
    free = censoring_distribution(*((t, e) if censoring is None else censoring))
    share = free.at(t)
    weights = np.divide(e.astype(float), share, out=np.zeros(len(t)), where=share > 0)
    return weights, float(free.times[-1])


def check_risk(
    times: ArrayLike, events: ArrayLike, risk: ArrayLike
) -> tuple[Numbers, NDArray[np.bool_], Numbers]:
    """Times, events and risks as arrays.

    Raises:
        DataError: If shapes or values are invalid.
    """
    t, e = check_survival(times, events)
    r = np.asarray(risk, dtype=float)
    if r.shape != t.shape or not np.isfinite(r).all():
        raise DataError(
            f"risks of shape {r.shape} for {len(t)} times, {(~np.isfinite(r)).sum()} of them not "
            "finite: one finite risk for each time is expected."
        )
    return t, e, r
