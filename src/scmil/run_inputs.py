"""What the cells of a run were made from, recorded beside their results: `inputs/<data set>.json` in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scmil.errors import ConfigError, DataError, ScmilError
from scmil.core.files import write_atomically
from scmil.fingerprint import Inputs, sha256_of_file, sha256_of_json, stat_of
from scmil.studies.plan import DATA_KEYS, Cell

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet

FOLDER = "inputs"


def load_bags(settings: Mapping[str, Any], data: Path | None = None) -> Any:
    """The bags that the `[data]` table of a cell names, without those that have no label if it says so."""
    from scmil.bags.datasets import load_dataset
    from scmil.bags.checks import labelled

    own = {key: settings[key] for key in DATA_KEYS if key in settings and key not in ("name", "drop_unlabelled")}
    bags = load_dataset(settings["dataset"], data=data, **own)
    return labelled(bags) if settings.get("drop_unlabelled") else bags


def inputs_of(cell: Cell, bags: BagSet, out: Path) -> Inputs:
    """What a result of this cell depends on: bags, labels, patients, and the files of splits and annotations."""
    return bags.inputs(read_inputs(_record(out, cell)), _files(cell, bags))


def check_unchanged(cell: Cell, bags: BagSet, before: Inputs) -> None:
    """Reject data that changed while a model was trained on it."""
    if changes := bags.inputs(before, _files(cell, bags)).changes_since(before):
        raise DataError(f"the data changed while cell {cell.name!r} was running: {'; '.join(changes)}. Run it again.")


def read_inputs(path: Path) -> Inputs | None:
    """The inputs that a file records; None if there is none, or if it is damaged."""
    try:
        return Inputs.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, AttributeError, KeyError, TypeError, ValueError):
        return None


def write_inputs(path: Path, inputs: Inputs) -> None:
    """Record inputs."""
    write_atomically(path, json.dumps(inputs.to_json()).encode())


class Present:
    """The data of a run as it is now, read once for all cells that share it."""

    def __init__(self, out: Path, data: Path | None) -> None:
        self._out, self._data = out, data
        self._known: dict[Path, Inputs | str] = {}

    def of(self, cell: Cell) -> Inputs | str:
        """The present inputs of a cell, or why they cannot be read."""
        record = _record(self._out, cell)
        if record not in self._known:
            try:
                bags = load_bags(cell.settings["data"], self._data)
                self._known[record] = inputs_of(cell, bags, self._out)
            except ScmilError as error:
                self._known[record] = str(error)
        return self._known[record]

    def changes(self, cell: Cell, digest: str) -> str:
        """In words, how the data differs from that of a result with this digest; nothing if it does not."""
        now = self.of(cell)
        if isinstance(now, str) or now.digest == digest:
            return ""
        before = read_inputs(_record(self._out, cell))
        return "; ".join(now.changes_since(before)) if before and before.digest == digest else "their digest is another"

    def record(self) -> None:
        """Write down what was found, for the results that will be made from it."""
        for path, inputs in self._known.items():
            if isinstance(inputs, Inputs):
                write_inputs(path, inputs)


def check_results(
    cells: Sequence[Cell],
    results: Mapping[str, Mapping[str, Any]],
    present: Present,
    out: Path,
    *,
    more: bool,
    overwrite: bool,
) -> tuple[list[Cell], list[str]]:
    """The cells whose results have to be made again, and notes for the user; results of other data are rejected.

    `results` are the pages of the cells that are done, by name; `more` says that other cells will be run.
    """
    changed: dict[str, str] = {}
    unknown: list[str] = []
    notes: list[str] = []
    for cell in (cell for cell in cells if cell.name in results):
        digest = (results[cell.name].get("data") or {}).get("digest")
        if digest is None:
            unknown.append(cell.name)
        elif words := present.changes(cell, digest):
            changed[cell.name] = words
        elif isinstance(problem := present.of(cell), str):
            notes.append(f"the data of {cell.name!r} cannot be compared with its result: {problem}")
    first, remedy = next(iter(changed), ""), "Give --out another folder, or add --overwrite to compute them again."
    if changed and not overwrite:
        raise ConfigError(
            f"{out}: the results of {len(changed)} cells were made from other data; the first is {first!r}: "
            f"{changed[first]}. {remedy}"
        )
    if unknown and more and not overwrite:
        raise ConfigError(
            f"{out}: the results of {len(unknown)} cells, the first is {unknown[0]!r}, are of a version that did not record "
            f"its data, so that new results cannot be compared with them. {remedy}"
        )
    if unknown and not overwrite:
        notes.append(
            f"{len(unknown)} results of {out} are of a version that did not record its data: whether the data has changed "
            "since is not known."
        )
    return [cell for cell in cells if cell.name in changed or (overwrite and cell.name in unknown)], notes


def _record(out: Path, cell: Cell) -> Path:
    own = cell.settings
    asked = [own["data"], own["protocol"].get("splits"), own.get("localisation")]
    return out / FOLDER / f"{cell.name.partition('--')[0]}-{sha256_of_json(asked)[:12]}.json"


def _files(cell: Cell, bags: BagSet) -> dict[str, str]:
    """Digests of the further files that a result depends on."""
    found = {}
    if splits := cell.settings["protocol"].get("splits"):
        found[f"the table of splits {Path(splits).name}"] = sha256_of_file(splits)
    if own := cell.settings.get("localisation"):
        found["the annotations"] = annotations_digest(own["annotations"], bags.ids)
    return found


def annotations_digest(folder: str | Path, ids: Sequence[str]) -> str:
    """A digest of names, sizes and times of the annotations of slides."""
    from scmil.slides.annotations.lookup import find_annotation

    files = [path for id in ids if (path := find_annotation(id, Path(folder)))]
    return sha256_of_json([[path.name, *stat_of([path])[:2]] for path in files])
