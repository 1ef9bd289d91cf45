"""The FROC curve as SVG: sensitivity against false positives per slide."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scmil.report.html.markup import Markup, element, format_number, join
from scmil.report.html.plots import Axis

WIDTH, HEIGHT = 640, 430
LEFT, RIGHT, TOP, BOTTOM = 64, 616, 86, 360
FEWEST, MOST = 1 / 8, 8.0  # false positives per slide, on a logarithmic axis
# Colours of Okabe and Ito, which colour-blind readers can distinguish.
CURVES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#222")
BAND, INK, FAINT = "#cfe3f1", "#222", "#d8d8d8"
NAMES = {0.125: "1/8", 0.25: "1/4", 0.5: "1/2"}
FONT = "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif"


class FrocLine(NamedTuple):
    """A curve: false positives per slide, sensitivity, the six points of the score, its name."""

    false_positives: NDArray[np.float64]
    sensitivity: NDArray[np.float64]
    points: Sequence[Mapping[str, Any]]
    name: str = ""


def froc_picture(lines: Sequence[FrocLine], title: str, words: Sequence[str] = ()) -> str:
    """A stand-alone SVG of one curve with the six points of the score and their intervals, or of
    several curves with a legend.

    >>> point = {"false_positives": 1.0, "sensitivity": 0.5, "interval": [0.25, 0.75]}
    >>> line = FrocLine(np.array([0.0, 2.0]), np.array([0.0, 1.0]), [point])
    >>> picture = froc_picture([line], "FROC 0.5")
    >>> picture.startswith("<svg"), "0.50" in picture
    (True, True)
    """
    across, up = Axis(math.log2(FEWEST), math.log2(MOST), LEFT, RIGHT), Axis(0, 1, BOTTOM, TOP)
    heading = [
        element("text", title, x=LEFT, y=30, font_size=19, font_weight=600, fill=INK),
        *(
            element("text", word, x=LEFT, y=50 + 17 * i, font_size=12.5, fill="#555")
            for i, word in enumerate(words)
        ),
    ]
    alone = len(lines) == 1
    drawing = join(
        element("rect", width=WIDTH, height=HEIGHT, fill="white"),
        *heading,
        _axes(across, up),
        _band(across, up, lines[0].points) if alone else None,
        *reversed(
            [_curve(across, up, line, CURVES[i % len(CURVES)]) for i, line in enumerate(lines)]
        ),
        *([_draw_point(across, up, point) for point in lines[0].points] if alone else []),
        None if alone else _legend([line.name for line in lines]),
    )
    options = {
        "viewBox": f"0 0 {WIDTH} {HEIGHT}",
        "font-family": FONT,
        "role": "img",
        "aria-label": title,
    }
    size = {"width": WIDTH, "height": HEIGHT, "xmlns": "http://www.w3.org/2000/svg"}
    return str(element("svg", drawing, **size, **options))


def _curve(across: Axis, up: Axis, line: FrocLine, colour: str) -> Markup:
    at = np.geomspace(FEWEST, MOST, 300)
    points = [
        (across.at(math.log2(x)), up.at(y))
        for x, y in zip(at, np.interp(at, line.false_positives, line.sensitivity))
    ]
    return element(
        "path",
        d=_svg_path(points),
        fill="none",
        stroke=colour,
        stroke_width=2.5,
        stroke_linejoin="round",
    )


def _legend(names: Sequence[str]) -> Markup:
    """The colour of each curve, in the lower right corner; the first curve is on top."""
    parts = []
    for i, name in enumerate(names):
        y = BOTTOM - 14 - 19 * (len(names) - 1 - i)
        colour = CURVES[i % len(CURVES)]
        parts += [
            element("line", x1=RIGHT - 24, x2=RIGHT, y1=y, y2=y, stroke=colour, stroke_width=2.5),
            element(
                "text",
                name,
                x=RIGHT - 31,
                y=y + 4.5,
                font_size=13,
                text_anchor="end",
                fill=INK,
                stroke="white",
                stroke_width=3,
                paint_order="stroke",
            ),
        ]
    return join(*parts)


def _axes(across: Axis, up: Axis) -> Markup:
    parts = []
    for share in (0, 0.2, 0.4, 0.6, 0.8, 1):
        y = up.at(share)
        parts += [
            element("line", x1=LEFT, x2=RIGHT, y1=y, y2=y, stroke="#888" if share == 0 else FAINT),
            element(
                "text",
                f"{share:g}",
                x=LEFT - 9,
                y=y + 4.5,
                font_size=13,
                text_anchor="end",
                fill=INK,
            ),
        ]
    for power in range(round(across.low), round(across.high) + 1):
        x, name = across.at(power), NAMES.get(2.0**power, f"{2.0**power:g}")
        parts += [
            element("line", x1=x, x2=x, y1=BOTTOM, y2=BOTTOM + 5, stroke="#888"),
            element("text", name, x=x, y=BOTTOM + 21, font_size=13, text_anchor="middle", fill=INK),
        ]
    middle = (LEFT + RIGHT) / 2
    style = {"font_size": 13.5, "text_anchor": "middle", "fill": INK}
    side = f"rotate(-90 18 {(TOP + BOTTOM) / 2:g})"
    parts += [
        element(
            "text",
            "False positives per slide (logarithmic scale)",
            x=middle,
            y=BOTTOM + 45,
            **style,
        ),
        element(
            "text",
            "Sensitivity (fraction of lesions detected)",
            x=18,
            y=(TOP + BOTTOM) / 2,
            transform=side,
            **style,
        ),
    ]
    return join(*parts)


def _band(across: Axis, up: Axis, points: Sequence[Mapping[str, Any]]) -> Markup:
    """The 95 % intervals, joined."""
    known = [point for point in points if None not in point["interval"]]
    x = [across.at(math.log2(point["false_positives"])) for point in known]
    low, high = ([up.at(point["interval"][end]) for point in known] for end in (0, 1))
    outline = [*zip(x, high), *reversed(list(zip(x, low)))]
    return (
        element("path", d=_svg_path(outline) + "Z", fill=BAND, fill_opacity=0.6)
        if len(known) > 1
        else Markup("")
    )


def _draw_point(across: Axis, up: Axis, point: Mapping[str, Any]) -> Markup:
    x, y = across.at(math.log2(point["false_positives"])), up.at(point["sensitivity"])
    value = format_number(point["sensitivity"], 2)
    above = y - 12 if y - 12 > TOP + 4 else y + 22
    return join(
        element(
            "circle",
            cx=f"{x:.1f}",
            cy=f"{y:.1f}",
            r=4.5,
            fill="white",
            stroke=CURVES[0],
            stroke_width=2.5,
        ),
        element(
            "text",
            value,
            x=f"{x:.1f}",
            y=f"{above:.1f}",
            font_size=12.5,
            text_anchor="middle",
            fill=INK,
            stroke="white",
            stroke_width=3,
            paint_order="stroke",
        ),
    )


def _svg_path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
