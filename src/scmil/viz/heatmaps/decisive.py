"""The sheet of the most and the least decisive tiles of a slide for a class."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from scmil.core.extras import import_extra
from scmil.models.tile_scores import Scores
from scmil.slides.slide import open_slide
from scmil.viz.drawing.colour_scale import Numbers
from scmil.viz.drawing.sheet import GAP_PX, INK, MUTED, PAPER
from scmil.viz.heatmaps.captions import evidence_class, evidence_lines

if TYPE_CHECKING:
    from PIL.Image import Image

TILES_PER_ROW, TILE_PX, TEXT_PX = 8, 150, 18
LINE_PX = round(1.5 * TEXT_PX)


def choose_decisive_tiles(
    values: Numbers, count: int = TILES_PER_ROW
) -> dict[str, NDArray[np.int64]]:
    """The positions of the tiles with the highest evidence for a class, the lowest, and the least
    absolute evidence; a tile has a positive, a negative or no sign, so no tile is for and against.

    >>> chosen = choose_decisive_tiles(np.array([0.5, -2.0, 0.0, 3.0]), count=2)
    >>> [(name, tiles.tolist()) for name, tiles in chosen.items()]
    [('for', [3, 0]), ('against', [1]), ('neither', [2, 0])]
    """
    falling = np.argsort(-values, kind="stable")
    rising = np.argsort(values, kind="stable")
    return {
        "for": falling[values[falling] > 0][:count],
        "against": rising[values[rising] < 0][:count],
        "neither": np.argsort(np.abs(values), kind="stable")[:count],
    }


def draw_decisive_tiles(
    path: Path | None, scores: Scores, score: str, title: str, task: str | None = None
) -> Image:
    """Crop these tiles from a slide, and arrange them in three rows with their evidence."""
    pillow, drawing = import_extra("PIL.Image", "slides"), import_extra("PIL.ImageDraw", "slides")
    font = import_extra("PIL.ImageFont", "slides").load_default(TEXT_PX)
    assert path is not None  # sheets are drawn only if there are slides
    values, (name, _) = scores.of(score), evidence_class(score, scores.classes, task)
    chosen = choose_decisive_tiles(values)
    headings = {
        "for": f"Most decisive for {name}: highest evidence",
        "against": f"Most decisive against {name}: lowest evidence",
        "neither": "Least decisive: evidence closest to zero",
    }
    step = TILE_PX + GAP_PX
    row_height = LINE_PX + TILE_PX + LINE_PX + GAP_PX
    lines = [title, *evidence_lines(scores, score, task)[1:]]
    top = GAP_PX + LINE_PX * len(lines)
    width, height = GAP_PX + TILES_PER_ROW * step, top + len(chosen) * row_height + GAP_PX
    sheet = pillow.new("RGB", (width, height), PAPER)
    draw = drawing.Draw(sheet)
    for number, line in enumerate(lines):
        draw.text((GAP_PX, GAP_PX + number * LINE_PX), line, fill=INK, font=font)
    # Positions and sizes are level-0 pixels, so with mpp=1 a pixel is the unit.
    with open_slide(path, mpp=1.0) as slide:
        for row, (kind, tiles) in enumerate(chosen.items()):
            y = top + row * row_height
            none = "" if len(tiles) else " (no tile)"
            draw.text((GAP_PX, y), headings[kind] + none, fill=INK, font=font)
            for column, tile in enumerate(tiles.tolist()):
                x = GAP_PX + column * step
                corner = int(scores.xy[tile, 0]), int(scores.xy[tile, 1])
                pixels = slide.read(corner, TILE_PX, scores.side / TILE_PX)
                sheet.paste(pillow.fromarray(pixels), (x, y + LINE_PX))
                place = (x, y + LINE_PX + TILE_PX)
                draw.text(place, f"{values[tile]:+.2g}", fill=MUTED, font=font)
    return sheet
