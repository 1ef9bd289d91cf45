"""What bags are, and whether they can be trained on: looked at once, before hours are spent on them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from scmil.bags.audit import SAME_EVERYWHERE, few
from scmil.bags.bag import Bag, BagSet
from scmil.errors import BagError, DataError, SplitError
from scmil.core.jobs.work import one_of_many

# What new bags must share with those that a model was trained on.
CONTRACT = ("encoder", "encoder_digest", "size_px", "mpp", "overlap_px", "scales_mpp")


@dataclass(frozen=True)
class Survey:
    """The sizes of all bags, their dimension, and what all of them say of how they were made."""

    sizes: tuple[int, ...]
    dim: int
    contract: Mapping[str, Any]

    @property
    def median(self) -> int:
        """The number of instances of the bag in the middle."""
        return round(median(self.sizes))

    @property
    def numbers(self) -> int:
        """How many numbers all bags have together."""
        return sum(self.sizes) * self.dim


def survey(bags: BagSet, progress: Callable[[int], None] | None = None) -> Survey:
    """Read every bag once, one at a time, and refuse what cannot be learned from: mixtures, no instances, NaN.

    >>> survey(BagSet([Bag("a", torch.zeros(3, 8)), Bag("b", torch.zeros(5, 8), provenance={"encoder": "uni"})]))
    Survey(sizes=(3, 5), dim=8, contract={'encoder': 'uni'})
    """
    sizes: list[int] = []
    met: dict[str, dict[Hashable, list[str]]] = {}
    values: dict[str, Any] = {}
    bad: dict[str, str] = {}
    for position, id in enumerate(bags.ids):
        with one_of_many(id, bad):
            bag = bags[position]
            if not len(bag.features):
                raise BagError(f"bag {id!r} has no instances. Leave the slide out, or find its tissue again.")
            if not torch.isfinite(bag.features.sum()) and not torch.isfinite(bag.features).all():
                raise BagError(f"bag {id!r} has NaN or infinite features. Encode this slide again.")
        if progress:
            progress(position + 1)
        if id in bad:
            continue
        sizes.append(len(bag.features))
        said = {key: bag.provenance[key] for key in CONTRACT if bag.provenance.get(key) is not None}
        values |= said
        for key, value in {**said, "dim": bag.features.shape[1]}.items():
            met.setdefault(key, {}).setdefault(_comparable(value), []).append(bag.id)
    if bad:
        raise BagError(_unusable(bad, len(bags)))
    remedies = {key: (what, remedy) for key, what, severity, remedy in SAME_EVERYWHERE if severity == "error"}
    remedies["dim"] = ("dimensions", "Encode all slides with one encoder.")
    for key, (what, remedy) in remedies.items():
        if len(groups := met.get(key, {})) > 1:
            parts = "; ".join(f"{value} in {len(ids)} bags ({few(ids)})" for value, ids in groups.items())
            raise DataError(f"{len(groups)} different {what}: {parts}. {remedy}")
    return Survey(tuple(sizes), int(next(iter(met["dim"]))), values)  # type: ignore[call-overload]


def _unusable(bad: Mapping[str, str], bags: int) -> str:
    """All bags that cannot be trained on, with their causes, and what to do; a single one speaks for itself."""
    if len(bad) == 1:
        [(id, cause)] = bad.items()
        return cause if repr(id) in cause or id in cause else f"bag {id!r}: {cause}"
    each = "".join(f"\n  {id!r}: {cause}" for id, cause in bad.items())
    return (
        f"{len(bad)} of {bags} bags cannot be trained on. Make them again, or move their files out of the folder; nothing "
        f"was trained.{each}"
    )


def _comparable(value: Any) -> Hashable:
    """Resolutions that agree to two digits are the same."""
    if isinstance(value, float):
        return float(f"{value:.2g}")
    return value if isinstance(value, (int, str)) else str(value)


def differences(contract: Mapping[str, Any], bag: Bag) -> list[str]:
    """In what a bag was made otherwise than the contract says; what either does not say cannot be compared.

    >>> differences({"encoder": "uni", "mpp": 0.5}, Bag("a", torch.zeros(1, 2), provenance={"encoder": "resnet18"}))
    ["encoder 'resnet18' instead of 'uni'"]
    """
    return [
        f"{key} {bag.provenance[key]!r} instead of {expected!r}"
        for key, expected in contract.items()
        if key in CONTRACT
        and key != "overlap_px"  # more or fewer tiles of the same kind
        and bag.provenance.get(key) is not None
        and expected is not None
        and _comparable(bag.provenance[key]) != _comparable(expected)
    ]


# --------------------------------------------------------------------------------------------------------- the labels


def labelled(bags: BagSet) -> BagSet:
    """The bags that have a label.

    >>> labelled(BagSet([Bag("a", torch.zeros(1, 2), 0), Bag("b", torch.zeros(1, 2))])).ids
    ('a',)
    """
    return bags.subset([position for position, label in enumerate(bags.labels) if label is not None])


def check_classes(bags: BagSet) -> None:
    """Refuse labels that no split can be made of: missing ones, one class only, a class with one patient."""
    if not len(bags):
        raise DataError("there are no bags to train on.")
    if without := [id for id, label in zip(bags.ids, bags.labels) if label is None]:
        raise DataError(
            f"bags without a label ({len(without)} of {len(bags)}): {', '.join(without[:10])}{' …' * (len(without) > 10)}. "
            "Label them, or leave them out: --drop-unlabelled, or drop_unlabelled = true under [data]."
        )
    patients: dict[int, set[Hashable]] = {}
    for position, (label, patient) in enumerate(zip(bags.labels, bags.patients)):
        patients.setdefault(int(label or 0), set()).add(position if patient is None else patient)
    name = dict(enumerate(bags.classes))
    if len(patients) == 1:
        only = name[next(iter(patients))]
        raise SplitError(
            f"all {len(bags)} bags are of one class, {only!r}. At least 2 classes are needed to learn from."
        )
    if absent := [name[label] for label in name if label not in patients]:
        raise DataError(f"no bag is of class {few(absent)}. Add such bags, or take the class out of the labels.")
    known = any(patient is not None for patient in bags.patients)
    for label, those in sorted(patients.items()):
        if len(those) == 1:
            noun = f"patient, {next(iter(those))!r}" if known else "bag"
            raise SplitError(
                f"class {name[label]!r} has only one {noun}: nobody would be left to test or to train on. "
                "Add to the class, or leave it out."
            )


def patients_of(bags: BagSet) -> list[str | None] | None:
    """The patient of each bag, or None if none is known: then each bag stands for itself."""
    return None if all(patient is None for patient in bags.patients) else list(bags.patients)


# --------------------------------------------------------------------------------------------------------- the scaling


def streamed_moments(bags: BagSet) -> tuple[Tensor, Tensor]:
    """What `scmil.bags.moments` gives, one bag at a time: mean and deviation of each feature, of a constant one 1.

    >>> streamed_moments(BagSet([Bag("a", torch.tensor([[1.0, 5.0]])), Bag("b", torch.tensor([[3.0, 5.0]]))]))
    (tensor([2., 5.], dtype=torch.float64), tensor([1., 1.], dtype=torch.float64))
    """
    count, shift = 0, bags[0].features[0].double()  # differences from some instance: squares of large values round
    total, squares = torch.zeros_like(shift), torch.zeros_like(shift)
    low, high = shift.clone(), shift.clone()
    for bag in bags:
        x = bag.features.double() - shift
        count += len(x)
        total, squares = total + x.sum(0), squares + x.square().sum(0)
        low, high = torch.minimum(low, x.amin(0) + shift), torch.maximum(high, x.amax(0) + shift)
    mean = total / count
    deviation = (squares / count - mean.square()).clamp(min=0).sqrt()
    deviation[low == high] = 1
    return mean + shift, deviation


def scaled(bags: BagSet, mean: Tensor, deviation: Tensor) -> BagSet:
    """The same bags with the mean taken off and divided by the deviation, when a bag is read.

    >>> bags = BagSet([Bag("a", torch.tensor([[1.0, 5.0], [3.0, 5.0]]))])
    >>> scaled(bags, *streamed_moments(bags))[0].features
    tensor([[-1.,  0.], [ 1.,  0.]])
    """
    at = {id: position for position, id in enumerate(bags.ids)}

    def load(id: str) -> Bag:
        bag = bags[at[id]]
        x = bag.features
        return replace(bag, features=(x - mean.to(x.dtype)) / deviation.to(x.dtype))

    return BagSet.lazy(bags.ids, load, bags.labels, bags.patients, bags.classes, bags.mark)
