"""The bootstrap over whole patients: resamples, and the percentile intervals made from them.

Patients are the units that are resampled, because slides of one patient are not independent. All
resamples come from here, in blocks, so that memory does not grow with the number of patients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scmil.core.shapes import Numbers
from scmil.errors import DataError
from scmil.stats.groups import group_positions

Groups: TypeAlias = Sequence[Hashable | None]
# Numbers per block of resamples. All resamples of 100 000 patients at once would take 1.6 GB.
BLOCK_NUMBERS = 2_000_000
LIMITS = (0.025, 0.975)  # percentiles of a 95 % interval
Z = 1.959963984540054  # 97.5 % quantile of the normal distribution


class Interval(NamedTuple):
    """The limits of a confidence interval."""

    low: float
    high: float


class MetricEstimate(NamedTuple):
    """A metric with its 95 % interval."""

    value: float
    interval: Interval


def bootstrap_interval(
    values: ArrayLike,
    groups: Groups | None = None,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> Interval:
    """The percentile bootstrap interval of a mean, over bags or over whole patients.

    Args:
        values: At least two finite numbers, one per bag.
        groups: The patient of each value; None is a patient of its own. Without `groups`, bags are
            resampled.
        level: The confidence level.
        draws: Number of resamples.
        seed: Seed of the resamples.

    Returns:
        The limits of the interval.

    Raises:
        DataError: If values, groups, level or draws are invalid, or there is only one patient.

    >>> bootstrap_interval([2.0, 2.0, 2.0])
    Interval(low=2.0, high=2.0)
    """
    numbers = check_values(values, least=2)
    if not 0 < level < 1 or draws < 1:
        raise DataError(
            f"level = {level}, draws = {draws}: a level between 0 and 1 and at least one draw are "
            "expected. Change them."
        )
    units = number_groups(groups, len(numbers))
    sizes, sums = np.bincount(units), np.bincount(units, numbers)
    if len(sizes) < 2:
        raise DataError(
            "all values belong to one patient, and an interval needs at least 2. Add patients."
        )
    blocks = draw_positions(len(sizes), draws, np.random.default_rng(seed))
    means = np.concatenate([sums[drawn].sum(1) / sizes[drawn].sum(1) for drawn in blocks])
    return percentile_interval(means, ((1 - level) / 2, (1 + level) / 2))


def draw_positions(
    units: int, draws: int, generator: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Blocks of resamples (rows, units): the positions of the units that each one contains.

    >>> [block.shape for block in draw_positions(3, 5, np.random.default_rng(0))]
    [(5, 3)]
    """
    for rows in _block_sizes(units, draws):
        yield generator.integers(units, size=(rows, units))


def draw_counts(
    units: int, draws: int, generator: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Blocks of resamples (rows, units): how often each unit is drawn.

    A weighted sum over the units is then one matrix product for all resamples of a block.

    >>> [block.sum(1).tolist() for block in draw_counts(3, 2, np.random.default_rng(0))]
    [[3, 3]]
    """
    for rows in _block_sizes(units, draws):
        yield generator.multinomial(units, np.full(units, 1 / units), size=rows)


def draw_slide_weights(units: Sequence[str | None], draws: int, seed: int) -> Iterator[Numbers]:
    """Blocks of resamples (rows, slides): how often each slide counts if whole units are drawn.

    A slide whose unit is None is a unit of its own.
    """
    names = [
        f"slide {position}" if unit is None else f"unit {unit}"
        for position, unit in enumerate(units)
    ]
    numbers = np.unique(names, return_inverse=True)[1]
    for counts in draw_counts(int(numbers.max()) + 1, draws, np.random.default_rng(seed)):
        yield counts[:, numbers].astype(float)


def statistic_intervals(
    statistic: Callable[[NDArray[np.int64]], ArrayLike],
    n: int,
    groups: Groups | None = None,
    draws: int = 2000,
    seed: int = 0,
) -> list[Interval]:
    """The 95 % percentile intervals of any statistics of slides, over whole patients.

    Args:
        statistic: A function of the positions of the slides of a resample that returns one number
            or several; NaN where a resample does not define it.
        n: Number of slides.
        groups: The patient of each slide; None is a patient of its own.
        draws: Number of resamples.
        seed: Seed of the resamples.

    Returns:
        One interval for each number; (NaN, NaN) for fewer than two patients.

    >>> values = np.array([1.0, 1.0, 1.0])
    >>> statistic_intervals(lambda rows: values[rows].mean(), 3)
    [Interval(low=1.0, high=1.0)]
    """
    members = list(group_positions(number_groups(groups, n).tolist()).values())
    if len(members) < 2:
        return [Interval(math.nan, math.nan)] * np.size(statistic(np.arange(n)))
    rows = [np.array(positions) for positions in members]
    values = [
        np.atleast_1d(np.asarray(statistic(np.concatenate([rows[i] for i in drawn])), dtype=float))
        for block in draw_positions(len(rows), draws, np.random.default_rng(seed))
        for drawn in block
    ]
    return [percentile_interval(column) for column in np.stack(values, axis=1)]


def percentile_interval(statistics: Numbers, limits: tuple[float, float] = LIMITS) -> Interval:
    """The percentiles of the finite statistics of resamples; NaN if there are none.

    >>> percentile_interval(np.array([1.0, 1.0, math.nan]))
    Interval(low=1.0, high=1.0)
    """
    finite = statistics[np.isfinite(statistics)]
    low, high = np.quantile(finite, limits) if len(finite) else (math.nan, math.nan)
    return Interval(float(low), float(high))


def number_groups(groups: Groups | None, n: int) -> NDArray[np.int64]:
    """A number for each group, in order of appearance; each None is a group of its own."""
    if groups is None:
        return np.arange(n)
    if len(groups) != n:
        raise DataError(
            f"{len(groups)} groups for {n} values: one for each value is expected. "
            "Use None where it is unknown."
        )
    seen: dict[Hashable, int] = {}
    keys = [("alone", i) if group is None else ("group", group) for i, group in enumerate(groups)]
    return np.array([seen.setdefault(key, len(seen)) for key in keys])


def check_values(values: ArrayLike | None, least: int) -> Numbers:
    """The values as an array; raises DataError unless they are `least` or more finite numbers."""
    numbers = np.asarray(values, dtype=float)
    if numbers.ndim != 1 or len(numbers) < least:
        raise DataError(
            f"values of shape {numbers.shape}: a list of at least {least} is expected. Add values."
        )
    if not np.isfinite(numbers).all():
        position = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise DataError(
            f"value {position} of {len(numbers)} is {numbers[position]}, and a finite number is "
            "expected. Leave it out, for both methods if two are compared."
        )
    return numbers


def _block_sizes(units: int, draws: int) -> Iterator[int]:
    rows = max(1, BLOCK_NUMBERS // units)
    for start in range(0, draws, rows):
        yield min(rows, draws - start)
