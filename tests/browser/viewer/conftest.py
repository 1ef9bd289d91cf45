"""The page of the viewer with two models, in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from viewer_case import running, write_case
from viewer_page import wait_for_page

from scmil.viz.viewer import Library, Server

HARMLESS = (
    "willReadFrequently",  # advice about reading pixels, which only the tests do
    "loaded before reset",  # OpenSeadragon drops late tiles of a slide that was closed
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_case(tmp_path_factory.mktemp("viewer"))


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Server]:
    with running(Library([home / "sc", home / "plain"], home / "slides")) as server:
        yield server


@pytest.fixture(scope="module")
def tab(browser: Any) -> Iterator[Any]:
    page = browser.new_page()
    page.set_default_timeout(60_000)
    yield page
    page.close()


@pytest.fixture
def page(tab: Any, server: Server) -> Iterator[Any]:
    """The page with two models, reloaded; at the end there must be no error message and no
    request to another server.
    """
    messages: list[str] = []
    requests: list[str] = []

    def record(message: Any) -> None:
        if not any(harmless in message.text for harmless in HARMLESS):
            messages.append(message.text)

    listeners = {
        "console": record,
        "pageerror": lambda error: messages.append(str(error)),
        "response": lambda response: (
            messages.append(response.url) if response.status >= 400 else None
        ),
        "request": lambda request: requests.append(request.url),
    }
    for event, listener in listeners.items():
        tab.on(event, listener)
    tab.set_viewport_size({"width": 1280, "height": 720})
    tab.emulate_media(color_scheme="light")
    tab.goto(server.address)
    wait_for_page(tab, "one")
    yield tab
    for event, listener in listeners.items():
        tab.remove_listener(event, listener)
    assert messages == []
    own = f"http://127.0.0.1:{server.port}/"
    assert [url for url in requests if not url.startswith((own, "data:", f"blob:{own}"))] == []
    assert [url for url in requests if url.startswith(own)]
