"""The difference of two methods in the main metric of a task other than classes.

Patients are resampled with both methods at once, so that the difference is paired. A metric is a
function of how often each patient counts (`Scorer`): a block of resamples is a few matrix products.
The models are not trained again, so the variation between training sets is not included.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from scmil.stats.concordance import Pairs, Scorer, check_risk, harrell_pairs, share_of_pairs
from scmil.stats.ordinal import grade_confusion
from scmil.stats.regression import check_numbers
from scmil.stats.small_samples import UNKNOWN


class PairedDifference(NamedTuple):
    """A metric of two methods on the same patients, the first minus the second, with a 95 %
    interval and a two-sided p-value by the paired bootstrap over patients.
    """

    value_a: float
    value_b: float
    difference: float
    interval: Interval
    p: float


def survival_scorer(
    times: ArrayLike, events: ArrayLike, risk: ArrayLike, groups: Groups | None = None
) -> Scorer:
    """Harrell's concordance as a function of how often each patient counts.

    Args:
        times: Follow-up times of slides (n,).
        events: 1 for an event, 0 for a censored time (n,).
        risk: Predicted risks (n,), which are averaged over the slides of a patient.
        groups: The patient of each slide; None is a patient of its own.

    Returns:
        A function of counts (k, patients).

    Raises:
        DataError: If the input is invalid.

    >>> survival_scorer([1, 2, 3], [1, 1, 0], [0.9, 0.1, 0.5])(np.ones((1, 3))).round(3).tolist()
    [0.667]
    """
    t, e, r = check_risk(times, events, risk)
    units = number_groups(groups, len(t))
    first = np.unique(units, return_index=True)[1]
    pairs = harrell_pairs(t[first], e[first], np.bincount(units, r) / np.bincount(units))
    return lambda counts: share_of_pairs(pairs, counts)


def regression_scorer(
    truth: ArrayLike, predicted: ArrayLike, groups: Groups | None = None
) -> Scorer:
    """R² as a function of how often each patient counts.

    Args:
        truth: Observed numbers of slides (n,).
        predicted: Predicted numbers (n,).
        groups: The patient of each slide; None is a patient of its own.

    Returns:
        A function of counts (k, patients).

    Raises:
        DataError: If the input is invalid.

    >>> regression_scorer([1, 2, 3], [1, 2, 4])(np.ones((1, 3))).tolist()
    [0.5]
    """
    y, p = check_numbers(truth, predicted)
    units, centred = number_groups(groups, len(y)), y - y.mean()
    columns = (np.ones(len(y)), centred, centred**2, (y - p) ** 2)
    sums = np.stack([np.bincount(units, column) for column in columns], axis=1)

    def score(counts: Numbers) -> Numbers:
        number, first, second, error = (counts @ sums).T
        spread = second - first**2 / np.maximum(number, 1)
        known = spread > 1e-12 * np.maximum(second, 1e-300)
        return 1 - np.divide(error, spread, out=np.full(len(counts), np.nan), where=known)

    return score


def ordinal_scorer(
    truth: ArrayLike, predicted: ArrayLike, grades: int, groups: Groups | None = None
) -> Scorer:
    """Quadratic kappa as a function of how often each patient counts.

    Args:
        truth: Observed grades of slides (n,), integers from 0.
        predicted: Predicted grades (n,).
        grades: Number of grades.
        groups: The patient of each slide; None is a patient of its own.

    Returns:
        A function of counts (k, patients).

    Raises:
        DataError: If the input is invalid.

    >>> ordinal_scorer([0, 1, 2], [0, 1, 1], 3)(np.ones((1, 3))).round(3).tolist()
    [0.667]
    """
    grade_confusion(truth, predicted, grades)  # raises an error for an invalid grade
    y, p = np.asarray(truth), np.asarray(predicted)
    units = number_groups(groups, len(y))
    tables = np.zeros((int(units.max()) + 1, grades * grades))
    np.add.at(tables, (units, y * grades + p), 1.0)
    grade = np.arange(grades)
    costs = ((grade[:, None] - grade) ** 2).astype(float)

    def score(counts: Numbers) -> Numbers:
        confusion = (counts @ tables).reshape(-1, grades, grades)
        total = confusion.sum((1, 2))
        rows, columns = confusion.sum(2), confusion.sum(1)
        chance = np.einsum("ki,ij,kj->k", rows, costs, columns) / total**2
        cost = (confusion * costs).sum((1, 2)) / total
        return 1 - np.divide(cost, chance, out=np.full(len(counts), np.nan), where=chance > 0)

    return score


def multilabel_scorer(
    truth: ArrayLike, probabilities: ArrayLike, groups: Groups | None = None
) -> Scorer:
    """The macro AUC as a function of how often each patient counts.

    Labels of which a resample has one value only are left out of its mean.

    Args:
        truth: 1, 0, or NaN where a label is missing (n, labels).
        probabilities: Predicted probabilities of 1 (n, labels).
        groups: The patient of each slide; None is a patient of its own.

    Returns:
        A function of counts (k, patients).

    Raises:
        DataError: If the shapes differ.

    >>> scorer = multilabel_scorer([[1, 0], [0, 0]], [[0.9, 0.2], [0.3, 0.8]])
    >>> scorer(np.ones((1, 2))).tolist()
    [1.0]
    """
    y, p = np.asarray(truth, dtype=float), np.asarray(probabilities, dtype=float)
    if y.ndim != 2 or y.shape != p.shape or not y.size:
        raise DataError(
            f"truth {y.shape} and probabilities {p.shape}: the same shape (n, labels) is expected."
        )
    units = number_groups(groups, len(y))
    labels = [_label_pairs(y[:, i], p[:, i], units) for i in range(y.shape[1])]

    def score(counts: Numbers) -> Numbers:
        areas = np.stack([share_of_pairs(pairs, counts[:, rows]) for pairs, rows in labels])
        known = ~np.isnan(areas)
        total, number = np.where(known, areas, 0.0).sum(0), known.sum(0)
        return np.divide(total, number, out=np.full(len(counts), np.nan), where=number > 0)

    return score


def compare_scorers(
    a: Sequence[Scorer], b: Sequence[Scorer], patients: int, draws: int = 2000, seed: int = 0
) -> PairedDifference:
    """The paired bootstrap of two methods over patients.

    p is twice the smaller share of resamples in which the difference is at most, or at least, 0.

    Args:
        a: The metric of the first method in each repeat of a cross-validation; their mean counts.
        b: The metric of the second method in the same repeats.
        patients: Number of patients.
        draws: Number of resamples.
        seed: Seed of the resamples.

    Returns:
        Values, difference, interval and p-value; the last two are NaN for fewer than two patients.

    Raises:
        DataError: If the numbers of repeats differ, or there are none.

    >>> better, worse = (regression_scorer([1, 2, 3], p) for p in ([1, 2, 3], [3, 2, 1]))
    >>> compare_scorers([better], [worse], patients=3, draws=50).difference
    4.0
    """
    if len(a) != len(b) or not len(a):
        raise DataError(
            f"{len(a)} repeats against {len(b)}: the same number of each is expected, at least one."
        )
    once = np.ones((1, patients))
    value_a, value_b = (float(_mean_of_repeats(each, once)[0]) for each in (a, b))
    if patients < 2:
        return PairedDifference(value_a, value_b, value_a - value_b, UNKNOWN, float("nan"))
    blocks = draw_counts(patients, draws, np.random.default_rng(seed))
    drawn = np.concatenate(
        [
            _mean_of_repeats(a, counts) - _mean_of_repeats(b, counts)
            for counts in (block.astype(float) for block in blocks)
        ]
    ).round(12)
    known = drawn[np.isfinite(drawn)]
    fewer = min(int((known <= 0).sum()), int((known >= 0).sum()))
    p = min(1.0, 2 * (fewer + 1) / (len(known) + 1)) if len(known) else float("nan")
    return PairedDifference(value_a, value_b, value_a - value_b, percentile_interval(drawn), p)


def _mean_of_repeats(scorers: Sequence[Scorer], counts: Numbers) -> Numbers:
    return np.mean([scorer(counts) for scorer in scorers], axis=0)


def _label_pairs(
    y: Numbers, p: Numbers, units: NDArray[np.int64]
) -> tuple[Pairs, NDArray[np.int64]]:
    """Slides with a label against those without, and the patients of both."""
    rows = np.flatnonzero(~np.isnan(y))
    absent = y[rows] == 0

    def comparable(cases: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.broadcast_to(absent, (len(cases), len(absent)))

    return Pairs(p[rows], (y[rows] == 1).astype(float), comparable), units[rows]
