"""Fixtures of the tests of `scmil.slides`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scmil.slides import Slide, open_slide


@pytest.fixture
def ramp_slide(tmp_path: Path) -> Iterator[Slide]:
    from ramp_slides import write
    from slide_files import ramp

    with open_slide(write(tmp_path, "tiff", ramp), mpp=0.25) as slide:
        yield slide
