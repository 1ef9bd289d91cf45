"""Downloads: checked by SHA-256, resumed after an interruption, and atomic."""

from __future__ import annotations

import errno
import os
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from scmil.core.fingerprint import sha256_of_file
from scmil.errors import DataError, DiskFullError

BLOCK = 2**16
TIMEOUT_S = 60  # without a byte from the server
MOST_BYTES = 4 * 2**30
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


def cache() -> Path:
    """The folder of downloaded files."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scmil"


def download(
    url: str, path: Path, sha256: str = "", most_bytes: int = MOST_BYTES, secure: bool = True
) -> None:
    """Download a file unless it exists, with a progress bar on the terminal.

    Incomplete downloads are kept in `<name>.part`; the next call requests the rest.

    Args:
        url: The address.
        path: The file.
        sha256: The expected SHA-256, or its first digits; empty for any.
        most_bytes: The size at which the download is cancelled.
        secure: Whether plain http is rejected; use False only for content that the caller checks.

    Raises:
        DataError: If the file cannot be downloaded, is too large, or has another SHA-256.
        DiskFullError: If no space is left.
    """
    from filelock import FileLock

    _check_address(url, secure)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):  # the jobs of a cluster start together
        if not path.is_file():
            _download(url, path, sha256, most_bytes, secure)


def _download(url: str, path: Path, sha256: str, most_bytes: int, secure: bool) -> None:
    part = path.with_name(f"{path.name}.part")
    try:
        _request_rest(url, part, most_bytes, secure)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFullError(
                f"{part}: no space is left. Free some space and try again: the download resumes."
            ) from None
        raise DataError(
            f"{url}: cannot be downloaded ({error}). Try again, or obtain the file in another way."
        ) from None
    except HTTPException as error:
        raise DataError(
            f"{url}: cannot be downloaded ({error!r}). Try again, or obtain the file "
            "in another way."
        ) from None
    if not (actual := sha256_of_file(part)).startswith(sha256):
        part.unlink()
        raise DataError(
            f"{url}: sha256 {actual}, expected {sha256}. The server sent another file; it was "
            "deleted. Try again, or obtain the file in another way."
        )
    os.replace(part, path)


def _check_address(url: str, secure: bool) -> None:
    parts = urlsplit(url)
    http = parts.scheme == "http" and (not secure or parts.hostname in LOCAL_HOSTS)
    if parts.scheme != "https" and not http:
        allowed = "only https is" if secure else "only https and http are"
        raise DataError(
            f"{url}: {allowed} supported. Give the path of a file on this computer instead."
        )


def _request_rest(url: str, part: Path, most_bytes: int, secure: bool) -> None:
    have = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": "scmil"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response = urlopen(Request(url, headers=headers), timeout=TIMEOUT_S)
    except HTTPError as error:
        with error:
            if not have or error.code != 416:  # 416: there are no bytes after these
                raise
            if error.headers.get("Content-Range") == f"bytes */{have}":
                return
        part.unlink()  # longer than the file on the server: of another file
        return _request_rest(url, part, most_bytes, secure)
    with response:
        _check_address(response.url, secure)  # after redirections
        _write_response(response, url, part, have if _continues(response, have) else 0, most_bytes)


def _continues(response: HTTPResponse, have: int) -> bool:
    """Whether the server sends the requested rest; servers without ranges send the whole file."""
    return response.status == 206 and response.headers.get("Content-Range", "").startswith(
        f"bytes {have}-"
    )


def _write_response(
    response: HTTPResponse, url: str, part: Path, have: int, most_bytes: int
) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    if response.status == 206 and not have:
        raise DataError(f"{url}: the server sent another range than was requested. Delete {part}.")
    length = response.headers.get("Content-Length")
    total = have + int(length) if length else None
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with (
        part.open("ab" if have else "wb") as file,
        Progress(*columns, console=Console(stderr=True)) as bar,
    ):
        task = bar.add_task(part.stem, total=total, completed=have)
        while have <= most_bytes and (block := response.read(BLOCK)):
            file.write(block)
            have += len(block)
            bar.advance(task, len(block))
    if have > most_bytes:
        part.unlink()
        raise DataError(
            f"{url}: more than {most_bytes >> 20} MB, so it is not the expected file. "
            "Check the URL."
        )
    if total is not None and have != total:
        raise DataError(
            f"{url}: ended after {have} of {total} bytes. Try again: the download resumes."
        )
