"""The figure as SVG and as PNG, from a common list of marks."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scmil.core.extras import import_extra
from scmil.report.html.markup import Markup, element
from scmil.report.html.plots import axis_over
from scmil.viz.pca.project import Array, Panel

# Pixels: size of a panel, gap between panels, margins.
SIDE, GAP, TOP, BOTTOM, LEFT = 330, 34, 64, 78, 34
# Okabe and Ito.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#1b1f24")
INK, MUTED, LINE = "#1b1f24", "#5c6670", "#d9dee4"
LAYERS = 12  # the colours are drawn alternately in portions, so that none hides the others
FINE = 3  # resolution of the PNG relative to the SVG


class Dots(NamedTuple):
    """Points of one colour."""

    points: Array
    colour: str


class Text(NamedTuple):
    """Text; `anchor` is start, middle or end, `turned` rotates it by 90 degrees."""

    text: str
    x: float
    y: float
    size: float = 12
    colour: str = INK
    anchor: str = "start"
    bold: bool = False
    turned: bool = False


class Frame(NamedTuple):
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float


Mark = Dots | Text | Frame
Size = tuple[int, int]


def make_drawing(
    panels: Sequence[Panel], colour: NDArray[np.int64], names: Sequence[str]
) -> tuple[list[Mark], Size]:
    """The marks of all panels and of the legend, and the size of the figure in pixels."""
    width = LEFT + len(panels) * (SIDE + GAP)
    marks: list[Mark] = []
    for place, panel in enumerate(panels):
        marks += _panel_marks(panel, colour, LEFT + place * (SIDE + GAP))
    marks += _legend_marks(colour, names, TOP + SIDE + 50)
    return marks, (width, TOP + SIDE + BOTTOM)


def _panel_marks(panel: Panel, colour: NDArray[np.int64], left: float) -> Iterator[Mark]:
    x_axis, y_axis = (
        axis_over(panel.plane[:, k], start, end)
        for k, (start, end) in enumerate([(left, left + SIDE), (TOP + SIDE, TOP)])
    )
    points = np.column_stack(
        [np.vectorize(x_axis.at)(panel.plane[:, 0]), np.vectorize(y_axis.at)(panel.plane[:, 1])]
    )
    yield Text(panel.name, left, 22, size=15, bold=True)
    yield Text(f"{panel.about}; {panel.separation}", left, 44, size=11.5, colour=MUTED)
    yield Frame(left, TOP, SIDE, SIDE)
    for portion in range(LAYERS):
        for k in np.unique(colour):
            yield Dots(
                points[np.flatnonzero(colour == k)[portion::LAYERS]], COLOURS[k % len(COLOURS)]
            )
    one, two = (
        f"component {k}: {100 * share:.0f} % of the variance"
        for k, share in enumerate(panel.explained, start=1)
    )
    yield Text(one, left + SIDE / 2, TOP + SIDE + 20, size=11.5, colour=MUTED, anchor="middle")
    yield Text(
        two, left - 10, TOP + SIDE / 2, size=11.5, colour=MUTED, anchor="middle", turned=True
    )


def _legend_marks(colour: NDArray[np.int64], names: Sequence[str], y: float) -> Iterator[Mark]:
    x = float(LEFT)
    for k in np.unique(colour):
        label = f"{names[k]} ({int((colour == k).sum())})"
        yield Dots(np.array([[x + 5, y]]), COLOURS[k % len(COLOURS)])
        yield Text(label, x + 14, y + 4)
        x += 14 + 7 * len(label) + 20
    note = (
        "Linear AUC: AUC of a linear discriminant in this plane, on slides that it was not fitted "
        "to (0.5 is chance)."
    )
    yield Text(note, LEFT, y + 22, size=10.5, colour=MUTED)


def render_svg(marks: Sequence[Mark], size: Size) -> str:
    """Return the marks as SVG."""
    width, height = size
    ground = element("rect", width=width, height=height, fill="#ffffff")
    return str(
        element(
            "svg",
            ground,
            *map(_svg_mark, marks),
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {width} {height}",
            width=width,
            height=height,
            role="img",
            aria_label="Tiles in two principal components, a panel for each model",
        )
    )


def _svg_mark(mark: Mark) -> Markup:
    # A line of length zero with round caps is a dot, in few characters.
    if isinstance(mark, Dots):
        path = "".join(f"M{x:.1f},{y:.1f}h0" for x, y in mark.points.tolist())
        looks = {
            "stroke": mark.colour,
            "stroke_width": 4,
            "stroke_linecap": "round",
            "stroke_opacity": 0.65,
        }
        return element("path", d=path, fill="none", **looks)
    if isinstance(mark, Frame):
        x, y, width, height = mark
        return element("rect", x=x, y=y, width=width, height=height, fill="none", stroke=LINE)
    # The colour is set on a tspan, because the style sheet of the reports colours all text
    # elements.
    turn = f"rotate(-90 {mark.x:g} {mark.y:g})" if mark.turned else None
    inner = element(
        "tspan",
        mark.text,
        fill=mark.colour,
        font_size=mark.size,
        font_weight=600 if mark.bold else None,
        font_family="system-ui, Segoe UI, Helvetica, Arial, sans-serif",
    )
    return element(
        "text", inner, x=f"{mark.x:g}", y=f"{mark.y:g}", text_anchor=mark.anchor, transform=turn
    )


def render_png(marks: Sequence[Mark], size: Size) -> bytes:
    """Return the marks as PNG."""
    pillow, drawing = import_extra("PIL.Image", "slides"), import_extra("PIL.ImageDraw", "slides")
    picture = pillow.new("RGB", (size[0] * FINE, size[1] * FINE), "white")
    for mark in marks:
        if isinstance(mark, Dots):
            _draw_dots(drawing.Draw(picture, "RGBA"), mark)
        elif isinstance(mark, Frame):
            x, y, width, height = (FINE * value for value in mark)
            drawing.Draw(picture).rectangle((x, y, x + width, y + height), outline=LINE, width=FINE)
        else:
            _draw_text(picture, mark)
    content = io.BytesIO()
    picture.save(content, "PNG", dpi=(96 * FINE, 96 * FINE), optimize=True)
    return content.getvalue()


def _draw_dots(draw: Any, dots: Dots) -> None:
    colour = dots.colour + "a6"
    for x, y in (dots.points * FINE).tolist():
        draw.ellipse((x - 2 * FINE, y - 2 * FINE, x + 2 * FINE, y + 2 * FINE), fill=colour)


def _draw_text(picture: Any, text: Text) -> None:
    pillow, drawing, fonts = (
        import_extra(f"PIL.{name}", "slides") for name in ("Image", "ImageDraw", "ImageFont")
    )
    font = fonts.load_default(text.size * FINE)
    anchor = {"start": "ls", "middle": "ms", "end": "rs"}[text.anchor]
    looks = {"font": font, "fill": text.colour, "stroke_width": 1 if text.bold else 0}
    x, y = text.x * FINE, text.y * FINE
    if not text.turned:
        drawing.Draw(picture).text((x, y), text.text, anchor=anchor, **looks)
        return
    length = math.ceil(font.getlength(text.text))
    high = math.ceil(2 * text.size * FINE)
    strip = pillow.new("RGB", (length, high), "white")
    drawing.Draw(strip).text((0, 0.7 * high), text.text, anchor="ls", **looks)
    picture.paste(strip.rotate(90, expand=True), (round(x - 0.7 * high), round(y - length / 2)))
