"""Tables on disk, read by column: whatever is wrong in them is told with the file and the line."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scmil.errors import DataError
from scmil.core.files import unquoted

Numbers = NDArray[np.float64]


def damaged(path: Path, what: str) -> DataError:
    """The error for a file that scmil wrote and cannot read: which one, what is wrong, what to do."""
    return DataError(f"{path}: {what}. Run `scmil run` on the same experiment again: finished cells are kept.")


class Table:
    """A CSV file by columns; whatever is wrong in it is told with the line."""

    def __init__(self, path: Path, needed: Iterable[str]) -> None:
        self.path = path
        try:
            with path.open(newline="", encoding="utf-8") as file:
                header, *rows = list(csv.reader(file, strict=True)) or [[]]
        except FileNotFoundError:
            raise damaged(path, "the file does not exist") from None
        except (UnicodeDecodeError, csv.Error) as error:
            raise damaged(path, f"not readable as CSV ({error})") from None
        if absent := [name for name in needed if name not in header]:
            raise damaged(path, f"without the column {absent[0]!r}")
        for line, row in enumerate(rows, start=2):
            if len(row) != len(header):
                raise damaged(path, f"line {line} has {len(row)} fields, expected {len(header)}")
        self.length = len(rows)
        rows = [[unquoted(cell) for cell in row] for row in rows]
        self.columns = dict(zip(header, zip(*rows) if rows else [()] * len(header)))

    def text(self, column: str) -> NDArray[np.str_]:
        """A column as it is written."""
        return np.array(self.columns[column], dtype=np.str_)

    def numbers(self, column: str, *, empty: bool = False) -> Numbers:
        """A column as numbers; where `empty` is allowed, nothing at all becomes NaN."""
        values = self.columns[column]
        try:
            numbers = np.array([value or "nan" for value in values], dtype=np.float64)
        except ValueError:
            bad = next(i for i, value in enumerate(values) if value and not _is_number(value))
            raise damaged(self.path, f"line {bad + 2}, {column}: {values[bad]!r} is not a number") from None
        if not empty and not np.isfinite(numbers).all():
            line = int(np.flatnonzero(~np.isfinite(numbers))[0]) + 2
            raise damaged(self.path, f"line {line}, {column}: a number is missing")
        return numbers


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
