"""Files from the network: checked, resumed after a break, and never half there under their final name."""

from __future__ import annotations

import errno
import hashlib
import os
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from scmil.errors import DataError, DiskFullError

BLOCK = 2**16
PATIENCE_S = 60  # without a byte from the server
MOST_BYTES = 4 * 2**30
HERE = ("localhost", "127.0.0.1", "::1")


def cache() -> Path:
    """The folder for what was downloaded."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scmil"


def download(url: str, path: Path, sha256: str = "", most_bytes: int = MOST_BYTES, secure: bool = True) -> None:
    """Write what a URL gives to a file, unless it is there, with a progress bar on the terminal.

    What has come so far is in `<name>.part`; after a break, the next call asks for the rest of it. `sha256` is what the
    file has to have, in full or its first digits. Without `secure`, plain http is good enough: for content that the
    caller checks.
    """
    from filelock import FileLock

    _check_address(url, secure)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):  # the jobs of a cluster all start at once
        if not path.is_file():
            _download(url, path, sha256, most_bytes, secure)


def file_hash(path: Path) -> str:
    """SHA-256 of a file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "empty"
    >>> path.touch()
    >>> file_hash(path)[:8]
    'e3b0c442'
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(url: str, path: Path, sha256: str, most_bytes: int, secure: bool) -> None:
    part = path.with_name(f"{path.name}.part")
    try:
        _fetch_rest(url, part, most_bytes, secure)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFullError(f"{part}: no space is left. Make room and try again: it goes on from there.") from None
        raise DataError(f"{url}: cannot be downloaded ({error}). Try again, or get the file another way.") from None
    except HTTPException as error:
        raise DataError(f"{url}: cannot be downloaded ({error!r}). Try again, or get the file another way.") from None
    if not (met := file_hash(part)).startswith(sha256):
        part.unlink()
        raise DataError(f"{url}: sha256 {met}, expected {sha256}. This is not the file that was meant; it was deleted.")
    os.replace(part, path)


def _check_address(url: str, secure: bool) -> None:
    parts = urlsplit(url)
    http = parts.scheme == "http" and (not secure or parts.hostname in HERE)
    if parts.scheme != "https" and not http:
        allowed = "only https is" if secure else "only https and http are"
        raise DataError(f"{url}: {allowed} downloaded. A file on this computer is not downloaded but named.")


def _fetch_rest(url: str, part: Path, most_bytes: int, secure: bool) -> None:
    have = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": "scmil"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urlopen(Request(url, headers=headers), timeout=PATIENCE_S)
    except HTTPError as error:
        with error:
            if not have or error.code != 416:  # 416: there is nothing behind what we have
                raise
            if error.headers.get("Content-Range") == f"bytes */{have}":
                return
        part.unlink()  # longer than the file: another one
        return _fetch_rest(url, part, most_bytes, secure)
    with answer:
        _check_address(answer.url, secure)  # where redirections have led
        _save(answer, url, part, have if _continues(answer, have) else 0, most_bytes)


def _continues(answer: HTTPResponse, have: int) -> bool:
    """Whether the server gives the rest that was asked for; one that does not know ranges gives all."""
    return answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")


def _save(answer: HTTPResponse, url: str, part: Path, have: int, most_bytes: int) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    if answer.status == 206 and not have:
        raise DataError(f"{url}: the server gives another part of the file than was asked for. Delete {part}.")
    length = answer.headers.get("Content-Length")
    total = have + int(length) if length else None
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with part.open("ab" if have else "wb") as file, Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(part.stem, total=total, completed=have)
        while have <= most_bytes and (block := answer.read(BLOCK)):
            file.write(block)
            have += len(block)
            bar.advance(task, len(block))
    if have > most_bytes:
        part.unlink()
        raise DataError(f"{url}: more than {most_bytes >> 20} MB. This is not the file that was meant.")
    if total is not None and have != total:
        raise DataError(f"{url}: ended after {have} of {total} bytes. Try again: it goes on from there.")
