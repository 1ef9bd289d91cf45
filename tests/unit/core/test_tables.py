from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import scmil
from scmil.core.limits import DEEPEST
from scmil.core.tables import column_names, csv_bytes, escape_formula, read_json, unescape_formula
from scmil.core.text import encode_utf8
from scmil.errors import DataError

FORMULAS = [
    "=1",
    "+1+1",
    "-2+3|cmd",
    "@SUM(1)",
    "\t=1",
    "\r=1",
    "\n=1",
    " =1",
    "  \t\n =1",
    "\0=1",
    "\xa0=1",
    "\ufeff=1",
    "＝1",
    "＋1+1",
    "－2+3",
    "＠SUM(1)",
    ";=1",
    "a;=1",
    "a; =1",
    "a\t=1",
    "a\n=1",
    "'=1",
    "';=1",
    "a;'=1",
    "\tplain",
    "\nplain",
    ";;=1;+cmd",
    "=1;=2",
]


@pytest.mark.parametrize("text", FORMULAS, ids=ascii)
def test_no_formula_is_left_in_a_cell_for_any_cell_separator(text: str) -> None:
    written = escape_formula(text)
    for separator in ("\0\0", ";", "\t", "\n", "\r"):
        for cell in written.split(separator):
            assert not cell.strip("\0\xa0\ufeff\u3000 \t\r\n\v\f").startswith(
                ("=", "+", "-", "@", "＝", "＋", "－", "＠")
            ), cell
    assert not written.startswith(("\t", "\r", "\n", "\0"))


@pytest.mark.parametrize(
    "text",
    [*FORMULAS, "tumor_042", "it's", "'quoted'", "a-b", "a, -b", "", "''=1", "a;b", "-", "=;=;="],
    ids=ascii,
)
def test_unescaping_inverts_escaping(text: str) -> None:
    assert unescape_formula(escape_formula(text)) == text
    assert unescape_formula(escape_formula(escape_formula(text))) == escape_formula(text)


@pytest.mark.parametrize("value", ["-0.5", "+1e-7", "-inf", "0.25", "nan", -1, 0.5, None, True])
def test_numbers_are_not_escaped(value: object) -> None:
    assert escape_formula(value) == value or value is None


def test_names_that_are_not_utf8_can_be_written(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    assert csv_bytes([["slide"], [name]]).decode() == "slide\ncaf\\udce9\n"
    assert json.loads(encode_utf8(json.dumps([name], ensure_ascii=False))) == [name]


@pytest.mark.parametrize(
    "header",
    [
        ["root:x:0:0:root:/root:/bin/bash"],
        ["-----BEGIN OPENSSH PRIVATE KEY-----"],
        ["hf_abcdefghijklmnop"],
        ["AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"],
        ["machine example.org login me password secret"],
    ],
)
def test_the_first_line_of_a_file_that_is_not_a_table_is_not_shown(header: list[str]) -> None:
    assert "not shown" in column_names(header)
    assert not any(name in column_names(header) for name in header)


@pytest.mark.parametrize("content", ["[" * 10**5, "[" * (DEEPEST + 2) + "]" * (DEEPEST + 2)])
def test_a_json_file_that_is_nested_too_deeply_is_rejected(tmp_path: Path, content: str) -> None:
    (tmp_path / "page.json").write_text(content)
    with pytest.raises(DataError, match=r"page\.json is nested too deeply"):
        read_json(tmp_path / "page.json")


def test_a_json_file_larger_than_the_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "page.json").write_text("[1, 2, 3]")
    with pytest.raises(DataError, match=r"page\.json has 9 bytes; at most 8 bytes"):
        read_json(tmp_path / "page.json", largest=8)


def test_csv_files_are_written_by_one_function_only() -> None:
    sources = {path: path.read_text() for path in Path(scmil.__file__).parent.rglob("*.py")}
    assert [path.name for path, text in sources.items() if "csv.writer(" in text] == ["tables.py"]
    assert not [path for path, text in sources.items() if "DictWriter" in text]
