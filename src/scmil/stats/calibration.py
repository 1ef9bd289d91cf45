"""Whether predicted probabilities are true frequencies, and how to correct them.

Reliability table, decomposition of the Brier score, calibration intercept and slope, and
temperature scaling. The probabilities are those of the second of two classes, except for the
temperature.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scmil.core.shapes import Numbers
from scmil.errors import DataError
from scmil.stats.bootstrap import (
    Groups,
    Interval,
    draw_positions,
    percentile_interval,
    statistic_intervals,
)
from scmil.stats.metrics import CALIBRATION_BINS, calibration_gaps, squared_errors
from scmil.stats.small_samples import proportion_interval

SMALLEST = 1e-12  # probabilities are at least this far from 0 and 1 before their logit is taken
NEWTON_STEPS = 100


class ReliabilityBin(NamedTuple):
    """One bin of a reliability diagram."""

    low: float
    high: float
    slides: int
    predicted: float
    observed: float
    interval: Interval


class BrierParts(NamedTuple):
    """Brier score = reliability - resolution + uncertainty + within.

    `reliability` is the squared distance between probabilities and frequencies of the bins (0 is
    best), `resolution` that between the frequencies and the mean (larger is better), `uncertainty`
    the variance of the labels, and `within` what the bins leave out (Stephenson et al. 2008).
    """

    reliability: float
    resolution: float
    uncertainty: float
    within: float


class Recalibration(NamedTuple):
    """Logistic recalibration. Perfect: intercept 0 and slope 1.

    `intercept` is estimated at a slope of 1 (calibration in the large): above 0, risks are
    underestimated. A `slope` below 1 means that the probabilities are too extreme; it is infinite
    if a threshold separates the classes.
    """

    intercept: float
    slope: float


def reliability_table(
    labels: ArrayLike, scores: ArrayLike, bins: int = 10, groups: Groups | None = None
) -> list[ReliabilityBin]:
    """Predicted probability against observed frequency in bins of equal width.

    Args:
        labels: 0 or 1 (n,).
        scores: Predicted probability of 1 (n,).
        bins: Number of bins.
        groups: The patient of each slide; None is a patient of its own.

    Returns:
        The bins that are not empty, with Wilson's interval of the frequency at the effective number
        of patients.

    Raises:
        DataError: If labels or scores are invalid.

    >>> [round(bin.observed, 2) for bin in reliability_table([0, 1, 1], [0.1, 0.9, 0.95])]
    [0.0, 1.0]
    """
    y, p = check_binary(labels, scores)
    position = _bins_of(p, bins)
    table = []
    for number in np.unique(position):
        rows = np.flatnonzero(position == number)
        patients = None if groups is None else [groups[i] for i in rows.tolist()]
        table.append(
            ReliabilityBin(
                number / bins,
                (number + 1) / bins,
                len(rows),
                float(p[rows].mean()),
                float(y[rows].mean()),
                proportion_interval(y[rows], patients),
            )
        )
    return table


def brier_parts(labels: ArrayLike, scores: ArrayLike, bins: int = 10) -> BrierParts:
    """The decomposition of the Brier score (Murphy 1973) in bins of equal width.

    Args:
        labels: 0 or 1 (n,).
        scores: Predicted probability of 1 (n,).
        bins: Number of bins.

    Returns:
        The parts, which add up to the Brier score with the sign of `BrierParts`.

    Raises:
        DataError: If labels or scores are invalid.

    >>> brier_parts([0, 1], [0.25, 0.75])
    BrierParts(reliability=0.0625, resolution=0.25, uncertainty=0.25, within=0.0)
    """
    y, p = check_binary(labels, scores)
    position = _bins_of(p, bins)
    count = np.bincount(position, minlength=bins)
    used = count > 0
    share = count[used] / len(y)
    predicted, observed = (
        np.bincount(position, values, minlength=bins)[used] / count[used] for values in (p, y)
    )
    base = float(y.mean())
    reliability = float(share @ (predicted - observed) ** 2)
    resolution = float(share @ (observed - base) ** 2)
    uncertainty = base * (1 - base)
    total = float(((p - y) ** 2).mean())
    return BrierParts(
        reliability, resolution, uncertainty, total - (reliability - resolution + uncertainty)
    )


def recalibrate(labels: ArrayLike, scores: ArrayLike) -> Recalibration:
    """The calibration intercept and slope of probabilities.

    Args:
        labels: 0 or 1 (n,).
        scores: Predicted probability of 1 (n,).

    Returns:
        The maximum likelihood estimates; NaN if only one label occurs.

    Raises:
        DataError: If labels or scores are invalid.

    >>> found = recalibrate([0, 0, 0, 1] * 5 + [0, 1, 1, 1] * 5, [0.25] * 20 + [0.75] * 20)
    >>> f"intercept {abs(found.intercept):.3f}, slope {found.slope:.3f}"
    'intercept 0.000, slope 1.000'
    """
    return _recalibrate(*check_binary(labels, scores))


def recalibration_intervals(
    labels: ArrayLike,
    scores: ArrayLike,
    groups: Groups | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> dict[str, Interval]:
    """The 95 % bootstrap intervals of calibration intercept and slope, over whole patients.

    Args:
        labels: 0 or 1 (n,).
        scores: Predicted probability of 1 (n,).
        groups: The patient of each slide; None is a patient of its own.
        draws: Number of resamples.
        seed: Seed of the resamples.

    Returns:
        The intervals `intercept` and `slope`; resamples in which they are not finite are left out.

    Raises:
        DataError: If labels or scores are invalid.

    >>> intervals = recalibration_intervals([0, 0, 1, 1, 0, 1], [0.2, 0.4, 0.6, 0.3, 0.7, 0.8])
    >>> intervals["slope"].low < 1 < intervals["slope"].high
    True
    """
    y, p = check_binary(labels, scores)
    found = statistic_intervals(
        lambda rows: _recalibrate(y[rows], p[rows]), len(y), groups, draws, seed
    )
    return dict(zip(Recalibration._fields, found, strict=True))


def error_intervals(
    labels: NDArray[np.int64],
    p: Numbers,
    units: NDArray[np.int64],
    draws: int = 1000,
    seed: int = 0,
) -> dict[str, Interval]:
    """The 95 % bootstrap intervals of the Brier score and the calibration error.

    Both are sums over slides, so that all resamples of a block are one matrix product.

    Args:
        labels: Class of each slide (n,).
        p: Class probabilities (n, classes).
        units: The number of the patient of each slide, from 0; whole patients are resampled.
        draws: Number of resamples.
        seed: Seed of the resamples.

    Returns:
        The intervals `brier` and `calibration_error`; NaN for fewer than two patients.

    >>> p = np.array([[0.8, 0.2]] * 3 + [[0.4, 0.6]] * 3)
    >>> found = error_intervals(np.array([0, 0, 1, 0, 1, 1]), p, np.arange(6))
    >>> [round(end, 2) for end in found["brier"]]
    [0.1, 0.41]
    """
    patients = int(units.max()) + 1
    if patients < 2:
        return dict.fromkeys(("brier", "calibration_error"), Interval(math.nan, math.nan))
    bins, gaps = calibration_gaps(labels, p)
    by_bin = np.bincount(units * CALIBRATION_BINS + bins, gaps, patients * CALIBRATION_BINS)
    sums = np.column_stack(
        [
            np.bincount(units),
            np.bincount(units, squared_errors(labels, p)),
            by_bin.reshape(patients, CALIBRATION_BINS),
        ]
    )
    totals = []
    for drawn in draw_positions(patients, draws, np.random.default_rng(seed)):
        rows = patients * np.arange(len(drawn))[:, None]
        counts = np.bincount((drawn + rows).ravel(), minlength=drawn.size)
        totals.append(counts.reshape(drawn.shape) @ sums)
    slides, squared, *of_bins = np.concatenate(totals).T
    return {
        "brier": percentile_interval(squared / slides),
        "calibration_error": percentile_interval(np.abs(of_bins).sum(0) / slides),
    }


def fit_temperature(labels: ArrayLike, logits: ArrayLike) -> float:
    """The temperature T that maximises the likelihood of softmax(logits / T).

    Fit it on a validation split: on the training split it would be too low.

    Args:
        labels: Class of each slide (n,).
        logits: Logits (n, classes), or logarithms of probabilities.

    Returns:
        The temperature, from 0.01 to 100; a limit is returned if the likelihood grows up to it.

    Raises:
        DataError: If labels or logits are invalid.

    >>> round(fit_temperature([0, 0, 0, 1], [[2.0, -2.0]] * 4), 3)
    3.641
    """
    y, z = np.asarray(labels), np.asarray(logits, dtype=float)
    if z.ndim != 2 or z.shape[1] < 2 or y.shape != z.shape[:1] or not len(y):
        raise DataError(
            f"labels {y.shape} and logits {z.shape}: shapes (n,) and (n, classes) are expected."
        )
    if not np.isfinite(z).all() or y.dtype.kind not in "iub" or not _within(y, z.shape[1]):
        raise DataError(f"logits must be finite, and labels integers from 0 to {z.shape[1] - 1}.")
    own = z[np.arange(len(y)), y]
    if (z == z[:, :1]).all():
        return 1.0  # equal logits are equal probabilities at every temperature

    def slope(inverse: float) -> float:
        """The derivative of the likelihood, which falls with the inverse of the temperature."""
        return float((own - (temper(z, 1 / inverse) * z).sum(1)).mean())

    low, high = math.log(0.01), math.log(100.0)
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(math.exp(middle)) >= 0 else (low, middle)
    return 1 / math.exp((low + high) / 2)


def temper(logits: ArrayLike, temperature: float) -> Numbers:
    """The probabilities softmax(logits / temperature).

    Args:
        logits: Logits (n, classes).
        temperature: Above 1 the probabilities become less extreme; the order does not change.

    Returns:
        Probabilities (n, classes).

    >>> temper([[0.0, 0.0]], 2.0).tolist()
    [[0.5, 0.5]]
    """
    z = np.asarray(logits, dtype=float) / temperature
    powers = np.exp(z - z.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def check_binary(labels: ArrayLike, scores: ArrayLike) -> tuple[Numbers, Numbers]:
    """Labels 0 and 1 and probabilities as arrays.

    Raises:
        DataError: If shapes or values are invalid.
    """
    y, p = np.asarray(labels, dtype=float), np.asarray(scores, dtype=float)
    if y.ndim != 1 or y.shape != p.shape or not len(y):
        raise DataError(
            f"labels {y.shape} and probabilities {p.shape}: both must have the shape (n,), n > 0."
        )
    if not np.isin(y, (0, 1)).all() or not ((p >= 0) & (p <= 1)).all():
        raise DataError("labels must be 0 or 1, and probabilities numbers between 0 and 1.")
    return y, p


def _within(labels: NDArray[np.int64], classes: int) -> bool:
    return bool(labels.min() >= 0 and labels.max() < classes)


def _bins_of(p: Numbers, bins: int) -> NDArray[np.int64]:
    return np.clip(p * bins, 0, bins - 1).astype(np.int64)


def _recalibrate(y: Numbers, p: Numbers) -> Recalibration:
    if y.min() == y.max():
        return Recalibration(math.nan, math.nan)
    clipped = np.clip(p, SMALLEST, 1 - SMALLEST)
    x = np.log(clipped / (1 - clipped))
    intercept = float(_logistic(np.ones((len(x), 1)), y, offset=x)[0])
    if x.min() == x.max():
        return Recalibration(intercept, math.nan)
    if x[y == 1].min() >= x[y == 0].max():
        return Recalibration(intercept, math.inf)
    if x[y == 1].max() <= x[y == 0].min():
        return Recalibration(intercept, -math.inf)
    design = np.stack([np.ones(len(x)), x], axis=1)
    return Recalibration(intercept, float(_logistic(design, y, offset=np.zeros(len(x)))[1]))


def _logistic(design: Numbers, y: Numbers, offset: Numbers) -> Numbers:
    """Logistic regression by Newton's method with halved steps while the likelihood falls."""
    weights = np.zeros(design.shape[1])

    def loss(trial: Numbers) -> float:
        z = design @ trial + offset
        return float((np.logaddexp(0, z) - y * z).sum())

    value = loss(weights)
    for _ in range(NEWTON_STEPS):
        z = design @ weights + offset
        q = np.exp(-np.logaddexp(0, -z))
        curvature = design.T @ (design * (q * (1 - q))[:, None])
        step = np.linalg.lstsq(curvature, design.T @ (y - q), rcond=None)[0]
        while loss(weights + step) > value and np.abs(step).max() > 1e-14:
            step = step / 2
        weights = weights + step
        value = loss(weights)
        if np.abs(step).max() < 1e-12:
            break
    return weights
