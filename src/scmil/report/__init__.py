"""The report of a run directory as HTML, Markdown and LaTeX. Only files are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scmil.core.atomic import write_atomically
from scmil.core.text import encode_utf8
from scmil.errors import OptionError
from scmil.report.comparisons import compare_methods
from scmil.report.markdown_latex import write_latex, write_markdown
from scmil.report.model_page import write_model_page
from scmil.report.page import write_page
from scmil.report.run import Run
from scmil.report.run_files import read_run
from scmil.report.tables import TerminalTable, comparisons_for_terminal, rows_for_terminal
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
    """Write report.html, report.md and report.tex into a run directory, finished or not.

    Args:
        run: The run directory.
        formats: Some of "html", "md" and "tex".

    Returns:
        The paths of the reports.

    Raises:
        OptionError: A format is unknown.
        DataError: A file of the run directory is missing or damaged.

    >>> write_report(Path("runs/table2"), ["pdf"])
    Traceback (most recent call last):
    ...
    scmil.errors.OptionError: unknown report format 'pdf'. Known: html, md, tex.
    """
    if unknown := [name for name in formats if name not in FORMATS]:
        raise OptionError(f"unknown report format {unknown[0]!r}. Known: {', '.join(FORMATS)}.")
    read = read_run(run)
    compared = compare_methods(read)
    write = {
        "html": lambda: write_page(read, compared),
        "md": lambda: write_markdown(read, compared),
        "tex": lambda: write_latex(read),
    }
    return [_write_text(Path(run) / f"report.{name}", write[name]()) for name in formats]


def _write_text(path: Path, text: str) -> Path:
    write_atomically(path, encode_utf8(text))
    return path
