"""What a file may claim, and what is compared before a library believes it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from scmil.core.regular_files import open_regular, read_regular
from scmil.core.safe_hdf5 import opened_h5
from scmil.core.safe_io import npz_arrays


@pytest.mark.parametrize("kind", ["a named pipe", "a socket", "a device", "a folder"])
def test_only_regular_files_are_opened(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    path = Path("it")
    if kind == "a named pipe":
        os.mkfifo(path)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(str(path))
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    for function in (
        open_regular,
        read_regular,
        npz_arrays,
        lambda path: opened_h5(path).__enter__(),
    ):
        with pytest.raises(OSError, match="not a regular file, but a pipe, a device or a folder"):
            function(path)


def test_a_link_to_a_regular_file_is_opened(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").symlink_to("a")
    assert read_regular(tmp_path / "b") == b"abc"
