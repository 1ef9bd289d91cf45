"""Pixels and files that the tests of the readers share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from slide_files import ramp, rendered

from scmil.slides import open_slide

pytest.importorskip("openslide", reason="the extra 'slides' is not installed")
tifffile = pytest.importorskip("tifffile", reason="the extra 'slides' is not installed")
Image = pytest.importorskip("PIL.Image", reason="the extra 'slides' is not installed")

SIZE = (300, 210)
RAMP = rendered(ramp, SIZE)
GREY = np.repeat(RAMP[..., :1], 3, axis=2)
TILED = dict(tile=(64, 64), compression="zlib")


def whole(path: Path) -> np.ndarray:
    with open_slide(path) as slide:
        return slide.region(0, (0, 0), slide.size)


def in_tiles(path: Path) -> None:
    tifffile.imwrite(path, RAMP, photometric="rgb", **TILED)
