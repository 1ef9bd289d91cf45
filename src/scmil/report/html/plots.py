"""The pictures: folds as dots, differences as a forest, training as curves. SVG, coloured by the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from scmil.report.comparisons import Compared
from scmil.report.html.markup import MINUS, Markup, change, element, join, number
from scmil.report.run_files import Arm, Key, Run

WIDTH = 400
COLOURS = 7
DASHES = (None, "6 3", "2 3", "8 3 2 3")
ROW = 24
RIGHT = 16  # room for half a tick's number
LETTER = 6.1  # the width of a letter at most labels' average
LONGEST_LABEL = 24


class Axis(NamedTuple):
    """Where a value stands: numbers from low to high along pixels from start to end."""

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


def axis_over(values: Iterable[float], start: float, end: float, include: Sequence[float] = ()) -> Axis:
    """An axis that holds all values, and a little more."""
    known = [value for value in (*values, *include) if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    room = (high - low) * 0.04 or 0.5
    return Axis(low - room, high + room, start, end)


class Look(NamedTuple):
    """How an arm is drawn everywhere: a colour and a dash."""

    colour: int
    dash: str | None


def looks(arms: Sequence[Arm]) -> dict[str, Look]:
    """A colour for each arm; when there are more arms than colours, one for each family, told apart by dashes.

    >>> looks([Arm("A", None), Arm("A + SC", "A")])
    {'A': Look(colour=0, dash=None), 'A + SC': Look(colour=1, dash=None)}
    """
    if len(arms) <= COLOURS:
        return {arm.name: Look(i, None) for i, arm in enumerate(arms)}
    families: dict[str, list[str]] = {}
    for arm in arms:
        families.setdefault(arm.against or arm.name, []).append(arm.name)
    return {
        name: Look(i % COLOURS, DASHES[place % len(DASHES)])
        for i, members in enumerate(families.values())
        for place, name in enumerate(members)
    }


def legend(entries: Iterable[tuple[str, Markup]]) -> Markup:
    """What the marks mean."""
    return element("ul", *(element("li", _svg(28, 12, "", mark), name) for name, mark in entries), class_="legend")


def arm_legend(run: Run) -> Markup:
    """The line of each arm that has a result."""
    drawn = {arm for arm, _ in run.history}
    return legend((arm, _line("curve", look, "M1,6H27")) for arm, look in looks(run.arms).items() if arm in drawn)


def fold_dots(run: Run, protocol: str) -> Markup:
    """Every fold is a dot; the ring is the mean over all, the bar its 95 % interval."""
    every = [a for key, folds in run.folds.items() if key.protocol == protocol for a in folds.values()]
    return _panels(_fold_panel(run, dataset, protocol, every) for dataset in run.datasets)


def _fold_panel(run: Run, dataset: str, protocol: str, every: Sequence[float]) -> Markup | None:
    arms = [arm.name for arm in run.arms if Key(arm.name, dataset, protocol) in run.results]
    if not arms:
        return None
    margin = _margin(arms)
    axis = axis_over(every, margin, WIDTH - RIGHT)
    height = len(arms) * ROW
    marks = [_grid(axis, height, number_tick)]
    for i, arm in enumerate(arms):
        key, look, y = Key(arm, dataset, protocol), looks(run.arms)[arm], (i + 0.5) * ROW
        estimate = run.results[key].metrics["accuracy"]
        values = [run.folds[key][place] for place in sorted(run.folds[key])]
        told = f"{arm}: {number(estimate.mean)} ({number(estimate.low)} to {number(estimate.high)})"
        marks += [
            _label(arm, margin, y),
            *(_dot(axis.at(value), y + _jitter(k) * ROW * 0.7, look) for k, value in enumerate(values)),
            _interval(axis, estimate.low, estimate.high, y, look.colour),
            element(
                "circle",
                element("title", told),
                cx=_px(axis.at(estimate.mean)),
                cy=y,
                r=5,
                class_=f"mean f{look.colour}",
            ),
        ]
    return _figure(dataset, _svg(WIDTH, height + 22, f"Accuracy of every fold of {dataset}, by arm", *marks))


def _jitter(index: int) -> float:
    """Spread evenly in [-0.5, 0.5), the same way every time: steps of the golden ratio never line up."""
    return index * 0.6180339887 % 1 - 0.5


def forest(run: Run, compared: Sequence[Compared], protocols: Sequence[str]) -> Markup:
    """The change of accuracy with its 95 % interval, each protocol a colour; hollow: the published change."""
    shown = [each for each in compared if each.protocol in protocols]
    ends = [value for each in shown for value in (*each.interval, each.accuracy.delta, each.published)]
    return _panels(_forest_panel(run, dataset, shown, protocols, ends) for dataset in run.datasets)


def _forest_panel(
    run: Run, dataset: str, shown: Sequence[Compared], protocols: Sequence[str], ends: Sequence[float]
) -> Markup | None:
    here = [each for each in shown if each.dataset == dataset]
    arms = [arm.name for arm in run.arms if any(each.arm == arm.name for each in here)]
    if not arms:
        return None
    row = max(ROW, 12 * len(protocols) + 6)
    margin, height = _margin(arms), len(arms) * row
    axis = axis_over(ends, margin, WIDTH - RIGHT, include=(0.0,))
    marks = [_grid(axis, height, change_tick), element("path", d=f"M{_px(axis.at(0))},0V{height}", class_="zero")]
    for each in here:
        place = arms.index(each.arm)
        y = (place + 0.5) * row + (protocols.index(each.protocol) - (len(protocols) - 1) / 2) * 11
        colour, (low, high) = protocols.index(each.protocol), each.interval
        told = f"{each.arm}, {each.protocol}: {change(each.accuracy.delta)} ({change(low)} to {change(high)})"
        x = _px(axis.at(each.accuracy.delta))
        marks += [
            _interval(axis, low, high, y, colour),
            element("circle", element("title", told), cx=x, cy=y, r=4.5, class_=f"mean f{colour}"),
        ]
    for i, arm in enumerate(arms):
        marks.append(_label(arm, margin, (i + 0.5) * row))
        published = next(each.published for each in here if each.arm == arm)
        if math.isfinite(published):
            marks.append(hollow(axis.at(published), (i + 0.5) * row, f"{arm}, published: {change(published)}"))
    return _figure(dataset, _svg(WIDTH, height + 22, f"Change of accuracy on {dataset}, by arm", *marks))


def forest_legend(protocols: Sequence[str], published: bool) -> Markup:
    """Which colour is which protocol."""
    marks = [
        (name, join(_bar(1, 27, 6, i), element("circle", cx=14, cy=6, r=4.5, class_=f"mean f{i}")))
        for i, name in enumerate(protocols)
    ]
    return legend([*marks, *([("published", hollow(14, 6, "published"))] if published else [])])


def curves(run: Run, name: str, words: str) -> Markup:
    """One column of the training histories by epoch, a panel for each data set, a line for each arm."""
    return _panels(_curve_panel(run, dataset, name, words) for dataset in run.datasets)


def _curve_panel(run: Run, dataset: str, name: str, words: str) -> Markup | None:
    here = {arm.name: run.history[arm.name, dataset] for arm in run.arms if (arm.name, dataset) in run.history}
    drawn = {arm: history for arm, history in here.items() if np.isfinite(history[name]).any()}
    if not drawn:
        return None
    lines = [
        Line(arm, looks(run.arms)[arm], history["epoch"].tolist(), history[name].tolist())
        for arm, history in drawn.items()
    ]
    return line_panel(dataset, f"{words} by epoch on {dataset}", lines)


class Line(NamedTuple):
    """A curve: its name, how it is drawn, and its points."""

    name: str
    look: Look
    x: Sequence[float]
    y: Sequence[float]


def line_panel(title: str, told: str, lines: Sequence[Line], mark: float | None = None) -> Markup:
    """Curves over one another; `mark` is a place on the horizontal axis that matters."""
    height, margin = 170, 44
    x = axis_over([value for line in lines for value in line.x], margin, WIDTH - RIGHT)
    y = axis_over([value for line in lines for value in line.y], height, 4)
    marks = [_grid(x, height, lambda tick: f"{tick:g}")]
    for tick in y.ticks:
        marks.append(element("path", d=f"M{margin},{_px(y.at(tick))}H{WIDTH - RIGHT}", class_="grid"))
        marks.append(element("text", f"{tick:g}", x=margin - 6, y=_px(y.at(tick) + 4), class_="tick end"))
    if mark is not None:
        marks.append(element("path", d=f"M{_px(x.at(mark))},0V{height}", class_="zero"))
    for line in lines:
        points = [(x.at(a), y.at(b)) for a, b in zip(line.x, line.y) if math.isfinite(b)]
        path = "M" + "L".join(f"{_px(a)},{_px(b)}" for a, b in points)
        marks.append(_line("curve", line.look, path, line.name))
    return _figure(title, _svg(WIDTH, height + 22, told, *marks))


def line_legend(lines: Iterable[Line]) -> Markup:
    """The name of each curve."""
    return legend((line.name, _line("curve", line.look, "M1,6H27")) for line in lines)


def panels(*figures: Markup | None) -> Markup:
    """Figures side by side."""
    return _panels(figures)


def number_tick(value: float) -> str:
    """A tick of an accuracy: as short as it can be."""
    return f"{value:g}"


def change_tick(value: float) -> str:
    """A tick of a difference: with its sign."""
    return f"{value:+g}".replace("-", MINUS) if value else "0"


def hollow(x: float, y: float, told: str) -> Markup:
    """A hollow diamond: a number that is not ours."""
    d = f"M{_px(x)},{_px(y - 5.5)}l5.5,5.5l-5.5,5.5l-5.5,-5.5z"
    return element("path", element("title", told), d=d, class_="hollow")


def _panels(panels: Iterable[Markup | None]) -> Markup:
    return element("div", *panels, class_="panels")


def _figure(name: str, drawing: Markup) -> Markup:
    return element("figure", element("figcaption", name), drawing)


def _svg(width: float, height: float, label: str, *marks: Markup) -> Markup:
    told = {"role": "img", "aria_label": label} if label else {"aria_hidden": "true"}
    return element("svg", *marks, viewBox=f"0 0 {width} {_px(height)}", **told)


def _grid(axis: Axis, height: float, write: Callable[[float], str]) -> Markup:
    return join(
        *(
            join(
                element("path", d=f"M{_px(axis.at(tick))},0V{height}", class_="grid"),
                element("text", write(tick), x=_px(axis.at(tick)), y=height + 16, class_="tick middle"),
            )
            for tick in axis.ticks
        )
    )


def _margin(labels: Iterable[str]) -> float:
    return max(min(len(label), LONGEST_LABEL) for label in labels) * LETTER + 14


def _label(name: str, margin: float, y: float) -> Markup:
    short = name if len(name) <= LONGEST_LABEL else name[: LONGEST_LABEL - 1] + "…"
    return element("text", element("title", name), short, x=_px(margin - 10), y=y + 4, class_="end")


def _dot(x: float, y: float, look: Look) -> Markup:
    return element("circle", cx=_px(x), cy=_px(y), r=2.2, class_=f"dot f{look.colour}")


def _interval(axis: Axis, low: float, high: float, y: float, colour: int) -> Markup:
    return _bar(axis.at(low), axis.at(high), y, colour) if math.isfinite(low + high) else Markup()


def _bar(start: float, end: float, y: float, colour: int) -> Markup:
    return element("path", d=f"M{_px(start)},{_px(y)}H{_px(end)}", class_=f"interval s{colour}")


def _line(kind: str, look: Look, path: str, told: str | None = None) -> Markup:
    title = element("title", told) if told else None
    return element("path", title, d=path, class_=f"{kind} s{look.colour}", stroke_dasharray=look.dash)


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
