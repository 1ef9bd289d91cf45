"""A preview image of a tiled slide: thumbnail, tissue outlines and tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scmil.core.extras import import_extra

if TYPE_CHECKING:
    from PIL.Image import Image

    from scmil.slides.slide import Slide
    from scmil.slides.tiling import Tiling
    from scmil.slides.tissue import Tissue

OUTLINE, HOLE = (0, 130, 60, 255), (215, 90, 0, 255)
GRID, TINT = (25, 60, 150, 110), (70, 120, 255, 30)
INK, PAPER = (40, 40, 40), (255, 255, 255)
# Tiles narrower than this have no border lines, which would hide the slide.
NARROW_PX = 4


def draw_tiling(
    slide: Slide, tissue: Tissue, tiling: Tiling | None = None, longest_px: int = 1600
) -> Image:
    """Draw tissue outlines, holes and tiles on a thumbnail of the slide, with a legend below."""
    pillow, drawing = import_extra("PIL.Image", "slides"), import_extra("PIL.ImageDraw", "slides")
    thumbnail = pillow.fromarray(slide.thumbnail(longest_px)).convert("RGBA")
    scale = np.divide(thumbnail.size, slide.size)
    if tiling is not None:
        layer = pillow.new("RGBA", thumbnail.size)
        _draw_tiles(drawing.Draw(layer), tiling, scale)
        thumbnail.alpha_composite(layer)
    _draw_outline(
        drawing.Draw(thumbnail), tissue, scale, width=max(round(max(thumbnail.size) / 600), 1)
    )
    return _append_legend(thumbnail.convert("RGB"), _legend_entries(slide, tissue, tiling))


def _draw_tiles(draw: Any, tiling: Tiling, scale: Any) -> None:
    corners = tiling.xy * scale
    ends = (tiling.xy + tiling.side) * scale
    line = GRID if tiling.side * scale.min() >= NARROW_PX else None
    for (left, top), (right, bottom) in zip(corners, np.maximum(ends, corners)):
        draw.rectangle((left, top, right, bottom), fill=TINT, outline=line)


def _draw_outline(draw: Any, tissue: Tissue, scale: Any, width: int) -> None:
    for polygon in tissue.area.geoms:
        for ring, colour in (
            (polygon.exterior, OUTLINE),
            *((hole, HOLE) for hole in polygon.interiors),
        ):
            points = np.asarray(ring.coords)[:, :2] * scale
            draw.line(
                [tuple(point) for point in points.tolist()], fill=colour, width=width, joint="curve"
            )


def _legend_entries(slide: Slide, tissue: Tissue, tiling: Tiling | None) -> list[str]:
    # "microns" and "mm2": the font that comes with Pillow has neither a µ nor a ².
    entries = [slide.id]
    if tiling is not None:
        entries.append(f"{len(tiling):,} tiles" if len(tiling) != 1 else "1 tile")
        entries.append(f"{tiling.size_px} px = {tiling.size_px * tiling.mpp:g} microns each")
    if slide.known_mpp is None:
        entries.append(
            f"tissue {100 * tissue.fraction:.1f} % of the slide, whose resolution is not known"
        )
    else:
        entries.append(f"tissue {tissue.area_mm2(slide.known_mpp):.3g} mm2")
    return entries


def _append_legend(picture: Image, entries: list[str]) -> Image:
    """Append the legend below the image, in as many lines as necessary."""
    pillow, drawing, fonts = (
        import_extra(f"PIL.{name}", "slides") for name in ("Image", "ImageDraw", "ImageFont")
    )
    size = min(max(picture.width // 55, 10), 26)
    font = fonts.load_default(size)
    lines = [entries[0]]
    for entry in entries[1:]:
        longer = f"{lines[-1]}   ·   {entry}"
        if font.getlength(longer) <= picture.width - 2 * size:
            lines[-1] = longer
        else:
            lines.append(entry)
    sheet = pillow.new(
        "RGB", (picture.width, picture.height + round(size * (0.8 + 1.4 * len(lines)))), PAPER
    )
    sheet.paste(picture, (0, 0))
    draw = drawing.Draw(sheet)
    for number, line in enumerate(lines):
        draw.text(
            (size, picture.height + round(size * (0.5 + 1.4 * number))), line, fill=INK, font=font
        )
    return sheet
