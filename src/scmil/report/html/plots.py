"""SVG plots: folds as dots, differences as a forest plot, training curves. Colours come from the
style sheet of the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from scmil.report.comparisons import MethodComparison
from scmil.report.html.markup import MINUS, Markup, change, element, format_number, join
from scmil.report.run import Key, Method, Run

WIDTH = 400
COLOURS = 7
DASHES = (None, "6 3", "2 3", "8 3 2 3")
ROW = 24
RIGHT = 16  # for half of the number at the last tick
LETTER = 6.1  # average width of a letter of a label
LONGEST_LABEL = 24


class Axis(NamedTuple):
    """Maps values from low to high to pixels from start to end."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The pixel of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        """Round numbers inside the axis, three to six of them.

        >>> Axis(0.43, 1, 0, 100).ticks
        [0.6, 0.8, 1.0]
        """
        rough = (self.high - self.low) / 5
        size = 10.0 ** math.floor(math.log10(rough))
        steps = (1, 2, 2.5, 5, 10) if size < 1 else (1, 2, 5, 10)  # epochs are whole
        step = next(step * size for step in steps if step * size >= rough * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(i * step, 10) for i in range(first, last + 1)]


def axis_over(
    values: Iterable[float], start: float, end: float, include: Sequence[float] = ()
) -> Axis:
    """An axis that contains all values, with a small margin."""
    known = [value for value in (*values, *include) if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    margin = (high - low) * 0.04 or 0.5
    return Axis(low - margin, high + margin, start, end)


class LineStyle(NamedTuple):
    """The colour and dash of a method, the same in all plots."""

    colour: int
    dash: str | None


def line_styles(methods: Sequence[Method]) -> dict[str, LineStyle]:
    """A colour per method; if there are more methods than colours, a colour per reference method,
    with dashes to distinguish its members.

    >>> line_styles([Method("A", None), Method("A + SC", "A")])
    {'A': LineStyle(colour=0, dash=None), 'A + SC': LineStyle(colour=1, dash=None)}
    """
    if len(methods) <= COLOURS:
        return {method.name: LineStyle(i, None) for i, method in enumerate(methods)}
    families: dict[str, list[str]] = {}
    for method in methods:
        families.setdefault(method.against or method.name, []).append(method.name)
    return {
        name: LineStyle(i % COLOURS, DASHES[place % len(DASHES)])
        for i, members in enumerate(families.values())
        for place, name in enumerate(members)
    }


def legend(entries: Iterable[tuple[str, Markup]]) -> Markup:
    """A legend: each mark with its name."""
    return element(
        "ul",
        *(element("li", svg(28, 12, "", mark), name) for name, mark in entries),
        class_="legend",
    )


def method_legend(run: Run) -> Markup:
    """The line of each method that has a result."""
    drawn = {
        method for (method, _), rows in run.history.items() if np.isfinite(rows["train_loss"]).any()
    }
    return legend(
        (method, draw_line("curve", style, "M1,6H27"))
        for method, style in line_styles(run.methods).items()
        if method in drawn
    )


def fold_dots(run: Run, protocol: str) -> Markup:
    """Every fold as a dot, the mean as a ring, its 95 % confidence interval as a bar."""
    every = [
        a for key, folds in run.folds.items() if key.protocol == protocol for a in folds.values()
    ]
    for key, result in run.results.items():
        if key.protocol == protocol:
            every += [result.metrics["accuracy"].low, result.metrics["accuracy"].high]
    return _panels(_fold_panel(run, dataset, protocol, every) for dataset in run.datasets)


def _fold_panel(run: Run, dataset: str, protocol: str, every: Sequence[float]) -> Markup | None:
    methods = [
        method.name for method in run.methods if Key(method.name, dataset, protocol) in run.results
    ]
    if not methods:
        return None
    margin = _margin(methods)
    axis = axis_over(every, margin, WIDTH - RIGHT)
    height = len(methods) * ROW
    marks = [grid_lines(axis, height, number_tick)]
    for i, method in enumerate(methods):
        key, style, y = (
            Key(method, dataset, protocol),
            line_styles(run.methods)[method],
            (i + 0.5) * ROW,
        )
        estimate = run.results[key].metrics["accuracy"]
        values = [run.folds[key][place] for place in sorted(run.folds[key])]
        description = (
            f"{method}: {format_number(estimate.mean)} ({format_number(estimate.low)} to "
            f"{format_number(estimate.high)})"
        )
        marks += [
            _label(method, margin, y),
            *(
                _dot(axis.at(value), y + _jitter(k) * ROW * 0.7, style)
                for k, value in enumerate(values)
            ),
            _draw_interval(axis, estimate.low, estimate.high, y, style.colour),
            element(
                "circle",
                element("title", description),
                cx=px(axis.at(estimate.mean)),
                cy=y,
                r=5,
                class_=f"mean f{style.colour}",
            ),
        ]
    return plot_figure(
        dataset, svg(WIDTH, height + 22, f"Accuracy of every fold of {dataset}, by method", *marks)
    )


def _jitter(index: int) -> float:
    """A deterministic, even spread in [-0.5, 0.5), by steps of the golden ratio."""
    return index * 0.6180339887 % 1 - 0.5


def forest(run: Run, compared: Sequence[MethodComparison], protocols: Sequence[str]) -> Markup:
    """Differences in accuracy with 95 % confidence intervals, coloured by selection protocol;
    published differences are hollow.
    """
    shown = [each for each in compared if each.protocol in protocols]
    ends = [
        value for each in shown for value in (*each.interval, each.accuracy.delta, each.published)
    ]
    return _panels(_forest_panel(run, dataset, shown, protocols, ends) for dataset in run.datasets)


def _forest_panel(
    run: Run,
    dataset: str,
    shown: Sequence[MethodComparison],
    protocols: Sequence[str],
    ends: Sequence[float],
) -> Markup | None:
    here = [each for each in shown if each.dataset == dataset]
    methods = [
        method.name for method in run.methods if any(each.method == method.name for each in here)
    ]
    if not methods:
        return None
    row = max(ROW, 12 * len(protocols) + 6)
    margin, height = _margin(methods), len(methods) * row
    axis = axis_over(ends, margin, WIDTH - RIGHT, include=(0.0,))
    marks = [
        grid_lines(axis, height, change_tick),
        element("path", d=f"M{px(axis.at(0))},0V{height}", class_="zero"),
    ]
    for each in here:
        place = methods.index(each.method)
        y = (place + 0.5) * row + (protocols.index(each.protocol) - (len(protocols) - 1) / 2) * 11
        colour, (low, high) = protocols.index(each.protocol), each.interval
        description = (
            f"{each.method}, {each.protocol}: {change(each.accuracy.delta)} ({change(low)} to "
            f"{change(high)})"
        )
        x = px(axis.at(each.accuracy.delta))
        marks += [
            _draw_interval(axis, low, high, y, colour),
            element(
                "circle", element("title", description), cx=x, cy=y, r=4.5, class_=f"mean f{colour}"
            ),
        ]
    for i, method in enumerate(methods):
        marks.append(_label(method, margin, (i + 0.5) * row))
        published = next(each.published for each in here if each.method == method)
        if math.isfinite(published):
            marks.append(
                hollow(
                    axis.at(published), (i + 0.5) * row, f"{method}, published: {change(published)}"
                )
            )
    return plot_figure(
        dataset, svg(WIDTH, height + 22, f"Difference in accuracy on {dataset}, by method", *marks)
    )


def forest_legend(protocols: Sequence[str], published: bool) -> Markup:
    """The colour of each selection protocol."""
    marks = [
        (name, join(_bar(1, 27, 6, i), element("circle", cx=14, cy=6, r=4.5, class_=f"mean f{i}")))
        for i, name in enumerate(protocols)
    ]
    return legend([*marks, *([("published", hollow(14, 6, "published"))] if published else [])])


def curves(run: Run, name: str, words: str) -> Markup:
    """One column of the training histories by epoch: a panel per data set, a line per method."""
    return _panels(_curve_panel(run, dataset, name, words) for dataset in run.datasets)


def _curve_panel(run: Run, dataset: str, name: str, words: str) -> Markup | None:
    here = {
        method.name: run.history[method.name, dataset]
        for method in run.methods
        if (method.name, dataset) in run.history
    }
    drawn = {
        method: history for method, history in here.items() if np.isfinite(history[name]).any()
    }
    if not drawn:
        return None
    lines = [
        Line(
            method,
            line_styles(run.methods)[method],
            history["epoch"].tolist(),
            history[name].tolist(),
        )
        for method, history in drawn.items()
    ]
    return line_panel(dataset, f"{words} by epoch on {dataset}", lines)


class Line(NamedTuple):
    """A curve: name, style and points."""

    name: str
    style: LineStyle
    x: Sequence[float]
    y: Sequence[float]


def line_panel(
    title: str, description: str, lines: Sequence[Line], mark: float | None = None
) -> Markup:
    """Curves in one plot; a vertical line is drawn at `mark`."""
    height, margin = 170, 44
    x = axis_over([value for line in lines for value in line.x], margin, WIDTH - RIGHT)
    y = axis_over([value for line in lines for value in line.y], height, 4)
    marks = [grid_lines(x, height, lambda tick: f"{tick:g}")]
    for tick in y.ticks:
        marks.append(
            element("path", d=f"M{margin},{px(y.at(tick))}H{WIDTH - RIGHT}", class_="grid")
        )
        marks.append(
            element("text", f"{tick:g}", x=margin - 6, y=px(y.at(tick) + 4), class_="tick end")
        )
    if mark is not None:
        marks.append(element("path", d=f"M{px(x.at(mark))},0V{height}", class_="zero"))
    for line in lines:
        points = [(x.at(a), y.at(b)) for a, b in zip(line.x, line.y) if math.isfinite(b)]
        path = "M" + "L".join(f"{px(a)},{px(b)}" for a, b in points)
        marks.append(draw_line("curve", line.style, path, line.name))
    return plot_figure(title, svg(WIDTH, height + 22, description, *marks))


def line_legend(lines: Iterable[Line]) -> Markup:
    """The name of each curve."""
    return legend((line.name, draw_line("curve", line.style, "M1,6H27")) for line in lines)


def panels(*figures: Markup | None) -> Markup:
    """Figures side by side."""
    return _panels(figures)


def number_tick(value: float) -> str:
    """The text of a tick of an accuracy."""
    return f"{value:g}"


def change_tick(value: float) -> str:
    """The text of a tick of a difference, with its sign."""
    return f"{value:+g}".replace("-", MINUS) if value else "0"


def hollow(x: float, y: float, description: str) -> Markup:
    """A hollow diamond, for a published result."""
    d = f"M{px(x)},{px(y - 5.5)}l5.5,5.5l-5.5,5.5l-5.5,-5.5z"
    return element("path", element("title", description), d=d, class_="hollow")


def _panels(panels: Iterable[Markup | None]) -> Markup:
    return element("div", *panels, class_="panels")


def plot_figure(name: str, drawing: Markup) -> Markup:
    """A drawing with its caption."""
    return element("figure", element("figcaption", name), drawing)


def svg(width: float, height: float, label: str, *marks: Markup) -> Markup:
    """A drawing with a description for readers who do not see it."""
    description = {"role": "img", "aria_label": label} if label else {"aria_hidden": "true"}
    return element("svg", *marks, viewBox=f"0 0 {width} {px(height)}", **description)


def grid_lines(axis: Axis, height: float, write: Callable[[float], str]) -> Markup:
    """Vertical lines at the ticks of an axis, with their numbers below."""
    return join(
        *(
            join(
                element("path", d=f"M{px(axis.at(tick))},0V{height}", class_="grid"),
                element(
                    "text", write(tick), x=px(axis.at(tick)), y=height + 16, class_="tick middle"
                ),
            )
            for tick in axis.ticks
        )
    )


def _margin(labels: Iterable[str]) -> float:
    return max(min(len(label), LONGEST_LABEL) for label in labels) * LETTER + 14


def _label(name: str, margin: float, y: float) -> Markup:
    short = name if len(name) <= LONGEST_LABEL else name[: LONGEST_LABEL - 1] + "…"
    return element("text", element("title", name), short, x=px(margin - 10), y=y + 4, class_="end")


def _dot(x: float, y: float, style: LineStyle) -> Markup:
    return element("circle", cx=px(x), cy=px(y), r=2.2, class_=f"dot f{style.colour}")


def _draw_interval(axis: Axis, low: float, high: float, y: float, colour: int) -> Markup:
    return _bar(axis.at(low), axis.at(high), y, colour) if math.isfinite(low + high) else Markup()


def _bar(start: float, end: float, y: float, colour: int) -> Markup:
    return element("path", d=f"M{px(start)},{px(y)}H{px(end)}", class_=f"interval s{colour}")


def draw_line(kind: str, style: LineStyle, path: str, description: str | None = None) -> Markup:
    """A path in the style of a method."""
    title = element("title", description) if description else None
    return element(
        "path", title, d=path, class_=f"{kind} s{style.colour}", stroke_dasharray=style.dash
    )


def px(value: float) -> str:
    """A coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")
