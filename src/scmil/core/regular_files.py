"""Readers of regular files, which reject pipes and devices."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO


def check_regular(path: str | Path) -> int:
    """The size of a file in bytes.

    Raises:
        OSError: If the file does not exist, or is a pipe or a device, where a reader could wait
            forever.

    >>> check_regular("/dev/null")
    Traceback (most recent call last):
    ...
    OSError: [Errno 22] not a regular file, but a pipe, a device or a folder: '/dev/null'
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(
            errno.EINVAL, "not a regular file, but a pipe, a device or a folder", str(path)
        )
    return status.st_size


def open_regular(path: str | Path) -> IO[bytes]:
    """Open a regular file to read; OSError for others, see `check_regular`."""
    check_regular(path)
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # replaced in between
        file.close()
        raise OSError(errno.EINVAL, "no longer a regular file", str(path))
    return file


def read_regular(path: str | Path) -> bytes:
    """The content of a regular file; OSError for others, see `check_regular`."""
    with open_regular(path) as file:
        return file.read()
