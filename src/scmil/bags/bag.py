"""The bag, where pixels and learning meet: one slide, molecule or picture, as the features of its instances."""

from __future__ import annotations

import difflib
import hashlib
import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, SupportsIndex, overload

import torch
from torch import Tensor

from scmil.errors import BagError, DataError
from scmil.fingerprint import Inputs, Mark
from scmil.core.shapes import Float

LARGEST_PX = 2**40  # of a coordinate from the corner of the slide; what is beyond is damage, and would overflow
MOST_CLASSES = 10_000  # a label beyond is damage, or an id that was taken for a label


@dataclass(frozen=True, eq=False)
class Bag:
    """The features of all instances of one thing that has one label.

    >>> Bag("molecule 1", torch.zeros(4, 166), label=1)
    Bag('molecule 1', 4 x 166, label=1)
    """

    id: str
    features: Float[Tensor, "n p"]
    label: int | None = None
    patient: str | None = None
    instance_labels: Tensor | None = None  # (n,), for the few data sets where instances are labelled
    xy: Tensor | None = None  # (n, 2) top-left corners of the tiles, in level-0 pixels of the slide
    provenance: Mapping[str, Any] = field(default_factory=dict)  # encoder, tile size, mpp and the like; JSON

    def __post_init__(self) -> None:
        if self.xy is not None and self.xy.shape != (len(self.features), 2):
            met, rows = tuple(self.xy.shape), len(self.features)
            raise BagError(f"bag {self.id!r}: coordinates of shape {met}, but ({rows}, 2) is needed, x and y of each.")
        if self.xy is not None and not bool(((self.xy >= -LARGEST_PX) & (self.xy <= LARGEST_PX)).all()):
            raise BagError(f"bag {self.id!r}: coordinates that are NaN or beyond {LARGEST_PX} pixels. Make it again.")
        if self.instance_labels is not None and self.instance_labels.shape != self.features.shape[:1]:
            met, expected = tuple(self.instance_labels.shape), len(self.features)
            raise BagError(f"bag {self.id!r}: instance labels of shape {met}, but ({expected},) is needed, one each.")

    def __repr__(self) -> str:
        n, p = self.features.shape
        return f"Bag({self.id!r}, {n} x {p}, label={self.label})"


class BagSet(Sequence[Bag]):
    """Bags in an order that does not change; `lazy` makes one whose features are read when a bag is asked for.

    >>> bags = BagSet([Bag("a", torch.zeros(3, 2), 0), Bag("b", torch.ones(1, 2), 1), Bag("c", torch.ones(2, 2), 1)])
    >>> bags
    BagSet(3 bags, 1/2 of class 0/1)
    >>> bags.labels, bags.dim, bags.subset(["c", "a"]).ids, bags[1:].ids
    ((0, 1, 1), 2, ('c', 'a'), ('b', 'c'))
    """

    ids: tuple[str, ...]
    labels: tuple[int | None, ...]
    patients: tuple[str | None, ...]
    classes: tuple[str, ...]  # the name of each class, for reports

    def __init__(self, bags: Iterable[Bag], classes: Sequence[str] | None = None) -> None:
        bags = tuple(bags)
        labels, patients = [bag.label for bag in bags], [bag.patient for bag in bags]
        self._fill([bag.id for bag in bags], {bag.id: bag for bag in bags}.__getitem__, labels, patients, classes, None)

    @classmethod
    def lazy(
        cls,
        ids: Iterable[str],
        load: Callable[[str], Bag],
        labels: Iterable[int | None] | None = None,
        patients: Iterable[str | None] | None = None,
        classes: Sequence[str] | None = None,
        mark: Callable[[str, Mark | None], Mark] | None = None,
    ) -> BagSet:
        """A set of bags that are known by id, label and patient; `load(id)` reads one.

        `mark(id, before)` identifies the content of a bag without reading it, see `scmil.fingerprint`; where it is not given,
        the bag is read and hashed.

        >>> bags = BagSet.lazy(["a", "b"], lambda id: Bag(id, torch.zeros(2, 9), 1), labels=[1, 1])
        >>> bags, bags[0]
        (BagSet(2 bags, 0/2 of class 0/1), Bag('a', 2 x 9, label=1))
        """
        bags = cls.__new__(cls)
        bags._fill(ids, load, labels, patients, classes, mark)
        return bags

    def _fill(
        self,
        ids: Iterable[str],
        load: Callable[[str], Bag],
        labels: Iterable[int | None] | None,
        patients: Iterable[str | None] | None,
        classes: Sequence[str] | None,
        mark: Callable[[str, Mark | None], Mark] | None,
    ) -> None:
        self.ids = tuple(ids)
        self.labels = (None,) * len(self.ids) if labels is None else tuple(labels)
        self.patients = (None,) * len(self.ids) if patients is None else tuple(patients)
        highest = max((label for label in self.labels if label is not None), default=-1)
        if highest >= MOST_CLASSES:
            bag = self.ids[self.labels.index(highest)]
            raise DataError(f"bag {bag!r} has label {highest}. Labels are numbers of classes, 0 to {MOST_CLASSES - 1}.")
        self.classes = tuple(map(str, range(highest + 1))) if classes is None else tuple(classes)
        self._load, self._mark = load, mark or (lambda id, before: Mark(f"sha256:{content_digest(load(id))}"))
        self._position = {id: position for position, id in enumerate(self.ids)}
        if twice := [id for position, id in enumerate(self.ids) if self._position[id] != position]:
            raise DataError(f"bag {twice[0]!r} is there twice. Give every bag an id of its own.")
        if not len(self.ids) == len(self.labels) == len(self.patients):
            met = f"{len(self.ids)} ids, {len(self.labels)} labels and {len(self.patients)} patients"
            raise DataError(f"{met}: one label and one patient are needed for each bag.")
        if highest >= len(self.classes):
            raise DataError(f"label {highest}, but only {len(self.classes)} classes are named: {self.classes}.")

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, which: SupportsIndex) -> Bag: ...
    @overload
    def __getitem__(self, which: slice) -> BagSet: ...
    def __getitem__(self, which: SupportsIndex | slice) -> Bag | BagSet:
        if isinstance(which, slice):
            return self.subset(range(len(self))[which])
        position = operator.index(which)
        bag = self._load(self.ids[position])
        expected = (self.ids[position], self.labels[position], self.patients[position])
        if (met := (bag.id, bag.label, bag.patient)) != expected:
            raise DataError(f"a bag was read whose id, label and patient are {met}, but {expected} was announced.")
        return bag

    def subset(self, which: Iterable[SupportsIndex | str]) -> BagSet:
        """The bags at these positions or with these ids, in this order; no features are read."""
        at = [self._find(item) for item in which]
        labels, patients = [self.labels[i] for i in at], [self.patients[i] for i in at]
        return BagSet.lazy([self.ids[i] for i in at], self._load, labels, patients, self.classes, self._mark)

    def mark(self, id: str, before: Mark | None = None) -> Mark:
        """What identifies the content of a bag; a file that is as it was `before` is not opened."""
        try:
            return self._mark(id, before)
        except OSError as error:
            raise DataError(f"bag {id!r} cannot be read: {error}. Copy or encode it again.") from None

    def inputs(self, before: Inputs | None = None, files: Mapping[str, str] | None = None) -> Inputs:
        """What a result of these bags is made from; `files` are digests of further files that it depends on.

        >>> bags = BagSet([Bag("a", torch.zeros(3, 2), 0), Bag("b", torch.ones(1, 2), 1)])
        >>> other = BagSet([Bag("a", torch.zeros(3, 2), 0), Bag("b", torch.ones(1, 2) / 2, 1)])
        >>> other.inputs().changes_since(bags.inputs())
        ['the features of 1 bag are others (b)']
        """
        known = before.mark_by_id if before else {}
        marks = tuple(self.mark(id, known.get(id)) for id in self.ids)
        labels = tuple(None if label is None else self.classes[label] for label in self.labels)
        return Inputs(self.ids, labels, self.patients, marks, dict(files or {}))

    def _find(self, item: SupportsIndex | str) -> int:
        if not isinstance(item, str):
            position = operator.index(item)
            if not 0 <= position < len(self):
                raise DataError(f"there is no bag at position {position}: the {len(self)} bags are counted from 0.")
            return position
        if item not in self._position:
            near = difflib.get_close_matches(item, self.ids, n=1, cutoff=0)
            raise DataError(f"there is no bag {item!r}." + (f" The nearest id is {near[0]!r}." if near else ""))
        return self._position[item]

    @property
    def dim(self) -> int:
        """The dimension of the features, as the first bag has it."""
        if not self.ids:
            raise DataError("a set without bags has no dimension.")
        return self[0].features.shape[1]

    def __repr__(self) -> str:
        counts = "/".join(str(self.labels.count(label)) for label in range(len(self.classes)))
        known = f", {counts} of class {'/'.join(self.classes)}" if self.classes else ""
        unknown = self.labels.count(None)
        return f"BagSet({len(self)} bags{known}{f', {unknown} without a label' if unknown else ''})"


def content_digest(bag: Bag) -> str:
    """SHA-256 of a bag's arrays and provenance as they are in memory.

    >>> content_digest(Bag("a", torch.zeros(3, 2))) == content_digest(Bag("b", torch.zeros(3, 2), label=1))
    True
    """
    found = hashlib.sha256(json.dumps(dict(bag.provenance), sort_keys=True, default=str).encode())
    for name in ("features", "xy", "instance_labels"):
        if (values := getattr(bag, name)) is not None:
            array = values.detach().cpu().contiguous().numpy()
            found.update(f"{name} {array.dtype.str} {array.shape}".encode())
            found.update(array.data.cast("B") if array.size else b"")
    return found.hexdigest()


def standardise(train: Sequence[Bag], *others: Sequence[Bag]) -> list[list[Bag]]:
    """Bring every feature to zero mean and unit variance on the instances of `train`; others with the same numbers.

    A feature that is constant in `train` stays zero there.

    >>> [bags] = standardise([Bag("a", torch.tensor([[1.0, 5.0], [3.0, 5.0]]))])
    >>> bags[0].features
    tensor([[-1.,  0.], [ 1.,  0.]])
    """
    mean, deviation = moments(train)
    return [
        [
            replace(bag, features=(bag.features - mean.to(bag.features.dtype)) / deviation.to(bag.features.dtype))
            for bag in bags
        ]
        for bags in (train, *others)
    ]


def moments(bags: Sequence[Bag]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each feature over all instances, in double; a constant feature gets deviation 1.

    >>> moments([Bag("a", torch.tensor([[1.0, 5.0], [3.0, 5.0]]))])
    (tensor([2., 5.], dtype=torch.float64), tensor([1., 1.], dtype=torch.float64))
    """
    instances = torch.cat([bag.features for bag in bags]).double()
    deviation = instances.std(0, correction=0)
    deviation[instances.amax(0) == instances.amin(0)] = 1  # rounding would give a tiny deviation, and huge features
    return instances.mean(0), deviation
