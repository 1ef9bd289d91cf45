"""Metrics of predicted numbers, with intervals over patients."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from scmil.core.shapes import Numbers
from scmil.errors import DataError
from scmil.stats.bootstrap import Groups, Interval, statistic_intervals
from scmil.stats.paired_tests import midranks

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
    truth: ArrayLike,
    predicted: ArrayLike,
    groups: Groups | None = None,
    draws: int = 2000,
    seed: int = 0,
) -> dict[str, Interval]:
    """The 95 % bootstrap intervals of the metrics of `score_regression`, over whole patients.

    Args:
        truth: Observed numbers (n,).
        predicted: Predicted numbers (n,).
        groups: The patient of each number; None is a patient of its own.
        draws: Number of resamples.
        seed: Seed of the resamples.

    Returns:
        The intervals by the name of the metric; (NaN, NaN) for fewer than two patients.

    Raises:
        DataError: If the shapes differ or a number is not finite.

    >>> regression_intervals([1, 2, 3], [1, 2, 3], draws=20)["mae"]
    Interval(low=0.0, high=0.0)
    """
    y, p = check_numbers(truth, predicted)
    intervals = statistic_intervals(
        lambda rows: _scores(y[rows], p[rows]), len(y), groups, draws, seed
    )
    return dict(zip(REGRESSION_METRICS, intervals, strict=True))


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
