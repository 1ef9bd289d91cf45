"""Draw a sheet: pictures side by side, scale bar, colour bar and texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scmil.core.extras import import_extra
from scmil.viz.drawing.colour_scale import Scale

if TYPE_CHECKING:
    from PIL.Image import Image

INK, MUTED, PAPER, FRAME = (30, 34, 40), (92, 102, 112), (255, 255, 255), (200, 206, 212)
GAP_PX = 12
NARROWEST_PX = 900  # so that the texts fit
BAR_SHARE = 0.2  # maximum length of the scale bar, as a fraction of the width


class ColourBar(NamedTuple):
    """A colour bar: its title, its scale, and the values that it shows."""

    title: str
    scale: Scale
    values: NDArray[Any]


class Sheet(NamedTuple):
    """The picture, and the position of its main panel: left, top, right, bottom."""

    picture: Image
    panel: tuple[int, int, int, int]


def draw_sheet(
    panels: Sequence[Image],
    title: str,
    lines: Sequence[str],
    warning: str,
    bars: Sequence[ColourBar],
    main: int = -1,
) -> Sheet:
    """Arrange panels side by side, or below each other if they are wide, with title, colour bars
    and texts.

    `main` is the number of the panel that stands for the sheet on other pages. A warning is shown
    in a frame below the title.

    >>> from PIL import Image
    >>> panel = Image.new("RGB", (600, 400))
    >>> bar = ColourBar("attention", Scale(), np.arange(5.0))
    >>> sheet = draw_sheet([panel, panel], "slide 1", ["tumour"], "", [bar])
    >>> sheet.picture.width, sheet.panel[2] - sheet.panel[0]
    (1236, 600)
    """
    pillow, drawing = import_extra("PIL.Image", "slides"), import_extra("PIL.ImageDraw", "slides")
    stacked = len(panels) > 1 and panels[0].width > 2 * panels[0].height
    columns = 1 if stacked else len(panels)
    width = max(columns * (panels[0].width + GAP_PX) + GAP_PX, NARROWEST_PX)
    size = min(max(width // 70, 14), 24)
    words, small, head = (
        _Words(size, width),
        _Words(round(size * 0.85), width),
        _Words(round(size * 1.25), width),
    )
    above = [*head.wrapped(title)], [*words.wrapped(warning)] if warning else []
    rows = -(-len(panels) // columns)
    top = (
        GAP_PX
        + head.step * len(above[0])
        + (words.step * len(above[1]) + 2 * GAP_PX if warning else 0)
    )
    below = top + rows * (panels[0].height + GAP_PX)
    texts = [line for each in lines for line in words.wrapped(each)]
    named = [small.wrapped(f"{bar.title}, {bar.scale.description}") for bar in bars]
    heights = [small.step * (len(lines) + 2) + size + 2 * GAP_PX for lines in named]
    height = below + sum(heights) + words.step * len(texts) + GAP_PX
    sheet = pillow.new("RGB", (width, height), PAPER)
    draw = drawing.Draw(sheet)
    at = head.write(draw, above[0], GAP_PX // 2)
    if warning:
        box = (
            GAP_PX,
            at + GAP_PX // 2,
            width - GAP_PX,
            at + GAP_PX + words.step * len(above[1]) + GAP_PX // 2,
        )
        draw.rectangle(box, fill=(255, 243, 214), outline=(230, 159, 0), width=2)
        words.write(draw, above[1], at + GAP_PX, indent=GAP_PX, colour=(122, 75, 0))
    indent = (width - columns * (panels[0].width + GAP_PX) + GAP_PX) // 2
    places = []
    for number, panel in enumerate(panels):
        x = indent + number % columns * (panel.width + GAP_PX)
        y = top + number // columns * (panel.height + GAP_PX)
        sheet.paste(panel, (x, y))
        draw.rectangle((x - 1, y - 1, x + panel.width, y + panel.height), outline=FRAME)
        places.append((x, y, x + panel.width, y + panel.height))
    for bar, heading, taken in zip(bars, named, heights, strict=True):
        bar_top = small.write(draw, heading, below)
        place = (GAP_PX, bar_top, min(width - GAP_PX, 720), size)
        _draw_colour_bar(draw, small, bar.scale, bar.values, place)
        below += taken
    words.write(draw, texts, below)
    return Sheet(sheet, places[main])


def draw_scale_bar(picture: Image, microns_per_px: float) -> None:
    """Draw a bar of a round length with its length in the lower left corner."""
    drawing, fonts = (
        import_extra("PIL.ImageDraw", "slides"),
        import_extra("PIL.ImageFont", "slides"),
    )
    microns = round_length(picture.width * BAR_SHARE * microns_per_px)
    length = microns / microns_per_px
    size = min(max(picture.width // 45, 11), 22)
    left, bottom = size, picture.height - size
    draw = drawing.Draw(picture)
    draw.rectangle((left - 2, bottom - size // 4 - 2, left + length + 1, bottom + 2), fill=PAPER)
    draw.rectangle((left, bottom - size // 4, left + length - 1, bottom), fill=INK)
    words = f"{microns / 1000:g} mm" if microns >= 1000 else f"{microns:g} microns"
    place = (left, bottom - size // 4 - round(size * 1.5))
    draw.text(
        place, words, fill=INK, font=fonts.load_default(size), stroke_width=2, stroke_fill=PAPER
    )


def round_length(longest: float) -> float:
    """The largest of 1, 2, 5, 10, 20, … up to a limit.

    >>> round_length(730), round_length(0.3), round_length(2000.0)
    (500, 0.2, 2000)
    """
    ten = 10.0 ** math.floor(math.log10(longest))
    best = max(step for step in (1, 2, 5) if step * ten <= longest * (1 + 1e-9)) * ten
    return round(best) if best >= 1 else best


class _Words:
    """Text of one size on a sheet of one width."""

    def __init__(self, size: int, width: int) -> None:
        self.font, self.width, self.step = (
            import_extra("PIL.ImageFont", "slides").load_default(size),
            width,
            round(size * 1.45),
        )

    def wrapped(self, text: str) -> list[str]:
        """Wrap a text into lines; words longer than a line are truncated."""
        lines: list[str] = []
        for word in text.split():
            longer = f"{lines[-1]} {word}" if lines else word
            if lines and self.font.getlength(longer) <= self.width - 4 * GAP_PX:
                lines[-1] = longer
            else:
                lines.append(self._cut(word))
        return lines

    def _cut(self, word: str) -> str:
        while len(word) > 1 and self.font.getlength(word) > self.width - 4 * GAP_PX:
            word = word[: len(word) * 9 // 10 - 1] + "…" if len(word) > 12 else word[:-1]
        return word

    def write(
        self,
        draw: Any,
        lines: Sequence[str],
        top: int,
        indent: int = 0,
        colour: tuple[int, int, int] = INK,
    ) -> int:
        """Write lines below each other, and return the position of the next one."""
        for line in lines:
            draw.text((GAP_PX + indent, top), line, fill=colour, font=self.font)
            top += self.step
        return top


def _draw_colour_bar(
    draw: Any, words: _Words, scale: Scale, values: NDArray[Any], place: tuple[int, int, int, int]
) -> None:
    """A horizontal bar, `size` pixels high, with ticks below."""
    left, top, right, size = place
    for x, colour in enumerate(scale.colours(np.linspace(0, 1, right - left)).tolist(), start=left):
        draw.line((x, top, x, top + size), fill=tuple(colour))
    for share, *labels in scale.ticks(values):
        at = left + share * (right - left - 1)
        draw.line((at, top + size, at, top + size + 4), fill=INK, width=1)
        anchor = "la" if share == 0 else "ra" if share == 1 else "ma"
        for row, (label, colour) in enumerate(zip(labels, (INK, MUTED))):
            draw.text(
                (at, top + size + 5 + row * words.step),
                label,
                fill=colour,
                font=words.font,
                anchor=anchor,
            )
