"""Tables of text cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from scmil.bags.table_rows import read_rows
from scmil.errors import DataError


def test_short_lines_are_filled_only_on_request(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a,b\n1\n")
    assert read_rows(path, ragged=True).lines == ((2, ("1", "")),)
    with pytest.raises(DataError, match="line 2"):
        read_rows(path)


def test_a_cell_at_the_far_corner_of_a_sheet_is_named_at_once() -> None:
    pytest.importorskip("openpyxl")
    with pytest.raises(
        DataError,
        match=r"far\.xlsx cannot be read as a workbook: more than 33554432 cells up to row 2049",
    ):
        read_rows(Path(__file__).parents[2] / "data" / "hostile" / "far.xlsx")


def test_rows_that_are_far_apart_are_read(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row, cells in ((3, ("slide", "label")), (4, ("a", 1)), (5000, ("b", 0))):
        for column, value in enumerate(cells, start=2):
            book.active.cell(row, column, value)
    book.save(tmp_path / "labels.xlsx")
    rows = read_rows(tmp_path / "labels.xlsx")
    assert rows.lines[-1] == (5000, ("", "b", "0"))
