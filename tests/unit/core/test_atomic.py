from __future__ import annotations

import os
from pathlib import Path

import pytest

from scmil.core.atomic import atomic_path, write_atomically


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_file_has_the_content_and_no_temporary_file_is_left(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.bin", b"\x00\xff")
    assert (tmp_path / "a.bin").read_bytes() == b"\x00\xff"
    assert names(tmp_path) == ["a.bin"]


def test_missing_parent_folders_are_created(tmp_path: Path) -> None:
    write_atomically(tmp_path / "some" / "where" / "a.txt", b"here")
    assert (tmp_path / "some" / "where" / "a.txt").read_bytes() == b"here"


def test_an_existing_file_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"a longer text than the new one")
    write_atomically(file, b"new")
    assert file.read_bytes() == b"new"


def test_the_old_file_stays_until_the_new_one_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, seen = tmp_path / "a.txt", []
    file.write_bytes(b"old")
    replace = os.replace

    def record_and_replace(temporary: Path, final: Path) -> None:
        seen.append((temporary.read_bytes(), final.read_bytes(), temporary.parent == final.parent))
        replace(temporary, final)

    monkeypatch.setattr(os, "replace", record_and_replace)
    write_atomically(file, b"new")
    assert seen == [(b"new", b"old", True)]


@pytest.mark.parametrize("where", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_no_other(
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


def test_files_have_the_usual_permissions(tmp_path: Path) -> None:
    plain = tmp_path / "plain.txt"
    plain.write_bytes(b"")
    write_atomically(tmp_path / "ours.txt", b"")
    assert (tmp_path / "ours.txt").stat().st_mode == plain.stat().st_mode


def test_a_block_that_fails_midway_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "old.tiff").write_text("before")
    with pytest.raises(RuntimeError), atomic_path(tmp_path / "old.tiff") as temporary:  # noqa: PT012
        temporary.write_text("half")
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["old.tiff"]
    assert (tmp_path / "old.tiff").read_text() == "before"
