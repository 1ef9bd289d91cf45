"""Images of the right server, and the way to the page."""

from __future__ import annotations

import re
import shutil
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("openslide", reason="openslide is not installed")
from viewer_case import running
from viewer_page import click_tile, wait_for_page, wait_for_slide

from scmil.viz.viewer import Library, Server
from scmil.viz.viewer.browser import write_redirect


def pictures_shown(context: Any, server: Server) -> dict[str, bytes]:
    """Every image of the page as the browser has it, from its cache or not, by its address."""
    page = context.new_page()
    page.set_default_timeout(60_000)
    answers: list[Any] = []
    page.on("response", lambda answer: answers.append(answer))
    page.goto(server.address)
    wait_for_page(page, "one")
    wait_for_slide(page)
    click_tile(page, 14)
    page.locator(".bar").first.click()
    page.wait_for_selector("#panel .atlas img")
    page.wait_for_function(
        """() => [...document.querySelectorAll("#panel img")]
            .every((image) => image.complete && image.naturalWidth)"""
    )
    kept = {
        re.sub(r"^.*?/(?=dz/|api/)", "/", answer.url): answer.body()
        for answer in answers
        if re.search(r"/dz/|/tile/|/atlas/\d+/\d+", answer.url)
    }
    page.close()
    return kept


def test_no_image_of_an_earlier_server_is_shown_from_the_cache(
    browser: Any, home: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(home / "slides", tmp_path / "slides"))
    shutil.copy(home / "slides" / "two.svs", other / "one.svs")
    context = browser.new_context(viewport={"width": 1280, "height": 720})
    with running(Library([home / "sc"], home / "slides")) as server:
        first, port = pictures_shown(context, server), server.port
    with running(Library([home / "sc"], other), port) as server:
        second = pictures_shown(context, server)
        responses = server._responses
        for address, shown in second.items():
            if match := re.match(r"/dz/0/(\d+)/(\d+)_(\d+)\.jpg", address):
                assert shown == responses.pyramid(0, *map(int, match.groups()))
            elif match := re.match(r"/api/slide/0/tile/(\d+)", address):
                assert shown == responses.tile(0, 0, int(match[1]))
    assert {
        kind for kind in ("/dz/", "/tile/", "/atlas/") if any(kind in address for address in second)
    } == {
        "/dz/",
        "/tile/",
        "/atlas/",
    }
    for address in first.keys() & second.keys():
        assert first[address] != second[address], address
    context.close()


def test_the_private_file_redirects_to_the_page(browser: Any, home: Path, tmp_path: Path) -> None:
    with running(Library([home / "sc"], home / "slides")) as server:
        file = write_redirect(tmp_path / "open.html", server.address)
        page = browser.new_page()
        page.set_default_timeout(60_000)
        page.goto(file.as_uri())
        wait_for_page(page, "one")
        # Without the token.
        assert page.url == f"http://127.0.0.1:{server.port}/{server.prefix}/#one"
        page.reload()
        wait_for_page(page, "one")
        page.close()


def test_the_cookie_is_not_sent_to_another_server_on_this_computer(
    browser: Any, home: Path
) -> None:
    class Other(BaseHTTPRequestHandler):
        cookies: ClassVar[list[str | None]] = []

        def do_GET(self) -> None:
            self.cookies.append(self.headers["Cookie"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with running(Library([home / "sc"])) as server, HTTPServer(("127.0.0.1", 0), Other) as other:
        thread = Thread(target=other.serve_forever)
        thread.start()
        context = browser.new_context()
        page = context.new_page()
        page.goto(server.address)
        wait_for_page(page, "one")
        page.goto(f"http://127.0.0.1:{other.server_port}/")
        context.close()
        other.shutdown()
        thread.join()
    assert Other.cookies
    assert set(Other.cookies) == {None}
