"""What runs are made from, recorded beside their results: `inputs/<data set>.json` in the run
directory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scmil.bags.patient_bags import check_values_of_patients, join_slides
from scmil.bags.target_bags import with_targets
from scmil.core.atomic import write_atomically
from scmil.core.fingerprint import Inputs, sha256_of_file, sha256_of_json, stat_of
from scmil.errors import ConfigError, DataError, ScmilError
from scmil.studies.config import TARGET_KEYS
from scmil.studies.data_sites import site_digest
from scmil.studies.plan import Cell
from scmil.studies.settings import DataSettings
from scmil.studies.target_data import read_data_targets

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet

FOLDER = "inputs"


def load_bags(settings: DataSettings, data: Path | None = None) -> BagSet:
    """Open the bags of `[data]`, without unlabelled ones if it sets `drop_unlabelled`."""
    from scmil.bags.checks import labelled
    from scmil.bags.datasets import load_dataset

    targets = read_data_targets(settings, data)
    options = settings.to_json()
    own = ("dataset", "standardise", "name", "drop_unlabelled", "patient", "site")
    of_table = () if targets is None else ("labels", "label", "missing")
    for key in (*own, *TARGET_KEYS, *of_table):
        options.pop(key, None)
    bags = load_dataset(settings.dataset, data=data, **options)
    if targets is not None:
        bags = with_targets(bags, targets, drop_missing=bool(settings.drop_unlabelled))
    elif settings.drop_unlabelled:
        bags = labelled(bags)
    if targets is not None and settings.patient in ("mean", "max"):
        check_values_of_patients(bags, settings.patient)
    return join_slides(bags) if settings.patient == "joined" else bags


def inputs_of(cell: Cell, bags: BagSet, out: Path) -> Inputs:
    """What a result depends on: bags, labels, patients, and files of splits and annotations."""
    return bags.inputs(read_inputs(_record_path(out, cell)), _file_digests(cell, bags))


def check_unchanged(cell: Cell, bags: BagSet, before: Inputs) -> None:
    """Raise an error if data changed while a model was trained on it."""
    if changes := bags.inputs(before, _file_digests(cell, bags)).changes_since(before):
        raise DataError(
            f"the data changed during the run {cell.name!r}: {'; '.join(changes)}. Run it again."
        )


def read_inputs(path: Path) -> Inputs | None:
    """The inputs that a file records; None if there is none, or if it is damaged."""
    try:
        return Inputs.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, AttributeError, KeyError, TypeError, ValueError):
        return None


def write_inputs(path: Path, inputs: Inputs) -> None:
    """Record inputs."""
    write_atomically(path, json.dumps(inputs.to_json()).encode())


class CurrentInputs:
    """The current data of an experiment, opened once for all runs that share it."""

    def __init__(self, out: Path, data: Path | None) -> None:
        self._out, self._data = out, data
        self._known: dict[Path, Inputs | str] = {}

    def of(self, cell: Cell) -> Inputs | str:
        """The current inputs of a run, or why they cannot be read."""
        record = _record_path(self._out, cell)
        if record not in self._known:
            try:
                bags = load_bags(cell.settings.data, self._data)
                self._known[record] = inputs_of(cell, bags, self._out)
            except ScmilError as error:
                self._known[record] = str(error)
        return self._known[record]

    def changes(self, cell: Cell, digest: str) -> str:
        """How the data differs from that of a result with this digest; empty if it does not."""
        now = self.of(cell)
        if isinstance(now, str) or now.digest == digest:
            return ""
        before = read_inputs(_record_path(self._out, cell))
        if before is None or before.digest != digest:
            return "their digest differs"
        return "; ".join(now.changes_since(before))

    def record(self) -> None:
        """Write the inputs that were read, for the results that will be made from them."""
        for path, inputs in self._known.items():
            if isinstance(inputs, Inputs):
                write_inputs(path, inputs)


def check_results(
    cells: Sequence[Cell],
    results: Mapping[str, Mapping[str, Any]],
    current: CurrentInputs,
    out: Path,
    *,
    more: bool,
    overwrite: bool,
) -> tuple[list[Cell], list[str]]:
    """Find results that were made from other data.

    Args:
        cells: All runs of the experiment.
        results: The content of `result.json` of each finished run, by name.
        current: The current data.
        out: The run directory.
        more: Whether further runs will be made.
        overwrite: Whether outdated results are to be computed again.

    Returns:
        The runs that have to be made again, and notes for the user.

    Raises:
        ConfigError: There are outdated results, and `overwrite` is not set.
    """
    changed: dict[str, str] = {}
    unknown: list[str] = []
    notes: list[str] = []
    for cell in (cell for cell in cells if cell.name in results):
        digest = (results[cell.name].get("data") or {}).get("digest")
        if digest is None:
            unknown.append(cell.name)
        elif difference := current.changes(cell, digest):
            changed[cell.name] = difference
        elif isinstance(error := current.of(cell), str):
            notes.append(f"the data of {cell.name!r} cannot be compared with its result: {error}")
    if not overwrite:
        _reject_outdated(changed, unknown if more else [], out)
    if unknown and not overwrite:
        notes.append(
            f"{len(unknown)} results in {out} were made by a version that did not record its data. "
            "It is not known whether the data has changed since."
        )
    again = {*changed, *(unknown if overwrite else [])}
    return [cell for cell in cells if cell.name in again], notes


def _reject_outdated(changed: Mapping[str, str], unknown: Sequence[str], out: Path) -> None:
    remedy = "Choose another --out, or add --overwrite to compute them again."
    if changed:
        first = next(iter(changed))
        raise ConfigError(
            f"{out}: {len(changed)} results were made from other data; the first is {first!r}: "
            f"{changed[first]}. {remedy}"
        )
    if unknown:
        raise ConfigError(
            f"{out}: {len(unknown)} results, the first is {unknown[0]!r}, were made by a version "
            "that did not record its data, so that new results cannot be compared with them. "
            f"{remedy}"
        )


def _record_path(out: Path, cell: Cell) -> Path:
    tables = cell.settings.to_json()
    parts = [tables["data"], tables["protocol"]["splits"], tables.get("localisation")]
    return out / FOLDER / f"{cell.name.partition('--')[0]}-{sha256_of_json(parts)[:12]}.json"


def _file_digests(cell: Cell, bags: BagSet) -> dict[str, str]:
    """Digests of the further files that a result depends on."""
    digests = {}
    if splits := cell.settings.protocol.splits:
        digests[f"the table of splits {Path(splits).name}"] = sha256_of_file(splits)
    own = cell.settings.localisation
    if own is not None and own.annotations is not None:
        digests["the annotations"] = annotations_digest(own.annotations, bags.ids)
    return digests | site_digest(cell.settings.data, bags)


def annotations_digest(folder: str | Path, slide_ids: Sequence[str]) -> str:
    """A digest of names, sizes and times of the annotations of slides."""
    from scmil.slides.annotations.lookup import find_annotation

    files = [path for slide in slide_ids if (path := find_annotation(slide, Path(folder)))]
    return sha256_of_json([[path.name, *stat_of([path])[:2]] for path in files])
