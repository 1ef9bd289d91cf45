"""What the tests of synthetic slides look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

openslide = pytest.importorskip("openslide")
shapely = pytest.importorskip("shapely")
tifffile = pytest.importorskip("tifffile")
pytest.importorskip("imagecodecs")


def level(path: Path, number: int) -> NDArray[np.float64]:
    with openslide.OpenSlide(path) as slide:
        pixels = slide.read_region((0, 0), number, slide.level_dimensions[number])
    return np.asarray(pixels.convert("RGB"), dtype=np.float64)


def resolution(path: Path) -> float:
    with openslide.OpenSlide(path) as slide:
        return float(slide.properties["openslide.mpp-x"])


def area(outlines: tuple[NDArray[np.float64], ...]) -> Any:
    return shapely.union_all([shapely.Polygon(outline) for outline in outlines])


def mask(shape: Any, size: tuple[int, int], by: int) -> NDArray[np.bool_]:
    """Which pixels of a level that is `by` times smaller lie in a shape."""
    x, y = np.meshgrid(*((np.arange(side // by) + 0.5) * by for side in size))
    return np.asarray(shapely.contains_xy(shape, x, y))
