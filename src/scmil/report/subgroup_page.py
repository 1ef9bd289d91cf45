"""The HTML page of metrics by subgroup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scmil.report.html.markup import Markup, element, format_number, join, p_equals, p_value
from scmil.report.html.tables import number_cell, row_header, table, text_cell
from scmil.report.page import whole_page
from scmil.report.target_model_page import metric_name
from scmil.report.target_run import INTERVALS
from scmil.stats.subgroups import (
    LEAST_OF_CLASS,
    LEAST_PATIENTS,
    PERMUTATIONS,
    Gap,
    Subgroup,
    SubgroupTable,
)

NAMES = {
    "accuracy": "Accuracy",
    "auc": "AUC",
    "sensitivity": "Sensitivity",
    "specificity": "Specificity",
    "balanced_accuracy": "Balanced accuracy",
}
METHOD_OF_CLASSES = (
    "Wilson's score interval for proportions, score interval with the variance of "
    "normal scores for the AUC, both at the effective number of patients."
)
# Between which patients groups are exchanged, and what makes a group small, by task.
EXCHANGED = {
    "class": "between patients of the same class",
    "survival": "between patients with an event, and between those without",
    "regression": "between patients of the same quarter of the observed numbers",
    "ordinal": "between patients of the same grade",
    "multilabel": "between patients with the same value of the label; for the mean over labels, "
    "with the same number of present labels",
}
TOO_FEW = {
    "class": f", or fewer than {LEAST_OF_CLASS} of a class",
    "survival": f", or fewer than {LEAST_OF_CLASS} with an event",
    "multilabel": f", or for the AUC of a label fewer than {LEAST_OF_CLASS} with or without it",
}


def write_subgroup_page(
    origin: str,
    classes: Sequence[str],
    found: SubgroupTable,
    notes: Sequence[str] = (),
    task: str = "class",
    tasks: Mapping[str, str] | None = None,
) -> str:
    """The page as HTML.

    Args:
        origin: What the metrics are computed from.
        classes: Names of the classes, grades or labels.
        found: The groups and their gaps.
        notes: Further notes for the reader.
        task: The task.
        tasks: The task of each of several targets, whose names begin the columns.
    """
    title = "Metrics by subgroup"
    about = f"On the {origin}."
    if tasks:
        about += f" Targets: {', '.join(f'{name} ({own})' for name, own in tasks.items())}."
    elif task == "class":
        about += f" Classes: {', '.join(classes)}."
        if len(classes) == 2:
            about += f" Sensitivity is that for {classes[1]!r}."
    else:
        about += f" Task: {task}."
    by_target = dict(tasks or {"": task})
    method = _text_by_target(INTERVALS | {"class": METHOD_OF_CLASSES}, by_target, " ")
    few = "".join(dict.fromkeys(TOO_FEW.get(own, "") for own in by_target.values()))
    small = (
        f"Small groups (fewer than {LEAST_PATIENTS} patients{few}) and missing "
        "values are marked, and are left out of the gaps."
    )
    test = (
        f"p: permutation test with {PERMUTATIONS} permutations, in which the groups are exchanged "
        f"{_text_by_target(EXCHANGED, by_target, '; ')}. Adjusted p: Holm's correction for all "
        f"{len(found.gaps)} gaps of this table."
    )
    columns = list(dict.fromkeys(group.column for group in found.groups))
    return whole_page(
        title,
        element("header", element("h1", title), element("p", about, class_="about")),
        element("p", summarise_gaps(found), class_="verdict"),
        *(element("p", note, class_="note") for note in notes),
        _section(
            "Groups",
            element("p", f"95 % intervals: {method} {small}", class_="note"),
            *(
                _group_table(column, [group for group in found.groups if group.column == column])
                for column in columns
            ),
        ),
        _section("Gaps", element("p", test, class_="note"), _gap_table(found.gaps))
        if found.gaps
        else Markup(),
        element("footer", "Written by scmil. For research use only. Not a medical device."),
    )


def _text_by_target(texts: Mapping[str, str], tasks: Mapping[str, str], separator: str) -> str:
    """The text of a task, or of each of several targets with its name."""
    named = [(f"{name}: " if name else "") + texts[task] for name, task in tasks.items()]
    return separator.join(named)


def summarise_gaps(found: SubgroupTable) -> str:
    """The largest gap as a sentence that names the number of gaps that were compared.

    >>> gap = Gap("site", "auc", "A", "B", 0.21, 0.01, 0.04)
    >>> print(summarise_gaps(SubgroupTable((), (gap,))))
    Largest of 1 compared gap: AUC of site, A better than B by 0.210 (p = 0.01, adjusted p = 0.04).
    """
    words = ""
    if gap := found.worst:
        number = f"{len(found.gaps)} compared gap{'s' * (len(found.gaps) > 1)}"
        words = (
            f"Largest of {number}: {_metric_title(gap.metric)} of {gap.column}, {gap.best} better "
            f"than {gap.worst} by {format_number(gap.difference)} ({p_equals(gap.p)}, adjusted "
            f"{p_equals(gap.adjusted)})."
        )
        real = [each for each in found.gaps if each.adjusted < 0.05]
        if real and real[0] is not gap:
            other = min(real, key=lambda each: each.adjusted)
            words += (
                f" The gap with the smallest adjusted p: {_metric_title(other.metric)} of "
                f"{other.column}, {format_number(other.difference)} ({p_equals(other.adjusted)})."
            )
    if found.not_compared:
        words += (
            f" Not compared, because fewer than two groups are large enough: "
            f"{', '.join(found.not_compared)}."
        )
    return words.strip()


def _metric_title(metric: str) -> str:
    """The name of a metric of any task."""
    return NAMES.get(metric) or metric_name(metric)


def _section(title: str, *body: Markup) -> Markup:
    return element("section", element("h2", title), *body)


def _group_table(column: str, groups: Sequence[Subgroup]) -> Markup:
    metrics = list(groups[0].metrics)
    rows = []
    for group in groups:
        cells = [
            row_header(group.name, "small group" if group.small else None),
            number_cell(str(group.slides), group.slides),
            number_cell(str(group.patients), group.patients),
        ]
        for metric in metrics:
            value, (low, high) = group.metrics[metric]
            limits = element("small", f"{format_number(low)} to {format_number(high)}")
            cells.append(number_cell(join(format_number(value), limits), value))
        rows.append(cells)
    heads = ["Slides", "Patients", *(_metric_title(metric) for metric in metrics)]
    return join(element("h3", column), table(f"Metrics by {column}", [column], heads, rows))


def _gap_table(gaps: Sequence[Gap]) -> Markup:
    rows = [
        [
            row_header(gap.column),
            text_cell(_metric_title(gap.metric)),
            text_cell(gap.best),
            text_cell(gap.worst),
            number_cell(format_number(gap.difference), gap.difference),
            number_cell(p_value(gap.p), gap.p),
            number_cell(p_value(gap.adjusted), gap.adjusted),
        ]
        for gap in gaps
    ]
    words = ["Column", "Metric", "Best in", "Worst in"]
    return table("Gaps between subgroups", words, ["Gap", "p", "Adjusted p"], rows)
