"""A finished run directory, and its HTML page."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_run import write_run

from scmil.report import write_report


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="session")
def page(run: Path) -> str:
    [path] = write_report(run, ["html"])
    return path.read_text(encoding="utf-8")
