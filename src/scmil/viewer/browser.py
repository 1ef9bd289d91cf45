"""The browser is opened without the secret on its command line, which every user of the computer can read."""

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

SECONDS = 60.0  # a browser that has not come by then does not come
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>scmil view</title><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}"></head>
<body><p><a href="{address}">scmil view</a></p></body></html>
"""


@contextmanager
def open_browser(address: str, arrived: Event, failed: Callable[[str], None]) -> Iterator[None]:
    """Open a page in the browser, from another thread, since some browsers return only when they are closed.

    The browser is given a file that only this user can read, and that leads to the address. It is deleted as soon as
    `arrived` is set, or when the block ends. `failed` is given the reason if there is no browser.
    """
    folder = Path(tempfile.mkdtemp(prefix="scmil-view-"))  # mode 0700
    try:
        file = redirect(folder / "open.html", address)
        Thread(target=_open, args=(file.as_uri(), failed), name="browser", daemon=True).start()
        Thread(target=_remove, args=(folder, arrived), name="redirect", daemon=True).start()
        yield
    finally:
        rmtree(folder, ignore_errors=True)


def redirect(path: Path, address: str) -> Path:
    """Write a page that leads to an address, for the eyes of this user alone."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(PAGE.format(address=html.escape(address, quote=True)))
    return path


def _open(address: str, failed: Callable[[str], None]) -> None:
    try:
        if not webbrowser.open(address):
            failed("no browser was found")
    except (OSError, webbrowser.Error) as error:
        failed(str(error))


def _remove(folder: Path, arrived: Event) -> None:
    arrived.wait(SECONDS)
    rmtree(folder, ignore_errors=True)
