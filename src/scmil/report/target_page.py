"""The HTML report of a task other than classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scmil.report import pictures
from scmil.report.html import plots, target_plots
from scmil.report.html import tables as html_tables
from scmil.report.html.markup import (
    ABSENT,
    Markup,
    change,
    element,
    format_number,
    join,
    p_equals,
    p_value,
)
from scmil.report.html.tables import DATASET, badge, number_cell, row_header, table, text_cell
from scmil.report.page import assemble_page, computation, training_curves, unfinished
from scmil.report.run import TUNED, Estimate, Key, Run
from scmil.report.target_comparisons import TargetComparison, find_risk_groups
from scmil.report.target_run import LABEL_METRICS, MEANING, WARNING, HeldOutRows, TargetRun
from scmil.report.target_tables import (
    P_NOTE,
    caption_of,
    confusion_of,
    interval_text,
    label_rows,
    metric_rows,
)
from scmil.report.target_verdict import target_verdict


def write_target_page(run: TargetRun, compared: Sequence[TargetComparison]) -> str:
    """The HTML report of a run directory."""
    sections = task_sections(run, compared) | further_sections(run)
    return assemble_page(run, target_verdict(run, compared), sections)


def task_sections(run: TargetRun, compared: Sequence[TargetComparison]) -> dict[str, Markup | None]:
    """The sections that depend on the task."""
    return {
        "Results": _results(run),
        "Labels": _labels(run) if run.task == "multilabel" else None,
        "Comparisons": _comparisons(run, compared),
        "Risk groups": _risk_groups(run) if run.task == "survival" else None,
        "Predicted against observed": _agreement(run) if run.task == "regression" else None,
        "Confusion of grades": _confusions(run) if run.task == "ordinal" else None,
        "Confusion of classes": _confusions(run) if run.task == "class" else None,
    }


def further_sections(run: Run) -> dict[str, Markup | None]:
    """The sections that all tasks have."""
    return {
        "Pictures": pictures.section(run.folder),
        "Training": training_curves(run),
        "Cost": html_tables.cost(run),
        "How the results were computed": computation(run, MEANING, "the epoch"),
        "Missing and failed runs": unfinished(run),
    }


def _protocol_heading(protocol: str) -> Markup:
    return join(
        element("h3", f"Selection protocol “{protocol}” ", badge(protocol)),
        element("p", WARNING, class_="warn") if protocol == TUNED else None,
    )


def _metric_cell(estimate: Estimate | None, best: bool = False) -> Markup:
    if estimate is None or np.isnan(estimate.mean):
        return number_cell(ABSENT)
    limits = interval_text(estimate)
    value = element("span", format_number(estimate.mean), class_="best" if best else None)
    small = element("small", limits) if limits else None
    return number_cell(join(value, small), estimate.mean)


def _results(run: TargetRun) -> Markup | None:
    if not run.results:
        return None
    parts = [element("p", run.explanation, class_="note")]
    for protocol in run.protocols:
        parts.append(_protocol_heading(protocol))
        for dataset in run.datasets:
            rows = metric_rows(run, dataset, protocol)
            if not rows:
                continue
            names = run.metric_names(dataset)
            body = [
                [row_header(row.method), *map(_metric_cell, row.estimates, row.best)]
                for row in rows
            ]
            parts += [
                element("p", caption_of(run, dataset, protocol), class_="note"),
                table(
                    f"{dataset}, selection protocol {protocol}",
                    ["Method"],
                    list(names.values()),
                    body,
                ),
            ]
    return join(*parts)


def _labels(run: TargetRun) -> Markup | None:
    parts: list[Markup] = []
    for protocol in run.leakage_free or run.protocols:
        for dataset in run.datasets:
            body = [
                [
                    row_header(row.method),
                    text_cell(row.label),
                    number_cell(str(row.slides), row.slides),
                    number_cell(ABSENT if row.positive < 0 else str(row.positive), row.positive),
                    *map(_metric_cell, row.estimates),
                ]
                for row in label_rows(run, dataset, protocol)
            ]
            if body:
                parts += [
                    _protocol_heading(protocol),
                    table(
                        f"Labels of {dataset}, selection protocol {protocol}",
                        ["Method", "Label"],
                        ["Slides", "Positive", *LABEL_METRICS.values()],
                        body,
                    ),
                ]
    words = (
        "Slides whose label is known, and those of them that have it. A label with one value has "
        "no metrics and is left out of the macro average."
    )
    return join(element("p", words, class_="note"), *parts) if parts else None


def _comparisons(run: TargetRun, compared: Sequence[TargetComparison]) -> Markup | None:
    if not compared:
        return None
    words = f"Difference in {run.the_main} to the reference method with its 95 % interval. {P_NOTE}"
    parts = [element("p", words, class_="note")]
    for protocol in run.protocols:
        here = [each for each in compared if each.protocol == protocol]
        if not here:
            continue
        rows = [
            [
                row_header(each.method, f"against {each.against}"),
                text_cell(each.dataset),
                element("td", each.sentence(), class_="words"),
                number_cell(format_number(each.found.value_a), each.found.value_a),
                number_cell(format_number(each.found.value_b), each.found.value_b),
                number_cell(
                    join(
                        change(each.found.difference),
                        element(
                            "small",
                            f"{change(each.found.interval.low)} to "
                            f"{change(each.found.interval.high)}",
                        ),
                    ),
                    each.found.difference,
                ),
                number_cell(p_value(each.p), each.p),
                number_cell(p_value(each.holm_p), each.holm_p),
            ]
            for each in here
        ]
        columns = [run.main_name, "Reference", f"Δ {run.main_name}", "p", "p (Holm)"]
        parts += [
            _protocol_heading(protocol),
            table(
                f"Comparisons under selection protocol {protocol}",
                ["Method", DATASET, "Summary"],
                columns,
                rows,
            ),
        ]
    return join(*parts)


def _shown(run: TargetRun) -> list[tuple[Key, HeldOutRows]]:
    """The predictions under the first leakage-free protocol."""
    protocol = next(iter(run.leakage_free or run.protocols), None)
    return [(key, rows) for key, rows in run.held_out.items() if key.protocol == protocol]


def _panel_title(run: TargetRun, key: Key) -> str:
    return f"{key.method}, {key.dataset}" if len(run.datasets) > 1 else key.method


def _under_protocol(run: TargetRun, words: str) -> Markup:
    protocol = next(iter(run.leakage_free or run.protocols))
    return join(
        element("p", f"{words} Selection protocol “{protocol}”. ", badge(protocol)),
        element("p", WARNING, class_="warn") if protocol == TUNED else None,
    )


def _risk_groups(run: TargetRun) -> Markup | None:
    figures = []
    for key, rows in _shown(run):
        found = find_risk_groups(rows)
        sizes = ", ".join(f"{size} {name}" for name, size in found.sizes.items())
        tested = (
            f"log-rank test {p_equals(found.test.p_value)}"
            if found.test
            else "all patients are in one group"
        )
        time = str(run.targets.get(key.dataset, {}).get("time", "time"))
        title = f"{_panel_title(run, key)}: {sizes}; {tested}"
        figures.append(target_plots.survival_panel(title, found.groups, time))
    if not figures:
        return None
    words = (
        "Kaplan-Meier curves of the test patients with a low and a high predicted risk; short "
        "lines are censored times. The cut-off of each fold is the median risk of its training "
        "patients. A patient has a high risk if more than half of the predictions (over slides "
        "and repeats) are above it."
    )
    return join(_under_protocol(run, words), target_plots.survival_legend(), plots.panels(*figures))


def _agreement(run: TargetRun) -> Markup | None:
    figures = []
    for key, rows in _shown(run):
        name = str(run.targets.get(key.dataset, {}).get("name", "value"))
        _, first, units = np.unique(rows.bags, return_index=True, return_inverse=True)
        predicted = np.bincount(units, rows.predicted[:, 0]) / np.bincount(units)
        figures.append(
            target_plots.agreement_panel(
                _panel_title(run, key), rows.observed[first, 0], predicted, name
            )
        )
    words = (
        "Predicted number (vertical) against the observed one (horizontal) of each test slide, the "
        "mean over repeats; on the line they agree."
    )
    return join(_under_protocol(run, words), plots.panels(*figures)) if figures else None


def _confusions(run: TargetRun) -> Markup | None:
    figures = []
    for key, _ in _shown(run):
        grades, counts = confusion_of(run, key)
        rows = [
            [
                row_header(f"observed {grade}"),
                *(number_cell(f"{count:.4g}", float(count)) for count in own),
            ]
            for grade, own in zip(grades, counts)
        ]
        noun = "class" if run.task == "class" else "grade"
        name = f"Confusion, {_panel_title(run, key)}"
        figures += [
            element("h3", _panel_title(run, key)),
            table(name, [noun.capitalize()], [f"predicted {grade}" for grade in grades], rows),
        ]
    words = "Number of test slides, the mean over repeats."
    return join(_under_protocol(run, words), *figures) if figures else None
