"""Validation of bags and class labels before training."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from scmil.bags.bag import Bag, BagSet
from scmil.bags.provenance import REQUIREMENTS, comparable, required_provenance
from scmil.core.jobs.failure_log import record_failure
from scmil.core.text import first_names
from scmil.errors import BagError, DataError, SplitError


@dataclass(frozen=True)
class BagSummary:
    """The number of instances of each bag, the feature dimension, and the shared provenance."""

    sizes: tuple[int, ...]
    dim: int
    provenance: Mapping[str, Any]

    @property
    def median(self) -> int:
        """The median number of instances."""
        return round(median(self.sizes))

    @property
    def numbers(self) -> int:
        """The total number of feature values."""
        return sum(self.sizes) * self.dim


def validate_bags(bags: BagSet, progress: Callable[[int], None] | None = None) -> BagSummary:
    """Read every bag once, one at a time, and raise if they cannot be trained on together.

    Bags without instances, with NaN or infinite features, or from different encoders or tilings
    are rejected. `progress` is called with the number of bags that were read.

    >>> from scmil.bags.bag import Bag
    >>> bags = [Bag("a", torch.zeros(3, 8)), Bag("b", torch.zeros(5, 8))]
    >>> validate_bags(BagSet(bags))
    BagSummary(sizes=(3, 5), dim=8, provenance={})
    """
    sizes: list[int] = []
    ids_by_value: dict[str, dict[Hashable, list[str]]] = {}
    provenance: dict[str, Any] = {}
    invalid: dict[str, str] = {}
    for position, bag_id in enumerate(bags.ids):
        with record_failure(bag_id, invalid):
            bag = bags[position]
            check_instances(bag)
        if progress:
            progress(position + 1)
        if bag_id in invalid:
            continue
        sizes.append(len(bag.features))
        known = required_provenance(bag)
        provenance |= known
        for key, value in {**known, "dim": bag.features.shape[1]}.items():
            ids_by_value.setdefault(key, {}).setdefault(comparable(value), []).append(bag.id)
    if invalid:
        raise BagError(_describe_invalid(invalid, len(bags)))
    _check_mixtures(ids_by_value)
    [dim] = ids_by_value["dim"]
    return BagSummary(tuple(sizes), int(dim), provenance)  # type: ignore[call-overload]


def check_instances(bag: Bag) -> None:
    """Raise if a bag has no instances, or features that are not finite."""
    if not len(bag.features):
        raise BagError(
            f"bag {bag.id!r} has no instances. Leave the slide out, or detect its tissue again."
        )
    if not torch.isfinite(bag.features.sum()) and not torch.isfinite(bag.features).all():
        raise BagError(f"bag {bag.id!r} has NaN or infinite features. Encode this slide again.")


def _check_mixtures(ids_by_value: Mapping[str, Mapping[Hashable, list[str]]]) -> None:
    """Raise if bags were encoded in different ways."""
    remedies = {
        each.key: (each.noun, each.remedy) for each in REQUIREMENTS if each.severity == "error"
    }
    remedies["dim"] = ("dimensions", "Encode all slides with one encoder.")
    for key, (noun, remedy) in remedies.items():
        if len(groups := ids_by_value.get(key, {})) > 1:
            counts = "; ".join(
                f"{value} in {len(ids)} bags ({first_names(ids)})" for value, ids in groups.items()
            )
            raise DataError(f"{len(groups)} different {noun}: {counts}. {remedy}")


def _describe_invalid(invalid: Mapping[str, str], bags: int) -> str:
    """Return one message for all invalid bags."""
    if len(invalid) == 1:
        [(bag_id, cause)] = invalid.items()
        return cause if repr(bag_id) in cause or bag_id in cause else f"bag {bag_id!r}: {cause}"
    causes = "".join(f"\n  {bag_id!r}: {cause}" for bag_id, cause in invalid.items())
    return (
        f"{len(invalid)} of {bags} bags cannot be trained on; nothing was trained. Encode them "
        f"again, or move their files out of the folder.{causes}"
    )


def labelled(bags: BagSet) -> BagSet:
    """Return the bags that have a label.

    >>> labelled(BagSet([Bag("a", torch.zeros(1, 2), 0), Bag("b", torch.zeros(1, 2))])).ids
    ('a',)
    """
    return bags.subset(
        [position for position, label in enumerate(bags.labels) if label is not None]
    )


def check_classes(bags: BagSet) -> None:
    """Raise if the labels cannot be split: missing labels, one class, a class of one patient."""
    if not len(bags):
        raise DataError("there are no bags to train on.")
    if unlabelled := [
        bag_id for bag_id, label in zip(bags.ids, bags.labels, strict=True) if label is None
    ]:
        raise DataError(
            f"bags without a label ({len(unlabelled)} of {len(bags)}): "
            f"{first_names(unlabelled, 10)}. Label them, or leave them out: "
            "--drop-unlabelled, or drop_unlabelled = true under [data]."
        )
    patients: dict[int, set[Hashable]] = {}
    for position, (label, patient) in enumerate(zip(bags.labels, bags.patients, strict=True)):
        patients.setdefault(int(label or 0), set()).add(position if patient is None else patient)
    name = dict(enumerate(bags.classes))
    if len(patients) == 1:
        only = name[next(iter(patients))]
        raise SplitError(
            f"all {len(bags)} bags are of one class, {only!r}. At least 2 classes are needed."
        )
    if absent := [name[label] for label in name if label not in patients]:
        raise DataError(
            f"no bag is of class {first_names(absent)}. Add such bags, or remove the class from "
            "the labels."
        )
    known = any(patient is not None for patient in bags.patients)
    for label, members in sorted(patients.items()):
        if len(members) == 1:
            noun = f"patient, {next(iter(members))!r}" if known else "bag"
            raise SplitError(
                f"class {name[label]!r} has only one {noun}, which cannot be in both the training "
                "and the test split. Add to the class, or leave it out."
            )


def patients_of(bags: BagSet) -> list[str | None] | None:
    """Return the patient of each bag, or None if no patient is known."""
    return None if all(patient is None for patient in bags.patients) else list(bags.patients)
