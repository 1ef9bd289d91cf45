"""How the browser is opened."""

from __future__ import annotations

import os
import stat
from http.client import HTTPConnection
from pathlib import Path
from threading import Event, Thread
from urllib.parse import urlsplit

import pytest

pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("openslide", reason="openslide is not installed")
from viewer_case import (
    wait_until,
)

from scmil.viz.viewer import Library, Server, serve
from scmil.viz.viewer.browser import open_browser


def test_the_browser_gets_a_private_file_and_not_the_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[str] = []
    seen, arrived = Event(), Event()

    def open_page(address: str) -> bool:
        given.append(address)
        seen.set()
        return True

    monkeypatch.setattr("webbrowser.open", open_page)
    with open_browser("http://127.0.0.1:1/prefix/?token=secret&x", arrived, pytest.fail):
        assert seen.wait(20)
        file = Path(given[0].removeprefix("file://"))
        assert "secret" not in given[0]
        assert "http://127.0.0.1:1/prefix/?token=secret&amp;x" in file.read_text()
        if os.name == "posix":
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        arrived.set()
        wait_until(lambda: not file.parent.exists())


def test_the_private_file_is_deleted_with_the_server_if_no_browser_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[str] = []
    failed: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: given.append(address))
    with open_browser("http://127.0.0.1:1/", Event(), failed.append):
        wait_until(lambda: bool(failed))
        assert Path(given[0].removeprefix("file://")).is_file()
    assert failed == ["no browser was found"]
    assert not Path(given[0].removeprefix("file://")).parent.exists()


def test_a_browser_that_blocks_until_it_is_closed_is_served(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As lynx does: it is run in this terminal, and asks for the page before it returns."""
    got: list[int] = []
    addresses: list[str] = []

    def open_page(_: str) -> bool:
        address = urlsplit(addresses[0])
        connection = HTTPConnection("127.0.0.1", address.port or 0, timeout=120)
        connection.request("GET", f"{address.path}?{address.query}")
        response = connection.getresponse()
        response.read()
        got.append(response.status)
        connection.close()
        wait_until(lambda: len(servers) == 1)
        servers[0].stop()
        Event().wait(1)
        return True

    servers: list[Server] = []
    run = Server.run
    monkeypatch.setattr(Server, "run", lambda self: servers.append(self) or run(self))
    monkeypatch.setattr("webbrowser.open", open_page)
    thread = Thread(target=serve, args=(Library([home / "sc"]), 0, addresses.append, pytest.fail))
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert got == [200]
    assert servers[0].arrived.is_set()
