"""SVG plots of survival by risk group, and of predicted against observed numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from scmil.core.shapes import Numbers
from scmil.report.html.markup import Markup, element, join
from scmil.report.html.plots import (
    RIGHT,
    WIDTH,
    Axis,
    LineStyle,
    axis_over,
    draw_line,
    grid_lines,
    legend,
    plot_figure,
    px,
    svg,
)
from scmil.stats.survival import KaplanMeier

HEIGHT, MARGIN = 170, 44
RISK_LEFT = 70  # room for the names of the groups beside the numbers at risk
RISK_ROW = 16
STYLES = {"low risk": LineStyle(0, None), "high risk": LineStyle(1, "6 3")}
OTHER = LineStyle(2, None)


def survival_panel(title: str, groups: Mapping[str, KaplanMeier], time: str) -> Markup:
    """Kaplan-Meier curves with marks at censored times, and the numbers at risk below."""
    last = max(float(curve.times[-1]) for curve in groups.values())
    x = Axis(0.0, last * 1.02 or 1.0, RISK_LEFT, WIDTH - RIGHT)
    y = Axis(0.0, 1.0, HEIGHT, 6)
    marks = [grid_lines(x, HEIGHT, lambda tick: f"{tick:g}"), _horizontal(x, y)]
    for name, curve in groups.items():
        style = STYLES.get(name, OTHER)
        marks.append(draw_line("curve", style, _steps(x, y, curve), name))
        marks += [_censoring_mark(x, y, curve, time, style) for time in _censored_times(curve)]
    top = HEIGHT + 34
    marks.append(element("text", time, x=px((x.start + x.end) / 2), y=top, class_="tick middle"))
    marks.append(element("text", "Patients at risk", x=0, y=top + RISK_ROW + 4, class_="tick"))
    for row, (name, curve) in enumerate(groups.items(), start=2):
        at = top + row * RISK_ROW + 4
        marks.append(element("text", name, x=0, y=at))
        marks += [
            element("text", str(int(number)), x=px(x.at(tick)), y=at, class_="middle")
            for tick, number in zip(x.ticks, curve.at_risk_at(x.ticks))
        ]
    height = top + (len(groups) + 2) * RISK_ROW - 6
    label = f"Share of patients without the event over time, by risk group: {title}"
    return plot_figure(title, svg(WIDTH, height, label, *marks))


def survival_legend() -> Markup:
    """The line of each risk group."""
    return legend((name, draw_line("curve", style, "M1,6H27")) for name, style in STYLES.items())


def agreement_panel(title: str, observed: Numbers, predicted: Numbers, name: str) -> Markup:
    """Predicted against observed numbers, with the line of agreement."""
    side = WIDTH - MARGIN - RIGHT
    values = [*observed.tolist(), *predicted.tolist()]
    x = axis_over(values, MARGIN, WIDTH - RIGHT)
    y = Axis(x.low, x.high, side, 4)
    low, high = max(x.low, y.low), min(x.high, y.high)
    diagonal = f"M{px(x.at(low))},{px(y.at(low))}L{px(x.at(high))},{px(y.at(high))}"
    dots = [
        element("circle", cx=px(x.at(a)), cy=px(y.at(b)), r=2.6, class_="dot f0")
        for a, b in zip(observed.tolist(), predicted.tolist())
    ]
    marks = [
        grid_lines(x, side, lambda tick: f"{tick:g}"),
        _horizontal(x, y),
        element("path", d=diagonal, class_="zero"),
        *dots,
        element(
            "text",
            f"observed {name}",
            x=px((x.start + x.end) / 2),
            y=side + 32,
            class_="tick middle",
        ),
    ]
    label = f"Predicted (vertical) against observed {name} of each slide: {title}"
    return plot_figure(title, svg(WIDTH, side + 38, label, *marks))


def _horizontal(x: Axis, y: Axis) -> Markup:
    """Horizontal lines at the ticks of the vertical axis, with their numbers."""
    return join(
        *(
            join(
                element("path", d=f"M{px(x.start)},{px(y.at(tick))}H{px(x.end)}", class_="grid"),
                element(
                    "text", f"{tick:g}", x=px(x.start - 6), y=px(y.at(tick) + 4), class_="tick end"
                ),
            )
            for tick in y.ticks
        )
    )


def _steps(x: Axis, y: Axis, curve: KaplanMeier) -> str:
    path = f"M{px(x.at(0.0))},{px(y.at(1.0))}"
    for time, share in zip(curve.times.tolist(), curve.survival.tolist()):
        path += f"H{px(x.at(time))}V{px(y.at(share))}"
    return path


def _censored_times(curve: KaplanMeier) -> list[float]:
    return curve.times[curve.censored > 0].tolist()


def _censoring_mark(x: Axis, y: Axis, curve: KaplanMeier, time: float, style: LineStyle) -> Markup:
    at, share = x.at(time), float(np.atleast_1d(curve.at([time]))[0])
    return element("path", d=f"M{px(at)},{px(y.at(share) - 3)}v6", class_=f"curve s{style.colour}")
