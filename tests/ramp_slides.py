"""Slides whose pixels follow from their place, in files of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slide_files import Picture, ramp, rendered, write_svs, write_tiff

from scmil.slides import Slide, open_slide

pytest.importorskip("openslide", reason="the extra 'slides' is not installed")
tifffile = pytest.importorskip("tifffile", reason="the extra 'slides' is not installed")
Image = pytest.importorskip("PIL.Image", reason="the extra 'slides' is not installed")

# odd, and the sizes of levels are rounded down: what they are 1 / 2.002 of is exactly 1 / 2 of.
SIZE = (1101, 905)
KINDS = ["svs", "tiff", "one level", "png"]


def write(folder: Path, kind: str, picture: Picture) -> Path:
    levels = [rendered(picture, SIZE, by) for by in (1, 2, 4)]
    if kind == "svs":
        return write_svs(folder / "a.svs", levels, mpp=None, objective=None)
    if kind == "png":
        Image.fromarray(levels[0]).save(folder / "a.png")
        return folder / "a.png"
    return write_tiff(folder / "a.tif", levels if kind == "tiff" else levels[:1], mpp=None)


def expected(xy: tuple[float, float], size: int, factor: float) -> np.ndarray:
    """What the ramp has at the centre of each pixel of a window."""
    at = (np.arange(size) + 0.5) * factor
    x, y = np.meshgrid(xy[0] + at, xy[1] + at)
    return ramp(x, y)


def tiny(path: Path, **how: Any) -> Slide:
    tifffile.imwrite(path, np.zeros((70, 90, 3), np.uint8), photometric="rgb", **how)
    return open_slide(path)
