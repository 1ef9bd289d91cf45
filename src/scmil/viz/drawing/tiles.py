"""Scores of tiles as colours on the slide, beside the truth where it is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scmil.errors import DataError
from scmil.core.extras import need
from scmil.viz.drawing.colour_scale import COLOURS as COLOURS
from scmil.viz.drawing.colour_scale import Numbers, Scale
from scmil.viz.drawing.colour_scale import colours as colours
from scmil.viz.drawing.colour_scale import ranks as ranks

if TYPE_CHECKING:
    from PIL.Image import Image

    from scmil.slides.slide import Slide

Pixels: TypeAlias = NDArray[np.uint8]
Window: TypeAlias = tuple[float, float, float, float]  # left, top, right, bottom, in level-0 pixels

TRUTH = (230, 20, 20, 255)
CASING = (255, 255, 255, 255)  # a white rim lets the red line be seen on every colour
STRENGTH = 150  # of 255: how much of the slide the colour hides


def draw_heatmap(
    slide: Slide,
    xy: NDArray[Any],
    side: float,
    scores: NDArray[Any],
    truth: Sequence[NDArray[Any]] = (),
    longest_px: int = 700,
    scale: Scale | None = None,
) -> Image:
    """Colour each tile by the rank of its score within the slide; `truth` are outlines in level-0 pixels, in red.

    Ranks, and not values: attention is heavy-tailed, and its largest value would leave everything else one colour.
    """
    pillow = need("PIL.Image", "slides")
    ground = slide.thumbnail(longest_px)
    painted = paint_tiles(ground, slide.size, xy, side, scores, scale or Scale())
    picture = pillow.fromarray(painted)
    draw_outlines(picture, truth, slide.size)
    return picture


def paint_tiles(
    ground: Pixels,
    extent: tuple[float, float],
    xy: NDArray[Any],
    side: float,
    scores: NDArray[Any],
    scale: Scale,
    strength: int = STRENGTH,
) -> Pixels:
    """The picture `ground` of a slide of `extent` level-0 pixels, with the colours of the tiles over it."""
    if len(xy) != len(scores):
        raise DataError(f"{len(scores)} scores for {len(xy)} tiles: one each is needed.")
    height, width = ground.shape[:2]
    shares = raster(xy, side, scale.shares(scores), (0, 0, *extent), (width, height))
    covered = np.isfinite(shares)
    painted = ground.copy()
    painted[covered] = np.rint(
        (ground[covered] * (255.0 - strength) + scale.colours(shares[covered]) * float(strength)) / 255
    )
    return painted


def raster(xy: NDArray[Any], side: float, values: NDArray[Any], window: Window, size: tuple[int, int]) -> Numbers:
    """The values of tiles as pixels of a window of the slide, `size` is (width, height); NaN where no tile is.

    Where tiles overlap, or a pixel is wider than they are, it is their mean. All tiles are painted at once, as differences
    at their corners that are summed up along both axes.

    >>> raster(np.array([[0, 0], [2, 0], [1, 0]]), 2, np.array([1.0, 2.0, 6.0]), (0, 0, 5, 1), (5, 1))
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


def draw_outlines(picture: Image, outlines: Sequence[NDArray[Any]], extent: tuple[float, float]) -> None:
    """Draw outlines in level-0 pixels of a slide of this extent: a red line in a white rim."""
    draw = need("PIL.ImageDraw", "slides").Draw(picture)
    scale = np.divide(picture.size, extent)
    width = max(round(max(picture.size) / 250), 2)
    closed = [
        [tuple(point) for point in (np.vstack([outline, outline[:1]]) * scale).tolist()]
        for outline in outlines
        if len(outline)
    ]
    for colour, thickness in ((CASING, width + 2), (TRUTH, width)):
        for points in closed:
            draw.line(points, fill=colour[:3], width=thickness, joint="curve")
