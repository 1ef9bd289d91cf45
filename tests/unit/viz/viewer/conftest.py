"""A running viewer with two models; tests that change files use copies of the folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from viewer_case import running, write_case

from scmil.viz.viewer import Library, Server


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_case(tmp_path_factory.mktemp("viewer"))


@pytest.fixture(scope="session")
def server(home: Path) -> Iterator[Server]:
    with running(Library([home / "sc", home / "plain"], home / "slides")) as server:
        yield server
