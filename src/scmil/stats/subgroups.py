"""Metrics of subgroups, such as sexes, sites or scanners, and the largest gaps between them.

Each gap is tested by permutation: the subgroups are exchanged between patients of the same class,
so that a different share of the classes is no gap. The p-values are adjusted for the number of
gaps (Holm). Small groups are shown with their intervals and take no part in the gaps. Other tasks
than classes are in `target_subgroups`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from scmil.core.shapes import Numbers
from scmil.errors import DataError
from scmil.stats.bootstrap import BLOCK_NUMBERS, Groups, Interval, MetricEstimate, number_groups
from scmil.stats.paired_tests import holm
from scmil.stats.small_samples import UNKNOWN, mean_interval, metric_intervals, proportion_interval

LEAST_PATIENTS = 10  # a group with fewer is small
LEAST_OF_CLASS = 5  # so is one with fewer patients of a class
MOST_GROUPS = 12  # more values are a number or an id
PERMUTATIONS = 2000
MISSING = "(missing)"
SMALLER_IS_BETTER = WITH_UNITS = ("mae",)
Statistic = Callable[[Numbers], Numbers]  # groups (k, b) to values (k,)


class Family(NamedTuple):
    """Metrics as functions of groups, and the strata of the slides within which the groups are
    exchanged.
    """

    statistics: Mapping[str, Statistic]
    strata: Sequence[Hashable]


class Described(NamedTuple):
    """The metrics of some slides, and those that have enough patients of each outcome."""

    metrics: Mapping[str, MetricEstimate]
    reliable: frozenset[str]


class Outcomes(Protocol):
    """Test predictions by slide, of any task."""

    @property
    def patients(self) -> Groups:
        """The patient of each slide; None is a patient of its own."""

    def describe(self, rows: NDArray[np.int64]) -> Described:
        """The metrics of some slides with their intervals."""

    def families(self, rows: NDArray[np.int64], units: NDArray[np.int64]) -> list[Family]:
        """The metrics to compare as functions of some slides, which belong to units."""


@dataclass(frozen=True)
class SlideOutcomes:
    """Test predictions of classes by slide.

    Attributes:
        labels: Class of each slide (b,).
        right: Whether it was predicted correctly (b,); a mean over repeats lies between 0 and 1.
        probabilities: Class probabilities (b, c), the mean over repeats.
        patients: The patient of each slide; None is a patient of its own.
    """

    labels: NDArray[np.int64]
    right: Numbers
    probabilities: Numbers
    patients: Groups

    def describe(self, rows: NDArray[np.int64]) -> Described:
        """Accuracy, AUC, and sensitivity and specificity or the balanced accuracy."""
        labels, right, p = self.labels[rows], self.right[rows], self.probabilities[rows]
        units = number_groups([self.patients[i] for i in rows.tolist()], len(rows))
        of_class = [len(np.unique(units[labels == c])) for c in range(p.shape[1])]
        everything = np.ones((1, len(rows)))
        statistics = _statistics(labels, right, p)
        values = {metric: float(value(everything)[0]) for metric, value in statistics.items()}

        def share(c: int | None) -> Interval:
            own = np.flatnonzero(labels == c) if c is not None else np.arange(len(labels))
            if not len(own):
                return UNKNOWN
            return proportion_interval(right[own], [units[i].item() for i in own])

        intervals = {
            "accuracy": share(None),
            "auc": metric_intervals(labels, p, 0.5, units.tolist())["auc"],
            "sensitivity": share(1),
            "specificity": share(0),
        }
        if "balanced_accuracy" in values:
            present = [c for c in range(p.shape[1]) if of_class[c]]
            recalls = [float(right[labels == c].mean()) for c in present]
            intervals["balanced_accuracy"] = mean_interval(recalls, [share(c) for c in present])
        found = {
            metric: MetricEstimate(value, intervals[metric]) for metric, value in values.items()
        }
        return Described(found, frozenset(found if min(of_class) >= LEAST_OF_CLASS else ()))

    def families(self, rows: NDArray[np.int64], units: NDArray[np.int64]) -> list[Family]:
        """All metrics; groups are exchanged between patients of the same class."""
        labels = self.labels[rows]
        statistics = _statistics(labels, self.right[rows], self.probabilities[rows])
        return [Family(statistics, labels.tolist())]


class Subgroup(NamedTuple):
    """A group of slides with its metrics; `small` if they say little."""

    column: str
    name: str
    slides: int
    patients: int
    small: bool
    metrics: Mapping[str, MetricEstimate]


class Gap(NamedTuple):
    """The largest difference of a metric between two groups of a column.

    `p` is that of the permutation test, `adjusted` is corrected for all gaps that were tested.
    """

    column: str
    metric: str
    best: str
    worst: str
    difference: float
    p: float
    adjusted: float


@dataclass(frozen=True)
class SubgroupTable:
    """All groups, the gaps (largest first), and columns whose groups could not be compared."""

    groups: tuple[Subgroup, ...]
    gaps: tuple[Gap, ...]
    not_compared: tuple[str, ...] = ()

    @property
    def worst(self) -> Gap | None:
        """The largest gap."""
        return self.gaps[0] if self.gaps else None


def compare_subgroups(
    tested: Outcomes,
    columns: Mapping[str, Sequence[str | None]],
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> SubgroupTable:
    """Compute the metrics of the groups of each column, and the largest gap of each metric.

    Args:
        tested: The predictions.
        columns: The group of each slide, by column; None if it is missing.
        permutations: Number of permutations of each test.
        seed: Seed of the permutations.

    Returns:
        The groups and gaps. Of classes accuracy and AUC, and for two classes sensitivity and
        specificity, for more the balanced accuracy.

    Raises:
        DataError: A column has more than 12 values, one value, or another number of slides.

    >>> labels = np.array([0, 1] * 20)
    >>> p = np.where(labels == 1, 0.8, 0.3)
    >>> slides = SlideOutcomes(labels, np.ones(40), np.stack([1 - p, p], 1), [None] * 40)
    >>> table = compare_subgroups(slides, {"sex": ["f"] * 20 + ["m"] * 20}, permutations=10)
    >>> [(group.name, group.metrics["accuracy"].value) for group in table.groups]
    [('f', 1.0), ('m', 1.0)]
    >>> table.worst.difference
    0.0
    """
    groups: list[Subgroup] = []
    found: list[Gap] = []
    not_compared: list[str] = []
    for column, values in columns.items():
        _check_column(column, values, len(tested.patients))
        names = sorted({value for value in values if value is not None})
        codes = np.array([names.index(value) if value is not None else -1 for value in values])
        own = [
            _describe_group(tested, column, name, np.flatnonzero(codes == i))
            for i, name in enumerate(names)
        ]
        groups += [group for group, _ in own]
        if len(lost := np.flatnonzero(codes == -1)):
            groups.append(_describe_group(tested, column, MISSING, lost, missing=True)[0])
        reliable = [metrics for _, metrics in own]
        gaps = _gaps(tested, column, names, codes, reliable, permutations, seed)
        found += gaps
        if not gaps:
            not_compared.append(column)
    return SubgroupTable(tuple(groups), _adjusted(found), tuple(not_compared))


def merge_tables(tables: Sequence[SubgroupTable]) -> SubgroupTable:
    """The tables of several targets as one; p-values are adjusted for the gaps of all of them."""
    return SubgroupTable(
        tuple(group for table in tables for group in table.groups),
        _adjusted([gap for table in tables for gap in table.gaps]),
        tuple(column for table in tables for column in table.not_compared),
    )


def _adjusted(gaps: Sequence[Gap]) -> tuple[Gap, ...]:
    """The gaps with p-values that are corrected for their number, the largest first."""
    adjusted = holm([gap.p for gap in gaps]) if gaps else ()
    found = [gap._replace(adjusted=float(p)) for gap, p in zip(gaps, adjusted, strict=True)]
    # A difference in units of a number cannot be compared with the others.
    return tuple(sorted(found, key=lambda gap: (gap.metric in WITH_UNITS, -gap.difference)))


def _check_column(column: str, values: Sequence[str | None], slides: int) -> None:
    if len(values) != slides:
        raise DataError(f"{column}: {len(values)} values for {slides} slides. Give one for each.")
    different = {value for value in values if value is not None}
    if len(different) > MOST_GROUPS:
        raise DataError(
            f"{column} has {len(different)} different values, and at most {MOST_GROUPS} groups are "
            "compared. Group them in a new column, such as 'under 50' and '50 and over'."
        )
    if len(different) < 2:
        raise DataError(
            f"{column} has {len(different)} different values in the tested slides, and at least 2 "
            "are needed. Leave the column out."
        )


def _statistics(labels: NDArray[np.int64], right: Numbers, p: Numbers) -> dict[str, Statistic]:
    """The metrics as functions of groups, one in each row of (k, b): 1 for its slides, else 0."""

    def recall(rows: Numbers, c: int) -> Numbers:
        own = rows * (labels == c)
        return share_in_groups(own @ right, own.sum(1))

    def area(rows: Numbers) -> Numbers:
        present = [c for c in range(p.shape[1]) if (labels == c).any()]
        areas = [
            _area_in_groups(rows, labels == c, p[:, c])
            for c in ([1] if p.shape[1] == 2 else present)
        ]
        # In a group without a class the mean is over the others, as in `metrics.auc`.
        known = [np.nan_to_num(area) for area in areas]
        return share_in_groups(np.sum(known, 0), np.isfinite(areas).sum(0))

    def accuracy(rows: Numbers) -> Numbers:
        return share_in_groups(rows @ right, rows.sum(1))

    def balanced(rows: Numbers) -> Numbers:
        recalls = np.array([recall(rows, c) for c in range(p.shape[1])])
        return share_in_groups(np.nan_to_num(recalls).sum(0), np.isfinite(recalls).sum(0))

    further: dict[str, Statistic] = (
        {"sensitivity": lambda rows: recall(rows, 1), "specificity": lambda rows: recall(rows, 0)}
        if p.shape[1] == 2
        else {"balanced_accuracy": balanced}
    )
    return {
        "accuracy": lambda rows: share_in_groups(rows @ right, rows.sum(1)),
        "auc": area,
        **further,
    }


def _area_in_groups(rows: Numbers, positive: NDArray[np.bool_], scores: Numbers) -> Numbers:
    """The AUC within each group, by counting pairs."""
    own, other = scores[positive, None], scores[~positive]
    wins = (own > other) + 0.5 * (own == other)
    first, second = rows[:, positive], rows[:, ~positive]
    return share_in_groups(((first @ wins) * second).sum(1), first.sum(1) * second.sum(1))


def share_in_groups(a: Numbers, b: Numbers) -> Numbers:
    """a / b; NaN where b is 0.

    >>> share_in_groups(np.array([1.0, 0.0]), np.array([2.0, 0.0])).tolist()
    [0.5, nan]
    """
    return np.divide(a, b, out=np.full(len(a), np.nan), where=b > 0)


def _describe_group(
    tested: Outcomes, column: str, name: str, rows: NDArray[np.int64], missing: bool = False
) -> tuple[Subgroup, frozenset[str]]:
    """A group, and the metrics that take part in the gaps."""
    units = number_groups([tested.patients[i] for i in rows.tolist()], len(rows))
    patients = int(units.max()) + 1
    found = tested.describe(rows)
    small = missing or patients < LEAST_PATIENTS or not found.reliable
    group = Subgroup(column, name, len(rows), patients, small, found.metrics)
    return group, frozenset() if small else found.reliable


def _gaps(
    tested: Outcomes,
    column: str,
    names: Sequence[str],
    codes: NDArray[np.int64],
    reliable: Sequence[frozenset[str]],
    permutations: int,
    seed: int,
) -> list[Gap]:
    """The gap of each metric between the groups of a column that are large enough for it."""
    gaps = []
    everything = np.arange(len(codes))
    for place, family in enumerate(tested.families(everything, everything)):
        metrics = set(family.statistics)
        large = [code for code, own in enumerate(reliable) if metrics <= own]
        if len(large) < 2:
            continue
        rows = np.flatnonzero(np.isin(codes, large))
        units = _units_of([tested.patients[i] for i in rows.tolist()], codes[rows])
        own = tested.families(rows, units)[place]
        gaps += _gaps_of_family(own, column, names, codes[rows], units, large, permutations, seed)
    return gaps


def _units_of(patients: Groups, groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of the unit of each slide: a patient with slides in two groups is two units."""
    numbers = number_groups(list(patients), len(patients)).tolist()
    pairs = list(zip(numbers, groups.tolist(), strict=True))
    return np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)


def _gaps_of_family(
    family: Family,
    column: str,
    names: Sequence[str],
    groups: NDArray[np.int64],
    units: NDArray[np.int64],
    large: Sequence[int],
    permutations: int,
    seed: int,
) -> list[Gap]:
    """The gaps with their p-values: units are exchanged within their strata."""
    statistics = family.statistics
    first = np.unique(units, return_index=True)[1]
    of_unit = groups[first]
    of_slide = np.unique(np.array(family.strata, dtype=float), return_inverse=True)[1].reshape(-1)
    strata = [tuple(sorted(set(of_slide[units == unit].tolist()))) for unit in range(len(first))]
    members = [
        np.array([i for i, other in enumerate(strata) if other == stratum])
        for stratum in sorted(set(strata))
    ]

    def values_of(assigned: NDArray[np.int64]) -> Numbers:
        """Each metric of each large group, for each row of assigned groups: (k, m, groups)."""
        parts = [(assigned == code).astype(float) for code in large]
        return np.stack(
            [np.stack([value(part) for part in parts], 1) for value in statistics.values()], 1
        )

    seen = values_of(groups[None])[0]
    observed = np.ptp(seen, axis=1)
    generator = np.random.default_rng(seed)
    at_least = np.zeros(len(observed))
    block = max(1, min(permutations, BLOCK_NUMBERS // len(groups)))
    for start in range(0, permutations, block):
        drawn = np.tile(of_unit, (min(block, permutations - start), 1))
        for positions in members:
            drawn[:, positions] = generator.permuted(drawn[:, positions], axis=1)
        # A metric that a permutation does not define counts as a gap.
        at_least += (~(np.ptp(values_of(drawn[:, units]), axis=2) < observed - 1e-12)).sum(0)
    gaps = []
    for metric, own_values, gap, times in zip(statistics, seen, observed, at_least, strict=True):
        ends = (np.argmax, np.argmin)
        best, worst = (names[large[int(at(own_values))]] for at in ends)
        if metric in SMALLER_IS_BETTER:
            best, worst = worst, best
        p = float((times + 1) / (permutations + 1))
        gaps.append(Gap(column, metric, best, worst, float(gap), p, math.nan))
    return gaps
