"""The report: a run folder becomes a page, a Markdown file and a LaTeX table. It reads files only, and trains nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scmil.errors import OptionError
from scmil.core.files import utf8, write_atomically
from scmil.report.comparisons import compare_arms
from scmil.report.model_page import write_model_page
from scmil.report.page import write_page
from scmil.report.run_files import Run, read_run
from scmil.report.tables import TerminalTable, comparisons_for_terminal, rows_for_terminal
from scmil.report.markdown_latex import write_latex, write_markdown
from scmil.report.verdict import verdict

__all__ = [
    "FORMATS",
    "Run",
    "TerminalTable",
    "comparisons_for_terminal",
    "read_run",
    "rows_for_terminal",
    "verdict",
    "write_model_page",
    "write_report",
]

FORMATS = ("html", "md", "tex")


def write_report(run: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write report.html, report.md and report.tex into the run folder, finished or half-finished; returns their paths."""
    if unknown := [name for name in formats if name not in FORMATS]:
        raise OptionError(f"unknown report format {unknown[0]!r}. Known: {', '.join(FORMATS)}.")
    read = read_run(run)
    compared = compare_arms(read)
    write = {
        "html": lambda: write_page(read, compared),
        "md": lambda: write_markdown(read, compared),
        "tex": lambda: write_latex(read),
    }
    return [_put(Path(run) / f"report.{name}", write[name]()) for name in formats]


def _put(path: Path, text: str) -> Path:
    write_atomically(path, utf8(text))
    return path
