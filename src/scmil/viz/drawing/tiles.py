"""Draw tile scores as colours on a slide, and annotated outlines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scmil.core.extras import import_extra
from scmil.errors import DataError
from scmil.viz.drawing.colour_scale import Numbers, Scale

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels: TypeAlias = NDArray[np.uint8]
Window: TypeAlias = tuple[float, float, float, float]  # left, top, right, bottom, in level-0 pixels

OUTLINE = (230, 20, 20, 255)
RIM = (255, 255, 255, 255)  # white, so that the red line is visible on every colour
OPACITY = 150  # of 255


def colour_tiles(
    thumbnail: Pixels,
    extent: tuple[float, float],
    xy: NDArray[Any],
    side: float,
    scores: NDArray[Any],
    scale: Scale,
    opacity: int = OPACITY,
) -> Pixels:
    """Return the thumbnail `thumbnail` of a slide of `extent` level-0 pixels with its tiles
    coloured.
    """
    if len(xy) != len(scores):
        raise DataError(f"{len(scores)} scores for {len(xy)} tiles, expected one per tile.")
    height, width = thumbnail.shape[:2]
    shares = raster(xy, side, scale.shares(scores), (0, 0, *extent), (width, height))
    covered = np.isfinite(shares)
    coloured = thumbnail.copy()
    coloured[covered] = np.rint(
        (thumbnail[covered] * (255.0 - opacity) + scale.colours(shares[covered]) * float(opacity))
        / 255
    )
    return coloured


def raster(
    xy: NDArray[Any], side: float, values: NDArray[Any], window: Window, size: tuple[int, int]
) -> Numbers:
    """Rasterise tile values in a window of the slide to `size` (width, height); NaN without a tile.

    Overlapping tiles, and tiles smaller than a pixel, are averaged. All tiles are rasterised at
    once: differences at their corners are accumulated along both axes.

    >>> xy, values = np.array([[0, 0], [2, 0], [1, 0]]), np.array([1.0, 2.0, 6.0])
    >>> raster(xy, 2, values, (0, 0, 5, 1), (5, 1))
    array([[1. , 3.5, 4. , 2. , nan]])
    """
    width, height = size
    left, top, right, bottom = window
    scale = np.array([width / (right - left), height / (bottom - top)])
    begin = np.rint((xy - (left, top)) * scale)
    end = np.maximum(np.rint((xy + side - (left, top)) * scale), begin + 1)
    (x0, y0), (x1, y1) = (np.clip(corner, 0, size).astype(np.int64).T for corner in (begin, end))
    total, count = np.zeros((height + 1, width + 1)), np.zeros((height + 1, width + 1))
    for x, y, sign in ((x0, y0, 1), (x1, y0, -1), (x0, y1, -1), (x1, y1, 1)):
        np.add.at(total, (y, x), sign * values)
        np.add.at(count, (y, x), sign)
    total, count = (each.cumsum(0).cumsum(1)[:-1, :-1] for each in (total, count))
    return np.divide(total, count, out=np.full((height, width), np.nan), where=count > 0)


def draw_outlines(
    picture: Image, outlines: Sequence[NDArray[Any]], extent: tuple[float, float]
) -> None:
    """Draw outlines, in level-0 pixels of a slide of this extent, in red with a white rim."""
    draw = import_extra("PIL.ImageDraw", "slides").Draw(picture)
    scale = np.divide(picture.size, extent)
    width = max(round(max(picture.size) / 250), 2)
    closed = [
        [tuple(point) for point in (np.vstack([outline, outline[:1]]) * scale).tolist()]
        for outline in outlines
        if len(outline)
    ]
    for colour, thickness in ((RIM, width + 2), (OUTLINE, width)):
        for points in closed:
            draw.line(points, fill=colour[:3], width=thickness, joint="curve")
