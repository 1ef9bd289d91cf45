"""The properties of bags that the audit checks."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scmil.bags.bag import Bag, BagSet
from scmil.bags.labels import Labels
from scmil.bags.slide_ids import slide_id
from scmil.bags.targets import Targets

HALF_RANGE = (1e-3, 6e4)  # largest features between these keep their differences in 16 bits


class BagFacts(NamedTuple):
    """Properties of a bag that are kept in memory; its features are not."""

    id: str
    instances: int
    dim: int
    broken: int  # instances with NaN or infinity
    constant: bool
    content: tuple[bytes, bytes]  # digests: in the order of the rows, and in any order
    provenance: Mapping[str, Any]

    @classmethod
    def of(cls, bag: Bag, span: FeatureRange) -> BagFacts:
        """Return the facts of a bag, and add its features to `span`."""
        features = bag.features.detach().cpu()
        broken = int((~torch.isfinite(features)).any(1).sum())
        constant = len(features) > 1 and bool((features == features[0]).all())
        if len(features) and not broken:
            span.add(features)
        n, p = features.shape
        return cls(bag.id, n, p, broken, constant, fingerprint(features), bag.provenance)


@dataclass
class FeatureRange:
    """The smallest and the largest value of every feature, over the bags of each dimension."""

    of_dim: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def add(self, features: Tensor) -> None:
        """Update the range with the features of a bag."""
        low, high = features.amin(0), features.amax(0)
        before = self.of_dim.get(features.shape[1], (low, high))
        self.of_dim[features.shape[1]] = (
            torch.minimum(before[0], low),
            torch.maximum(before[1], high),
        )


@dataclass(frozen=True)
class CohortLabels:
    """The class and the patient of each bag, from the labels or from the bags."""

    ids: tuple[str, ...]
    label: dict[str, int | None]
    patient: dict[str, str | None]
    classes: tuple[str, ...]

    @classmethod
    def of(cls, bags: BagSet, labels: Labels | None) -> CohortLabels:
        """Return the labels and patients of `labels`, or of the bags if it is None."""
        if labels is None:
            known = dict(zip(bags.ids, zip(bags.labels, bags.patients, strict=True), strict=True))
        else:
            known = {bag_id: labels.of(bag_id) for bag_id in bags.ids}
        label, patient = (
            {bag_id: pair[0] for bag_id, pair in known.items()},
            {bag_id: pair[1] for bag_id, pair in known.items()},
        )
        return cls(bags.ids, label, patient, bags.classes if labels is None else labels.classes)

    def with_targets(self, targets: Targets) -> CohortLabels:
        """Return the same bags without classes, and with the patients of the targets."""
        patients = dict(zip(targets.ids, targets.patients, strict=True))
        own = {bag_id: patients.get(slide_id(bag_id)) for bag_id in self.ids}
        return CohortLabels(self.ids, dict.fromkeys(self.ids), own, ())

    def counts(self) -> dict[str, int]:
        """Return the number of bags of each class."""
        counts = Counter(self.label.values())
        return {name: counts[number] for number, name in enumerate(self.classes)}


def fingerprint(features: Tensor) -> tuple[bytes, bytes]:
    """Return two digests of features rounded to 16 bits: of the ordered and of the sorted rows.

    >>> one, other = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[3.0, 4.0], [1.0, 2.0]])
    >>> [first == second for first, second in zip(fingerprint(one), fingerprint(other))]
    [False, True]
    """
    largest = float(features.abs().max()) if features.numel() else 0.0
    rounded = features.half() if HALF_RANGE[0] < largest < HALF_RANGE[1] else features
    rows = [
        hashlib.blake2b(row, digest_size=16).digest()
        for row in (rounded + 0.0).contiguous().numpy()
    ]
    shape = str(tuple(features.shape)).encode()
    return hashlib.sha256(shape + b"".join(rows)).digest(), hashlib.sha256(
        shape + b"".join(sorted(rows))
    ).digest()
