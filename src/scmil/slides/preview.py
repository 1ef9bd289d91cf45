"""A picture to check by eye: the slide, the outline of its tissue, and the tiles that were kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scmil.core.extras import need

if TYPE_CHECKING:
    from PIL.Image import Image

    from scmil.slides.slide import Slide
    from scmil.slides.tiling import Tiling
    from scmil.slides.tissue import Tissue

OUTLINE, HOLE = (0, 130, 60, 255), (215, 90, 0, 255)
GRID, TINT = (25, 60, 150, 110), (70, 120, 255, 30)
INK, PAPER = (40, 40, 40), (255, 255, 255)
NARROW_PX = 4  # tiles that are narrower in the picture have no lines: the lines would hide the slide


def draw_tiling(slide: Slide, tissue: Tissue, tiling: Tiling | None = None, longest_px: int = 1600) -> Image:
    """Draw the tissue's outline, its holes in another colour, and the tiles over a thumbnail, and numbers below."""
    pillow, drawing = need("PIL.Image", "slides"), need("PIL.ImageDraw", "slides")
    thumbnail = pillow.fromarray(slide.thumbnail(longest_px)).convert("RGBA")
    scale = np.divide(thumbnail.size, slide.size)
    if tiling is not None:
        layer = pillow.new("RGBA", thumbnail.size)
        _draw_tiles(drawing.Draw(layer), tiling, scale)
        thumbnail.alpha_composite(layer)
    _draw_outline(drawing.Draw(thumbnail), tissue, scale, width=max(round(max(thumbnail.size) / 600), 1))
    return _with_legend(thumbnail.convert("RGB"), _facts(slide, tissue, tiling))


def _draw_tiles(draw: Any, tiling: Tiling, scale: Any) -> None:
    corners = tiling.xy * scale
    ends = (tiling.xy + tiling.side) * scale
    line = GRID if tiling.side * scale.min() >= NARROW_PX else None
    for (left, top), (right, bottom) in zip(corners, np.maximum(ends, corners)):
        draw.rectangle((left, top, right, bottom), fill=TINT, outline=line)


def _draw_outline(draw: Any, tissue: Tissue, scale: Any, width: int) -> None:
    for polygon in tissue.area.geoms:
        for ring, colour in ((polygon.exterior, OUTLINE), *((hole, HOLE) for hole in polygon.interiors)):
            points = np.asarray(ring.coords)[:, :2] * scale
            draw.line([tuple(point) for point in points.tolist()], fill=colour, width=width, joint="curve")


def _facts(slide: Slide, tissue: Tissue, tiling: Tiling | None) -> list[str]:
    facts = [slide.id]  # "microns" and "mm2": the font that comes with Pillow has neither a µ nor a ²
    if tiling is not None:
        facts.append(f"{len(tiling):,} tiles" if len(tiling) != 1 else "1 tile")
        facts.append(f"{tiling.size_px} px = {tiling.size_px * tiling.mpp:g} microns each")
    if slide.known_mpp is None:
        facts.append(f"tissue {100 * tissue.fraction:.1f} % of the slide, whose resolution is not known")
    else:
        facts.append(f"tissue {tissue.area_mm2(slide.known_mpp):.3g} mm2")
    return facts


def _with_legend(picture: Image, facts: list[str]) -> Image:
    """The picture above its facts, in as many lines as its width needs."""
    pillow, drawing, fonts = (need(f"PIL.{name}", "slides") for name in ("Image", "ImageDraw", "ImageFont"))
    size = min(max(picture.width // 55, 10), 26)
    font = fonts.load_default(size)
    lines = [facts[0]]
    for fact in facts[1:]:
        longer = f"{lines[-1]}   ·   {fact}"
        if font.getlength(longer) <= picture.width - 2 * size:
            lines[-1] = longer
        else:
            lines.append(fact)
    sheet = pillow.new("RGB", (picture.width, picture.height + round(size * (0.8 + 1.4 * len(lines)))), PAPER)
    sheet.paste(picture, (0, 0))
    draw = drawing.Draw(sheet)
    for number, line in enumerate(lines):
        draw.text((size, picture.height + round(size * (0.5 + 1.4 * number))), line, fill=INK, font=font)
    return sheet
