"""Metrics of predicted grades, which are ordered: 0, 1, 2, ..."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scmil.errors import DataError
from scmil.stats.bootstrap import Groups, Interval, statistic_intervals
from scmil.stats.small_samples import proportion_interval

ORDINAL_METRICS = ("kappa", "mae", "accuracy")


def quadratic_kappa(truth: ArrayLike, predicted: ArrayLike, grades: int) -> float:
    """Cohen's kappa with weights that grow with the square of the difference of the grades.

    Args:
        truth: Observed grades (n,), integers from 0.
        predicted: Predicted grades (n,).
        grades: Number of grades.

    Returns:
        1 for agreement, 0 for agreement by chance; NaN if only one grade occurs.

    Raises:
        DataError: If a grade is not an integer from 0 to grades - 1.

    >>> quadratic_kappa([0, 1, 2], [0, 1, 1], 3)
    0.666...
    """
    return _kappa(grade_confusion(truth, predicted, grades))


def grade_confusion(truth: ArrayLike, predicted: ArrayLike, grades: int) -> NDArray[np.int64]:
    """How often each grade (rows) was predicted as each grade (columns).

    Args:
        truth: Observed grades (n,), integers from 0.
        predicted: Predicted grades (n,).
        grades: Number of grades.

    Returns:
        The counts (grades, grades).

    Raises:
        DataError: If a grade is not an integer from 0 to grades - 1.

    >>> grade_confusion([0, 1, 1], [0, 1, 0], 2).tolist()
    [[1, 0], [1, 1]]
    """
    y, p = np.asarray(truth), np.asarray(predicted)
    if y.ndim != 1 or y.shape != p.shape or not len(y):
        raise DataError(
            f"truth {y.shape} and predictions {p.shape}: both must have the shape (n,) with n > 0."
        )
    for values in (y, p):
        if values.dtype.kind not in "iub" or values.min() < 0 or values.max() >= grades:
            raise DataError(f"grades must be integers from 0 to {grades - 1}.")
    return np.bincount(y * grades + p, minlength=grades * grades).reshape(grades, grades)


def score_ordinal(truth: ArrayLike, predicted: ArrayLike, grades: int) -> dict[str, float]:
    """Quadratic kappa, mean absolute error in grades, and accuracy.

    Args:
        truth: Observed grades (n,), integers from 0.
        predicted: Predicted grades (n,).
        grades: Number of grades.

    Returns:
        The metrics by name.

    Raises:
        DataError: If a grade is not an integer from 0 to grades - 1.

    >>> score_ordinal([0, 1, 2, 2], [0, 1, 1, 2], 3)["mae"]
    0.25
    """
    values = _ordinal_scores(grade_confusion(truth, predicted, grades))
    return dict(zip(ORDINAL_METRICS, values, strict=True))


def ordinal_intervals(
    truth: ArrayLike,
    predicted: ArrayLike,
    grades: int,
    groups: Groups | None = None,
    draws: int = 2000,
    seed: int = 0,
) -> dict[str, Interval]:
    """The 95 % intervals of the metrics of `score_ordinal`, over whole patients.

    The accuracy, and the error as a share of the largest one, have Wilson's interval at the
    effective number of patients; for the error it is conservative. Kappa has a bootstrap interval;
    if all grades are right, its lower end is the kappa at the lower end of the accuracy with errors
    of one grade.

    Args:
        truth: Observed grades (n,), integers from 0.
        predicted: Predicted grades (n,).
        grades: Number of grades.
        groups: The patient of each grade; None is a patient of its own.
        draws: Number of resamples.
        seed: Seed of the resamples.

    Returns:
        The intervals by the name of the metric; (NaN, NaN) for fewer than two patients.

    Raises:
        DataError: If a grade is not an integer from 0 to grades - 1.

    >>> intervals = ordinal_intervals([0, 1, 2, 1] * 2, [0, 1, 2, 1] * 2, 3, draws=20)
    >>> [round(end, 3) for end in intervals["accuracy"]], round(intervals["kappa"].low, 3)
    ([0.676, 1.0], 0.676)
    """
    table = grade_confusion(truth, predicted, grades)
    y, p = np.asarray(truth), np.asarray(predicted)
    codes = y * grades + p
    (kappa,) = statistic_intervals(
        lambda rows: _kappa(
            np.bincount(codes[rows], minlength=grades * grades).reshape(grades, grades)
        ),
        len(codes),
        groups,
        draws,
        seed,
    )
    correct = proportion_interval((y == p).astype(float), groups)
    low, high = proportion_interval(np.abs(y - p) / max(1, grades - 1), groups)
    if table.trace() == table.sum() and _chance(table) > 0:  # one grade alone has no kappa
        kappa = Interval(1 - (1 - correct.low) / _chance(table), kappa.high)
    return {
        "kappa": kappa,
        "mae": Interval(low * (grades - 1), high * (grades - 1)),
        "accuracy": correct,
    }


def _ordinal_scores(table: NDArray[np.int64]) -> tuple[float, float, float]:
    total, grade = table.sum(), np.arange(len(table))
    mae = float((table * np.abs(grade[:, None] - grade)).sum() / total)
    return _kappa(table), mae, float(table.trace() / total)


def _kappa(table: NDArray[np.int64]) -> float:
    chance = _chance(table)
    grade = np.arange(len(table))
    cost = float((table * (grade[:, None] - grade) ** 2).sum() / table.sum())
    return 1 - cost / chance if chance > 0 else math.nan


def _chance(table: NDArray[np.int64]) -> float:
    """The mean squared difference of grades that are independent."""
    grade, total = np.arange(len(table)), table.sum()
    independent = np.outer(table.sum(1), table.sum(0)) / total**2
    return float((independent * (grade[:, None] - grade) ** 2).sum())
