"""How well predicted risks and survival curves agree with times to an event.

Harrell's and Uno's concordance, the cumulative/dynamic AUC and the Brier score. Except for
Harrell's, each event is weighted by the inverse probability of not being censored, estimated by
Kaplan and Meier on a sample that can be another one, such as the training split. All metrics are
functions of how often each patient counts, so that every resample of the bootstrap is one row of a
matrix product. The weights of the censoring are not estimated again in the resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scmil.core.shapes import Numbers
from scmil.errors import DataError
from scmil.stats.bootstrap import (
    Groups,
    Interval,
    draw_counts,
    number_groups,
    percentile_interval,
)
from scmil.stats.survival import censoring_distribution, check_survival, kaplan_meier

PAIRS_PER_BLOCK = 4_000_000
Censoring = tuple[ArrayLike, ArrayLike]
Scorer = Callable[[Numbers], Numbers]  # counts (k, n) of the patients to k values


class SurvivalScore(NamedTuple):
    """A metric with its 95 % interval."""

    value: float
    interval: Interval


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
    return _single(_harrell(*_check_risk(times, events, risk)), len(np.asarray(times)))


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
    scorer = _uno(*_check_risk(times, events, risk), tau, censoring)
    return _single(scorer, len(np.asarray(times)))


def time_dependent_auc(
    times: ArrayLike,
    events: ArrayLike,
    risk: ArrayLike,
    at: ArrayLike,
    censoring: Censoring | None = None,
) -> Numbers:
    """The cumulative/dynamic AUC: patients with an event up to a time against those beyond it.

    Args:
        times: Positive follow-up times (n,).
        events: 1 for an event, 0 for a censored time (n,).
        risk: Predicted risks (n,); higher means an earlier event.
        at: Times (k,).
        censoring: Times and events of the sample that the censoring is estimated on; None is this
            sample.

    Returns:
        The AUC at each time; NaN without an event before it or a patient after it, and after the
        follow-up of `censoring`.

    Raises:
        DataError: If the input is invalid.

    >>> time_dependent_auc([1, 2, 3, 4], [1, 1, 1, 0], [4, 3, 1, 2], at=[2.5, 3.5]).tolist()
    [1.0, 0.666...]
    """
    checked = _check_risk(times, events, risk)
    n = len(checked[0])
    points = np.atleast_1d(np.asarray(at, dtype=float))
    return np.array([_single(_dynamic_auc(*checked, t, censoring), n) for t in points])


def mean_auc(auc: ArrayLike, at: ArrayLike, times: ArrayLike, events: ArrayLike) -> float:
    """The mean of time-dependent AUCs, weighted by the share of events between the times.

    Args:
        auc: The AUC at each time (k,).
        at: Ascending times (k,).
        times: Follow-up times of the sample that the share of events is estimated on.
        events: Its events.

    Returns:
        The weighted mean; NaN if an AUC is NaN or there is no event up to the last time.

    >>> mean_auc([0.8, 0.6], [1.5, 2.5], [1, 2, 3], [1, 1, 1])
    0.7
    """
    return float(np.asarray(auc, dtype=float) @ _event_shares(at, times, events))


def survival_brier(
    times: ArrayLike,
    events: ArrayLike,
    survival: ArrayLike,
    at: ArrayLike,
    censoring: Censoring | None = None,
) -> Numbers:
    """The Brier score of predicted survival at given times, weighted for censoring (Graf 1999).

    Args:
        times: Positive follow-up times (n,).
        events: 1 for an event, 0 for a censored time (n,).
        survival: Predicted probabilities of no event up to each time (n, k).
        at: Times (k,).
        censoring: Times and events of the sample that the censoring is estimated on; None is this
            sample.

    Returns:
        The score at each time; NaN after the follow-up of `censoring`.

    Raises:
        DataError: If the input is invalid.

    >>> survival_brier([1, 2, 3], [1, 1, 1], [[0.5], [0.5], [0.5]], at=[1.5]).tolist()
    [0.25]
    """
    losses = _brier_losses(times, events, survival, at, censoring)
    return losses.mean(0)


def integrated_brier(
    times: ArrayLike,
    events: ArrayLike,
    survival: ArrayLike,
    at: ArrayLike,
    censoring: Censoring | None = None,
) -> float:
    """The mean Brier score between the first and the last of the given times (trapezoid rule).

    Args:
        times: Positive follow-up times (n,).
        events: 1 for an event, 0 for a censored time (n,).
        survival: Predicted probabilities of no event up to each time (n, k).
        at: At least two ascending times (k,).
        censoring: Times and events of the sample that the censoring is estimated on; None is this
            sample.

    Returns:
        The integrated score; NaN if the last time is after the follow-up of `censoring`.

    Raises:
        DataError: If the input is invalid.

    >>> integrated_brier([1, 2, 3], [1, 1, 1], [[0.5, 0.5]] * 3, at=[1.5, 2.5])
    0.25
    """
    losses = _brier_losses(times, events, survival, at, censoring)
    return float(losses.mean(0) @ _trapezoid_weights(at))


def survival_intervals(
    times: ArrayLike,
    events: ArrayLike,
    risk: ArrayLike,
    *,
    survival: ArrayLike | None = None,
    at: Sequence[float] = (),
    censoring: Censoring | None = None,
    groups: Groups | None = None,
    draws: int = 2000,
    seed: int = 0,
) -> dict[str, SurvivalScore]:
    """All survival metrics with 95 % bootstrap intervals over patients.

    Args:
        times: Positive follow-up times (n,).
        events: 1 for an event, 0 for a censored time (n,).
        risk: Predicted risks (n,); higher means an earlier event.
        survival: Predicted survival at the times `at` (n, k), for the Brier score.
        at: Times of the AUC and of the Brier score, ascending.
        censoring: Times and events of the sample that the censoring is estimated on, such as the
            training split; None is this sample.
        groups: The patient of each row; None is a patient of its own.
        draws: Number of resamples.
        seed: Seed of the resamples.

    Returns:
        `c_index` and `uno_c`; with `at` also `auc` (the mean over the times) and `auc@t`; with
        `survival` and two times also `integrated_brier`.

    Raises:
        DataError: If the input is invalid.

    >>> scores = survival_intervals([1, 2, 3, 4], [1, 1, 1, 0], [4, 3, 2, 1], draws=50)
    >>> scores["c_index"].value
    1.0
    """
    t, e, r = _check_risk(times, events, risk)
    scorers = {"c_index": _harrell(t, e, r), "uno_c": _uno(t, e, r, None, censoring)}
    if len(at):
        points = {f"auc@{point:g}": _dynamic_auc(t, e, r, point, censoring) for point in at}
        scorers["auc"] = _mean_scorer(list(points.values()), _event_shares(at, t, e))
        scorers |= points
    if survival is not None and len(at) > 1:
        loss = _brier_losses(t, e, survival, at, censoring) @ _trapezoid_weights(at)
        scorers["integrated_brier"] = lambda counts: (counts @ loss) / counts.sum(1)
    units = number_groups(groups, len(t))
    patients = int(units.max()) + 1
    resamples: dict[str, list[Numbers]] = {name: [np.empty(0)] for name in scorers}
    if patients > 1:
        for counts in draw_counts(patients, draws, np.random.default_rng(seed)):
            rows = counts[:, units].astype(float)
            for name, scorer in scorers.items():
                resamples[name].append(scorer(rows))
    return {
        name: SurvivalScore(
            _single(scorer, len(t)), percentile_interval(np.concatenate(resamples[name]))
        )
        for name, scorer in scorers.items()
    }


def _event_shares(at: ArrayLike, times: ArrayLike, events: ArrayLike) -> Numbers:
    """The share of events between the times; NaN without an event."""
    share = kaplan_meier(times, events).at(np.asarray(at, dtype=float))
    steps = -np.diff(np.append(1.0, share))
    return steps / steps.sum() if steps.sum() > 0 else np.full(len(steps), np.nan)


def _mean_scorer(scorers: list[Scorer], shares: Numbers) -> Scorer:
    return lambda counts: np.stack([scorer(counts) for scorer in scorers], axis=1) @ shares


def _single(scorer: Scorer, n: int) -> float:
    return float(scorer(np.ones((1, n)))[0])


def _harrell(t: Numbers, e: NDArray[np.bool_], risk: Numbers) -> Scorer:
    return _later_pairs(t, e, risk, e.astype(float))


def _uno(
    t: Numbers,
    e: NDArray[np.bool_],
    risk: Numbers,
    tau: float | None,
    censoring: Censoring | None,
) -> Scorer:
    weights, end = _inverse_weights(t, e, censoring)
    used = (t < tau) & (t <= end) if tau is not None else t <= end
    return _later_pairs(t, e, risk, np.where(used, weights**2, 0.0))


def _later_pairs(t: Numbers, e: NDArray[np.bool_], risk: Numbers, weights: Numbers) -> Scorer:
    def comparable(rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        return (t > t[rows, None]) | ((t == t[rows, None]) & ~e)

    return lambda counts: _share_of_pairs(risk, weights, comparable, counts)


def _dynamic_auc(
    t: Numbers, e: NDArray[np.bool_], risk: Numbers, at: float, censoring: Censoring | None
) -> Scorer:
    weights, end = _inverse_weights(t, e, censoring)
    weights = np.where((t <= at) & (at <= end), weights, 0.0)
    beyond = np.broadcast_to(t > at, (len(t), len(t)))
    return lambda counts: _share_of_pairs(risk, weights, lambda rows: beyond[rows], counts)


def _share_of_pairs(
    risk: Numbers,
    weights: Numbers,
    comparable: Callable[[NDArray[np.int64]], NDArray[np.bool_]],
    counts: Numbers,
) -> Numbers:
    """The weighted share of comparable pairs in which the row has the higher risk, for each way of
    counting the patients (k, n).
    """
    right, total = np.zeros(len(counts)), np.zeros(len(counts))
    cases = np.flatnonzero(weights)
    step = max(1, PAIRS_PER_BLOCK // len(risk))
    for start in range(0, len(cases), step):
        rows = cases[start : start + step]
        pairs = comparable(rows).astype(float)
        own = risk[rows, None]
        ranked = pairs * ((own > risk) + 0.5 * (own == risk))
        case_counts = counts[:, rows] * weights[rows]
        right += (case_counts * (counts @ ranked.T)).sum(1)
        total += (case_counts * (counts @ pairs.T)).sum(1)
    return np.divide(right, total, out=np.full(len(counts), np.nan), where=total > 0)


def _inverse_weights(
    t: Numbers, e: NDArray[np.bool_], censoring: Censoring | None
) -> tuple[Numbers, float]:
    """The inverse probability of each event not to be censored, 0 for censored times, and the end
    of the follow-up that it is known for.
    """
    free = censoring_distribution(*((t, e) if censoring is None else censoring))
    share = free.at(t)
    weights = np.divide(e.astype(float), share, out=np.zeros(len(t)), where=share > 0)
    return weights, float(free.times[-1])


def _brier_losses(
    times: ArrayLike,
    events: ArrayLike,
    survival: ArrayLike,
    at: ArrayLike,
    censoring: Censoring | None,
) -> Numbers:
    """The weighted squared error of each patient at each time (n, k)."""
    t, e = check_survival(times, events)
    points, predicted = _check_curves(survival, at, len(t))
    weights, end = _inverse_weights(t, e, censoring)
    free = censoring_distribution(*((t, e) if censoring is None else censoring)).at(points)
    known = (points <= end) & (free > 0)
    beyond = np.divide(1.0, free, out=np.full(len(points), np.nan), where=known)
    over = t[:, None] > points
    losses = np.where(
        over, (1 - predicted) ** 2 * beyond, predicted**2 * np.where(over, 0.0, weights[:, None])
    )
    return np.where(known, losses, np.nan)


def _check_curves(survival: ArrayLike, at: ArrayLike, n: int) -> tuple[Numbers, Numbers]:
    points = np.atleast_1d(np.asarray(at, dtype=float))
    predicted = np.asarray(survival, dtype=float)
    if predicted.shape != (n, len(points)):
        raise DataError(
            f"predicted survival of shape {predicted.shape}: {(n, len(points))} is expected, one "
            "row for each patient and one column for each time."
        )
    if not ((predicted >= 0) & (predicted <= 1)).all():
        raise DataError("predicted survival must be probabilities between 0 and 1.")
    return points, predicted


def _trapezoid_weights(at: ArrayLike) -> Numbers:
    points = np.asarray(at, dtype=float)
    if points.ndim != 1 or len(points) < 2 or (np.diff(points) <= 0).any():
        raise DataError(
            f"times {points.tolist()}: at least two ascending times are expected for an integral."
        )
    steps = np.diff(points) / 2
    weights = np.append(steps, 0.0) + np.append(0.0, steps)
    return weights / (points[-1] - points[0])


def _check_risk(
    times: ArrayLike, events: ArrayLike, risk: ArrayLike
) -> tuple[Numbers, NDArray[np.bool_], Numbers]:
    t, e = check_survival(times, events)
    r = np.asarray(risk, dtype=float)
    if r.shape != t.shape or not np.isfinite(r).all():
        raise DataError(
            f"risks of shape {r.shape} for {len(t)} times, {(~np.isfinite(r)).sum()} of them not "
            "finite: one finite risk for each time is expected."
        )
    return t, e, r
