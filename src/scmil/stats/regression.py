"""Metrics of predicted numbers, with intervals over patients."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scmil.core.shapes import Numbers
from scmil.errors import DataError
from scmil.stats.bootstrap import Groups, Interval, Z, number_groups
from scmil.stats.paired_tests import midranks
from scmil.stats.small_samples import UNKNOWN

REGRESSION_METRICS = ("r2", "pearson", "spearman", "mae")


def score_regression(truth: ArrayLike, predicted: ArrayLike) -> dict[str, float]:
    """R², the correlations of Pearson and Spearman, and the mean absolute error.

    R² is 1 minus the squared error over that of the mean of the truth, so it is negative for
    predictions that are worse than a constant.

    Args:
        truth: Observed numbers (n,).
        predicted: Predicted numbers (n,).

    Returns:
        The metrics by name; NaN where a constant leaves one undefined.

    Raises:
        DataError: If the shapes differ or a number is not finite.

    >>> score_regression([1, 2, 3], [1, 2, 4])["r2"]
    0.5
    """
    return dict(zip(REGRESSION_METRICS, _scores(*check_numbers(truth, predicted)), strict=True))


def regression_intervals(
    truth: ArrayLike, predicted: ArrayLike, groups: Groups | None = None
) -> dict[str, Interval]:
    """The 95 % intervals of the metrics of `score_regression`, over whole patients.

    R² and the mean absolute error have intervals by Student's t on the scale of log(1 - R²) and
    log(error), with the jackknife over patients; the correlations have Fisher's interval at the
    number of patients (for Spearman with the variance of Bonett and Wright 2000).

    Args:
        truth: Observed numbers (n,).
        predicted: Predicted numbers (n,).
        groups: The patient of each number; None is a patient of its own.

    Returns:
        The intervals by the name of the metric; (NaN, NaN) for fewer than four patients or where
        the metric is not defined.

    Raises:
        DataError: If the shapes differ or a number is not finite.

    >>> intervals = regression_intervals([1, 2, 3, 4, 5], [1.5, 2, 3, 4.5, 4])
    >>> [round(end, 2) for end in intervals["mae"]]
    [0.1, 1.64]
    """
    y, p = check_numbers(truth, predicted)
    units = number_groups(groups, len(y))
    patients = len(np.unique(units))
    values = score_regression(y, p)
    if patients < 4:
        return dict.fromkeys(REGRESSION_METRICS, UNKNOWN)
    centred = y - y.mean()
    error, absolute, first, second, number = (
        _without_each(column, units)
        for column in ((y - p) ** 2, np.abs(y - p), centred, centred**2, np.ones(len(y)))
    )
    spread = second - first**2 / number
    unexplained = np.divide(error, spread, out=np.full(len(error), np.nan), where=spread > 0)
    low, high = _log_interval(1 - values["r2"], unexplained)
    return {
        "r2": Interval(1 - high, 1 - low),
        "pearson": fisher_interval(values["pearson"], 1 / (patients - 3)),
        "spearman": fisher_interval(
            values["spearman"], (1 + values["spearman"] ** 2 / 2) / (patients - 3)
        ),
        "mae": _log_interval(values["mae"], absolute / number),
    }


def t_quantile(degrees: float) -> float:
    """The 97.5 % quantile of Student's t distribution, to 0.2 % from 3 degrees on.

    >>> [round(t_quantile(n), 2) for n in (3, 10, 100)]
    [3.18, 2.23, 1.98]
    """
    z, n = Z, degrees
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )


def _without_each(values: Numbers, units: NDArray[np.int64]) -> Numbers:
    """The sum without each patient."""
    return values.sum() - np.bincount(units, values)


def _log_interval(value: float, without_each: Numbers) -> Interval:
    """The interval of a positive value from the values without each patient (jackknife)."""
    if value == 0:
        return Interval(0.0, 0.0)
    if not (without_each > 0).all():  # NaN if the value is not defined
        return UNKNOWN
    logs, patients = np.log(without_each), len(without_each)
    variance = float(((logs - logs.mean()) ** 2).sum()) * (patients - 1) / patients
    half = t_quantile(patients - 1) * math.sqrt(variance)
    return Interval(value * math.exp(-half), value * math.exp(half))


def fisher_interval(value: float, variance: float) -> Interval:
    """The 95 % interval of a correlation, given the variance of its inverse hyperbolic tangent.

    >>> [round(end, 2) for end in fisher_interval(0.5, 1 / 17)]
    [0.07, 0.77]
    """
    if not abs(value) < 1:
        return Interval(value, value)
    centre, half = math.atanh(value), Z * math.sqrt(variance)
    return Interval(math.tanh(centre - half), math.tanh(centre + half))


def check_numbers(truth: ArrayLike, predicted: ArrayLike) -> tuple[Numbers, Numbers]:
    """Observed and predicted numbers as arrays.

    Raises:
        DataError: If the shapes differ or a number is not finite.
    """
    y, p = np.asarray(truth, dtype=float), np.asarray(predicted, dtype=float)
    if y.ndim != 1 or y.shape != p.shape or not len(y):
        raise DataError(
            f"truth {y.shape} and predictions {p.shape}: both must have the shape (n,) with n > 0."
        )
    bad = ~(np.isfinite(y) & np.isfinite(p))
    if bad.any():
        raise DataError(
            f"{bad.sum()} of {len(y)} pairs have a number that is not finite. Leave them out."
        )
    return y, p


def _scores(y: Numbers, p: Numbers) -> tuple[float, float, float, float]:
    error = y - p
    spread = float(((y - y.mean()) ** 2).sum())
    r2 = 1 - float(error @ error) / spread if spread > 0 else math.nan
    spearman = _correlation(midranks(y), midranks(p))
    return r2, _correlation(y, p), spearman, float(np.abs(error).mean())


def _correlation(a: Numbers, b: Numbers) -> float:
    x, y = a - a.mean(), b - b.mean()
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return max(-1.0, min(1.0, float(x @ y) / scale)) if scale > 0 else math.nan
