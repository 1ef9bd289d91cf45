"""The report as Markdown and as LaTeX: summary, main tables and comparisons."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scmil.report import paper_tables as paper
from scmil.report.comparisons import MethodComparison, across_datasets
from scmil.report.html.markup import ABSENT, change, format_number, latex, markdown, p_value
from scmil.report.layer_matrix import (
    LayerMatrix,
    final_losses,
    layer_effects,
    layer_matrix,
    matrix_rows,
)
from scmil.report.run import TUNED, Run
from scmil.report.tables import WARNING, Row, TableEntry, caption, main_table, spread
from scmil.report.verdict import class_verdict


def write_markdown(run: Run, compared: Sequence[MethodComparison]) -> str:
    """The Markdown report: summary, a table per selection protocol, and the comparisons."""
    parts = [
        f"# {markdown(run.title)}",
        markdown(run.about),
        markdown(class_verdict(run, compared)),
        "## Results",
    ]
    if run.published:
        parts.append(
            (
                "In parentheses: the published result and the difference of ours to it. "
                f"{markdown(run.published_note)}"
            ).strip()
        )
    matrix = layer_matrix(run)
    parts += [
        _markdown_table(run, protocol)
        if matrix is None
        else _markdown_matrix(run, matrix, protocol)
        for protocol in run.protocols
    ]
    if compared:
        parts.append("## Comparisons")
        parts += [
            _markdown_comparisons(protocol, compared)
            if matrix is None
            else _markdown_effects(run, matrix, protocol, compared)
            for protocol in run.protocols
        ]
    parts.append(paper.markdown_section(run))
    if matrix is not None:
        parts += ["## Training loss in the last epoch", *_markdown_losses(run, matrix)]
    elif costs := markdown_costs(run):
        parts += ["## Cost", costs]
    if run.failed or run.missing:
        failed = [f"- {markdown(name)}: {markdown(cause)}" for name, cause in run.failed.items()]
        parts += [
            "## Missing and failed runs",
            "\n".join([*failed, *(f"- {markdown(c.name)}: no result" for c in run.missing)]),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown_costs(run: Run) -> str:
    """The table of costs; empty without results."""
    rows = []
    for planned in run.planned:
        found = next(
            (
                result
                for key, result in run.results.items()
                if key[:2] == (planned.method, planned.dataset)
            ),
            None,
        )
        if found and planned.name in run.costs:
            more = run.costs[planned.name]
            values = (found.parameters, more.multiply_adds, found.seconds, more.memory_mib)
            costs = [ABSENT if math.isnan(value) else f"{value:,.0f}" for value in values]
            rows.append([markdown(planned.method), markdown(planned.dataset), *costs])
    columns = [
        "Method",
        "Data set",
        "Parameters",
        "Multiply-adds of a median bag",
        "Processor seconds",
        "Peak memory, MiB",
    ]
    return markdown_rows(columns, rows, words=2) if rows else ""


def _markdown_warning(protocol: str) -> str:
    return f"> **Warning.** {WARNING}\n\n" if protocol == TUNED else ""


def markdown_rows(columns: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """A table whose first columns are words and whose others are numbers."""
    rule = ["---" if i < words else "---:" for i in range(len(columns))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [columns, rule, *rows])


def _markdown_table(run: Run, protocol: str) -> str:
    rows = main_table(run, protocol)
    columns = [
        "Method",
        *map(markdown, run.datasets),
        *(["mean"] if any(row.mean for row in rows) else []),
    ]
    body = [
        [markdown(row.method), *map(_markdown_entry, row.all_entries[: len(columns) - 1])]
        for row in rows
    ]
    heading = (
        f"### Selection protocol “{markdown(protocol)}”\n\n"
        f"{_markdown_warning(protocol)}{markdown(caption(run, protocol))}"
    )
    return f"{heading}\n\n{markdown_rows(columns, body)}"


def _markdown_entry(entry: TableEntry | None) -> str:
    if entry is None:
        return ABSENT
    ours = f"**{spread(entry)}**" if entry.best else spread(entry)
    return (
        ours
        if math.isnan(entry.published)
        else f"{ours} ({format_number(entry.published)}, {change(entry.difference)})"
    )


def _markdown_comparisons(protocol: str, compared: Sequence[MethodComparison]) -> str:
    here = [each for each in compared if each.protocol == protocol]
    columns = [
        "Method",
        "Against",
        "Data set",
        "Δ accuracy",
        "95 % interval",
        "corrected p",
        "Wilcoxon p (Holm)",
        "Δ AUC",
        "DeLong p",
    ]
    rows = [
        [
            *map(markdown, (each.method, each.against, each.dataset)),
            change(each.accuracy.delta),
            f"{change(each.interval.low)} to {change(each.interval.high)}",
            p_value(each.accuracy.p),
            p_value(each.holm_p),
            change(each.auc.difference if each.auc else None),
            p_value(each.auc.p if each.auc else None),
        ]
        for each in here
    ]
    sentences = "\n".join(f"- {markdown(each.sentence())}" for each in across_datasets(here))
    heading = f"### Selection protocol “{markdown(protocol)}”\n\n{_markdown_warning(protocol)}"
    return f"{heading}{markdown_rows(columns, rows, words=3)}\n\n{sentences}".strip()


def _markdown_matrix(run: Run, matrix: LayerMatrix, protocol: str) -> str:
    """Accuracy and AUC of every data set, a row per reference method and a column per layer."""
    parts = [f"### Selection protocol “{markdown(protocol)}”\n\n{_markdown_warning(protocol)}"]
    for dataset in run.datasets:
        for metric in ("accuracy", "auc"):
            rows = [
                [markdown(row.method), *map(_markdown_entry, row.entries)]
                for row in matrix_rows(run, matrix, dataset, protocol, metric)
            ]
            columns = ["Method", *map(markdown, matrix.columns)]
            words = f"**{markdown(dataset)}.** {markdown(caption(run, protocol, metric))}"
            parts += [words, markdown_rows(columns, rows)]
    return "\n\n".join(part.strip() for part in parts)


def _markdown_effects(
    run: Run, matrix: LayerMatrix, protocol: str, compared: Sequence[MethodComparison]
) -> str:
    """Every layer over all reference methods."""
    columns = ["Layer", "Against", "Data set", "Methods", "mean Δ accuracy", "mean Δ AUC"]
    columns += ["better / worse / equal", "significant gains / losses"]
    rows = [
        [
            *map(markdown, (row.layer, row.against, dataset)),
            str(row.pairs),
            change(row.accuracy),
            change(row.auc),
            f"{row.better} / {row.worse} / {row.equal}",
            ABSENT if row.gains is None else f"{row.gains} / {row.losses}",
        ]
        for dataset in run.datasets
        for row in layer_effects(run, matrix, compared, dataset, protocol)
    ]
    heading = f"### Selection protocol “{markdown(protocol)}”\n\n{_markdown_warning(protocol)}"
    return f"{heading}{markdown_rows(columns, rows, words=3)}"


def _markdown_losses(run: Run, matrix: LayerMatrix) -> list[str]:
    tables = []
    for dataset in run.datasets:
        found = final_losses(run, matrix, dataset)
        rows = [
            [
                markdown(name),
                *(format_number(found.get((name, c)), digits=4) for c in matrix.columns),
            ]
            for name in matrix.rows
        ]
        columns = ["Method", *map(markdown, matrix.columns)]
        tables += [f"**{markdown(dataset)}**", markdown_rows(columns, rows)] if found else []
    return tables


LATEX_HEAD = r"""% Needs \usepackage{booktabs}; published results are grey with \usepackage{xcolor}.
\providecommand{\textcolor}[2]{#2}
"""


def write_latex(run: Run) -> str:
    """A booktabs table per selection protocol, to be included with \\input; published results in
    grey below ours.
    """
    matrix = layer_matrix(run)
    tables = []
    for protocol in run.protocols:
        if matrix is None:
            rows = main_table(run, protocol)
            columns = [*run.datasets, *(["mean"] if any(row.mean for row in rows) else [])]
            tables.append(_latex_table(run, protocol, run.title, columns, rows))
            continue
        tables += [
            _latex_table(
                run,
                protocol,
                f"{run.title}, {dataset}" if len(run.datasets) > 1 else run.title,
                matrix.columns,
                matrix_rows(run, matrix, dataset, protocol),
            )
            for dataset in run.datasets
        ]
    return LATEX_HEAD + "\n".join(tables)


def _latex_table(
    run: Run, protocol: str, title: str, columns: Sequence[str], rows: Sequence[Row]
) -> str:
    warning = r" \textbf{Warning:} " + latex(WARNING) if protocol == TUNED else ""
    return "\n".join(
        [
            r"\begin{table}[tb]",
            r"  \centering\small",
            rf"  \caption{{{latex(title)}. {latex(caption(run, protocol))}{warning}}}",
            rf"  \begin{{tabular}}{{l{'c' * len(columns)}}}",
            r"    \toprule",
            f"    Method & {' & '.join(map(latex, columns))} " + r"\\",
            r"    \midrule",
            *(
                line
                for row in rows
                for line in _latex_row(row.method, row.all_entries[: len(columns)])
            ),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _latex_row(method: str, entries: Sequence[TableEntry | None]) -> list[str]:
    lines = [f"    {latex(method)} & {' & '.join(map(_latex_ours, entries))} " + r"\\"]
    if any(entry and not math.isnan(entry.published) for entry in entries):
        lines.append(f"     & {' & '.join(map(_latex_published, entries))} " + r"\\")
    return lines


def _latex_ours(entry: TableEntry | None) -> str:
    if entry is None:
        return "--"
    mean = (
        rf"\textbf{{{latex(format_number(entry.mean))}}}"
        if entry.best
        else latex(format_number(entry.mean))
    )
    return mean if math.isnan(entry.sd) else rf"{mean} $\pm$ {format_number(entry.sd)}"


def _latex_published(entry: TableEntry | None) -> str:
    if entry is None or math.isnan(entry.published):
        return ""
    difference = latex(change(entry.difference))
    return rf"\textcolor{{gray}}{{\scriptsize {format_number(entry.published)} ({difference})}}"
