from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from scmil.core.files import column_names, csv_bytes, no_formula, printable, unquoted, utf8, write_atomically


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_file_has_the_content_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.bin", b"\x00\xff")
    assert (tmp_path / "a.bin").read_bytes() == b"\x00\xff"
    assert names(tmp_path) == ["a.bin"]


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    write_atomically(tmp_path / "some" / "where" / "a.txt", b"here")
    assert (tmp_path / "some" / "where" / "a.txt").read_bytes() == b"here"


def test_an_older_file_is_replaced_whole(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"a longer text than the new one")
    write_atomically(file, b"new")
    assert file.read_bytes() == b"new"


def test_until_all_is_written_the_old_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, seen = tmp_path / "a.txt", []
    file.write_bytes(b"old")
    replace = os.replace

    def look_and_replace(temporary: Path, final: Path) -> None:
        seen.append((temporary.read_bytes(), final.read_bytes(), temporary.parent == final.parent))
        replace(temporary, final)

    monkeypatch.setattr(os, "replace", look_and_replace)
    write_atomically(file, b"new")
    assert seen == [(b"new", b"old", True)]


@pytest.mark.parametrize("where", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: BaseException
) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, where, fail)
    with pytest.raises(type(error)):
        write_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    assert names(tmp_path) == ["a.txt"]


def test_a_file_may_be_read_by_others_as_any_file_may(tmp_path: Path) -> None:
    plain = tmp_path / "plain.txt"
    plain.write_bytes(b"")
    write_atomically(tmp_path / "ours.txt", b"")
    assert (tmp_path / "ours.txt").stat().st_mode == plain.stat().st_mode


# ------------------------------------------------------------------------------------- text that would execute elsewhere

FORMULAS = [
    "=1", "+1+1", "-2+3|cmd", "@SUM(1)", "\t=1", "\r=1", "\n=1", " =1", "  \t\n =1", "\0=1", "\xa0=1", "\ufeff=1",
    "＝1", "＋1+1", "－2+3", "＠SUM(1)", ";=1", "a;=1", "a; =1", "a\t=1", "a\n=1", "'=1", "';=1", "a;'=1", "\tplain",
    "\nplain", ";;=1;+cmd", "=1;=2",
]  # fmt: skip


@pytest.mark.parametrize("text", FORMULAS, ids=ascii)
def test_no_program_finds_a_formula_in_a_cell_whatever_separates_its_cells(text: str) -> None:
    written = no_formula(text)
    for separator in ("\0\0", ";", "\t", "\n", "\r"):
        for cell in written.split(separator):
            assert not cell.strip("\0\xa0\ufeff\u3000 \t\r\n\v\f").startswith(
                ("=", "+", "-", "@", "＝", "＋", "－", "＠")
            ), cell
    assert not written.startswith(("\t", "\r", "\n", "\0"))


@pytest.mark.parametrize(
    "text", [*FORMULAS, "tumor_042", "it's", "'quoted'", "a-b", "a, -b", "", "''=1", "a;b", "-", "=;=;="], ids=ascii
)
def test_what_is_quoted_is_read_back(text: str) -> None:
    assert unquoted(no_formula(text)) == text
    assert unquoted(no_formula(no_formula(text))) == no_formula(text)


@pytest.mark.parametrize("value", ["-0.5", "+1e-7", "-inf", "0.25", "nan", -1, 0.5, None, True])
def test_numbers_stay_numbers(value: object) -> None:
    assert no_formula(value) == value or value is None


def test_names_that_are_not_utf8_can_be_written(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    assert csv_bytes([["slide"], [name]]).decode() == "slide\ncaf\\udce9\n"
    assert json.loads(utf8(json.dumps([name], ensure_ascii=False))) == [name]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("a\x9b2Jb", r"a\x9b2Jb"),
        ("gpj.\u202etumour", r"gpj.\u202etumour"),
        ("a\u2066b\u2069", r"a\u2066b\u2069"),
        ("a\r\nb\x7f", r"a\r\nb\x7f"),
        (os.fsdecode(b"\xff"), r"\udcff"),
        ("µm Größe 組織 [bold]", "µm Größe 組織 [bold]"),
    ],
)
def test_what_a_terminal_obeys_is_shown_as_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


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
def test_the_first_line_of_what_is_not_a_table_is_not_shown(header: list[str]) -> None:
    assert "not shown" in column_names(header)
    assert not any(name in column_names(header) for name in header)
