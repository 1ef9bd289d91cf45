from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from scmil.core.jobs.locks import check_writable, is_disk_full, safe_name
from scmil.errors import DataError, OutputError


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_that_may_not_be_written_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(path: Path, _: bytes) -> int:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(OutputError, match=os.strerror(number)):
        check_writable(tmp_path)


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)
def test_a_read_only_folder_is_rejected(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="Permission denied"):
        check_writable(tmp_path)
    tmp_path.chmod(0o700)


def test_the_probe_leaves_nothing(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "folder")
    assert list((tmp_path / "new" / "folder").iterdir()) == []


def test_a_full_disk_is_recognised_behind_another_error() -> None:
    error = DataError("the bag cannot be written")
    error.__cause__ = OSError(errno.ENOSPC, "full")
    assert is_disk_full(error)
    assert not is_disk_full(DataError("the bag cannot be written"))


def test_a_disk_that_is_really_read_only_is_rejected(mounted: Callable[[str], Path]) -> None:
    with pytest.raises(OutputError, match="Read-only file system"):
        check_writable(mounted("ro"))


HOSTILE = [
    *(
        "..",
        ".",
        "../../x",
        "a/b",
        "a\\b",
        "a:b",
        "c:",
        "nul",
        "COM1.txt",
        "a\0b",
        "a\nb",
        ".hidden",
        "end.",
        "end ",
    ),
    *("~x", "a%2Fb", "%", "x" * 500, "x" * 501, "ü" * 300, "\udce9", "*?<>|"),
]


@pytest.mark.parametrize("item_id", HOSTILE, ids=range(len(HOSTILE)))
def test_no_id_leaves_its_folder(tmp_path: Path, item_id: str) -> None:
    name = safe_name(item_id)
    (tmp_path / f"{name}.h5").write_bytes(b"")
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.h5"]
    assert not set(name) & set('/\\:\0\n*?<>|"')
    assert not name.startswith(".")
    assert not name.lower().startswith(("nul", "com1"))


def test_different_ids_have_different_names() -> None:
    assert (
        len({safe_name(item_id) for item_id in [*HOSTILE, "a_b", "a%5Cb", "ab"]})
        == len(HOSTILE) + 3
    )


def test_an_empty_id_has_no_name() -> None:
    with pytest.raises(DataError, match="Give every slide an id"):
        safe_name("")
