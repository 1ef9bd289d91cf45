"""ROC curve and calibration of probabilities on the page of a test on another cohort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scmil.core.run_format import OR_HIGHER
from scmil.core.shapes import Numbers
from scmil.report.estimates import estimate_cell
from scmil.report.html.markup import Markup, element, format_number, join
from scmil.report.html.plots import Line, LineStyle, line_legend, line_panel, panels
from scmil.report.html.tables import number_cell, row_header, table
from scmil.report.model_page import roc
from scmil.report.run_files import ResultTable

Page = Mapping[str, Any]
DASHED = "4 3"


def calibration_section(page: Page, predictions: ResultTable) -> Markup | None:
    """ROC curves, reliability diagrams, calibration intercept and slope of classes, labels, or
    grades at least as high as each; None for other tasks.
    """
    calibration = page["metrics"].get("calibration")
    if not calibration:
        return None
    classes = list(calibration)
    lines, bins = [], []
    for i, name in enumerate(classes):
        positive, p = _outcomes(page, predictions, name)
        if 0 < positive.sum() < len(positive):
            x, y = roc(positive, p)
            lines.append(Line(name, LineStyle(i, None), x.tolist(), y.tolist()))
        bins.append(_reliability_line(name, i, calibration[name]["bins"]))
    diagonal = Line(
        "random ranking; perfect calibration", LineStyle(6, DASHED), [0.0, 1.0], [0.0, 1.0]
    )
    figures = [
        line_panel("Sensitivity, by false positive rate", "ROC curve", [*lines, diagonal])
        if lines
        else None,
        line_panel(
            "Observed frequency, by predicted probability",
            "Reliability diagram",
            [*bins, diagonal],
        ),
    ]
    return join(
        element("p", _calibration_words(calibration)),
        line_legend([*(lines or bins), diagonal]),
        panels(*figures),
        _calibration_table(calibration),
        *(_bins_table(name, calibration[name]["bins"]) for name in classes),
    )


def _outcomes(page: Page, predictions: ResultTable, name: str) -> tuple[Any, Numbers]:
    """Whether each slide is positive, and its probability; without slides that have no label."""
    if page["task"] == "multilabel":
        values = predictions.numbers(f"y_{name}", empty=True)
        known = np.isfinite(values)
        return values[known] == 1, predictions.numbers(f"p_{name}")[known]
    if page["task"] != "ordinal":
        return predictions.text("y_true") == name, predictions.numbers(f"p_{name}")
    grades = list(page["target"]["grades"])
    above = grades[grades.index(name.removesuffix(OR_HIGHER)) :]
    observed = predictions.text(f"y_{page['target']['name']}")
    return np.isin(observed, above), np.sum([predictions.numbers(f"p_{own}") for own in above], 0)


def _reliability_line(name: str, colour: int, bins: Sequence[Page]) -> Line:
    x = [float(each["predicted"]) for each in bins]
    y = [float(each["observed"]["value"]) for each in bins]
    return Line(name, LineStyle(colour, None), x, y)


def _calibration_words(calibration: Page) -> str:
    words = (
        "Perfect calibration has intercept 0 and slope 1. An intercept above 0 means that the "
        "outcome is more frequent than predicted; a slope below 1 that probabilities are too "
        "extreme."
    )
    separated = [name for name, found in calibration.items() if found["separated"]]
    if separated:
        words += (
            f" A threshold separates {', '.join(separated)} from the rest without error, so that "
            "its slope is infinite."
        )
    return words


def _calibration_table(calibration: Page) -> Markup:
    rows = [
        [
            row_header(name),
            estimate_cell(found["intercept"]),
            number_cell("∞") if found["separated"] else estimate_cell(found["slope"]),
            *(
                number_cell(format_number(found["brier"][key]), found["brier"][key])
                for key in ("reliability", "resolution", "uncertainty")
            ),
        ]
        for name, found in calibration.items()
    ]
    heads = ["intercept", "slope", "Brier: reliability", "Brier: resolution", "Brier: uncertainty"]
    return table("Calibration", ["Probability of"], heads, rows)


def _bins_table(name: str, bins: Sequence[Page]) -> Markup:
    rows = [
        [
            row_header(f"{each['from']:.1f} to {each['to']:.1f}"),
            number_cell(str(each["slides"]), each["slides"]),
            number_cell(format_number(each["predicted"]), each["predicted"]),
            estimate_cell(each["observed"]),
        ]
        for each in bins
    ]
    heads = ["slides", "mean probability", "observed frequency"]
    body = table(f"Reliability of the probability of {name}", ["Probability"], heads, rows)
    return element("details", element("summary", f"Reliability of {name}, as a table"), body)
