"""Sections of the page of a model of another task than classes: calibration of grades and labels,
decision curves of labels, and conformal sets or intervals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scmil.report.calibration_sections import (
    ERROR,
    SplitPredictions,
    sections_of_split,
    split_of_classes,
)
from scmil.report.estimates import estimate_cell
from scmil.report.html.markup import Markup, element, format_number, join
from scmil.report.html.tables import number_cell, row_header, table
from scmil.report.run_files import ResultTable
from scmil.stats.conformal import conformal_half_width, interval_coverage
from scmil.stats.target_calibration import calibrate_numbers

Study = Mapping[str, Any]


def target_calibration_sections(study: Study, predictions: ResultTable) -> dict[str, Markup | None]:
    """The sections by their titles; none without a test split, and for survival.

    Args:
        study: The content of `study.json`.
        predictions: The content of `predictions.csv`.
    """
    if not (predictions.text("part") == "test").any():
        return {}
    if study["task"] == "ordinal":
        grades, column = study["classes"], f"y_{study['target']['name']}"
        parts = [split_of_classes(predictions, grades, part, column) for part in ("test", "valid")]
        return sections_of_split(study, grades, *parts)
    if study["task"] == "multilabel":
        return _sections_of_labels(study, predictions)
    return _sections_of_numbers(study, predictions) if study["task"] == "regression" else {}


def _sections_of_labels(study: Study, predictions: ResultTable) -> dict[str, Markup | None]:
    """The sections of each label, below each other under common titles."""
    found: dict[str, list[Markup]] = {}
    for name in study["classes"]:
        test, valid = (_split_of_label(predictions, name, part) for part in ("test", "valid"))
        if test is None or test.labels.min() == test.labels.max():
            continue
        for title, body in sections_of_split(study, (f"no {name}", name), test, valid).items():
            if body:
                found.setdefault(title, []).append(join(element("h3", name), body))
    return {title: join(*parts) for title, parts in found.items()}


def _split_of_label(predictions: ResultTable, name: str, part: str) -> SplitPredictions | None:
    values = predictions.numbers(f"y_{name}", empty=True)
    rows = np.flatnonzero((predictions.text("part") == part) & np.isfinite(values))
    if not len(rows):
        return None
    p = np.clip(predictions.numbers(f"p_{name}")[rows], 0, 1)
    patients = [str(case) or None for case in predictions.text("case_id")[rows]]
    return SplitPredictions(values[rows].astype(np.int64), np.stack([1 - p, p], axis=1), patients)


def _sections_of_numbers(study: Study, predictions: ResultTable) -> dict[str, Markup | None]:
    name = study["target"]["name"]
    test, valid = (_numbers_of_split(predictions, name, part) for part in ("test", "valid"))
    found = calibrate_numbers(*test)
    words = (
        "Intercept: mean of observed minus predicted numbers, 0 is best. Slope: that of the "
        "regression of observed on predicted numbers, 1 is best; below 1 the predictions are too "
        "extreme. Of the test split, with bootstrap intervals over patients."
    )
    values = {"intercept": found.intercept, "slope": found.slope}
    rows = [
        [row_header(title), estimate_cell({"value": value, "low": ends.low, "high": ends.high})]
        for (title, value), ends in zip(values.items(), found.intervals)
    ]
    return {
        "Calibration": join(
            element("p", words), table("Calibration", ["Measure"], ["Value"], rows)
        ),
        "Prediction intervals": _prediction_intervals(test, valid),
    }


Split = tuple[Sequence[float], Sequence[float], list[str | None]]


def _numbers_of_split(predictions: ResultTable, name: str, part: str) -> Split:
    rows = np.flatnonzero(predictions.text("part") == part)
    observed, predicted = (predictions.numbers(f"{kind}_{name}")[rows] for kind in ("y", "p"))
    patients = [str(case) or None for case in predictions.text("case_id")[rows]]
    return observed.tolist(), predicted.tolist(), patients


def _prediction_intervals(test: Split, valid: Split) -> Markup | None:
    if not valid[0]:
        return None
    half = conformal_half_width(valid[0], valid[1], ERROR, valid[2])
    if math.isinf(half):
        words = (
            f"No prediction intervals: fewer than {round(1 / ERROR - 1)} validation patients do "
            f"not determine an interval for {100 * (1 - ERROR):.0f} % of new patients."
        )
        return element("p", words, class_="note")
    found = interval_coverage(test[0], test[1], half, test[2])
    words = (
        f"Split conformal prediction intervals: the predicted number, the mean over the slides of "
        f"a patient, plus and minus {format_number(half)}. The width is calibrated on the patients "
        f"of the validation split so that about {100 * (1 - ERROR):.0f} % of the intervals of new "
        "patients contain the observed number. The validation split has chosen the epoch as well, "
        "so this is approximate; the coverage on the test split is what was observed."
    )
    coverage = {"value": found.coverage, "low": found.interval.low, "high": found.interval.high}
    rows = [
        [row_header("coverage", "Wilson's interval"), estimate_cell(coverage)],
        [row_header("width of an interval"), number_cell(format_number(2 * half), 2 * half)],
        [row_header("patients of the test split"), number_cell(str(found.patients))],
    ]
    return join(element("p", words), table("Prediction intervals", ["Test split"], ["Value"], rows))
