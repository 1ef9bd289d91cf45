"""File locks, safe file names and checks of whether a folder can be written to."""

from __future__ import annotations

import errno
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from scmil.core.text import describe_error
from scmil.errors import DataError, DiskFullError, OutputError, ScmilError

LONGEST_NAME = 200  # bytes; file systems allow 255, suffixes and temporary names need the rest
# Names of devices on Windows, with any suffix.
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)
TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{32}")  # as `write_atomically` names its files
POLL_SECONDS = 0.2


def check_writable(folder: str | Path) -> None:
    """Create a folder if necessary, and raise if no file can be written into it.

    Raises:
        OutputError: If a file cannot be written.
        DiskFullError: If no space is left.
    """
    probe = Path(folder) / f".probe.{uuid.uuid4().hex}"
    with translate_os_errors(Path(folder)):
        probe.parent.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(b"x")
        finally:
            probe.unlink(missing_ok=True)


@contextmanager
def translate_os_errors(folder: Path) -> Iterator[None]:
    """Translate OSError raised in the block into OutputError or DiskFullError."""
    try:
        yield
    except ScmilError:
        raise
    except OSError as error:
        raise output_error(folder, error) from error


def safe_name(item_id: str) -> str:
    """Return a unique file name for any id, without path separators; ordinary ids stay unchanged.

    >>> safe_name("TCGA-05-4244-01Z-00-DX1.a5f1"), safe_name("../etc/passwd")
    ('TCGA-05-4244-01Z-00-DX1.a5f1', '%2E.%2Fetc%2Fpasswd')
    >>> safe_name("con"), safe_name("100%")
    ('%63on', '100%25')
    """
    if not item_id:
        raise DataError("an empty id has no file name. Give every slide an id.")
    letters = [
        letter if letter.isalnum() or letter in " -_.,+=@()[]#&~" else _escape(letter)
        for letter in item_id
    ]
    if item_id.startswith((".", " ", "~")) or RESERVED.match(item_id):
        letters[0] = _escape(item_id[0])
    if item_id.endswith((".", " ")):  # Windows drops them
        letters[-1] = _escape(item_id[-1])
    name = "".join(letters)
    if len(name.encode("utf-8", "surrogatepass")) <= LONGEST_NAME:
        return name
    digest = sha256(item_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return (
        name.encode("utf-8", "surrogatepass")[: LONGEST_NAME - 20].decode("utf-8", "ignore")
        + "%~"
        + digest
    )


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or one of its causes, means that no space is left.

    HDF5 reports this only in the text of its errors.

    >>> is_disk_full(OSError(errno.ENOSPC, "No space left on device"))
    True
    >>> is_disk_full(OSError(errno.EIO, "broken"))
    False
    """
    if error is None:
        return False
    number = error.errno if isinstance(error, OSError) else None
    full = isinstance(error, DiskFullError) or number in (errno.ENOSPC, errno.EDQUOT)
    full = full or "No space left on device" in str(error)
    return full or is_disk_full(
        error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    )


def output_error(folder: Path, error: BaseException) -> ScmilError:
    """The exception that describes why writing to a folder failed."""
    if is_disk_full(error):
        free = f"{shutil.disk_usage(folder).free / 2**20:.1f} MB" if folder.is_dir() else "0 MB"
        return DiskFullError(
            f"No space left for {folder}: {free} of the disk are free ({describe_error(error)}). "
            "Free some space or choose another disk, then run the command again: completed results "
            "were kept."
        )
    return OutputError(
        f"Cannot write to {folder}: {describe_error(error)}. Choose another output directory or "
        "check its permissions."
    )


@contextmanager
def locked(path: Path, wait: bool) -> Iterator[bool]:
    """Hold the lock of a file; yield False if another process holds it and `wait` is False."""
    import filelock

    folder = path.parent / ".locks"
    no_locks = OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock: Any = filelock.FileLock(folder / f"{path.name}.lock")
        lock.acquire(timeout=-1 if wait else 0, poll_interval=POLL_SECONDS)
    except filelock.Timeout:
        yield False
        return
    except NotImplementedError:
        # Some versions raise this if the file system has no locks; others use a soft lock.
        raise output_error(path.parent, no_locks) from None
    except OSError as error:
        raise output_error(path.parent, error) from error
    # A soft lock is an ordinary file: it would outlive a killed process and block its item.
    if isinstance(lock, filelock.SoftFileLock):
        lock.release()
        raise output_error(path.parent, no_locks)
    try:
        yield True
    finally:
        lock.release()


def find_leftovers(folder: Path) -> dict[str, list[Path]]:
    """Temporary files of interrupted writes, by the name of the file that was written."""
    leftovers: dict[str, list[Path]] = {}
    for path in folder.glob(".*"):
        if match := TEMPORARY.fullmatch(path.name):
            leftovers.setdefault(match["name"], []).append(path)
    return leftovers


def delete_files(paths: Iterable[Path]) -> None:
    """Delete files that may be gone already."""
    for path in paths:
        path.unlink(missing_ok=True)


def _escape(letter: str) -> str:
    return "".join(f"%{byte:02X}" for byte in letter.encode("utf-8", "surrogatepass"))
