"""The sections of the page of a test on another cohort that differ for survival, numbers, grades
and several labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from scmil.report.estimates import estimate_cell
from scmil.report.html.markup import Markup, change, element, format_number, join, p_equals
from scmil.report.html.tables import number_cell, row_header, table
from scmil.report.run_files import ResultTable
from scmil.report.target_model_page import plot_of_rows
from scmil.report.target_run import LABEL_METRICS

Page = Mapping[str, Any]
TITLES = {
    "survival": "Survival by risk",
    "regression": "Predicted against observed",
    "multilabel": "Each label",
}
MACRO = "macro"


def target_sections(page: Page, predictions: ResultTable) -> dict[str, Markup | None]:
    """The sections of a task by their titles; none for classes, and for files of earlier versions.

    Args:
        page: The content of `metrics.json`.
        predictions: `predictions.csv`.
    """
    task = page["task"]
    if task not in TITLES or page.get("target") is None:
        return {}
    if task == "multilabel":
        return {TITLES[task]: _label_table(page)}
    everything = np.ones(predictions.length, dtype=bool)
    plot = plot_of_rows(page, predictions, everything, "cohort")
    if task == "survival":
        return {
            TITLES[task]: join(plot, _log_rank_words(page)),
            "Calibration of survival": _survival_tables(page),
        }
    return {TITLES[task]: join(plot, _number_calibration(page))}


def _log_rank_words(page: Page) -> Markup:
    p = next((own["log_rank_p"] for own in _scored_levels(page) if "log_rank_p" in own), None)
    words = (
        f"Log-rank test of high against low risk: {p_equals(p)}."
        if p is not None
        else "All patients are in one group, so that there is no log-rank test."
    )
    return element("p", words)


def _scored_levels(page: Page) -> list[Page]:
    return [own for own in page["metrics"].values() if isinstance(own, Mapping) and "n" in own]


def _survival_tables(page: Page) -> Markup | None:
    found = page["metrics"].get("survival_calibration")
    if not found:
        return None
    slope = [row_header("slope of the log hazard (1 is best)"), estimate_cell(found["slope"])]
    if not found["groups"]:
        words = (
            "The slope is the coefficient of the predicted risk in a Cox regression of this "
            "cohort: below 1 the risks are too extreme. A Cox model predicts relative hazards "
            "without a baseline, so that numbers of events cannot be compared."
        )
        return join(element("p", words), table("Calibration", ["Measure"], ["value"], [slope]))
    time = f"{found['time']:.4g} ({page['target']['time']})"
    words = (
        f"Predicted survival at the time {time} against the Kaplan-Meier estimate. The ratio "
        "divides the observed share of patients with an event by the predicted one: above 1 risks "
        "are underestimated. The slope is the coefficient of the predicted log hazard in a Cox "
        "regression of this cohort: below 1 the risks are too extreme. The interval of the slope "
        "is a bootstrap over patients, that of the ratio follows from Kaplan-Meier's."
    )
    ratio = [row_header("observed / predicted events (1 is best)"), estimate_cell(found["ratio"])]
    names = ("lowest", "middle", "highest")
    rows = [
        [
            row_header(f"{name} predicted survival"),
            number_cell(str(group["patients"]), group["patients"]),
            number_cell(format_number(group["predicted"]), group["predicted"]),
            estimate_cell(group["observed"]),
        ]
        for name, group in zip(names, found["groups"])
    ]
    heads = ["patients", "mean predicted survival", "observed survival"]
    return join(
        element("p", words),
        table("Calibration", ["Measure"], ["value"], [ratio, slope]),
        table("Predicted and observed survival", ["Third of the patients"], heads, rows),
    )


def _number_calibration(page: Page) -> Markup:
    found = page["metrics"]["number_calibration"]
    words = (
        "Intercept: mean of observed minus predicted numbers, 0 is best. Slope: that of the "
        "regression of observed on predicted numbers, 1 is best; below 1 the predictions are too "
        "extreme. Bootstrap intervals over patients."
    )
    rows = [[row_header(name), estimate_cell(found[name])] for name in ("intercept", "slope")]
    return join(element("p", words), table("Calibration", ["Measure"], ["value"], rows))


def _label_table(page: Page) -> Markup:
    """One row for each label: AUC here and inside, the change, and the other metrics."""
    own = _scored_levels(page)[0]
    inside = (page["internal"] or {}).get("slide") or {}
    changed = page["change"].get("slide", {})
    rest = [name for name in LABEL_METRICS if name != "auc"]
    rows = []
    for label in (*page["target"]["names"], MACRO):
        cells = [row_header("mean over the labels" if label == MACRO else label)]
        cells.append(estimate_cell(own.get(f"{label}: auc")))
        if inside:
            cells.append(estimate_cell(inside.get(f"{label}: auc")))
            cells.append(estimate_cell(changed.get(f"{label}: auc"), change))
        rows.append([*cells, *(estimate_cell(own.get(f"{label}: {name}")) for name in rest)])
    heads = ["AUC", *(["internal AUC", "change of the AUC"] if inside else [])]
    heads += [LABEL_METRICS[name] for name in rest]
    words = (
        "Slides whose label is missing take no part in its row. A label that is present or absent "
        "in all of them has no AUC. The threshold is 0.5."
    )
    return join(element("p", words), table("Metrics by label", ["Label"], heads, rows))
