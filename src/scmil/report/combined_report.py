"""Reports of several targets at once: the sections of each target, by the name of the target."""

from __future__ import annotations

from collections.abc import Sequence

from scmil.report.combined_run import CombinedRun
from scmil.report.html.markup import Markup, element, join, markdown
from scmil.report.markdown_latex import LATEX_HEAD
from scmil.report.page import assemble_page
from scmil.report.tables import TerminalTable
from scmil.report.target_comparisons import TargetComparison, compare_target_methods
from scmil.report.target_page import further_sections, task_sections
from scmil.report.target_tables import (
    P_NOTE,
    target_comparisons_for_terminal,
    target_rows_for_terminal,
)
from scmil.report.target_text import further_parts, latex_tables, task_parts
from scmil.report.target_verdict import task_sentences
from scmil.report.verdict import progress_of

CORRECTION = (
    "One model predicts all targets; a slide counts for those that it has a value of. P-values are "
    "corrected for the comparisons of each target, not over the targets."
)
Compared = tuple[str, list[TargetComparison]]


def compare_combined(run: CombinedRun) -> list[Compared]:
    """The comparisons of each target, with its name."""
    return [(name, compare_target_methods(part)) for name, part in run.parts.items()]


def combined_verdict(run: CombinedRun, compared: Sequence[Compared] | None = None) -> str:
    """Summarise a run directory in one paragraph, target by target."""
    paragraphs = [_common_summary(run)]
    for name, own in compare_combined(run) if compared is None else compared:
        found = _verdict_of_part(run, name, own)
        paragraphs += [f"Target “{name}”: {found}"] if found else []
    return " ".join(paragraphs)


def _common_summary(run: CombinedRun) -> str:
    return f"{progress_of(run)} {CORRECTION}"


def _verdict_of_part(run: CombinedRun, name: str, compared: list[TargetComparison]) -> str:
    return " ".join(task_sentences(run.parts[name], compared))


def write_combined_page(run: CombinedRun, compared: Sequence[Compared]) -> str:
    """The HTML report of a run directory."""
    sections: dict[str, Markup | None] = {}
    for name, own in compared:
        for title, body in task_sections(run.parts[name], own).items():
            sections[f"{name}: {title.lower()}"] = body
        if results := sections[f"{name}: results"]:
            words = element("p", _verdict_of_part(run, name, own), class_="verdict")
            sections[f"{name}: results"] = join(words, results)
    return assemble_page(run, _common_summary(run), sections | further_sections(run))


def write_combined_markdown(run: CombinedRun, compared: Sequence[Compared]) -> str:
    """The Markdown report: summary, then the tables of each target."""
    parts = [f"# {markdown(run.title)}", markdown(run.about), markdown(_common_summary(run))]
    for name, own in compared:
        verdict = markdown(_verdict_of_part(run, name, own))
        parts += [f"# Target “{markdown(name)}”", verdict, *task_parts(run.parts[name], own)]
    parts += further_parts(run)
    return "\n\n".join(part for part in parts if part) + "\n"


def write_combined_latex(run: CombinedRun) -> str:
    """A booktabs table per target, selection protocol and data set."""
    return LATEX_HEAD + "\n".join(
        table for part in run.parts.values() for table in latex_tables(part)
    )


def combined_rows_for_terminal(run: CombinedRun) -> list[TerminalTable]:
    """The tables of all targets as plain text."""
    return [table for part in run.parts.values() for table in target_rows_for_terminal(part)]


def combined_comparisons_for_terminal(
    run: CombinedRun, compared: Sequence[Compared] | None = None
) -> TerminalTable | None:
    """The comparisons of all targets as plain text; None if there are none."""
    rows: list[tuple[str, ...]] = []
    for name, own in compare_combined(run) if compared is None else compared:
        part = run.parts[name]
        table = target_comparisons_for_terminal(part, own)
        metric = f"{name}\n{part.main_name}"
        rows += [(first, metric, *rest) for first, *rest in table.rows] if table else []
    columns = ("", "target", "data set", "protocol", "Δ", "p", "p (Holm)")
    return TerminalTable("Comparisons", columns, tuple(rows), P_NOTE) if rows else None
