"""The report as Markdown and as LaTeX: the verdict, the main tables and the comparisons, ready to be pasted."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scmil.report import paper_tables as paper
from scmil.report.comparisons import Compared, across_datasets
from scmil.report.html.markup import ABSENT, change, latex, markdown, number, p_value
from scmil.report.run_files import TUNED, Run
from scmil.report.tables import WARNING, Entry, caption, main_table, spread
from scmil.report.verdict import verdict


def write_markdown(run: Run, compared: Sequence[Compared]) -> str:
    """Verdict, a table for each protocol, and the comparisons."""
    parts = [f"# {markdown(run.title)}", markdown(run.about), markdown(verdict(run, compared)), "## Results"]
    if run.published:
        parts.append(f"In brackets: as published, and how far ours is from it. {markdown(run.published_note)}".strip())
    parts += [_markdown_table(run, protocol) for protocol in run.protocols]
    if compared:
        parts.append("## Comparisons")
        parts += [_markdown_comparisons(protocol, compared) for protocol in run.protocols]
    parts.append(paper.markdown_section(run))
    if costs := _markdown_costs(run):
        parts += ["## Cost", costs]
    if run.failed or run.missing:
        failed = [f"- {markdown(cell)}: {markdown(cause)}" for cell, cause in run.failed.items()]
        parts += [
            "## Missing and failed cells",
            "\n".join([*failed, *(f"- {markdown(c.name)}: no result" for c in run.missing)]),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown_costs(run: Run) -> str:
    rows = []
    for cell in run.cells:
        found = next((result for key, result in run.results.items() if key[:2] == (cell.arm, cell.dataset)), None)
        if found and cell.name in run.costs:
            more = run.costs[cell.name]
            values = (found.parameters, more.multiply_adds, found.seconds, more.memory_mib)
            said = [ABSENT if math.isnan(value) else f"{value:,.0f}" for value in values]
            rows.append([markdown(cell.arm), markdown(cell.dataset), *said])
    columns = [
        "Arm",
        "Data set",
        "Parameters",
        "Multiply-adds of a median bag",
        "Processor seconds",
        "Peak memory, MiB",
    ]
    return _markdown_rows(columns, rows, words=2) if rows else ""


def _markdown_warning(protocol: str) -> str:
    return f"> **Warning.** {WARNING}\n\n" if protocol == TUNED else ""


def _markdown_rows(columns: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    rule = ["---" if i < words else "---:" for i in range(len(columns))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [columns, rule, *rows])


def _markdown_table(run: Run, protocol: str) -> str:
    rows = main_table(run, protocol)
    columns = ["Arm", *map(markdown, run.datasets), *(["mean"] if any(row.mean for row in rows) else [])]
    body = [[markdown(row.arm), *map(_markdown_entry, row.all_entries[: len(columns) - 1])] for row in rows]
    heading = f"### Protocol “{markdown(protocol)}”\n\n{_markdown_warning(protocol)}{markdown(caption(run, protocol))}"
    return f"{heading}\n\n{_markdown_rows(columns, body)}"


def _markdown_entry(entry: Entry | None) -> str:
    if entry is None:
        return ABSENT
    ours = f"**{spread(entry)}**" if entry.best else spread(entry)
    return ours if math.isnan(entry.published) else f"{ours} ({number(entry.published)}, {change(entry.difference)})"


def _markdown_comparisons(protocol: str, compared: Sequence[Compared]) -> str:
    here = [each for each in compared if each.protocol == protocol]
    columns = [
        "Arm",
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
            *map(markdown, (each.arm, each.against, each.dataset)),
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
    heading = f"### Protocol “{markdown(protocol)}”\n\n{_markdown_warning(protocol)}"
    return f"{heading}{_markdown_rows(columns, rows, words=3)}\n\n{sentences}".strip()


LATEX_HEAD = r"""% Needs \usepackage{booktabs}; with \usepackage{xcolor} the published numbers are grey.
\providecommand{\textcolor}[2]{#2}
"""


def write_latex(run: Run) -> str:
    """A booktabs table for each protocol, to be read with \\input; published numbers in grey below ours."""
    return LATEX_HEAD + "\n".join(_latex_table(run, protocol) for protocol in run.protocols)


def _latex_table(run: Run, protocol: str) -> str:
    rows = main_table(run, protocol)
    columns = [*run.datasets, *(["mean"] if any(row.mean for row in rows) else [])]
    warning = r" \textbf{Warning:} " + latex(WARNING) if protocol == TUNED else ""
    return "\n".join(
        [
            r"\begin{table}[tb]",
            r"  \centering\small",
            rf"  \caption{{{latex(run.title)}. {latex(caption(run, protocol))}{warning}}}",
            rf"  \begin{{tabular}}{{l{'c' * len(columns)}}}",
            r"    \toprule",
            f"    Arm & {' & '.join(map(latex, columns))} " + r"\\",
            r"    \midrule",
            *(line for row in rows for line in _latex_row(row.arm, row.all_entries[: len(columns)])),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _latex_row(arm: str, entries: Sequence[Entry | None]) -> list[str]:
    lines = [f"    {latex(arm)} & {' & '.join(map(_latex_ours, entries))} " + r"\\"]
    if any(entry and not math.isnan(entry.published) for entry in entries):
        lines.append(f"     & {' & '.join(map(_latex_published, entries))} " + r"\\")
    return lines


def _latex_ours(entry: Entry | None) -> str:
    if entry is None:
        return "--"
    mean = rf"\textbf{{{latex(number(entry.mean))}}}" if entry.best else latex(number(entry.mean))
    return mean if math.isnan(entry.sd) else rf"{mean} $\pm$ {number(entry.sd)}"


def _latex_published(entry: Entry | None) -> str:
    if entry is None or math.isnan(entry.published):
        return ""
    return rf"\textcolor{{gray}}{{\scriptsize {number(entry.published)} ({latex(change(entry.difference))})}}"
