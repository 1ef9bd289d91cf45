"""Scores of tiles as colours on the slide, beside the truth where it is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scmil.errors import DataError
from scmil.extras import need

if TYPE_CHECKING:
    from PIL.Image import Image

    from scmil.slides.slide import Slide

# Dark blue over green to yellow: lightness grows with the score, so that it is read without colour, too.
COLOURS = np.array([(45, 20, 80), (50, 75, 140), (35, 130, 140), (70, 180, 105), (200, 215, 60), (255, 230, 50)])
TRUTH = (230, 20, 20, 255)
STRENGTH = 150  # of 255: how much of the slide the colour hides


def draw_heatmap(
    slide: Slide,
    xy: NDArray[Any],
    side: float,
    scores: NDArray[Any],
    truth: Sequence[NDArray[Any]] = (),
    longest_px: int = 700,
) -> Image:
    """Colour each tile by the rank of its score within the slide; `truth` are outlines in level-0 pixels, in red.

    Ranks, and not values: attention is heavy-tailed, and its largest value would leave everything else one colour.
    """
    if len(xy) != len(scores):
        raise DataError(f"{len(scores)} scores for {len(xy)} tiles: one each is needed.")
    pillow, drawing = need("PIL.Image", "slides"), need("PIL.ImageDraw", "slides")
    picture = pillow.fromarray(slide.thumbnail(longest_px)).convert("RGBA")
    scale = np.divide(picture.size, slide.size)
    layer = pillow.new("RGBA", picture.size)
    draw = drawing.Draw(layer)
    for (left, top), (right, bottom), colour in zip(
        xy * scale, (xy + side) * scale, colours(ranks(scores)), strict=True
    ):
        draw.rectangle((left, top, right, bottom), fill=(*colour.tolist(), STRENGTH))
    picture.alpha_composite(layer)
    width = max(round(max(picture.size) / 250), 2)
    for outline in truth:
        points = [tuple(point) for point in (np.vstack([outline, outline[:1]]) * scale).tolist()]
        drawing.Draw(picture).line(points, fill=TRUTH, width=width, joint="curve")
    return picture.convert("RGB")


def ranks(scores: NDArray[Any]) -> NDArray[np.float64]:
    """Each score's rank from 0 to 1; equal scores share one.

    >>> ranks(np.array([0.1, 0.9, 0.1, 0.5]))
    array([0.16666667, 1.        , 0.16666667, 0.66666667])
    """
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts + 1) / 2
    return middle[place] / max(len(scores) - 1, 1)


def colours(shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """The colour of each share from 0 to 1.

    >>> colours(np.array([0.0, 1.0])).tolist()
    [[45, 20, 80], [255, 230, 50]]
    """
    stops = np.linspace(0, 1, len(COLOURS))
    return np.stack([np.interp(shares, stops, channel) for channel in COLOURS.T], axis=-1).round().astype(np.int64)
