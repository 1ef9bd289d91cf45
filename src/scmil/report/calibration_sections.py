"""Sections of the page of a model on its probabilities: reliability diagram, decomposition of the
Brier score, decision curve and conformal prediction sets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scmil.core.shapes import Numbers
from scmil.errors import DataError
from scmil.report.html.markup import ABSENT, Markup, element, format_number, join
from scmil.report.html.plots import Line, LineStyle, line_legend, line_panel, panels
from scmil.report.html.tables import number_cell, row_header, table
from scmil.report.run_files import ResultTable
from scmil.stats.bootstrap import Interval
from scmil.stats.calibration import (
    ReliabilityBin,
    brier_parts,
    recalibrate,
    recalibration_intervals,
    reliability_table,
)
from scmil.stats.conformal import conformal_threshold, set_coverage
from scmil.stats.decision_curve import decision_curve

BINS = 10
DRAWS = 400  # of the bootstrap of the calibration; more make little difference to three digits
ERROR = 0.1  # of the prediction sets
OBSERVED, PERFECT, LIMITS = LineStyle(0, None), LineStyle(1, "6 3"), LineStyle(0, "2 3")
HALF = 0.012  # half of the length of the mark of a bin


class SplitPredictions(NamedTuple):
    """The predictions of one split: classes (b,), probabilities (b, c), patients."""

    labels: NDArray[np.int64]
    probabilities: Numbers
    patients: Sequence[str | None]


def calibration_sections(
    study: Mapping[str, Any], predictions: ResultTable
) -> dict[str, Markup | None]:
    """The sections by their titles; none without a test split.

    Args:
        study: The content of `study.json`.
        predictions: The content of `predictions.csv`.
    """
    classes: Sequence[str] = study.get("classes") or ()
    parts = [split_of_classes(predictions, classes, part) for part in ("test", "valid")]
    return sections_of_split(study, classes, *parts)


def sections_of_split(
    study: Mapping[str, Any],
    classes: Sequence[str],
    test: SplitPredictions | None,
    valid: SplitPredictions | None,
) -> dict[str, Markup | None]:
    """The sections for the predictions of a test split; none without one.

    Args:
        study: The content of `study.json`.
        classes: Names of the classes, or of the grades.
        test: The predictions of the test split.
        valid: Those of the validation split.
    """
    if len(classes) < 2 or test is None:
        return {}
    return {
        "Calibration": _calibration(study, classes, test),
        "Decision curve": _decision(classes, test) if len(classes) == 2 else None,
        "Prediction sets": _prediction_sets(test, valid),
    }


def split_of_classes(
    predictions: ResultTable, classes: Sequence[str], part: str, column: str = "y_true"
) -> SplitPredictions | None:
    """The predictions of a split; None if it has no slides.

    Args:
        predictions: The content of `predictions.csv`.
        classes: Names of the classes, or of the grades.
        part: The split.
        column: The column of the observed class.
    """
    rows = np.flatnonzero(predictions.text("part") == part)
    if not len(rows) or not classes:
        return None
    truth = predictions.text(column)[rows]
    return SplitPredictions(
        np.array([list(classes).index(str(name)) for name in truth], dtype=np.int64),
        np.stack([predictions.numbers(f"p_{name}")[rows] for name in classes], axis=1),
        [str(case) or None for case in predictions.text("case_id")[rows]],
    )


def _calibration(
    study: Mapping[str, Any], classes: Sequence[str], test: SplitPredictions
) -> Markup:
    y, p = _binary(test)
    what = (
        f"the probability of {classes[1]!r} against how often it is the label"
        if len(classes) == 2
        else "the probability of the predicted class against how often it is right"
    )
    temperature = study.get("temperature") or study.get("objective", {}).get("temperature")
    scaled = (
        f" The probabilities were scaled with the temperature {temperature:.3g}, which was fitted "
        "on the validation split."
        if temperature is not None
        else " The probabilities are those of the model, without temperature scaling."
    )
    words = (
        f"Reliability diagram of the test split, in {BINS} bins: {what}. On the diagonal "
        "probabilities are frequencies; below it they are too high. Vertical lines are Wilson's "
        f"95 % intervals at the effective number of patients.{scaled}"
    )
    bins = reliability_table(y, p, BINS, test.patients)
    lines = _reliability_lines(bins)
    named = [*(line for line in lines if line.name), Line("95 % interval", LIMITS, [], [])]
    return join(
        element("p", words),
        line_legend(named),
        panels(line_panel("Observed frequency, by predicted probability", words, lines)),
        element("p", _explain_parts(y, p)),
        _parts_table(y, p, test.patients),
    )


def _binary(test: SplitPredictions) -> tuple[Numbers, Numbers]:
    """Labels 0 or 1 and their probability, of the second of two classes or the predicted one."""
    p = np.clip(test.probabilities, 0, 1)
    if p.shape[1] == 2:
        return test.labels.astype(float), p[:, 1]
    return (p.argmax(1) == test.labels).astype(float), p.max(1)


def _reliability_lines(bins: Sequence[ReliabilityBin]) -> list[Line]:
    lines = [
        Line("perfect calibration", PERFECT, [0, 1], [0, 1]),
        Line("observed", OBSERVED, [b.predicted for b in bins], [b.observed for b in bins]),
    ]
    for each in bins:
        x = each.predicted
        lines.append(Line("", OBSERVED, [x - HALF, x + HALF], [each.observed] * 2))
        if math.isfinite(each.interval.low):
            lines.append(Line("", LIMITS, [x, x], list(each.interval)))
    return lines


def _explain_parts(y: Numbers, p: Numbers) -> str:
    parts = brier_parts(y, p, BINS)
    return (
        f"The Brier score, {format_number(float(((p - y) ** 2).mean()))}, is the sum of "
        f"reliability {format_number(parts.reliability)} (distance from the diagonal, 0 is best), "
        f"minus resolution {format_number(parts.resolution)} (how far the bins differ, larger is "
        f"better), plus uncertainty {format_number(parts.uncertainty)} (of the labels alone) and "
        f"{format_number(parts.within)} within the bins."
    )


def _parts_table(y: Numbers, p: Numbers, patients: Sequence[str | None]) -> Markup:
    found = recalibrate(y, p)
    intervals = recalibration_intervals(y, p, patients, draws=DRAWS)
    meaning = {
        "intercept": "0 is best; above 0 probabilities are too low",
        "slope": "1 is best; below 1 probabilities are too extreme",
    }
    rows = [
        [
            row_header(f"calibration {name}", words),
            number_cell(
                join(
                    format_number(getattr(found, name)), element("small", _limits(intervals[name]))
                ),
                getattr(found, name),
            ),
        ]
        for name, words in meaning.items()
    ]
    return table("Calibration", ["Measure"], ["Value, 95 % bootstrap interval"], rows)


def _limits(interval: Interval) -> str:
    if not math.isfinite(interval.low + interval.high):
        return ABSENT
    return f"{format_number(interval.low)} to {format_number(interval.high)}"


def _decision(classes: Sequence[str], test: SplitPredictions) -> Markup | None:
    y, p = _binary(test)
    if y.min() == y.max():
        return None
    curve = decision_curve(y, p, groups=test.patients)
    shown = curve.thresholds <= max(0.5, min(0.95, float(p.max())))
    x = curve.thresholds[shown].tolist()
    # Acting on everybody falls without limit: it is drawn down to the least of the others.
    least = min(-0.05, float(np.nanmin(curve.low[shown])) if np.isfinite(curve.low).any() else 0)
    everybody = [value if value >= least else math.nan for value in curve.everybody[shown]]
    lines = [
        Line("model", OBSERVED, x, curve.model[shown].tolist()),
        Line("95 % interval", LIMITS, x, curve.low[shown].tolist()),
        Line("", LIMITS, x, curve.high[shown].tolist()),
        Line("act on everybody", LineStyle(3, None), x, everybody),
        Line("act on nobody", PERFECT, x, [0.0] * len(x)),
    ]
    words = (
        f"Net benefit of acting if the probability of {classes[1]!r} is above a threshold, in true "
        "positives per patient, minus false positives weighted by the odds of the threshold. The "
        "model is useful at thresholds where it is above both other lines. Bootstrap intervals "
        "over patients."
    )
    return join(
        element("p", words),
        line_legend(line for line in lines if line.name),
        panels(line_panel("Net benefit, by threshold", words, lines)),
    )


def _prediction_sets(test: SplitPredictions, valid: SplitPredictions | None) -> Markup | None:
    if valid is None:
        return None
    try:
        threshold = conformal_threshold(valid.labels, valid.probabilities, ERROR, valid.patients)
        found = set_coverage(test.labels, test.probabilities, threshold, test.patients)
    except DataError as error:
        return element("p", f"No prediction sets: {error}", class_="note")
    words = (
        "Split conformal prediction sets: a set has every class whose probability, the mean over "
        f"the slides of a patient, is at least {threshold:.3f}. The limit is calibrated on the "
        f"patients of the validation split so that about {1 - ERROR:.0%} of the sets of new "
        "patients contain the true class. The validation split has chosen the epoch as well, so "
        "this is approximate; the coverage on the test split is what was observed."
    ).replace("%", " %")
    if threshold == 0:
        words += (
            f" There are fewer than {round(1 / ERROR - 1)} validation patients, so that every set "
            "has all classes."
        )
    rows = [
        [row_header("coverage", "Wilson's interval"), _value_cell(found.coverage, found.interval)],
        [row_header("mean number of classes in a set"), _value_cell(found.mean_size)],
        [row_header("empty sets", "no class is probable enough"), _count_cell(found.empty)],
        [row_header("patients of the test split"), _count_cell(found.patients)],
    ]
    return join(element("p", words), table("Prediction sets", ["Test split"], ["Value"], rows))


def _value_cell(value: float, interval: Interval | None = None) -> Markup:
    limits = element("small", _limits(interval)) if interval else None
    return number_cell(join(format_number(value), limits), value)


def _count_cell(value: int) -> Markup:
    return number_cell(str(value), value)
