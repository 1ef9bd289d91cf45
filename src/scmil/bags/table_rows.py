"""Tables of text cells from .csv, .tsv and .xlsx files."""

from __future__ import annotations

import csv
import difflib
import io
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scmil.core.extras import import_extra
from scmil.core.regular_files import check_regular
from scmil.core.safe_io import CELLS, check_archive
from scmil.core.tables import column_names, unescape_formula
from scmil.errors import DataError

# "0": DSMIL's index.
SLIDE = ("slide_id", "slide", "filename", "wsi", "image_id", "bag", "bag_name", "slide_path", "0")
PATIENT = ("case_id", "patient", "patient_id", "case")
LABEL = ("label", "target", "class", "category", "y")
# Never a label unless the user requests it.
OTHER = ("", "unnamed: 0", "fold", "split", "mpp", "source", "dataset")
SEPARATORS = ",\t;"


class TextTable(NamedTuple):
    """A table of a file: column names, and the number and cells of each line."""

    path: Path
    header: tuple[str, ...]
    lines: tuple[tuple[int, tuple[str, ...]], ...]

    def find(self, names: Iterable[str]) -> int | None:
        """Return the position of the first of these names that is a column, ignoring case."""
        lower = [name.lower() for name in self.header]
        for name in names:
            if lower.count(name.lower()) > 1:
                raise DataError(
                    f"{self.path}: {lower.count(name.lower())} columns are called {name!r}. Rename "
                    "all but one."
                )
            if name.lower() in lower:
                return lower.index(name.lower())
        return None

    def need(self, names: Sequence[str], what: str, option: str) -> int:
        """Return what `find` returns, or raise and list the columns and the nearest name."""
        if (column := self.find(names)) is not None:
            return column
        present = {name.lower(): name for name in self.header if name}
        near = [
            word for name in names for word in difflib.get_close_matches(name.lower(), present, n=1)
        ]
        listed = column_names(present.values())
        hint = (
            f" The nearest is {present[near[0]]!r}." if near and present[near[0]] in listed else ""
        )
        if not present.keys() & {*SLIDE, *PATIENT, *LABEL, *OTHER}:
            hint += " Does the file begin with a line that names its columns?"
        expected = " or ".join(map(repr, names[:3]))
        raise DataError(
            f"{self.path}: no column {expected} for the {what}; found {listed}.{hint} Name the "
            f"column: {option}."
        )


def read_rows(path: str | Path, *, ragged: bool = False) -> TextTable:
    """Read a table of text cells, with columns separated by commas, tabs or semicolons.

    With `ragged`, lines may have fewer cells than the header.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "table.csv"
    >>> _ = path.write_text("slide;label\\n007;1\\n")
    >>> read_rows(path)[1:]
    (('slide', 'label'), ((2, ('007', '1')),))
    """
    path = Path(path)
    try:
        check_regular(path)
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    is_workbook = path.suffix.lower() == ".xlsx"
    lines = _read_sheet(path, content) if is_workbook else _read_text_rows(path, content)
    stripped = ((number, [cell.strip() for cell in cells]) for number, cells in lines)
    filled = ((number, cells) for number, cells in stripped if any(cells))
    header = next((cells for _, cells in filled), None)
    if header is None:
        raise DataError(
            f"{path} is empty. Add a line with the names of the columns, and a line for each slide."
        )
    rows = (
        (number, tuple(_fit_to_header(path, number, cells, len(header), ragged)))
        for number, cells in filled
    )
    return TextTable(path, tuple(header), tuple(rows))


def _read_text_rows(path: Path, content: bytes) -> Iterator[tuple[int, list[str]]]:
    """Yield number and cells of the lines of a text file."""
    encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(
            f"{path}, line {line}: the bytes are not UTF-8. Save the table as CSV in UTF-8."
        ) from None
    header = next((line for line in text.splitlines() if line.strip()), "")
    separator = max(SEPARATORS, key=header.count)
    if separator not in header and re.search(r"\w[|: ]+\w", header):
        raise DataError(
            f"{path}: only one column. Separate columns by commas, tabs or semicolons, and name "
            "them in line 1."
        )
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        for cells in lines:
            yield lines.line_num, [unescape_formula(cell) for cell in cells]
    except csv.Error as error:
        raise DataError(f"{path}, line {lines.line_num}: {error}.") from None


def _read_sheet(path: Path, content: bytes) -> Iterator[tuple[int, list[str]]]:
    """Yield number and cells of the rows of the first sheet of a workbook."""
    openpyxl: Any = import_extra("openpyxl", "tables")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            check_archive(archive)
        book = openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=True)
        rows = list(_limit_cells(book.worksheets[0].iter_rows(values_only=True)))
        book.close()
    except (
        Exception
    ) as error:  # a damaged workbook fails in zip, XML or styles, each in its own way
        raise DataError(
            f"{path} cannot be read as a workbook: {error}. Save the table as CSV."
        ) from None
    for number, cells in enumerate(rows, start=1):
        yield number, [_cell_text(cell) for cell in cells]


def _limit_cells(rows: Iterable[Sequence[object]]) -> Iterator[Sequence[object]]:
    """Yield the rows of a sheet, or raise if there are too many cells.

    One cell far from the others implies billions of empty cells.
    """
    cells = 0
    for number, row in enumerate(rows, start=1):
        cells += max(len(row), 1)
        if cells > CELLS:
            raise DataError(f"more than {CELLS} cells up to row {number}, including empty ones")
        yield () if row.count(None) == len(row) else row


def _cell_text(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "" if value is None else str(value)


def _fit_to_header(
    path: Path, number: int, cells: list[str], width: int, ragged: bool
) -> list[str]:
    """Return as many cells as there are columns, or raise."""
    missing = width - len(cells)
    if any(cells[width:]) or (missing > 0 and not ragged):
        raise DataError(
            f"{path}, line {number}: {len(cells)} values, but {width} columns are named. Put text "
            "that contains commas in quotes."
        )
    return cells[:width] + [""] * missing
