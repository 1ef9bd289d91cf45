"""The tables of a task other than classes, independent of their format."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scmil.report.html.markup import ABSENT, change, format_number, p_value
from scmil.report.run import TUNED, Estimate, Key
from scmil.report.tables import TerminalTable
from scmil.report.target_comparisons import TargetComparison, compare_target_methods
from scmil.report.target_run import (
    LABEL_METRICS,
    MEANING,
    SMALLER_IS_BETTER,
    WARNING,
    TargetRun,
)
from scmil.stats.ordinal import grade_confusion

DIGITS = 3
P_NOTE = (
    "p: the larger of those of a paired bootstrap over patients and of a t-test over folds, "
    "corrected for their shared training bags (Nadeau and Bengio), which includes the variation "
    "between training sets; with one test set that of the bootstrap. p (Holm): corrected for all "
    "comparisons under a protocol. The interval is that of the bootstrap."
)


class MetricRow(NamedTuple):
    """The metrics of one method on one data set; None where there is none."""

    method: str
    estimates: tuple[Estimate | None, ...]
    best: tuple[bool, ...]


class LabelRow(NamedTuple):
    """One label of one method, or the macro average, with its numbers of slides."""

    method: str
    label: str
    slides: int
    positive: int
    estimates: tuple[Estimate | None, ...]


def metric_rows(run: TargetRun, dataset: str, protocol: str) -> list[MetricRow]:
    """The metrics of all methods; the best is marked if the protocol is leakage-free."""
    names = run.metric_names(dataset)
    found = [
        (method.name, tuple(run.results[key].metrics.get(name) for name in names))
        for method in run.methods
        if (key := Key(method.name, dataset, protocol)) in run.results
    ]
    best = []
    for position, name in enumerate(names):
        means = [_rounded(estimates[position]) for _, estimates in found]
        known = [mean for mean in means if mean is not None]
        pick = min if _smaller_is_better(name) else max
        best.append(pick(known) if known and protocol != TUNED else None)
    return [
        MetricRow(
            method,
            estimates,
            tuple(
                top is not None and _rounded(own) == top
                for own, top in zip(estimates, best, strict=True)
            ),
        )
        for method, estimates in found
    ]


def label_rows(run: TargetRun, dataset: str, protocol: str) -> list[LabelRow]:
    """One row for each label of each method, and the macro average."""
    names = [str(name) for name in run.targets.get(dataset, {}).get("names", ())]
    rows = []
    for method in run.methods:
        key = Key(method.name, dataset, protocol)
        if key not in run.results:
            continue
        metrics, tested = run.results[key].metrics, run.held_out[key]
        observed = tested.observed[tested.repeats == tested.repeats.min()]
        for position, label in enumerate(names):
            column = observed[:, position]
            estimates = tuple(metrics.get(f"{label}: {metric}") for metric in LABEL_METRICS)
            known, positive = int((~np.isnan(column)).sum()), int(np.nansum(column))
            rows.append(LabelRow(method.name, label, known, positive, estimates))
        macro = tuple(metrics.get(f"macro: {metric}") for metric in LABEL_METRICS)
        rows.append(LabelRow(method.name, "macro average", len(observed), -1, macro))
    return rows


def confusion_of(run: TargetRun, key: Key) -> tuple[list[str], np.ndarray]:
    """The grades or classes, and how often each (rows) was predicted as each: a mean over
    the repeats.
    """
    target = run.targets[key.dataset]
    grades = [str(grade) for grade in target.get("grades") or target.get("classes") or ()]
    rows = run.held_out[key]
    of_classes = run.task == "class"
    predicted = rows.predicted.argmax(1) if of_classes else rows.predicted[:, 0].astype(int)
    table = grade_confusion(rows.observed[:, 0].astype(int), predicted, len(grades))
    return grades, table / len(np.unique(rows.repeats))


def caption_of(run: TargetRun, dataset: str, protocol: str) -> str:
    """What a table shows: number of patients, folds and repeats, and the selection protocol."""
    key = next(key for key in run.results if key[1:] == (dataset, protocol))
    result, rows = run.results[key], run.held_out[key]
    own = rows.repeats == rows.repeats.min()
    patients = len(np.unique(rows.patients[own]))
    events = ""
    if run.task == "survival":
        events = f", {len(np.unique(rows.patients[own & (rows.observed[:, 1] > 0)]))} with an event"
    times = f"{result.repeats} x {result.folds}" if result.repeats > 1 else f"{result.folds}"
    meaning = MEANING.get(protocol, "as defined by the experiment")
    noun = "slides" if run.patient_mode is None else "patients"
    counted = f"{result.bags} slides of " if run.patient_mode is None else ""
    return (
        f"{dataset}: {_target_words(run, dataset)}. {counted}{patients} patients{events}; all test "
        f"{noun} of {times} folds together. Selection protocol "
        f"“{protocol}”: {meaning}."
    )


def _target_words(run: TargetRun, dataset: str) -> str:
    target = run.targets.get(dataset, {})
    if run.task == "survival":
        return f"time to an event (columns {target.get('time')} and {target.get('event')})"
    if run.task == "multilabel":
        return f"{len(target.get('names', ()))} labels"
    kind = {"ordinal": "ordered grade", "class": "class"}.get(run.task, "number")
    return f"{kind} (column {target.get('name')})"


def with_interval(estimate: Estimate | None) -> str:
    """A metric with its 95 % interval.

    >>> with_interval(Estimate(0.7, math.nan, 0.65, 0.752)), with_interval(None)
    ('0.700 (0.650 to 0.752)', '–')
    """
    if estimate is None or not math.isfinite(estimate.mean):
        return ABSENT
    limits = interval_text(estimate)
    return format_number(estimate.mean) + (f" ({limits})" if limits else "")


def interval_text(estimate: Estimate | None) -> str:
    """The limits of a metric; empty if there are none."""
    if estimate is None or not math.isfinite(estimate.low + estimate.high):
        return ""
    return f"{format_number(estimate.low)} to {format_number(estimate.high)}"


def target_rows_for_terminal(run: TargetRun) -> list[TerminalTable]:
    """The tables of all protocols and data sets as plain text."""
    tables = []
    for protocol in run.protocols:
        for dataset in run.datasets:
            rows = metric_rows(run, dataset, protocol)
            if not rows:
                continue
            names = run.metric_names(dataset)
            shown = [place for place, name in enumerate(names) if name in run.headline]
            written = tuple(
                (row.method, *(_two_lines(row.estimates[place]) for place in shown)) for row in rows
            )
            columns = ("", *(list(names.values())[place] for place in shown))
            note = WARNING if protocol == TUNED else ""
            title = caption_of(run, dataset, protocol)
            tables.append(TerminalTable(title, columns, written, note))
    return tables


def target_comparisons_for_terminal(
    run: TargetRun, compared: Sequence[TargetComparison] | None = None
) -> TerminalTable | None:
    """The comparisons under the leakage-free protocols as plain text; None if there are none."""
    rows = tuple(
        (
            f"{each.method}\nagainst {each.against}",
            each.dataset,
            each.protocol,
            f"{change(each.found.difference)}\n({change(each.found.interval.low)} to "
            f"{change(each.found.interval.high)})",
            p_value(each.p),
            p_value(each.holm_p),
        )
        for each in (compare_target_methods(run) if compared is None else compared)
        if each.protocol in run.leakage_free
    )
    columns = ("", "data set", "protocol", f"Δ {run.main_name}", "p", "p (Holm)")
    return TerminalTable("Comparisons", columns, rows, P_NOTE) if rows else None


def _two_lines(estimate: Estimate | None) -> str:
    limits = interval_text(estimate)
    return format_number(estimate.mean if estimate else None) + (f"\n{limits}" if limits else "")


def _rounded(estimate: Estimate | None) -> float | None:
    if estimate is None or not math.isfinite(estimate.mean):
        return None
    return round(estimate.mean, DIGITS)


def _smaller_is_better(name: str) -> bool:
    return name in SMALLER_IS_BETTER
