"""The bags of a run, read once per process for all runs that share them.

A run opens its bags again, which lists files and reads labels, and compares their digest with that
of the run before. If it is the same, the features in memory and the numbers of the validation
are used again; no bag is read a second time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from scmil.core.fingerprint import Inputs
from scmil.errors import DataError
from scmil.studies.plan import Cell
from scmil.studies.run_inputs import inputs_of, load_bags

if TYPE_CHECKING:
    from scmil.bags.bag import Bag, BagSet
    from scmil.bags.checks import BagSummary

MAX_NUMBERS = 250_000_000  # 1 GB of float32: features of larger cohorts are read when needed


@dataclass(frozen=True)
class RunBags:
    """The bags of a run, as they were opened for it, with validated features.

    `bags` belong to the files, for checks whether these have changed; `features` are the same bags,
    from memory if they are small enough.
    """

    bags: BagSet
    inputs: Inputs
    features: BagSet
    summary: BagSummary


@dataclass
class _LastBags:
    """The bags of the last run in this process."""

    bags: RunBags | None = None

    def matching(self, bags: BagSet, inputs: Inputs) -> RunBags | None:
        """Return the bags of the last run if they are the same in the same state, else None."""
        last = self.bags
        if last is None or (last.inputs.digest, last.bags.classes) != (inputs.digest, bags.classes):
            return None
        return RunBags(bags, inputs, last.features, last.summary)


_last_bags = _LastBags()


def open_run_bags(cell: Cell, out: Path, data: Path | None = None) -> RunBags:
    """Open and validate the bags of a run; unchanged bags of the run before are not read again.

    Raises:
        DataError: The labels have fewer than two classes, or a bag cannot be trained on.
    """
    from scmil.bags.checks import check_classes, validate_bags

    bags = load_bags(cell.settings.data, data)
    if bags.targets is None:  # targets were checked when they were read
        check_classes(bags)
    try:
        inputs = inputs_of(cell, bags, out)
    except DataError:
        validate_bags(bags)  # names all bags that cannot be read, not only the first
        raise
    run_bags = _last_bags.matching(bags, inputs)
    if run_bags is None:
        release_run_bags()  # before others are read: both may not fit into memory
        cache = _BagCache(bags)
        summary = validate_bags(cache.bags)
        run_bags = RunBags(bags, inputs, cache.features(), summary)
    _last_bags.bags = run_bags
    return run_bags


def release_run_bags() -> None:
    """Free the memory of the bags of the last run."""
    _last_bags.bags = None


@dataclass
class _BagCache:
    """Reads bags and keeps them in memory, until they are too many."""

    source: BagSet
    loaded: dict[str, Bag] = field(default_factory=dict)
    numbers: int = 0

    def __post_init__(self) -> None:
        self._positions = {bag_id: position for position, bag_id in enumerate(self.source.ids)}

    @property
    def bags(self) -> BagSet:
        """The bags, whose features are kept when they are read."""
        return _with_loader(self.source, self._load)

    def features(self) -> BagSet:
        """The bags from memory, or, if they were too many, from their files."""
        if len(self.loaded) < len(self.source):
            return self.source
        return _with_loader(self.source, self.loaded.__getitem__)

    def _load(self, bag_id: str) -> Bag:
        bag = self.source[self._positions[bag_id]]
        self.numbers += bag.features.numel()
        if self.numbers <= MAX_NUMBERS:
            self.loaded[bag_id] = bag
        else:
            self.loaded.clear()
        return bag


def _with_loader(bags: BagSet, load: Callable[[str], Bag]) -> BagSet:
    from scmil.bags.bag import BagSet

    return BagSet.lazy(
        bags.ids, load, bags.labels, bags.patients, bags.classes, targets=bags.targets
    )
