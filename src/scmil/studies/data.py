"""Bags and labels as a user names them, checked before any bag is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scmil.bags.audit import few, without_bag
from scmil.bags.datasets import words_of
from scmil.errors import DataError
from scmil.bags.labels import Labels, read_labels
from scmil.studies.plan import TABLES
from scmil.run_inputs import load_bags
from scmil.studies.model_folder import Page
from scmil.bags.checks import check_classes, labelled

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet


@dataclass(frozen=True)
class Data:
    """Which bags: the `[data]` table of a plan, and the bags themselves, with what was left out."""

    table: Page
    bags: BagSet
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """A short name, for folders and titles."""
        return Path(self.table["dataset"]).stem


def open_data(
    bags: str | Path,
    labels: str | Path | None = None,
    *,
    label: str | None = None,
    key: str | None = None,
    format: str | None = None,
    data: Path | None = None,
    missing: str | None = None,
    drop_unlabelled: bool = False,
    standardise: bool | None = None,
) -> Data:
    """Open bags with their labels, and refuse labels that nothing can be learned from, before any bag is read.

    `bags` is a folder of any format, a table that has its labels in itself, or the name of a data set (the beginning of one
    will do). Features of a table are standardised unless `standardise` says otherwise, those of an encoder are not.
    `missing` are the words for a missing label, separated by commas: see `read_labels`.

    >>> open_data("ucsb").table
    {'dataset': 'ucsb-breast-cancer', 'standardise': True}
    """
    name = _dataset_name(str(bags))
    asked = {
        "labels": labels, "label": label, "key": key, "format": format, "missing": missing,
        "drop_unlabelled": drop_unlabelled or None,
    }  # fmt: skip
    own = {
        option: value if isinstance(value, bool) else str(value) for option, value in asked.items() if value is not None
    }
    is_folder = Path(name).is_dir()
    table = {"dataset": name, "standardise": not is_folder if standardise is None else standardise, **own}
    everyone = load_bags({**table, "drop_unlabelled": False}, data)
    kept = labelled(everyone) if drop_unlabelled else everyone
    if is_folder and labels is None and not any(label is not None for label in everyone.labels):
        raise DataError(f"{name} has no labels in itself. Give a table of them: case_id, slide_id, label, or the like.")
    check_classes(kept)
    left = len(everyone) - len(kept)
    notes: tuple[str, ...] = (f"{left} of {len(everyone)} bags have no label and are left out.",) if left else ()
    if is_folder and labels is not None:
        notes += _notes(read_labels(labels, label=label, missing=words_of(missing)), everyone)
    return Data(table, kept, notes)


def _notes(table: Labels, bags: BagSet) -> tuple[str, ...]:
    """What was merged in the table of labels, and which of its slides have no bag."""
    lost = without_bag(table, bags.ids)
    return (
        *table.notes,
        *([f"labelled slides without a bag ({len(lost)} of {len(table)}): {few(lost)}."] if lost else []),
    )


def _dataset_name(name: str) -> str:
    from scmil.bags import datasets

    if name in datasets.names() or Path(name).exists() or Path(name).suffix in TABLES or not name:
        return name
    if len(near := [known for known in datasets.names() if known.startswith(name)]) == 1:
        return near[0]
    if Path(name).name == name:
        datasets.registry.entry(name)  # which refuses it, with the nearest
    raise DataError(f"{name}: there is no such folder, table or data set. Names: scmil ls datasets")
