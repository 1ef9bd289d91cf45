"""Compare the use of atoms between classes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scmil.core.extras import import_extra
from scmil.errors import DataError
from scmil.stats.bootstrap import LIMITS, draw_counts

DRAWS = 2000  # of the bootstrap
Array = NDArray[np.float64]


class ClassComparison(NamedTuple):
    """For each column: the class that differs most from the others, the difference, its 95 %
    confidence interval, and the uncorrected p-value.
    """

    target: NDArray[np.int64]
    difference: Array
    low: Array
    high: Array
    p: Array


def compare_use(shares: NDArray[Any], labels: NDArray[np.int64], seed: int = 0) -> ClassComparison:
    """Compare the fractions (patients, columns) between the classes that occur.

    Two classes: the second minus the first, with the Mann-Whitney test. More classes: the class
    that differs most from all others together, with the Kruskal-Wallis test. The interval is a
    bootstrap within the classes; it is NaN if a class has only one patient. A constant column has
    p = 1.

    >>> first = [0.1, 0.2, 0.15, 0.1, 0.8, 0.9, 0.7, 0.8]
    >>> shares = np.column_stack([first, [0.5] * 8])
    >>> found = compare_use(shares, np.array([0, 0, 0, 0, 1, 1, 1, 1]))
    >>> found.target.tolist(), found.difference.round(4).tolist(), found.p.round(2).tolist()
    ([1, 1], [0.6625, 0.0], [0.03, 1.0])
    """
    present = np.unique(labels)
    if len(present) < 2:
        raise DataError(
            f"the slides have {len(present)} class, expected at least 2 to compare. "
            "Give labels of more slides."
        )
    groups = [shares[labels == label].astype(np.float64) for label in present]
    sizes = np.array([len(group) for group in groups])
    means = np.stack([group.mean(0) for group in groups])
    differences = _against_rest(means, sizes)
    place = np.full(shares.shape[1], 1) if len(present) == 2 else np.abs(differences).argmax(0)
    low, high = _intervals(groups, sizes, place, seed)
    return ClassComparison(
        present[place],
        np.take_along_axis(differences, place[None], 0)[0],
        low,
        high,
        _p_values(groups),
    )


def _against_rest(means: Array, sizes: NDArray[np.int64]) -> Array:
    """The mean of each class minus that of all others together; classes are the first axis."""
    shape = (-1,) + (1,) * (means.ndim - 1)
    weighted = means * sizes.reshape(shape)
    return np.asarray(means - (weighted.sum(0) - weighted) / (sizes.sum() - sizes).reshape(shape))


def _intervals(
    groups: list[Array], sizes: NDArray[np.int64], place: NDArray[np.int64], seed: int
) -> tuple[Array, Array]:
    columns = len(place)
    if sizes.min() < 2:
        return np.full(columns, np.nan), np.full(columns, np.nan)
    generator = np.random.default_rng(seed)
    draws = np.stack(
        [
            np.concatenate([counts @ group / n for counts in draw_counts(n, DRAWS, generator)])
            for n, group in zip(sizes, groups)
        ]
    )
    drawn = np.take_along_axis(_against_rest(draws, sizes), place[None, None], 0)[0]
    low, high = np.quantile(drawn, LIMITS, axis=0)
    return low, high


def _p_values(groups: list[Array]) -> Array:
    stats = import_extra("scipy.stats", "statistics")
    everything = np.concatenate(groups)
    varies = everything.max(0) > everything.min(0)
    p = np.ones(everything.shape[1])
    if varies.any():
        test = stats.mannwhitneyu if len(groups) == 2 else stats.kruskal
        p[varies] = test(*(group[:, varies] for group in groups), axis=0).pvalue
    return p
