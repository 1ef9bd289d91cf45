"""Confidence intervals that hold for small samples and for values at or near 1.

The percentile bootstrap of 8 right answers out of 8 is 1.000 to 1.000, because every resample is
the same. Here proportions have Wilson's score interval, the F1 score the interval of the proportion
that it is a function of, and the AUC a score interval like that of Newcombe (2006, method 5).
Slides of one patient are not independent: the sample size is divided by the design effect of the
patients, the ratio of the variance with and without them. `benchmarks/coverage.py` simulates how
often the intervals contain the true value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scmil.core.shapes import Numbers
from scmil.errors import DataError
from scmil.stats.bootstrap import Groups, Interval, Z, number_groups
from scmil.stats.metrics import auc, decide

UNKNOWN = Interval(math.nan, math.nan)
PRIOR_PATIENTS = 50  # weight of the model variance of an AUC against the observed one
FAR = 40.0  # a quantile of the normal distribution at which the AUC is 1 in double precision
METHODS = (
    "Wilson's score interval for accuracy, balanced accuracy and F1, score interval with the "
    "variance of normal scores for AUC, both at the effective number of patients; bootstrap over "
    "patients for the other metrics"
)
# Nodes and weights of Owen's function T(h, 1 / sqrt(3)) = sum of weight exp(-h² (1 + node²) / 2).
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
OWEN_NODES = (_NODES + 1) / (2 * math.sqrt(3))
OWEN_WEIGHTS = _WEIGHTS / (2 * math.sqrt(3)) / (2 * math.pi) / (1 + OWEN_NODES**2)


def metric_intervals(
    labels: NDArray[np.int64], p: Numbers, threshold: float | None, groups: Groups | None = None
) -> dict[str, Interval]:
    """The 95 % intervals of the metrics whose bootstrap has no width at their largest value.

    Args:
        labels: Class of each slide (b,).
        p: Class probabilities (b, c).
        threshold: Threshold on the second of two classes, see `decide`.
        groups: The patient of each slide; None is a patient of its own.

    Returns:
        Intervals of accuracy, balanced accuracy, F1 and AUC; NaN where a metric is not defined or
        there are fewer than two patients.

    >>> p = np.array([[0.9, 0.1], [0.2, 0.8]] * 4)
    >>> intervals = metric_intervals(np.array([0, 1] * 4), p, 0.5)
    >>> [round(end, 3) for end in intervals["accuracy"]]
    [0.676, 1.0]
    """
    units = number_groups(groups, len(labels))
    if len(np.unique(units)) < 2:
        return dict.fromkeys(("accuracy", "balanced_accuracy", "f1", "auc"), UNKNOWN)
    predicted = decide(p, threshold)
    right = (predicted == labels).astype(float)
    present = np.unique(labels)
    scored = np.array([1]) if p.shape[1] == 2 else np.union1d(present, predicted)
    return {
        "accuracy": _wilson_of(right, units),
        "balanced_accuracy": _mean_of_classes(
            present,
            lambda c: _wilson_of(right[labels == c], units[labels == c]),
            lambda c: float(right[labels == c].mean()),
        ),
        "f1": _f1_interval(labels, predicted, units, scored),
        "auc": _auc_of_classes(labels, p, units),
    }


def wilson_interval(p: float, n: float, z: float = Z) -> Interval:
    """Wilson's score interval of a proportion.

    Args:
        p: The observed proportion.
        n: The sample size; an effective one need not be a whole number.
        z: The quantile of the normal distribution; the default gives 95 %.

    Returns:
        The interval, within 0 and 1; (NaN, NaN) without a sample.

    >>> [round(end, 3) for end in wilson_interval(1.0, 8)]
    [0.676, 1.0]
    """
    if n <= 0 or not math.isfinite(p):
        return UNKNOWN
    centre, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return Interval(max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale))


def proportion_interval(values: ArrayLike, groups: Groups | None = None) -> Interval:
    """The interval of a mean of values between 0 and 1, such as right or wrong answers.

    Args:
        values: One value per slide; a mean over repeats may lie between 0 and 1.
        groups: The patient of each slide; None is a patient of its own.

    Returns:
        Wilson's interval at the effective sample size, (NaN, NaN) for fewer than two patients.

    >>> proportion_interval([1, 1, 1, 1], ["a", "a", "b", "b"]) == wilson_interval(1.0, 2)
    True
    """
    numbers = np.asarray(values, dtype=float)
    if numbers.ndim != 1 or not ((numbers >= 0) & (numbers <= 1)).all():
        raise DataError(
            f"values of shape {numbers.shape}: a list of numbers from 0 to 1 is needed for the "
            "interval of a proportion."
        )
    units = number_groups(groups, len(numbers))
    return _wilson_of(numbers, units) if len(np.unique(units)) > 1 else UNKNOWN


def _wilson_of(values: Numbers, units: NDArray[np.int64]) -> Interval:
    return wilson_interval(float(values.mean()), _effective_size(values, units))


def _effective_size(values: Numbers, units: NDArray[np.int64]) -> float:
    """The number of slides divided by the design effect; the number of patients if the values do
    not vary.
    """
    n, p, patients = len(values), float(values.mean()), len(np.unique(units))
    independent = p * (1 - p) / n
    if independent <= 0 or patients in (1, n):
        return patients
    return n / max(1.0, clustered_variance(units, (values - p) / n) / independent)


def clustered_variance(units: NDArray[np.int64], influence: Numbers) -> float:
    """The variance of a statistic from the influence of each slide, summed within patients."""
    totals = np.array([influence[units == unit].sum() for unit in np.unique(units)])
    return float(totals @ totals)


def f1_interval(jaccard: float, n: float) -> Interval:
    """The interval of an F1 score by that of TP / (TP + FP + FN), of which it is a monotone
    function: F1 = 2 J / (1 + J).

    Args:
        jaccard: TP / (TP + FP + FN).
        n: TP + FP + FN, divided by the design effect.

    >>> [round(end, 3) for end in f1_interval(1.0, 4)]
    [0.676, 1.0]
    """
    low, high = wilson_interval(jaccard, n)
    return Interval(2 * low / (1 + low), 2 * high / (1 + high))


def auc_interval(
    value: float, positive: float, negative: float, scale: float = 1.0, z: float = Z
) -> Interval:
    """The score interval of an AUC, which has a width at an AUC of 1.

    The ends are the values at which the observed AUC is z standard deviations away, as in Newcombe
    (2006, method 5). The standard deviation at each value is that of normal scores with equal
    variances instead of the exponential scores of Hanley and McNeil, which overestimate it near 1.

    Args:
        value: The observed AUC.
        positive: Number of positive samples; an effective one need not be a whole number.
        negative: Number of negative samples.
        scale: Factor of the variance, see `auc_variance_scale`.
        z: The quantile of the normal distribution; the default gives 95 %.

    Returns:
        The interval; (NaN, NaN) without positive or negative samples.

    >>> [round(end, 3) for end in auc_interval(1.0, 4, 4)]
    [0.583, 1.0]
    """
    if not math.isfinite(value) or positive <= 0 or negative <= 0:
        return UNKNOWN

    def excess(x: float) -> float:
        variance = scale * auc_variance(x, positive, negative)
        return (value - _normal_cdf(x)) ** 2 - z * z * variance

    # `excess` is positive far away and negative next to the observed value on both sides.
    inside = NormalDist().inv_cdf(min(max(value, 1e-15), 1 - 1e-15))
    low, high = (_find_root(excess, end, inside) for end in (-FAR, FAR))
    return Interval(_normal_cdf(low), _normal_cdf(high))


def auc_variance(x: float, positive: float, negative: float) -> float:
    """The variance of the empirical AUC of normal scores with equal variances.

    Args:
        x: The quantile of the normal distribution at the true AUC.
        positive: Number of positive samples.
        negative: Number of negative samples.

    >>> round(auc_variance(0.0, 10, 10) * 12 * 100, 6)  # at an AUC of 0.5: (m + n + 1) / (12 m n)
    21.0
    """
    spread = _normal_cdf(x) * _normal_cdf(-x)
    # The probability that two samples of a class are both on the right side of one of the other is
    # AUC - 2 T(x, 1 / sqrt(3)), T being Owen's function.
    owen = float(OWEN_WEIGHTS @ np.exp(-x * x * (1 + OWEN_NODES**2) / 2))
    pairs = max(0.0, positive + negative - 2) * (spread - 2 * owen)
    return (spread + pairs) / (positive * negative)


def auc_variance_scale(
    positive: NDArray[np.bool_], scores: Numbers, value: float, effect: float = 1.0
) -> float:
    """How much larger the variance of an AUC is than that of normal scores with equal variances.

    The ratio of DeLong's variance to that of the model is noisy in small samples and 0 for an AUC
    of 1. So it is averaged with a ratio of 1 that counts as much as 50 patients, and is at least 1.

    Args:
        positive: Whether each sample is positive (b,).
        scores: The score of each sample (b,).
        value: The AUC of the scores.
        effect: The design effect of the patients, by which sample sizes are divided.

    >>> auc_variance_scale(np.array([True, False] * 4), np.array([0.9, 0.1] * 4), 1.0)
    1.0
    """
    sizes = [int(own.sum()) / effect for own in (positive, ~positive)]
    if min(sizes) <= 1:
        return 1.0
    influence = auc_influence(positive, scores, value)
    observed = effect * sum(
        float(influence[own] @ influence[own]) * size / (size - 1)
        for own, size in zip((positive, ~positive), sizes, strict=True)
    )
    least = 0.5 / (sizes[0] * sizes[1])
    x = NormalDist().inv_cdf(min(max(value, least), 1 - least))
    weight = sum(sizes) / (sum(sizes) + PRIOR_PATIENTS)
    return max(1.0, weight * observed / auc_variance(x, *sizes) + 1 - weight)


def _normal_cdf(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def _find_root(function: Callable[[float], float], outside: float, inside: float) -> float:
    """Where the sign changes between a point of positive and a point of non-positive values."""
    if function(outside) <= 0:
        return outside
    for _ in range(60):
        middle = (outside + inside) / 2
        if function(middle) > 0:
            outside = middle
        else:
            inside = middle
    return inside


def mean_interval(means: Sequence[float], intervals: Sequence[Interval]) -> Interval:
    """The interval of a mean of independent estimates from their own intervals (MOVER).

    >>> [round(end, 3) for end in mean_interval([1.0, 1.0], [wilson_interval(1.0, 4)] * 2)]
    [0.654, 1.0]
    """
    ends = np.array(intervals, dtype=float).reshape(-1, 2)
    values = np.asarray(means, dtype=float)
    centre, k = float(values.mean()), len(values)
    low = centre - math.sqrt(float(((values - ends[:, 0]) ** 2).sum())) / k
    high = centre + math.sqrt(float(((ends[:, 1] - values) ** 2).sum())) / k
    return Interval(max(0.0, low), min(1.0, high))


def widest(a: Interval, b: Interval) -> Interval:
    """The interval that contains both; one that is not defined is left out.

    >>> widest(Interval(1.0, 1.0), Interval(0.7, 0.99)), widest(UNKNOWN, Interval(0.1, 0.2))
    (Interval(low=0.7, high=1.0), Interval(low=0.1, high=0.2))
    """
    known = [own for own in (a, b) if np.isfinite(own).all()]
    if not known:
        return UNKNOWN
    return Interval(min(own.low for own in known), max(own.high for own in known))


def difference_interval(
    value: float, interval: Interval, other: float, other_interval: Interval
) -> Interval:
    """The interval of the difference of two independent estimates from their own intervals (MOVER).

    Args:
        value: An estimate.
        interval: Its interval.
        other: The estimate that is subtracted.
        other_interval: Its interval.

    Returns:
        The interval of `value - other`; NaN if a limit is not finite.

    >>> same = wilson_interval(0.5, 10)
    >>> [round(end, 3) for end in difference_interval(0.5, same, 0.5, same)]
    [-0.373, 0.373]
    """
    difference = value - other
    low = math.hypot(value - interval[0], other_interval[1] - other)
    high = math.hypot(interval[1] - value, other - other_interval[0])
    return Interval(difference - low, difference + high)


def _mean_of_classes(
    classes: NDArray[np.int64],
    interval: Callable[[int], Interval],
    value: Callable[[int], float],
) -> Interval:
    return mean_interval([value(c) for c in classes], [interval(c) for c in classes])


def _f1_interval(
    labels: NDArray[np.int64],
    predicted: NDArray[np.int64],
    units: NDArray[np.int64],
    classes: NDArray[np.int64],
) -> Interval:
    values, intervals = [], []
    for c in classes:
        rows = (labels == c) | (predicted == c)
        if not rows.any():
            return UNKNOWN
        hits = (labels[rows] == predicted[rows]).astype(float)
        jaccard = float(hits.mean())
        values.append(2 * jaccard / (1 + jaccard))
        intervals.append(f1_interval(jaccard, _effective_size(hits, units[rows])))
    return mean_interval(values, intervals)


def _auc_of_classes(labels: NDArray[np.int64], p: Numbers, units: NDArray[np.int64]) -> Interval:
    """The interval of the AUC; of more than two classes the mean of those of each class against
    the rest, which is wide because it takes them as fully correlated.
    """
    classes = [1] if p.shape[1] == 2 else [c for c in range(p.shape[1]) if (labels == c).any()]
    ends = [_auc_of_scores(labels == c, p[:, c], units) for c in classes]
    return Interval(*(float(end) for end in np.mean(ends, axis=0)))


def _auc_of_scores(
    positive: NDArray[np.bool_], scores: Numbers, units: NDArray[np.int64]
) -> Interval:
    m, n = int(positive.sum()), int((~positive).sum())
    if not m or not n:
        return UNKNOWN
    value = auc(positive.astype(int), np.stack([1 - scores, scores], 1))
    effect = _auc_design_effect(positive, scores, units, value)
    scale = auc_variance_scale(positive, scores, value, effect)
    return auc_interval(value, m / effect, n / effect, scale)


def _auc_design_effect(
    positive: NDArray[np.bool_], scores: Numbers, units: NDArray[np.int64], value: float
) -> float:
    """The variance of an AUC with clustered patients (Obuchowski 1997) over that of independent
    slides (DeLong); the mean number of slides of a patient if every pair is ranked alike.
    """
    patients = len(np.unique(units))
    if patients == len(units):
        return 1.0
    influence = auc_influence(positive, scores, value)
    independent = float(influence @ influence)
    if independent <= 0:
        return len(units) / patients
    return max(1.0, clustered_variance(units, influence) / independent)


def auc_influence(positive: NDArray[np.bool_], scores: Numbers, value: float) -> Numbers:
    """How far each sample moves the AUC, divided by the number of samples of its class."""
    influence = np.empty(len(scores))
    for own, sign in ((positive, 1.0), (~positive, -1.0)):
        others = np.sort(scores[~own])
        below, up_to = (np.searchsorted(others, scores[own], side) for side in ("left", "right"))
        above = (below + up_to) / (2 * len(others))  # share of the others that lies below
        influence[own] = ((above if sign > 0 else 1 - above) - value) / own.sum()
    return influence
