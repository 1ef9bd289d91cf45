"""The report of a task other than classes as Markdown and as LaTeX."""

from __future__ import annotations

from collections.abc import Sequence

from scmil.report.html.markup import (
    ABSENT,
    change,
    format_number,
    latex,
    markdown,
    p_equals,
    p_value,
)
from scmil.report.markdown_latex import LATEX_HEAD, markdown_costs, markdown_rows
from scmil.report.run import TUNED, Estimate, Key, Run
from scmil.report.target_comparisons import TargetComparison, find_risk_groups
from scmil.report.target_run import LABEL_METRICS, WARNING, TargetRun
from scmil.report.target_tables import (
    P_NOTE,
    caption_of,
    confusion_of,
    interval_text,
    label_rows,
    metric_rows,
    with_interval,
)
from scmil.report.target_verdict import target_verdict


def write_target_markdown(run: TargetRun, compared: Sequence[TargetComparison]) -> str:
    """The Markdown report: summary, tables of each protocol, comparisons, and those of the task."""
    parts = [
        f"# {markdown(run.title)}",
        markdown(run.about),
        markdown(target_verdict(run, compared)),
        *task_parts(run, compared),
        *further_parts(run),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def task_parts(run: TargetRun, compared: Sequence[TargetComparison]) -> list[str]:
    """The parts of the Markdown report that depend on the task."""
    parts = ["## Results", markdown(run.explanation) if run.results else ""]
    for protocol in run.protocols:
        parts.append(_heading(protocol))
        parts += [_result_lines(run, dataset, protocol) for dataset in run.datasets]
    if compared:
        parts += ["## Comparisons", markdown(P_NOTE)]
        for protocol in run.protocols:
            if here := [each for each in compared if each.protocol == protocol]:
                parts += [_heading(protocol), _comparison_lines(run, here)]
    return parts + _of_task(run)


def further_parts(run: Run) -> list[str]:
    """The parts of the Markdown report that all tasks have: costs, missing and failed runs."""
    parts = []
    if costs := markdown_costs(run):
        parts += ["## Cost", costs]
    if run.failed or run.missing:
        failed = [f"- {markdown(name)}: {markdown(cause)}" for name, cause in run.failed.items()]
        missing = [f"- {markdown(each.name)}: no result" for each in run.missing]
        parts += ["## Missing and failed runs", "\n".join([*failed, *missing])]
    return parts


def _heading(protocol: str) -> str:
    warning = f"\n\n> **Warning.** {WARNING}" if protocol == TUNED else ""
    return f"### Selection protocol “{markdown(protocol)}”{warning}"


def _result_lines(run: TargetRun, dataset: str, protocol: str) -> str:
    rows = metric_rows(run, dataset, protocol)
    if not rows:
        return ""
    columns = ["Method", *map(markdown, run.metric_names(dataset).values())]
    body = [
        [
            markdown(row.method),
            *(
                f"**{with_interval(own)}**" if best else with_interval(own)
                for own, best in zip(row.estimates, row.best)
            ),
        ]
        for row in rows
    ]
    return f"{markdown(caption_of(run, dataset, protocol))}\n\n{markdown_rows(columns, body)}"


def _comparison_lines(run: TargetRun, compared: Sequence[TargetComparison]) -> str:
    columns = [
        "Method",
        "Against",
        "Data set",
        f"Δ {markdown(run.main_name)}",
        "95 % interval",
        "p",
        "p (Holm)",
    ]
    rows = [
        [
            *map(markdown, (each.method, each.against, each.dataset)),
            change(each.found.difference),
            f"{change(each.found.interval.low)} to {change(each.found.interval.high)}",
            p_value(each.p),
            p_value(each.holm_p),
        ]
        for each in compared
    ]
    return markdown_rows(columns, rows, words=3)


def _of_task(run: TargetRun) -> list[str]:
    """Risk groups, labels or confusion under the first leakage-free protocol."""
    protocol = next(iter(run.leakage_free or run.protocols), None)
    if protocol is None:
        return []
    keys = [key for key in run.held_out if key.protocol == protocol]
    if run.task == "survival":
        return ["## Risk groups", _heading(protocol), _risk_group_lines(run, keys)]
    if run.task == "multilabel":
        tables = [_label_lines(run, dataset, protocol) for dataset in run.datasets]
        return ["## Labels", _heading(protocol), *tables]
    if run.task in ("ordinal", "class"):
        tables = [_confusion_lines(run, key) for key in keys]
        noun = "grades" if run.task == "ordinal" else "classes"
        return [f"## Confusion of {noun}", _heading(protocol), *tables]
    return []


def _risk_group_lines(run: TargetRun, keys: Sequence[Key]) -> str:
    rows = []
    for key in keys:
        found = find_risk_groups(run.held_out[key])
        test = p_equals(found.test.p_value) if found.test else ABSENT
        for name, curve in found.groups.items():
            row = [key.method, key.dataset, name, str(found.sizes[name])]
            events, median = str(int(curve.events.sum())), format_number(curve.median)
            rows.append([*map(markdown, row), events, median, test])
    columns = ["Method", "Data set", "Group", "Patients", "Events", "Median time", "Log-rank test"]
    words = (
        "The cut-off of each fold is the median risk of its training patients. The median time is "
        "that of the Kaplan-Meier estimate; – if fewer than half of the patients had the event."
    )
    return f"{words}\n\n{markdown_rows(columns, rows, words=3)}"


def _label_lines(run: TargetRun, dataset: str, protocol: str) -> str:
    columns = ["Method", "Label", "Slides", "Positive", *LABEL_METRICS.values()]
    rows = [
        [
            markdown(row.method),
            markdown(row.label),
            str(row.slides),
            ABSENT if row.positive < 0 else str(row.positive),
            *map(with_interval, row.estimates),
        ]
        for row in label_rows(run, dataset, protocol)
    ]
    return markdown_rows(columns, rows, words=2) if rows else ""


def _confusion_lines(run: TargetRun, key: Key) -> str:
    grades, counts = confusion_of(run, key)
    columns = [
        f"{markdown(key.method)}, {markdown(key.dataset)}",
        *(f"predicted {markdown(grade)}" for grade in grades),
    ]
    rows = [
        [f"observed {markdown(grade)}", *(f"{count:.4g}" for count in own)]
        for grade, own in zip(grades, counts)
    ]
    return markdown_rows(columns, rows)


def write_target_latex(run: TargetRun) -> str:
    """A booktabs table per selection protocol and data set, to be included with \\input."""
    return LATEX_HEAD + "\n".join(latex_tables(run))


def latex_tables(run: TargetRun) -> list[str]:
    """The tables of a task."""
    tables = [
        _latex_target_table(run, dataset, protocol)
        for protocol in run.protocols
        for dataset in run.datasets
    ]
    return [table for table in tables if table]


def _latex_target_table(run: TargetRun, dataset: str, protocol: str) -> str:
    rows = metric_rows(run, dataset, protocol)
    if not rows:
        return ""
    columns = list(run.metric_names(dataset).values())
    warning = r" \textbf{Warning:} " + latex(WARNING) if protocol == TUNED else ""
    caption = f"{run.title}. {caption_of(run, dataset, protocol)} {run.explanation}"
    lines = []
    for row in rows:
        values = [_latex_value(own, best) for own, best in zip(row.estimates, row.best)]
        limits = [rf"\scriptsize {latex(interval_text(own))}" for own in row.estimates]
        lines += [f"    {latex(row.method)} & {' & '.join(values)} " + r"\\"]
        lines += [f"     & {' & '.join(limits)} " + r"\\"]
    return "\n".join(
        [
            r"\begin{table}[tb]",
            r"  \centering\small",
            rf"  \caption{{{latex(caption)}{warning}}}",
            rf"  \begin{{tabular}}{{l{'c' * len(columns)}}}",
            r"    \toprule",
            f"    Method & {' & '.join(map(latex, columns))} " + r"\\",
            r"    \midrule",
            *lines,
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _latex_value(estimate: Estimate | None, best: bool) -> str:
    text = latex(format_number(estimate.mean if estimate else None))
    return rf"\textbf{{{text}}}" if best else text
