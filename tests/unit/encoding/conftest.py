"""Fixtures of the tests of `scmil.encoding`."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with the tiles of two slides."""
    from work_folders import SETTINGS, cohort

    from scmil.encoding.tile_stage import tile_slides

    tile_slides(cohort(tmp_path), tmp_path / "work", SETTINGS)
    return tmp_path / "work"
