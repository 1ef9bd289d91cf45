"""DSMIL: a CSV file of numbers for each slide, in folders named after the classes, and an index of them all."""

from __future__ import annotations

import csv
import io
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, TextIO

import numpy as np
from numpy.typing import NDArray

from scmil.bags.bag import MOST_CLASSES, BagSet
from scmil.errors import DataError
from scmil.bags.formats import register
from scmil.bags.formats.folder import SOME, Folder
from scmil.bags.formats.reading import Labels, lazy_bags, make_bag, naming
from scmil.core.safe_io import open_regular

INDEX = ["0", "label"]


@register("dsmil", "DSMIL: CSV files, and an index with the labels")
class Dsmil:
    """Features of DSMIL: the folder of a data set, with folders of classes and an index `0,label` of paths and classes.

    Without an index the classes are the folders in alphabetical order. There are no coordinates. The paths of an index
    start wherever it was written, so that their last two parts count; no file outside the folder is opened.
    """

    layout: ClassVar[str] = "<class>/<slide>.csv with the header 0,1,2,... and an index .csv with the header 0,label"

    def looks_like(self, folder: Folder) -> bool:
        """Whether there is an index, or a table whose columns are called 0, 1, 2 and so on."""
        tables = [here.path / f"{stem}.csv" for here in (folder, *folder.some()) for stem in here.stems(".csv")[:SOME]]
        return _index(folder) is not None or any(_is_header(_first_line(path)) for path in tables)

    def read(self, folder: Folder, labels: Labels | None = None) -> BagSet:
        """The slides of the index, or without one those of the folders."""
        index = _index(folder)
        files, own = _indexed(folder, index) if index else _by_folder(folder)
        classes = [name for name in folder.folders if (folder / name).stems(".csv")]
        highest = max(own.values(), default=-1)
        named = classes if len(classes) > highest else None
        return lazy_bags(
            files,
            lambda id: make_bag(id, files[id], "dsmil", read_rows(files[id])),
            labels,
            own,
            named,
            files=lambda id: [files[id]],
        )


def read_rows(path: Path) -> NDArray[np.float32]:
    """The numbers of a table whose columns are called 0, 1, 2 and so on.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "slide.csv"
    >>> _ = path.write_text("0,1\\n0.2500,1.0000\\n")
    >>> read_rows(path)
    array([[0.25, 1. ]], dtype=float32)
    """
    with naming(path, "a table of numbers"), _text(path) as file:
        header = file.readline().strip().split(",")
        if not _is_header(header):
            raise DataError(
                f"the first line is {','.join(header)[:40]!r}, but 0,1,2,... is needed, one for each feature."
            )
        first = file.readline()
        if not first.strip():
            return np.zeros((0, len(header)), np.float32)
        rows: NDArray[np.float32] = np.loadtxt(
            chain([first], file), dtype=np.float32, delimiter=",", comments=None, ndmin=2
        )
        if rows.shape[1] != len(header):
            raise DataError(f"rows of {rows.shape[1]} numbers, but the header has {len(header)}.")
        return rows


def _text(path: Path, newline: str | None = None) -> TextIO:
    return io.TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline=newline)


def _is_header(cells: list[str]) -> bool:
    return len(cells) > 1 and cells == [str(position) for position in range(len(cells))]


def _first_line(path: Path) -> list[str]:
    try:
        with _text(path) as file:
            return file.readline(1 << 20).strip().split(",")
    except (OSError, UnicodeDecodeError, DataError):
        return []


def _index(folder: Folder) -> Path | None:
    """The index: named after the folder, or one of a few tables beside the folders of classes."""
    stems = folder.stems(".csv")
    candidates = [folder.name] if folder.name in stems else stems[:SOME]
    found = [path for stem in candidates if _first_line(path := folder.path / f"{stem}.csv") == INDEX]
    if len(found) > 1:
        raise DataError(f"{found[0]} and {found[1]} are both an index 0,label. Keep one of them in this folder.")
    return found[0] if found else None


def _by_folder(folder: Folder) -> tuple[dict[str, Path], dict[str, int]]:
    classes = [name for name in folder.folders if (folder / name).stems(".csv")]
    places: list[Any] = [(folder / name, label) for label, name in enumerate(classes)] or [(folder, None)]
    found = [(stem, place.path / f"{stem}.csv", label) for place, label in places for stem in place.stems(".csv")]
    files = {stem: path for stem, path, _ in found}
    if len(files) < len(found):
        twice = next(path for stem, path, _ in found if files[stem] != path)
        raise DataError(f"{twice} and {files[twice.stem]} have one name: a slide's id is the name of its file.")
    return files, {stem: label for stem, _, label in found if label is not None}


def _indexed(folder: Folder, index: Path) -> tuple[dict[str, Path], dict[str, int]]:
    files: dict[str, Path] = {}
    own: dict[str, int] = {}
    with naming(index, "a table"), _text(index, newline="") as file:
        table = csv.reader(file)
        next(table)
        for row in filter(None, table):
            where = f"line {table.line_num}"
            if len(row) != 2 or not row[1].strip().removesuffix(".0").isdecimal():
                raise DataError(f"{where} is {','.join(row)[:80]!r}, but a path and the number of a class are needed.")
            parts = PurePosixPath(row[0].strip().replace("\\", "/")).parts
            if ".." in parts or not parts:
                raise DataError(f"{where} leads out of the folder: {row[0]!r}. Nothing was read.")
            path = _inside(folder, parts)
            if path.stem in files:
                raise DataError(f"{where}: slide {path.stem!r} is there a second time.")
            files[path.stem], own[path.stem] = path, int(float(row[1]))
            if own[path.stem] >= MOST_CLASSES:
                raise DataError(f"{where}: class {row[1]}, and classes are counted from 0 to {MOST_CLASSES - 1}.")
    return files, own


def _inside(folder: Folder, parts: tuple[str, ...]) -> Path:
    """The file of the last two parts, or of the last; one that is not there is told when its bag is asked for."""
    name = parts[-1] if parts[-1].endswith(".csv") else f"{parts[-1]}.csv"
    flat = folder.path / name
    return folder.path / parts[-2] / name if len(parts) > 1 and parts[-2] in folder.folders else flat
