"""Bags: the features of all instances of one slide, molecule or picture."""

from __future__ import annotations

import difflib
import hashlib
import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsIndex, overload

from torch import Tensor

from scmil.bags.targets import Targets, as_numbers
from scmil.core.fingerprint import Inputs, Mark
from scmil.core.shapes import Float
from scmil.errors import BagError, DataError

# The largest coordinate; larger values are damage, and would overflow.
LARGEST_PX = 2**40
MOST_CLASSES = 10_000  # a larger label is damage, or an id in the wrong column


@dataclass(frozen=True, eq=False)
class Bag:
    """The features of all instances of one slide, molecule or picture, with one label.

    Args:
        id: Name of the bag, unique within a `BagSet`.
        features: Matrix (n, p), one row per instance.
        label: Number of the class, or None if unknown.
        patient: Patient of the slide, or None if unknown.
        instance_labels: Labels (n,) of the instances, for the few data sets that have them.
        xy: Top-left corners (n, 2) of the tiles, in level-0 pixels of the slide.
        provenance: Encoder, tile size, resolution and the like; JSON values.

    Raises:
        BagError: `xy` or `instance_labels` do not fit the features.

    >>> import torch
    >>> Bag("molecule 1", torch.zeros(4, 166), label=1)
    Bag('molecule 1', 4 x 166, label=1)
    """

    id: str
    features: Float[Tensor, "n p"]
    label: int | None = None
    patient: str | None = None
    instance_labels: Tensor | None = None
    xy: Tensor | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.xy is not None and self.xy.shape != (len(self.features), 2):
            actual, rows = tuple(self.xy.shape), len(self.features)
            raise BagError(
                f"bag {self.id!r}: coordinates of shape {actual}, but ({rows}, 2) is needed, x and "
                "y of each instance."
            )
        if self.xy is not None and not bool(
            ((self.xy >= -LARGEST_PX) & (self.xy <= LARGEST_PX)).all()
        ):
            raise BagError(
                f"bag {self.id!r}: coordinates that are NaN or beyond {LARGEST_PX} pixels. "
                "Encode this slide again."
            )
        if (
            self.instance_labels is not None
            and self.instance_labels.shape != self.features.shape[:1]
        ):
            actual, expected = tuple(self.instance_labels.shape), len(self.features)
            raise BagError(
                f"bag {self.id!r}: instance labels of shape {actual}, but ({expected},) is needed, "
                "one per instance."
            )

    def __repr__(self) -> str:
        n, p = self.features.shape
        return f"Bag({self.id!r}, {n} x {p}, label={self.label})"


class BagSet(Sequence[Bag]):
    """An immutable sequence of bags; `BagSet.lazy` reads the features when a bag is accessed.

    Args:
        bags: The bags, with different ids.
        classes: Name of each class; the numbers of the classes if None.

    Raises:
        DataError: Two bags have the same id, or a label has no class.

    >>> import torch
    >>> sizes = {"a": (3, 0), "b": (1, 1), "c": (2, 1)}
    >>> bags = BagSet([Bag(name, torch.zeros(n, 2), label) for name, (n, label) in sizes.items()])
    >>> bags
    BagSet(3 bags, 1/2 of class 0/1)
    >>> bags.labels, bags.dim, bags.subset(["c", "a"]).ids, bags[1:].ids
    ((0, 1, 1), 2, ('c', 'a'), ('b', 'c'))
    """

    ids: tuple[str, ...]
    labels: tuple[int | None, ...]
    patients: tuple[str | None, ...]
    classes: tuple[str, ...]  # the name of each class, for reports
    # Values of another task than classes; the labels are then strata for splits: `with_targets`.
    targets: Targets | None

    def __init__(self, bags: Iterable[Bag], classes: Sequence[str] | None = None) -> None:
        bags = tuple(bags)
        labels, patients = [bag.label for bag in bags], [bag.patient for bag in bags]
        self._fill(
            [bag.id for bag in bags],
            {bag.id: bag for bag in bags}.__getitem__,
            labels,
            patients,
            classes,
        )

    @classmethod
    def lazy(
        cls,
        ids: Iterable[str],
        load: Callable[[str], Bag],
        labels: Iterable[int | None] | None = None,
        patients: Iterable[str | None] | None = None,
        classes: Sequence[str] | None = None,
        mark: Callable[[str, Mark | None], Mark] | None = None,
        targets: Targets | None = None,
    ) -> BagSet:
        """Return a set of bags whose features are read by `load` when a bag is accessed.

        Args:
            ids: The ids of the bags.
            load: Reads the bag with an id.
            labels: The label of each bag; None if unknown.
            patients: The patient of each bag; None if unknown.
            classes: Name of each class; the numbers of the classes if None.
            mark: Identifies the content of a bag without reading it, see `scmil.fingerprint`.
                Without it, a bag is read and hashed.
            targets: Values of another task than classes, with one for each bag.

        Returns:
            The bags.

        Raises:
            DataError: Two bags have the same id, a label has no class, or a bag has no target.

        >>> import torch
        >>> def load(bag_id):
        ...     return Bag(bag_id, torch.zeros(2, 9), 1)
        >>> bags = BagSet.lazy(["a", "b"], load, labels=[1, 1])
        >>> bags, bags[0]
        (BagSet(2 bags, 0/2 of class 0/1), Bag('a', 2 x 9, label=1))
        """
        bags = cls.__new__(cls)
        bags._fill(ids, load, labels, patients, classes, mark, targets)
        return bags

    def _fill(
        self,
        ids: Iterable[str],
        load: Callable[[str], Bag],
        labels: Iterable[int | None] | None,
        patients: Iterable[str | None] | None,
        classes: Sequence[str] | None,
        mark: Callable[[str, Mark | None], Mark] | None = None,
        targets: Targets | None = None,
    ) -> None:
        self.ids, self.targets = tuple(ids), targets
        if targets is not None:
            targets.array(self.ids)  # raises an error for a bag without a value
        self.labels = (None,) * len(self.ids) if labels is None else tuple(labels)
        self.patients = (None,) * len(self.ids) if patients is None else tuple(patients)
        highest = max((label for label in self.labels if label is not None), default=-1)
        if highest >= MOST_CLASSES:
            bag = self.ids[self.labels.index(highest)]
            raise DataError(
                f"bag {bag!r} has label {highest}, but labels are class numbers from 0 to "
                f"{MOST_CLASSES - 1}."
            )
        self.classes = tuple(map(str, range(highest + 1))) if classes is None else tuple(classes)
        self._load, self._mark = (
            load,
            mark or (lambda bag_id, before: Mark(f"sha256:{content_digest(load(bag_id))}")),
        )
        self._position = {bag_id: position for position, bag_id in enumerate(self.ids)}
        if twice := [
            bag_id for position, bag_id in enumerate(self.ids) if self._position[bag_id] != position
        ]:
            raise DataError(f"two bags have the id {twice[0]!r}. Give every bag a different id.")
        if not len(self.ids) == len(self.labels) == len(self.patients):
            counts = (
                f"{len(self.ids)} ids, {len(self.labels)} labels and {len(self.patients)} patients"
            )
            raise DataError(f"{counts}: one label and one patient are needed for each bag.")
        if highest >= len(self.classes):
            raise DataError(
                f"label {highest}, but only {len(self.classes)} classes are named: {self.classes}."
            )

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
        if (actual := (bag.id, bag.label, bag.patient)) != expected:
            raise DataError(
                f"id, label and patient of a bag are {actual}, but {expected} was expected."
            )
        return bag

    def subset(self, which: Iterable[SupportsIndex | str]) -> BagSet:
        """Return the bags at these positions or with these ids, without reading features."""
        at = [self._find(item) for item in which]
        labels, patients = [self.labels[i] for i in at], [self.patients[i] for i in at]
        return BagSet.lazy(
            [self.ids[i] for i in at],
            self._load,
            labels,
            patients,
            self.classes,
            self._mark,
            self.targets,
        )

    def with_loader(self, load: Callable[[str], Bag]) -> BagSet:
        """Return the same bags, with features read by `load`; their identity is that of these."""
        return BagSet.lazy(
            self.ids, load, self.labels, self.patients, self.classes, self.mark, self.targets
        )

    def mark(self, bag_id: str, before: Mark | None = None) -> Mark:
        """Return the identity of a bag's content; a file unchanged since `before` is not read."""
        try:
            return self._mark(bag_id, before)
        except OSError as error:
            raise DataError(
                f"bag {bag_id!r} cannot be read: {error}. Copy or encode it again."
            ) from None

    def inputs(
        self, before: Inputs | None = None, files: Mapping[str, str] | None = None
    ) -> Inputs:
        """Return the inputs of a result of these bags; `files` are digests of further inputs.

        >>> import torch
        >>> bags = BagSet([Bag("a", torch.zeros(3, 2), 0), Bag("b", torch.ones(1, 2), 1)])
        >>> other = BagSet([Bag("a", torch.zeros(3, 2), 0), Bag("b", torch.ones(1, 2) / 2, 1)])
        >>> other.inputs().changes_since(bags.inputs())
        ['the features of 1 bag changed (b)']
        """
        known = before.mark_by_id if before else {}
        marks = tuple(self.mark(bag_id, known.get(bag_id)) for bag_id in self.ids)
        labels = tuple(None if label is None else self.classes[label] for label in self.labels)
        if self.targets is not None:
            labels = tuple(str(as_numbers(self.targets.of(bag_id))) for bag_id in self.ids)
        return Inputs(self.ids, labels, self.patients, marks, dict(files or {}))

    def _find(self, item: SupportsIndex | str) -> int:
        if not isinstance(item, str):
            position = operator.index(item)
            if not 0 <= position < len(self):
                raise DataError(
                    f"there is no bag at position {position}; the {len(self)} bags have positions "
                    f"from 0 to {len(self) - 1}."
                )
            return position
        if item not in self._position:
            near = difflib.get_close_matches(item, self.ids, n=1, cutoff=0)
            raise DataError(
                f"there is no bag {item!r}." + (f" The nearest id is {near[0]!r}." if near else "")
            )
        return self._position[item]

    @property
    def dim(self) -> int:
        """The feature dimension of the first bag."""
        if not self.ids:
            raise DataError("a set without bags has no feature dimension.")
        return self[0].features.shape[1]

    def __repr__(self) -> str:
        counts = "/".join(str(self.labels.count(label)) for label in range(len(self.classes)))
        known = f", {counts} of class {'/'.join(self.classes)}" if self.classes else ""
        unknown = self.labels.count(None)
        return f"BagSet({len(self)} bags{known}{f', {unknown} without a label' if unknown else ''})"


def content_digest(bag: Bag) -> str:
    """Return the SHA-256 of a bag's arrays and provenance in memory.

    >>> import torch
    >>> x = torch.zeros(3, 2)
    >>> content_digest(Bag("a", x)) == content_digest(Bag("b", x, label=1))
    True
    """
    found = hashlib.sha256(json.dumps(dict(bag.provenance), sort_keys=True, default=str).encode())
    for name in ("features", "xy", "instance_labels"):
        if (values := getattr(bag, name)) is not None:
            array = values.detach().cpu().contiguous().numpy()
            found.update(f"{name} {array.dtype.str} {array.shape}".encode())
            found.update(array.data.cast("B") if array.size else b"")
    return found.hexdigest()
