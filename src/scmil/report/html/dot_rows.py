"""An SVG plot with a line per row and a coloured dot per column of a matrix."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from scmil.report.html.markup import Markup, element, format_number
from scmil.report.html.plots import (
    COLOURS,
    _label,
    _margin,
    axis_over,
    grid_lines,
    legend,
    number_tick,
    plot_figure,
    px,
    svg,
)

WIDTH, ROW, RIGHT = 900, 20, 16


def dot_legend(columns: Sequence[str]) -> Markup:
    """The colour of each column."""
    return legend(
        (name, element("circle", cx=14, cy=6, r=4.5, class_=f"mean f{i % COLOURS}"))
        for i, name in enumerate(columns)
    )


def dot_rows(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Mapping[tuple[str, str], float],
) -> Markup:
    """The values of every row on a line of its own, a dot per column; NaN is left out."""
    known = {place: value for place, value in values.items() if math.isfinite(value)}
    shown = [row for row in rows if any(place[0] == row for place in known)]
    if not shown:
        return Markup()
    margin, height = _margin(shown), len(shown) * ROW
    axis = axis_over(known.values(), margin, WIDTH - RIGHT)
    marks = [grid_lines(axis, height, number_tick)]
    for number, row in enumerate(shown):
        y = (number + 0.5) * ROW
        here = {column: known[row, column] for column in columns if (row, column) in known}
        ends = [axis.at(value) for value in (min(here.values()), max(here.values()))]
        marks.append(_label(row, margin, y))
        marks.append(element("path", d=f"M{px(ends[0])},{px(y)}H{px(ends[1])}", class_="grid"))
        marks += [
            element(
                "circle",
                element("title", f"{row}, {column}: {format_number(value)}"),
                cx=px(axis.at(value)),
                cy=px(y),
                r=4.5,
                class_=f"mean f{columns.index(column) % COLOURS}",
            )
            for column, value in here.items()
        ]
    drawing = svg(WIDTH, height + 22, f"{title}, by method and layer", *marks)
    return element("div", plot_figure(title, drawing), class_="panels wide")
