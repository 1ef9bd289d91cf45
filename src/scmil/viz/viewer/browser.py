"""Open the browser without the token on its command line, which all users of the computer can
read.
"""

from __future__ import annotations

import html
import os
import tempfile
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from threading import Event, Thread

SECONDS = 60.0  # after which the redirect file is deleted even if no browser has opened it
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>scmil view</title>
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}"></head>
<body><p><a href="{address}">scmil view</a></p></body></html>
"""


@contextmanager
def open_browser(address: str, arrived: Event, failed: Callable[[str], None]) -> Iterator[None]:
    """Open a page in the browser, in a thread because some browsers block until they are closed.

    The browser gets the path of a file that only this user can read and that redirects to the
    address. The file is deleted when `arrived` is set, or when the block ends. `failed` is called
    with the reason if no browser can be opened.
    """
    folder = Path(tempfile.mkdtemp(prefix="scmil-view-"))  # mode 0700
    try:
        file = write_redirect(folder / "open.html", address)
        Thread(target=_open_page, args=(file.as_uri(), failed), name="browser", daemon=True).start()
        Thread(
            target=_delete_redirect, args=(folder, arrived), name="redirect", daemon=True
        ).start()
        yield
    finally:
        rmtree(folder, ignore_errors=True)


def write_redirect(path: Path, address: str) -> Path:
    """Write a page that redirects to an address and that only this user can read."""
    with os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
    ) as file:
        file.write(PAGE.format(address=html.escape(address, quote=True)))
    return path


def _open_page(address: str, failed: Callable[[str], None]) -> None:
    try:
        if not webbrowser.open(address):
            failed("no browser was found")
    except (OSError, webbrowser.Error) as error:
        failed(str(error))


def _delete_redirect(folder: Path, arrived: Event) -> None:
    arrived.wait(SECONDS)
    rmtree(folder, ignore_errors=True)
