"""What a map lies on: the slide itself, or a plain ground of its shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scmil.errors import DataError
from scmil.slides.slide import Slide, open_slide

LIGHT = 238  # grey, so that tiles of every colour stand out
Size = tuple[int, int]


class Ground(NamedTuple):
    """A picture of the slide, the extent that it shows in level-0 pixels, and what is known of the slide."""

    pixels: NDArray[np.uint8]
    extent: Size
    size: Size | None  # None: nobody knows it, and the extent is that of the tiles
    mpp: float | None
    is_slide: bool


def plain_ground(xy: NDArray[Any], side: float, size: Size | None, mpp: float | None, longest_px: int) -> Ground:
    """A plain ground of the slide's shape, or, if its size is not known, one that ends where the tiles end.

    >>> ground = plain_ground(np.array([[0, 0], [300, 100]]), 100, None, None, longest_px=200)
    >>> ground.extent, ground.pixels.shape
    ((400, 200), (100, 200, 3))
    """
    width, height = extent = size or _reach(xy, side)
    factor = longest_px / max(extent)
    shape = max(round(height * factor), 1), max(round(width * factor), 1), 3
    return Ground(np.full(shape, LIGHT, np.uint8), extent, size, mpp, is_slide=False)


def check_slide(slide: Slide, digest: str | None) -> None:
    """Reject a slide that is not the file whose digest the bag recorded; bags of other tools record none."""
    if digest not in (None, slide.digest):
        raise DataError(
            f"{slide.path} is not the file that the bag of {slide.id!r} was encoded from. Give the folder of the slide that "
            "was encoded, or encode this one."
        )


def slide_ground(
    path: Path,
    xy: NDArray[Any],
    side: float,
    size: Size | None,
    mpp: float | None,
    longest_px: int,
    digest: str | None = None,
) -> Ground:
    """The slide, after a look whether it is the one that the tiles came from."""
    with open_slide(path) as slide:
        check_slide(slide, digest)
        check_extent(slide, xy, side, size)
        return Ground(slide.thumbnail(longest_px), slide.size, slide.size, slide.known_mpp or mpp, is_slide=True)


def check_extent(slide: Slide, xy: NDArray[Any], side: float, size: Size | None) -> None:
    """Raise DataError if tiles, which say that their slide has `size`, cannot be of this slide."""
    met, reach = f"{slide.path.name} has {slide.size[0]} x {slide.size[1]} pixels", _reach(xy, side)
    if size is not None and size != slide.size:
        raise DataError(
            f"{met}, but its tiles are from a slide of {size[0]} x {size[1]}. Encode this one, or find that."
        )
    if reach[0] > slide.size[0] + 1 or reach[1] > slide.size[1] + 1:
        raise DataError(f"{met}, but its tiles reach to {reach[0]}, {reach[1]}. Is it the slide that was encoded?")


def _reach(xy: NDArray[Any], side: float) -> Size:
    right, bottom = np.ceil(xy.max(0) + side).astype(int).tolist()
    return right, bottom
