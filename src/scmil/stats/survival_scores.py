"""How well predicted risks and survival curves agree with times to an event, over time.

The cumulative/dynamic AUC and the Brier score weight each event by the inverse probability of not
being censored, estimated by Kaplan and Meier on a sample that can be another one, such as the
training split. The bootstrap does not estimate these weights again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scmil.core.shapes import Numbers
from scmil.errors import DataError
from scmil.stats.bootstrap import (
    Groups,
    Interval,
    MetricEstimate,
    draw_counts,
    number_groups,
    percentile_interval,
)
from scmil.stats.concordance import (
    Censoring,
    Pairs,
    Scorer,
    check_risk,
    concordance,
    concordance_interval,
    concordance_ipcw,
    inverse_weights,
    pairs_interval,
    share_of_pairs,
    single_value,
)
from scmil.stats.small_samples import PRIOR_PATIENTS, UNKNOWN, widest
from scmil.stats.survival import censoring_distribution, check_survival, kaplan_meier


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
    checked = check_risk(times, events, risk)
    n = len(checked[0])
    points = np.atleast_1d(np.asarray(at, dtype=float))
    return np.array([single_value(_auc_pairs(*checked, t, censoring), n) for t in points])


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
) -> dict[str, MetricEstimate]:
    """All survival metrics with 95 % intervals over patients.

    The concordances and the AUC at a time have score intervals, which have a width at 1; the mean
    AUC and the Brier score have bootstrap intervals. That of the mean AUC is at least as wide as
    the mean of the intervals of its times.

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
    t, e, r = check_risk(times, events, risk)
    units = number_groups(groups, len(t))
    scores = {
        "c_index": MetricEstimate(concordance(t, e, r), concordance_interval(t, e, r, groups)),
        "uno_c": MetricEstimate(
            concordance_ipcw(t, e, r, censoring=censoring),
            concordance_interval(t, e, r, groups, ipcw=True, censoring=censoring),
        ),
    }
    scorers: dict[str, Scorer] = {}
    if len(at):
        pairs = [_auc_pairs(t, e, r, point, censoring) for point in at]
        scorers["auc"] = _mean_scorer(pairs, _event_shares(at, t, e))
        for point, own in zip(at, pairs, strict=True):
            interval = _auc_at_interval(own, t, e, units, point)
            scores[f"auc@{point:g}"] = MetricEstimate(single_value(own, len(t)), interval)
    if survival is not None and len(at) > 1:
        loss = _brier_losses(t, e, survival, at, censoring) @ _trapezoid_weights(at)
        scorers["integrated_brier"] = lambda counts: (counts @ loss) / counts.sum(1)
    for name, scorer in scorers.items():
        interval = _bootstrap_of_scorer(scorer, units, draws, seed)
        if name == "auc":
            limits = np.array([scores[f"auc@{point:g}"].interval for point in at])
            interval = widest(interval, _weighted_interval(limits, _event_shares(at, t, e)))
        scores[name] = MetricEstimate(float(scorer(np.ones((1, len(t))))[0]), interval)
    return scores


def _weighted_interval(limits: Numbers, shares: Numbers) -> Interval:
    """The mean of intervals, over those that are defined."""
    known = np.isfinite(limits).all(1) & (shares > 0)
    if not known.any():
        return UNKNOWN
    low, high = (shares[known] @ limits[known] / shares[known].sum()).tolist()
    return Interval(low, high)


def _bootstrap_of_scorer(
    scorer: Scorer, units: NDArray[np.int64], draws: int, seed: int
) -> Interval:
    patients = int(units.max()) + 1
    if patients < 2:
        return UNKNOWN
    blocks = draw_counts(patients, draws, np.random.default_rng(seed))
    values = [scorer(counts[:, units].astype(float)) for counts in blocks]
    return percentile_interval(np.concatenate(values))


def _auc_at_interval(
    pairs: Pairs, t: Numbers, e: NDArray[np.bool_], units: NDArray[np.int64], at: float
) -> Interval:
    cases, controls = (len(np.unique(units[rows])) for rows in ((t <= at) & e, t > at))
    if not cases or not controls:
        return UNKNOWN
    weight = (cases + controls) / (cases + controls + PRIOR_PATIENTS)
    return pairs_interval(pairs, units, (cases, controls), weight, least_scale=1.0)


def _event_shares(at: ArrayLike, times: ArrayLike, events: ArrayLike) -> Numbers:
    """The share of events between the times; NaN without an event."""
    share = kaplan_meier(times, events).at(np.asarray(at, dtype=float))
    steps = -np.diff(np.append(1.0, share))
    return steps / steps.sum() if steps.sum() > 0 else np.full(len(steps), np.nan)


def _mean_scorer(pairs: Sequence[Pairs], shares: Numbers) -> Scorer:
    return lambda counts: np.stack([share_of_pairs(own, counts) for own in pairs], axis=1) @ shares


def _auc_pairs(
    t: Numbers, e: NDArray[np.bool_], risk: Numbers, at: float, censoring: Censoring | None
) -> Pairs:
    weights, end = inverse_weights(t, e, censoring)
    weights = np.where((t <= at) & (at <= end), weights, 0.0)
    beyond = np.broadcast_to(t > at, (len(t), len(t)))
    return Pairs(risk, weights, lambda rows: beyond[rows])


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
    weights, end = inverse_weights(t, e, censoring)
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
