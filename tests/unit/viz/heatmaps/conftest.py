"""A trained model with bags and slides; each test gets a copy of the model."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("openslide", reason="openslide is not installed")
    pytest.importorskip("PIL", reason="Pillow is not installed")
    from heatmap_case import write_heatmap_case

    return write_heatmap_case(tmp_path_factory.mktemp("home"))


@pytest.fixture
def model(home: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(home / "trained", tmp_path / "model"))
