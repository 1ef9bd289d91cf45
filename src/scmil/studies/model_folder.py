"""The files of a model folder, and who is told how far the work is."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from scmil.errors import DataError, ModelFileError
from scmil.core.files import csv_bytes, write_atomically
from scmil.limits import Bound, bounded, check_overlap, read_json

FORMAT = "scmil-study-1"
STUDY = "study.json"
FINITE = Bound(-1e300, 1e300)
Progress = Callable[[str, int, int], None]  # what is being done, how much of it is done, of how much
Page = dict[str, Any]


def told(progress: Progress | None, what: str, total: int) -> Callable[[int], None] | None:
    """What a loop is given that counts alone: it tells what is being counted, and of how much."""
    return None if progress is None else lambda done: progress(what, done, total)


def read_page(path: Path) -> Page:
    """A JSON file of a model folder."""
    try:
        return dict(read_json(path))
    except (OSError, TypeError, ValueError) as error:
        raise ModelFileError(f"{path}: not readable as JSON ({error}). Copy the folder again, or train anew.") from None


def check_study(path: Path, study: Page, classes: int, dim: int | None) -> None:
    """Raise if what `study.json` says of a model is incomplete, or has a number that no study has.

    `classes` and `dim` are those of the model itself.
    """
    try:
        names, contract, scaling = study["classes"], study["contract"], study["scaling"]
        split, settings = study["split"], study["settings"]["model"]["aggregator"]
        if not isinstance(names, list) or len(names) != classes or not all(isinstance(name, str) for name in names):
            raise DataError(f"classes are not the names of {classes} classes")
        if not isinstance(settings, (str, dict)) or not isinstance(split, dict):
            raise DataError("split or settings are of another kind")
        if not all(isinstance(ids, list) and all(isinstance(id, str) for id in ids) for ids in split.values()):
            raise DataError("split is not lists of the names of slides")
        bounded("threshold", study["threshold"], "threshold")
        bounded("dim", contract["dim"], "contract")
        for key in ("encoder", "encoder_digest"):
            if not isinstance(contract.get(key, ""), (str, NoneType)):
                raise DataError(f"contract: {key} is not a text")
        for key in ("size_px", "mpp", "overlap_px"):
            if contract.get(key) is not None:
                bounded(key, contract[key], "contract")
        check_overlap(contract.get("size_px") or 2**13, contract.get("overlap_px") or 0, "contract")
        for key in ("mean", "deviation") if scaling is not None else ():
            if len(scaling[key]) != (dim or len(scaling[key])) or not all(map(FINITE.holds, scaling[key])):
                raise DataError(f"scaling: {key} is not {dim} finite numbers")
        if scaling is not None and not all(scaling["deviation"]):
            raise DataError("scaling: a deviation is 0")
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(f"{path}: incomplete or wrong ({type(error).__name__} {error}). Train anew.") from None
    except DataError as error:
        raise ModelFileError(f"{path}: {str(error).rstrip('.')}. Copy the folder again, or train anew.") from None


def write_json(path: Path, page: Page) -> None:
    """Write a page for programs that people can read too."""
    write_atomically(path, (json.dumps(page, indent=1) + "\n").encode())


def write_csv(path: Path, rows: Sequence[Page], columns: Sequence[str] | None = None) -> None:
    """Write a table; without rows the columns have to be named."""
    write_atomically(path, table_bytes(rows, columns))


def table_bytes(rows: Sequence[Page], columns: Sequence[str] | None = None) -> bytes:
    """The content of a table; without rows the columns have to be named."""
    columns = columns or list(rows[0])
    return csv_bytes([columns, *([row.get(name) for name in columns] for row in rows)])
