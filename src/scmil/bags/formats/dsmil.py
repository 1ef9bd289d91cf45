"""DSMIL: a CSV file of features for each slide, in a folder per class, and an index file."""

from __future__ import annotations

import csv
import io
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, TextIO

import numpy as np
from numpy.typing import NDArray

from scmil.bags.bag import MOST_CLASSES, BagSet
from scmil.bags.formats import register
from scmil.bags.formats.folder import SOME, Folder
from scmil.bags.formats.reading import LabelTable, lazy_bags, make_bag
from scmil.core.regular_files import open_regular
from scmil.core.safe_io import naming
from scmil.errors import DataError

INDEX = ["0", "label"]


@register("dsmil", "DSMIL: CSV files, and an index with the labels")
class Dsmil:
    """Features of DSMIL: the folder of a data set, with a folder per class and an index file.

    The index has the columns `0,label`, with the path and the class of each slide. Without an index
    the classes are the folders in alphabetical order. There are no coordinates. Only the last two
    parts of a path in the index are used, because the rest depends on where it was written; no file
    outside the folder is opened.
    """

    layout: ClassVar[str] = (
        "<class>/<slide>.csv with the header 0,1,2,... and an index .csv with the header 0,label"
    )

    def looks_like(self, folder: Folder) -> bool:
        """Return whether there is an index, or a table with the columns 0, 1, 2, ..."""
        tables = [
            here.path / f"{stem}.csv"
            for here in (folder, *folder.some())
            for stem in here.stems(".csv")[:SOME]
        ]
        return _find_index(folder) is not None or any(
            _is_header(_header_cells(path)) for path in tables
        )

    def read(self, folder: Folder, labels: LabelTable | None = None) -> BagSet:
        """Return the slides of the index, or without one those of the folders."""
        index = _find_index(folder)
        files, own = _read_index(folder, index) if index else _find_class_files(folder)
        classes = [name for name in folder.folders if (folder / name).stems(".csv")]
        highest = max(own.values(), default=-1)
        named = classes if len(classes) > highest else None
        return lazy_bags(
            files,
            lambda bag_id: make_bag(bag_id, files[bag_id], "dsmil", read_features(files[bag_id])),
            labels,
            own,
            named,
            files=lambda bag_id: [files[bag_id]],
        )


def read_features(path: Path) -> NDArray[np.float32]:
    """Read the features of a table with the columns 0, 1, 2, ...

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "slide.csv"
    >>> _ = path.write_text("0,1\\n0.2500,1.0000\\n")
    >>> read_features(path)
    array([[0.25, 1. ]], dtype=float32)
    """
    with naming(path, "a table of numbers"), _open_text(path) as file:
        header = file.readline().strip().split(",")
        if not _is_header(header):
            raise DataError(
                f"the first line is {','.join(header)[:40]!r}, but column names 0,1,2,... are "
                "needed, one for each feature."
            )
        first = file.readline()
        if not first.strip():
            return np.zeros((0, len(header)), np.float32)
        rows: NDArray[np.float32] = np.loadtxt(
            chain([first], file), dtype=np.float32, delimiter=",", comments=None, ndmin=2
        )
        if rows.shape[1] != len(header):
            raise DataError(
                f"rows of {rows.shape[1]} numbers, but the header has {len(header)} columns."
            )
        return rows


def _open_text(path: Path, newline: str | None = None) -> TextIO:
    return io.TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline=newline)


def _is_header(cells: list[str]) -> bool:
    return len(cells) > 1 and cells == [str(position) for position in range(len(cells))]


def _header_cells(path: Path) -> list[str]:
    """Return the cells of the first line; none if the file cannot be read."""
    try:
        with _open_text(path) as file:
            return file.readline(1 << 20).strip().split(",")
    except (OSError, UnicodeDecodeError, DataError):
        return []


def _find_index(folder: Folder) -> Path | None:
    """Find the index: named after the folder, or one of the first tables in it."""
    stems = folder.stems(".csv")
    candidates = [folder.name] if folder.name in stems else stems[:SOME]
    found = [
        path for stem in candidates if _header_cells(path := folder.path / f"{stem}.csv") == INDEX
    ]
    if len(found) > 1:
        raise DataError(
            f"{found[0]} and {found[1]} both have the columns 0,label of an index. Remove one."
        )
    return found[0] if found else None


def _find_class_files(folder: Folder) -> tuple[dict[str, Path], dict[str, int]]:
    """Find the file and the class of each slide in the folders of the classes."""
    classes = [name for name in folder.folders if (folder / name).stems(".csv")]
    places: list[Any] = [(folder / name, label) for label, name in enumerate(classes)] or [
        (folder, None)
    ]
    found = [
        (stem, place.path / f"{stem}.csv", label)
        for place, label in places
        for stem in place.stems(".csv")
    ]
    files = {stem: path for stem, path, _ in found}
    if len(files) < len(found):
        twice = next(path for stem, path, _ in found if files[stem] != path)
        raise DataError(
            f"{twice} and {files[twice.stem]} have the same name, which is the id of the slide. "
            "Rename one of them."
        )
    return files, {stem: label for stem, _, label in found if label is not None}


def _read_index(folder: Folder, index: Path) -> tuple[dict[str, Path], dict[str, int]]:
    """Read the file and the class of each slide from the index."""
    files: dict[str, Path] = {}
    own: dict[str, int] = {}
    with naming(index, "a table"), _open_text(index, newline="") as file:
        table = csv.reader(file)
        next(table)
        for row in filter(None, table):
            where = f"line {table.line_num}"
            if len(row) != 2 or not row[1].strip().removesuffix(".0").isdecimal():
                raise DataError(
                    f"{where} is {','.join(row)[:80]!r}, but a path and a class number are needed."
                )
            parts = PurePosixPath(row[0].strip().replace("\\", "/")).parts
            if ".." in parts or not parts:
                raise DataError(
                    f"{where}: the path {row[0]!r} leaves the folder. Nothing was read."
                )
            path = _path_in_folder(folder, parts)
            if path.stem in files:
                raise DataError(f"{where}: slide {path.stem!r} is listed twice. Remove one line.")
            files[path.stem], own[path.stem] = path, int(float(row[1]))
            if own[path.stem] >= MOST_CLASSES:
                raise DataError(
                    f"{where}: class {row[1]}, but class numbers are 0 to {MOST_CLASSES - 1}."
                )
    return files, own


def _path_in_folder(folder: Folder, parts: tuple[str, ...]) -> Path:
    """Return the file named by the last two parts, or by the last one; it may not exist."""
    name = parts[-1] if parts[-1].endswith(".csv") else f"{parts[-1]}.csv"
    flat = folder.path / name
    return (
        folder.path / parts[-2] / name if len(parts) > 1 and parts[-2] in folder.folders else flat
    )
