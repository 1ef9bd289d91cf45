"""Decision curves: the net benefit of acting on a predicted probability (Vickers, Elkin 2006)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from scmil.core.shapes import Numbers
from scmil.errors import DataError
from scmil.stats.bootstrap import Groups, draw_counts, number_groups, percentile_interval
from scmil.stats.calibration import check_binary


class DecisionCurve(NamedTuple):
    """Net benefit at each threshold, in true positives per patient.

    To act on nobody has a net benefit of 0.
    """

    thresholds: Numbers
    model: Numbers
    low: Numbers
    high: Numbers
    everybody: Numbers


def decision_curve(
    labels: ArrayLike,
    scores: ArrayLike,
    thresholds: ArrayLike | None = None,
    groups: Groups | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> DecisionCurve:
    """The net benefit of acting if the probability is above a threshold.

    At the threshold t, a false positive costs t / (1 - t) of what a true positive gains.

    Args:
        labels: 0 or 1 (n,).
        scores: Predicted probability of 1 (n,).
        thresholds: Thresholds above 0 and below 1; None is 0.01, 0.02, ..., 0.99.
        groups: The patient of each slide; None is a patient of its own.
        draws: Number of resamples.
        seed: Seed of the resamples.

    Returns:
        The curve with 95 % bootstrap limits over patients, NaN for fewer than two patients.

    Raises:
        DataError: If labels, scores or thresholds are invalid.

    >>> curve = decision_curve([0, 0, 1, 1], [0.1, 0.6, 0.7, 0.9], [0.5])
    >>> curve.model.tolist(), curve.everybody.tolist()
    ([0.25], [0.0])
    """
    y, p = check_binary(labels, scores)
    t = np.linspace(0.01, 0.99, 99) if thresholds is None else np.asarray(thresholds, dtype=float)
    if t.ndim != 1 or not len(t) or not ((t > 0) & (t < 1)).all():
        raise DataError(f"thresholds {t.tolist()}: numbers above 0 and below 1 are expected.")
    odds = t / (1 - t)
    acted = p[:, None] > t
    gain = acted * (y[:, None] - (1 - y[:, None]) * odds)  # (n, thresholds)
    units = number_groups(groups, len(y))
    patients = int(units.max()) + 1
    limits = np.full((len(t), 2), np.nan)
    if patients > 1:
        sums = np.stack([np.bincount(units, column) for column in gain.T], axis=1)
        sizes = np.bincount(units)
        drawn = [
            (counts @ sums) / (counts @ sizes)[:, None]
            for counts in draw_counts(patients, draws, np.random.default_rng(seed))
        ]
        limits = np.array([percentile_interval(c) for c in np.concatenate(drawn).T])
    everybody = y.mean() - (1 - y.mean()) * odds
    return DecisionCurve(t, gain.mean(0), limits[:, 0], limits[:, 1], everybody)
