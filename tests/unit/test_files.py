from __future__ import annotations

import os
from pathlib import Path

import pytest

from scmil.files import write_atomically


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
