"""Bags with values of another task than classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from scmil.bags.audit_targets import check_targets
from scmil.bags.bag import Bag, BagSet
from scmil.bags.slide_ids import slide_id
from scmil.bags.targets import (
    CombinedTarget,
    GradeTarget,
    LabelsTarget,
    NumberTarget,
    SurvivalTarget,
    Targets,
)
from scmil.core.text import first_names
from scmil.errors import DataError

# Names of the two strata of each task, for messages and split tables.
STRATA = {
    SurvivalTarget: ("censored", "event"),
    NumberTarget: ("low", "high"),
    GradeTarget: ("low", "high"),
    LabelsTarget: ("negative", "positive"),
    CombinedTarget: ("low", "high"),
}


def with_targets(
    bags: BagSet, targets: Targets, drop_missing: bool = False, check: bool = True
) -> BagSet:
    """Return the bags with their values; the labels are strata, so that splits are balanced.

    Args:
        bags: Bags, whose own labels and patients are replaced.
        targets: Values and patients by slide.
        drop_missing: Whether bags without a value are left out.
        check: Whether to raise if nothing can be learned from the values.

    Returns:
        The bags that have a value, with `targets`.

    Raises:
        DataError: A bag has no value, no bag has one, or nothing can be learned from them.

    >>> import torch
    >>> bags = BagSet([Bag(name, torch.zeros(2, 3)) for name in ("a", "b", "c", "d")])
    >>> times = ((1.0, True), (2.0, False), (3.0, True), (4.0, False))
    >>> found = with_targets(bags, Targets(SurvivalTarget(), bags.ids, times, (None,) * 4))
    >>> found.labels, found.classes, found.targets.task
    ((1, 0, 1, 0), ('censored', 'event'), 'survival')
    """
    missing = [bag_id for bag_id in bags.ids if targets.of(bag_id) is None]
    if missing and not drop_missing:
        raise DataError(
            f"bags without a value for the task {targets.task!r} ({len(missing)} of {len(bags)}): "
            f"{first_names(missing, 10)}. Add the values, or leave the bags out: "
            "--drop-unlabelled, or drop_unlabelled = true under [data]."
        )
    kept = bags.subset([bag_id for bag_id in bags.ids if targets.of(bag_id) is not None])
    own = _values_of(targets, kept.ids)
    if check:
        check_targets(own)
    strata = split_strata(own, kept.ids)
    facts = {
        bag_id: (stratum, patient)
        for bag_id, stratum, patient in zip(kept.ids, strata, own.patients, strict=True)
    }
    positions = {bag_id: position for position, bag_id in enumerate(kept.ids)}

    def load(bag_id: str) -> Bag:
        label, patient = facts[bag_id]
        return replace(kept[positions[bag_id]], label=label, patient=patient)

    return BagSet.lazy(
        kept.ids, load, strata, own.patients, STRATA[type(own.target)], kept.mark, own
    )


def split_strata(targets: Targets, ids: Sequence[str]) -> list[int]:
    """The stratum of each slide, 0 or 1: splits have the same share of both.

    Strata are events, numbers and grades above the median, or the presence of the label whose
    two values are most equally frequent; of several targets at once, those of the part that most
    slides have, and slides without it are assigned in turn. If a stratum has fewer than four
    patients, patients are assigned to strata in turn, since no split could be balanced.

    >>> numbers = Targets(NumberTarget(), ("a", "b", "c", "d"), (1.0, 7.0, 2.0, 9.0), (None,) * 4)
    >>> split_strata(numbers, ["a", "b", "c"])
    [0, 1, 0]
    """
    values = targets.array(ids)
    if isinstance(targets.target, CombinedTarget):
        strata = _strata_of_largest_part(targets, targets.target, ids)
    elif isinstance(targets.target, SurvivalTarget):
        strata = values[:, 1]
    elif isinstance(targets.target, LabelsTarget):
        balance = np.nan_to_num(np.abs(_nan_means(values) - 0.5), nan=1.0)
        strata = np.nan_to_num(values[:, int(np.argmin(balance))])
    else:
        strata = (values[:, 0] > np.median(values[:, 0])).astype(float)
    patients = dict(zip(targets.ids, targets.patients, strict=True))
    units: dict[object, int] = {}
    numbers = [units.setdefault(patients.get(i) or ("slide", i), len(units)) for i in ids]
    counts = [len({n for n, s in zip(numbers, strata, strict=True) if s == k}) for k in (0, 1)]
    if min(counts) < min(4, len(units) // 2):
        return [number % 2 for number in numbers]
    return [int(stratum) for stratum in strata]


def _strata_of_largest_part(
    targets: Targets, target: CombinedTarget, ids: Sequence[str]
) -> NDArray[np.float64]:
    parts = [targets.part(number) for number in range(len(target.parts))]
    known = [[bag_id for bag_id in ids if part.of(bag_id) is not None] for part in parts]
    largest = max(range(len(parts)), key=lambda number: len(known[number]))
    own = dict(zip(known[largest], split_strata(parts[largest], known[largest]), strict=True))
    return np.array([own.get(bag_id, place % 2) for place, bag_id in enumerate(ids)], dtype=float)


def _nan_means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    known = ~np.isnan(values)
    return np.where(known, values, 0.0).sum(0) / np.maximum(known.sum(0), 1)


def _values_of(targets: Targets, ids: Sequence[str]) -> Targets:
    """The targets of these slides, by the ids of the bags."""
    if not ids:
        raise DataError(
            f"no bag has a value for the task {targets.task!r}: slides of the table have names "
            f"such as {', '.join(targets.ids[:3])}. Names must agree except for folders "
            "and suffixes."
        )
    patients = dict(zip(map(slide_id, targets.ids), targets.patients, strict=True))
    return replace(
        targets,
        ids=tuple(ids),
        values=tuple(targets.of(bag_id) for bag_id in ids),
        patients=tuple(patients.get(slide_id(bag_id)) for bag_id in ids),
    )
