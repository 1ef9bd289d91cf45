"""Split conformal prediction: sets of classes that contain the true one with a given probability,
and intervals of numbers.

The guarantee is over patients: one probability vector for each patient, the mean over the slides,
and calibration patients that took no part in training. It holds on average over patients who come
from the same population, not for each class or subgroup.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scmil.core.shapes import Numbers
from scmil.errors import DataError
from scmil.stats.bootstrap import Groups, Interval, number_groups
from scmil.stats.regression import check_numbers
from scmil.stats.small_samples import proportion_interval


class SetCoverage(NamedTuple):
    """How often the prediction sets of patients contain the true class, and how large they are."""

    patients: int
    coverage: float
    interval: Interval
    mean_size: float
    empty: int


def conformal_threshold(
    labels: ArrayLike, probabilities: ArrayLike, error: float = 0.1, groups: Groups | None = None
) -> float:
    """The probability from which a class belongs to the set.

    Args:
        labels: Class of each slide of the calibration patients (b,).
        probabilities: Class probabilities (b, c).
        error: Accepted share of patients whose set does not contain the true class.
        groups: The patient of each slide; None is a patient of its own. Slides of one patient must
            have one class.

    Returns:
        The threshold. It is 0, so that every set contains all classes, if there are fewer than
        1 / error - 1 patients.

    Raises:
        DataError: If the input is invalid or a patient has two classes.

    >>> p = np.linspace(0.5, 0.95, 19)
    >>> round(conformal_threshold([1] * 19, np.stack([1 - p, p], 1), 0.1), 3)
    0.525
    """
    if not 0 < error < 1:
        raise DataError(f"error = {error}: a number above 0 and below 1 is expected.")
    y, p = _patients(labels, probabilities, groups)
    own = np.sort(p[np.arange(len(y)), y])
    position = math.floor(error * (len(y) + 1) + 1e-9) - 1
    return float(own[position]) if position >= 0 else 0.0


def prediction_sets(probabilities: ArrayLike, threshold: float) -> NDArray[np.bool_]:
    """Which classes belong to the set of each patient.

    Args:
        probabilities: Class probabilities (n, c).
        threshold: The result of `conformal_threshold`.

    Returns:
        True where a class belongs to the set (n, c); a set can be empty.

    >>> prediction_sets([[0.6, 0.4], [0.9, 0.1]], 0.3).tolist()
    [[True, True], [True, False]]
    """
    return np.asarray(probabilities, dtype=float) >= threshold


def set_coverage(
    labels: ArrayLike, probabilities: ArrayLike, threshold: float, groups: Groups | None = None
) -> SetCoverage:
    """The coverage of the prediction sets on other patients, such as the test split.

    Args:
        labels: Class of each slide (b,).
        probabilities: Class probabilities (b, c).
        threshold: The result of `conformal_threshold`.
        groups: The patient of each slide; None is a patient of its own.

    Returns:
        The share of patients whose set contains the true class with Wilson's interval, the mean
        number of classes in a set, and the number of empty sets.

    Raises:
        DataError: If the input is invalid or a patient has two classes.

    >>> set_coverage([0, 1], [[0.6, 0.4], [0.9, 0.1]], 0.3)[:2]
    (2, 0.5)
    """
    y, p = _patients(labels, probabilities, groups)
    sets = prediction_sets(p, threshold)
    hits = sets[np.arange(len(y)), y].astype(float)
    sizes = sets.sum(1)
    return SetCoverage(
        len(y),
        float(hits.mean()),
        proportion_interval(hits),
        float(sizes.mean()),
        int((sizes == 0).sum()),
    )


class IntervalCoverage(NamedTuple):
    """How often the prediction intervals of patients contain the observed number."""

    patients: int
    coverage: float
    interval: Interval


def conformal_half_width(
    truth: ArrayLike, predicted: ArrayLike, error: float = 0.1, groups: Groups | None = None
) -> float:
    """Half of the width of the interval around a predicted number.

    Args:
        truth: Observed number of each slide of the calibration patients (b,).
        predicted: Predicted numbers (b,).
        error: Accepted share of patients whose interval does not contain the observed number.
        groups: The patient of each slide; None is a patient of its own. The numbers of the slides
            of a patient are averaged.

    Returns:
        The half width; infinite if there are fewer than 1 / error - 1 patients.

    Raises:
        DataError: If the input is invalid.

    >>> conformal_half_width(np.arange(1.0, 20.0), np.zeros(19), 0.1)
    18.0
    """
    if not 0 < error < 1:
        raise DataError(f"error = {error}: a number above 0 and below 1 is expected.")
    distances = np.sort(_distances(truth, predicted, groups))
    position = math.ceil((1 - error) * (len(distances) + 1) - 1e-9) - 1
    return float(distances[position]) if position < len(distances) else math.inf


def interval_coverage(
    truth: ArrayLike, predicted: ArrayLike, half_width: float, groups: Groups | None = None
) -> IntervalCoverage:
    """The coverage of the prediction intervals on other patients, such as the test split.

    Args:
        truth: Observed number of each slide (b,).
        predicted: Predicted numbers (b,).
        half_width: The result of `conformal_half_width`.
        groups: The patient of each slide; None is a patient of its own.

    Returns:
        The share of patients whose interval contains the observed number with Wilson's interval.

    Raises:
        DataError: If the input is invalid.

    >>> interval_coverage([1.0, 5.0], [2.0, 2.0], 1.5)[:2]
    (2, 0.5)
    """
    hits = (_distances(truth, predicted, groups) <= half_width).astype(float)
    return IntervalCoverage(len(hits), float(hits.mean()), proportion_interval(hits))


def _distances(truth: ArrayLike, predicted: ArrayLike, groups: Groups | None) -> Numbers:
    """The distance of the mean observed and the mean predicted number of each patient."""
    y, p = check_numbers(truth, predicted)
    units = number_groups(groups, len(y))
    return np.abs(np.bincount(units, y - p) / np.bincount(units))


def _patients(
    labels: ArrayLike, probabilities: ArrayLike, groups: Groups | None
) -> tuple[NDArray[np.int64], Numbers]:
    """The class and the mean probabilities of each patient."""
    y, p = np.asarray(labels), np.asarray(probabilities, dtype=float)
    if p.ndim != 2 or y.shape != p.shape[:1] or not len(y):
        raise DataError(
            f"labels {y.shape} and probabilities {p.shape}: shapes (b,) and (b, c) are expected."
        )
    if y.dtype.kind not in "iub" or y.min() < 0 or y.max() >= p.shape[1]:
        raise DataError(f"labels must be integers from 0 to {p.shape[1] - 1}.")
    if not np.isfinite(p).all():
        raise DataError("probabilities must be finite numbers.")
    units = number_groups(groups, len(y))
    sizes = np.bincount(units)
    mean = np.stack([np.bincount(units, column) for column in p.T], axis=1) / sizes[:, None]
    first = np.full(len(sizes), -1)
    first[units[::-1]] = y[::-1]
    if (first[units] != y).any():
        raise DataError(
            f"{len(np.unique(units[first[units] != y]))} patients have slides of different "
            "classes. Conformal sets are made for patients: give each patient one class."
        )
    return first, mean
