"""The pictures of docs/arena.md: the forest plot, and the diagram of the synthetic cohorts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from scmil.report.froc_curve import FONT, INK
from scmil.report.html.markup import Markup, change, element, join
from scmil.report.html.plots import Axis, axis_over
from scmil.stats.bootstrap import Interval

# Each SC method with its control.
PAIRS = {
    "SC": "linear",
    "SC, chosen": "linear",
    "SC, on the features": "linear, on the features",
}
COLOURS = {"SC": "#0072b2", "SC, chosen": "#d55e00", "SC, on the features": "#009e73"}
GREY, FAINT = "#555", "#d8d8d8"
ROW, LABELS, WIDE = 22, 265, 300
# The centre of the diagram: the values of the factors that do not vary.
CENTRE = {"bags": 100.0, "witness": 0.1, "noise_dims": 32.0}
TITLES = {
    "bags": "number of bags",
    "witness": "fraction of positive instances",
    "noise_dims": "dimensions without information",
    "active": "atoms per instance (sparse to dense)",
}
SPARSE, DENSE = 3.0, 96.0


class Panel(NamedTuple):
    """One comparison: rows of data set, difference and interval, and the mean over data sets."""

    title: str
    rows: Sequence[tuple[str, float, Interval]]
    mean: tuple[float, Interval, float]


class Point(NamedTuple):
    """The gain of a method over its control on one synthetic cohort."""

    method: str
    factors: Mapping[str, float]
    seed: int
    gain: float


def forest(panels: Sequence[Panel]) -> str:
    """Differences in AUC with 95 % intervals, a panel for each comparison."""
    count = max(len(panel.rows) for panel in panels)
    height = 60 + ROW * (count + 2) + 30
    drawings = [
        _forest_panel(panel, LABELS + i * (WIDE + 30), panel is panels[0])
        for i, panel in enumerate(panels)
    ]
    width = LABELS + len(panels) * (WIDE + 30)
    return _document(width, height, "Differences in AUC on the confirmation data sets", drawings)


def _forest_panel(panel: Panel, left: float, labelled: bool) -> Markup:
    mean, interval, p = panel.mean
    ends = [value for _, _, one in panel.rows for value in one]
    axis = axis_over([max(-0.3, min(0.3, end)) for end in ends], left, left + WIDE, include=(0.0,))
    bottom = 50 + ROW * (len(panel.rows) + 1) + 6
    marks = [
        element("text", panel.title, x=left, y=22, font_size=14, font_weight=600, fill=INK),
        element("path", d=f"M{axis.at(0):.1f},36V{bottom}", stroke=GREY, stroke_dasharray="3 3"),
        *(_tick(axis.at(tick), bottom, change(tick)) for tick in axis.ticks),
    ]
    rows = [(name, value, one, "#0072b2", 4.0) for name, value, one in panel.rows]
    rows.append((f"mean, p = {p:.3f}", mean, interval, "#d55e00", 5.5))
    for place, (name, value, one, colour, radius) in enumerate(rows):
        y = 50 + ROW * place + (6 if place == len(panel.rows) else 0)
        low, high = (max(axis.low, min(axis.high, end)) for end in one)
        marks += [
            element(
                "path",
                d=f"M{axis.at(low):.1f},{y}H{axis.at(high):.1f}",
                stroke=colour,
                stroke_width=2,
            ),
            element("circle", cx=f"{axis.at(value):.1f}", cy=y, r=radius, fill=colour),
        ]
        if place == len(panel.rows):
            marks.append(
                element("text", name, x=left + WIDE, y=y + 4, font_size=11, fill=GREY,
                        text_anchor="end")
            )  # fmt: skip
        elif labelled:
            marks.append(
                element("text", name, x=left - 10, y=y + 4, font_size=12, fill=INK,
                        text_anchor="end")
            )  # fmt: skip
    return join(*marks)


def diagram(points: Sequence[Point]) -> str:
    """The gain over the linear layer against each factor: means over seeds with their range."""
    methods = [method for method in PAIRS if any(one.method == method for one in points)]
    structures = {"sparse structure": SPARSE, "dense structure": DENSE}
    gains = [one.gain for one in points]
    panels = [
        _diagram_panel(points, factor, active, methods, gains, (column, row))
        for column, factor in enumerate(("bags", "witness", "noise_dims"))
        for row, active in enumerate(structures.values())
    ]
    panels.append(_diagram_panel(points, "active", None, methods, gains, (3, 0)))
    names = [
        element("text", f"{name} ({active:g} atoms)", x=60, y=64 + row * 230, font_size=13,
                font_weight=600, fill=INK)
        for row, (name, active) in enumerate(structures.items())
    ]  # fmt: skip
    legend = [
        join(
            element("circle", cx=66 + 190 * i, cy=30, r=5, fill=COLOURS[method]),
            element("text", method, x=78 + 190 * i, y=34, font_size=12.5, fill=INK),
        )
        for i, method in enumerate(methods)
    ]
    title = "Gain in AUC over the linear layer, by cohort"
    return _document(80 + 4 * 230, 520, title, [*legend, *names, *panels])


def _diagram_panel(
    points: Sequence[Point],
    factor: str,
    active: float | None,
    methods: Sequence[str],
    gains: Sequence[float],
    place: tuple[int, int],
) -> Markup:
    left, top = 60 + place[0] * 230 + 30 * (factor == "active"), 76 + place[1] * 230
    up = axis_over(gains, top + 150, top, include=(0.0,))
    fixed = {key: value for key, value in CENTRE.items() if key != factor}
    fixed |= {} if active is None else {"active": active}
    here = [p for p in points if all(p.factors[key] == value for key, value in fixed.items())]
    values = sorted({point.factors[factor] for point in here})
    across = Axis(-0.5, max(len(values) - 0.5, 0.5), left, left + 200)
    marks = [
        element("path", d=f"M{left},{up.at(0):.1f}H{left + 200}", stroke=GREY,
                stroke_dasharray="3 3"),
        element("text", TITLES[factor], x=left + 100, y=top + 186, font_size=11.5, fill=INK,
                text_anchor="middle"),
        *(
            element("text", f"{value:g}", x=f"{across.at(i):.1f}", y=top + 168, font_size=11,
                    fill=GREY, text_anchor="middle")
            for i, value in enumerate(values)
        ),
    ]  # fmt: skip
    for tick in up.ticks:
        y = f"{up.at(tick):.1f}"
        marks.append(element("path", d=f"M{left},{y}H{left + 200}", stroke=FAINT))
        if place[0] == 0 or factor == "active":
            marks.append(
                element("text", change(tick), x=left - 6, y=f"{up.at(tick) + 4:.1f}",
                        font_size=10.5, fill=GREY, text_anchor="end")
            )  # fmt: skip
    for number, method in enumerate(methods):
        shift = (number - (len(methods) - 1) / 2) * 12
        line = []
        for i, value in enumerate(values):
            own = [p.gain for p in here if p.method == method and p.factors[factor] == value]
            if not own:
                continue
            x, mean = across.at(i) + shift, float(np.mean(own))
            line.append(f"{x:.1f},{up.at(mean):.1f}")
            marks.append(
                element("path", d=f"M{x:.1f},{up.at(min(own)):.1f}V{up.at(max(own)):.1f}",
                        stroke=COLOURS[method], stroke_width=1.5)
            )  # fmt: skip
            marks.append(
                element("circle", cx=f"{x:.1f}", cy=f"{up.at(mean):.1f}", r=4, fill=COLOURS[method])
            )
        path = "M" + "L".join(line) if line else ""
        marks.append(element("path", d=path, fill="none", stroke=COLOURS[method], opacity=0.5))
    return join(*marks)


def _tick(x: float, bottom: float, text: str) -> Markup:
    return join(
        element("path", d=f"M{x:.1f},36V{bottom}", stroke=FAINT),
        element("text", text, x=f"{x:.1f}", y=bottom + 16, font_size=11, fill=GREY,
                text_anchor="middle"),
    )  # fmt: skip


def _document(width: float, height: float, title: str, drawings: Sequence[Markup]) -> str:
    options = {
        "viewBox": f"0 0 {math.ceil(width)} {math.ceil(height)}",
        "font-family": FONT,
        "role": "img",
        "aria-label": title,
    }
    size = {"width": width, "height": height, "xmlns": "http://www.w3.org/2000/svg"}
    background = element("rect", width=width, height=height, fill="white")
    return str(element("svg", background, *drawings, **size, **options)) + "\n"
