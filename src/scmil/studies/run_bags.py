"""The bags of a run, read once per process for all runs that share them.

A run opens its bags again, which lists files and reads labels, and compares their digest with that
of the run before. If it is the same, the features in memory and the numbers of the validation
are used again; no bag is read a second time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scmil.core.fingerprint import Inputs
from scmil.errors import DataError
from scmil.studies.plan import Cell
from scmil.studies.run_inputs import inputs_of, load_bags

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet
    from scmil.bags.checks import BagSummary


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
    from scmil.bags.in_memory import keep_in_memory

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
        features = keep_in_memory(bags)
        run_bags = RunBags(bags, inputs, features, validate_bags(features))
    _last_bags.bags = run_bags
    return run_bags


def release_run_bags() -> None:
    """Free the memory of the bags of the last run."""
    _last_bags.bags = None
