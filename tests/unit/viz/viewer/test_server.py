"""Addresses, start and end of the server, and the command."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import Event, Thread
from urllib.parse import urlsplit

import pytest

pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("openslide", reason="openslide is not installed")
from typer.testing import CliRunner
from viewer_case import (
    ask,
    get,
    running,
    status,
    wait_until,
    write_model,
)

from scmil.cli import app
from scmil.errors import DataError, OptionError, OutputError
from scmil.slides.annotations import isolated
from scmil.viz.viewer import Library, Server
from scmil.viz.viewer.server import OUTLINE_READERS


def first_pictures(server: Server) -> dict[str, bytes]:
    """A picture of each kind, by the address that the page asks for."""
    paths = (
        "/dz/0/10/1_1.jpg",
        "/dz/0/8/0_0.jpg",
        "/api/slide/0/tile/8?model=0",
        "/api/atlas/5/0?model=0",
    )
    return {server.path(path): get(server, path) for path in paths}


def test_a_new_server_rejects_the_addresses_of_an_earlier_one(home: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(home / "slides", tmp_path / "slides"))
    (other / "two.svs").rename(other / "kept.svs")
    (other / "one.svs").rename(other / "two.svs")
    (other / "kept.svs").rename(other / "one.svs")
    with running(Library([home / "sc"], home / "slides")) as server:
        before, port = first_pictures(server), server.port
    with running(Library([home / "sc"], other), port) as server:
        after = first_pictures(server)
        for path in before:
            connection = HTTPConnection("127.0.0.1", port, timeout=120)
            connection.request("GET", path, headers={"Cookie": server.cookie})
            response = connection.getresponse()
            response.read()  # a response that is not read keeps its socket open
            connection.close()
            assert response.status == 401
    assert not before.keys() & after.keys()
    assert not set(before.values()) & set(after.values())


@pytest.mark.parametrize(
    "path",
    [
        "/", "/static/app.js", "/api/slides", "/api/slide/0",
        "/api/slide/0/scores?kind=attention", "/api/slide/0/outlines",
        "/api/slide/0/layer.geojson?kind=attention", "/api/slide/0/code/7", "/api/slide/0/tile/8",
        "/api/atlas/5", "/api/atlas/5/0", "/dz/0/10/0_0.jpg", "/nothing", "/?token={token}",
    ],
)  # fmt: skip
def test_no_response_may_be_cached(server: Server, path: str) -> None:
    assert ask(server, path.format(token=server.token))[0].headers["cache-control"] == "no-store"


def suppressed(server: Server, path: str) -> None:
    with suppress(OSError, HTTPException):
        ask(server, path)


def test_slow_annotations_do_not_delay_images_or_the_end_of_the_server(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        isolated, "COMMAND", (sys.executable, "-S", "-c", "import time; time.sleep(300)")
    )
    with running(Library([home / "sc"], home / "slides")) as server:
        asking = [
            Thread(target=suppressed, args=(server, f"/api/slide/{slide}/outlines"))
            for slide in (0, 1, 0, 1)
        ]
        for one in asking:
            one.start()
        running_now = server._responses.annotations._running
        wait_until(lambda: len(running_now) == OUTLINE_READERS)
        processes = list(running_now)
        assert status(server, "/dz/0/10/0_0.jpg") == 200
        start = time.monotonic()
    assert time.monotonic() < start + 120  # the annotations take 300 s
    for one in asking:
        one.join(120)
    assert all(process.poll() is not None for process in processes)


BUSY = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from scmil.cli import app
from scmil.viz.viewer import responses
responses.cut = lambda *_: time.sleep(300)
app(["view", sys.argv[1], sys.argv[2], "--no-open"])
"""


@pytest.mark.slow
def test_an_interrupt_ends_the_viewer_while_all_threads_are_busy(home: Path) -> None:
    command = [sys.executable, "-c", BUSY, str(home / "sc"), str(home / "slides")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = urlsplit(process.stdout.readline())
        prefix, cookie = address.path, f"scmil={address.query.strip().removeprefix('token=')}"
        first = HTTPConnection("127.0.0.1", address.port or 0, timeout=120)
        first.request("GET", prefix, headers={"Cookie": cookie})
        first.getresponse().read()  # the server has started, and handles signals
        sockets = [first]
        for x in range(4):
            one = HTTPConnection("127.0.0.1", address.port or 0, timeout=120)
            one.request("GET", f"{prefix}dz/0/10/{x}_0.jpg", headers={"Cookie": cookie})
            sockets.append(one)
        time.sleep(0.5)
        try:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=120)
        finally:
            process.kill()
            for one in sockets:
                one.close()
        assert (process.returncode, errors) == (130, "")


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py", "/static/..%2fserver.py", "/static/%2e%2e/server.py",
        "/static//etc/passwd", "/static/", "/static/..%5cserver.py", "/static/app.js%00.css",
        "/../../etc/passwd", "/dz/0/10/..%2f0_0.jpg", "/api/slide/..%2f..%2fetc/outlines",
        "/api/slide/2", "/api/slide/-1", "/api/slide/one", "/api/slide/0/tile/36",
        "/api/slide/99999999999999999999/outlines", "/api/slide/0?model=2",
        "/api/slide/0?model=-1", "/dz/0/11/0_0.jpg", "/dz/0/10/4_0.jpg", "/dz/2/0/0_0.jpg",
        "/dz/0/10/-1_0.jpg", "/api/slide/0/code/36", "/api/slide/0/scores", "/docs",
    ],
)  # fmt: skip
def test_unknown_paths_are_not_found(server: Server, path: str) -> None:
    answer, content = ask(server, path)
    assert answer.status == 404
    assert len(content) < 100


def test_invalid_numbers_and_scores_are_rejected_with_a_message(server: Server) -> None:
    assert status(server, "/api/slide/0?model=x") == 400
    assert status(server, "/api/slide/0/layer.geojson?kind=attention&least=x") == 400
    answer, message = ask(server, "/api/slide/0/scores?model=1&kind=atom:0")
    assert answer.status == 400
    assert b"no sparse coding" in message


def test_the_server_listens_on_the_loopback_address_only(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        assert connection.getpeername()[0] == "127.0.0.1"
    other = "127.0.0.2"  # loopback too, on Linux, and yet not the address that is bound
    with pytest.raises(OSError, match=r"refused|timed out|not valid|unreachable"):
        socket.create_connection((other, server.port), timeout=1)


def test_the_page_loads_nothing_from_other_servers(server: Server) -> None:
    for name in (
        "app.js",
        "api.js",
        "pane.js",
        "panel.js",
        "list.js",
        "marks.js",
        "scale.js",
        "save.js",
        "gallery.js",
        "style.css",
    ):
        assert not re.findall(rb"https?://", get(server, f"/static/{name}"))
    page = get(server, "/")
    assert not re.findall(rb"https?://|<script>| style=| on\w+=", page)
    assert b"BSD" in get(server, "/static/openseadragon.LICENSE.txt") or b"Redistribution" in get(
        server, "/static/openseadragon.LICENSE.txt"
    )


def test_an_empty_library_and_a_used_port_are_rejected(
    home: Path, server: Server, tmp_path: Path
) -> None:
    write_model(tmp_path / "model", [], sparse=False)
    with pytest.raises(DataError, match="there are no slides to show"):
        Server(Library([tmp_path / "model"]))
    with pytest.raises(OutputError, match="cannot bind to port"):
        Server(Library([home / "sc"]), server.port)


def test_the_command_prints_the_address_and_serves(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[tuple[list[str], str]] = []
    opened: list[bytes] = []
    read = Event()

    def run(self: Server) -> None:
        served.append((self._responses.library.names, self.address))
        self._socket.close()
        read.wait(10)

    def open_page(address: str) -> bool:
        opened.append(Path(address.removeprefix("file://")).read_bytes())
        read.set()
        return True

    monkeypatch.setattr(Server, "run", run)
    monkeypatch.setattr("webbrowser.open", open_page)
    command = ["view", str(home / "sc"), str(home / "slides"), "--with", str(home / "plain")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    [(names, address)] = served
    assert names == ["sc", "plain"]
    assert address in result.output
    assert b"%s" % address.encode() in opened[0]
    CliRunner().invoke(app, [*command, "--no-open"])
    assert len(opened) == 1


def test_the_command_rejects_three_models(home: Path) -> None:
    result = CliRunner().invoke(app, ["view", str(home), "--with", str(home / "sc"), "--no-open"])
    assert isinstance(result.exception, OptionError)
    assert "at most two can be shown" in str(result.exception)
