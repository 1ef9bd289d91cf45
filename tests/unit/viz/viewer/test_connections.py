"""Limits on connections without the token."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("openslide", reason="openslide is not installed")
from viewer_case import (
    running,
    status,
)

from scmil.viz.viewer import Library, Server, connections


@pytest.mark.slow
def test_many_silent_connections_do_not_block_others(server: Server) -> None:
    silent = []
    for _ in range(300):
        one = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        one.sendall(b"GET / HTTP/1.1\r\n")  # and the rest never comes
        silent.append(one)
    try:
        for _ in range(5):
            assert status(server, "/dz/0/10/0_0.jpg") == 200
        assert len(server._server.server_state.connections) <= connections.MOST_WAITING
    finally:
        for one in silent:
            one.close()


@pytest.mark.slow
def test_connections_without_the_token_are_closed_and_one_with_it_stays_open(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocol = connections.protocol
    monkeypatch.setattr(connections, "protocol", lambda: protocol(seconds=1))
    with running(Library([home / "sc"])) as server:
        known = HTTPConnection("127.0.0.1", server.port, timeout=120)
        used = []
        silent, slow = (
            socket.create_connection(("127.0.0.1", server.port), timeout=120) for _ in range(2)
        )
        slow.sendall(b"GET / HTTP/1.1\r\nHost: x")
        for wait in (1.5, 0):
            known.request("GET", server.path("/api/slides"), headers={"Cookie": server.cookie})
            assert known.getresponse().read()
            used.append(known.sock)
            time.sleep(wait)
        assert used[0] is used[1] is not None  # the same connection all the time
        for one in (silent, slow):
            with suppress(ConnectionResetError):
                assert one.recv(1) == b""
            one.close()
        known.close()
