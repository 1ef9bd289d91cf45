"""The background of a heatmap: a thumbnail of the slide, or a plain area of its shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scmil.errors import DataError
from scmil.slides.slide import Slide, open_slide

LIGHT = 238  # grey, so that tiles of every colour are visible
Size = tuple[int, int]


class Background(NamedTuple):
    """A thumbnail, its extent in level-0 pixels, and size and resolution of the slide."""

    pixels: NDArray[np.uint8]
    extent: Size
    size: Size | None  # None if unknown; the extent is then that of the tiles
    mpp: float | None
    is_slide: bool


def plain_background(
    xy: NDArray[Any], side: float, size: Size | None, mpp: float | None, longest_px: int
) -> Background:
    """A plain background of the shape of the slide, or of the tiles if its size is not known.

    >>> xy = np.array([[0, 0], [300, 100]])
    >>> background = plain_background(xy, 100, None, None, longest_px=200)
    >>> background.extent, background.pixels.shape
    ((400, 200), (100, 200, 3))
    """
    width, height = extent = size or _reach(xy, side)
    factor = longest_px / max(extent)
    shape = max(round(height * factor), 1), max(round(width * factor), 1), 3
    return Background(np.full(shape, LIGHT, np.uint8), extent, size, mpp, is_slide=False)


def check_slide(slide: Slide, digest: str | None) -> None:
    """Raise DataError if the digest of a slide is not the one that its bag recorded, if any."""
    if digest not in (None, slide.digest):
        raise DataError(
            f"{slide.path} is not the file that the bag of {slide.id!r} was encoded from. "
            "Give the folder of the slide that was encoded, or encode this one."
        )


def slide_background(
    path: Path,
    xy: NDArray[Any],
    side: float,
    size: Size | None,
    mpp: float | None,
    longest_px: int,
    digest: str | None = None,
) -> Background:
    """A thumbnail of the slide, after a check that the tiles belong to it."""
    with open_slide(path) as slide:
        check_slide(slide, digest)
        check_extent(slide, xy, side, size)
        return Background(
            slide.thumbnail(longest_px),
            slide.size,
            slide.size,
            slide.known_mpp or mpp,
            is_slide=True,
        )


def check_extent(slide: Slide, xy: NDArray[Any], side: float, size: Size | None) -> None:
    """Raise DataError if tiles of a slide of `size` cannot belong to this slide."""
    actual, reach = (
        f"{slide.path.name} has {slide.size[0]} x {slide.size[1]} pixels",
        _reach(xy, side),
    )
    if size is not None and size != slide.size:
        raise DataError(
            f"{actual}, but its tiles are from a slide of {size[0]} x {size[1]}. "
            "Encode this slide, or give the slide that was encoded."
        )
    if reach[0] > slide.size[0] + 1 or reach[1] > slide.size[1] + 1:
        raise DataError(
            f"{actual}, but its tiles extend to {reach[0]}, {reach[1]}. "
            "Give the slide that was encoded."
        )


def _reach(xy: NDArray[Any], side: float) -> Size:
    right, bottom = np.ceil(xy.max(0) + side).astype(int).tolist()
    return right, bottom
