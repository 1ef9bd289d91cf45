"""The report of a run directory as HTML, Markdown and LaTeX. Only files are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scmil.core.atomic import write_atomically
from scmil.core.run_format import COMBINED
from scmil.core.text import encode_utf8
from scmil.errors import OptionError
from scmil.report import run_files, tables
from scmil.report.combined_report import (
    combined_comparisons_for_terminal,
    combined_rows_for_terminal,
    combined_verdict,
    compare_combined,
    write_combined_latex,
    write_combined_markdown,
    write_combined_page,
)
from scmil.report.combined_run import CombinedRun, read_combined_run
from scmil.report.comparisons import compare_methods
from scmil.report.markdown_latex import write_latex, write_markdown
from scmil.report.model_page import write_model_page
from scmil.report.page import write_page
from scmil.report.run import Run
from scmil.report.tables import TerminalTable
from scmil.report.target_comparisons import compare_target_methods
from scmil.report.target_page import write_target_page
from scmil.report.target_run import TargetRun, read_target_run, task_of_run
from scmil.report.target_tables import target_comparisons_for_terminal, target_rows_for_terminal
from scmil.report.target_text import write_target_latex, write_target_markdown
from scmil.report.target_verdict import target_verdict
from scmil.report.verdict import class_verdict

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


class _Writers(NamedTuple):
    """How the results of a task are compared, summarised and written."""

    compare: Callable[[Any], Sequence[Any]]
    verdict: Callable[..., str]
    rows: Callable[[Any], list[TerminalTable]]
    comparisons: Callable[..., TerminalTable | None]
    html: Callable[[Any, Sequence[Any]], str]
    md: Callable[[Any, Sequence[Any]], str]
    tex: Callable[[Any], str]


_CLASSES = _Writers(
    compare_methods,
    class_verdict,
    tables.class_rows_for_terminal,
    tables.class_comparisons_for_terminal,
    write_page,
    write_markdown,
    write_latex,
)
_TARGETS = _Writers(
    compare_target_methods,
    target_verdict,
    target_rows_for_terminal,
    target_comparisons_for_terminal,
    write_target_page,
    write_target_markdown,
    write_target_latex,
)


_COMBINED = _Writers(
    compare_combined,
    combined_verdict,
    combined_rows_for_terminal,
    combined_comparisons_for_terminal,
    write_combined_page,
    write_combined_markdown,
    write_combined_latex,
)


def _writers_of(run: Run) -> _Writers:
    if isinstance(run, CombinedRun):
        return _COMBINED
    return _TARGETS if isinstance(run, TargetRun) else _CLASSES


def read_run(run: Path) -> Run:
    """Read a run directory that `scmil run` has written.

    Args:
        run: The run directory.

    Returns:
        Its contents, a `TargetRun` for another task than classes, a `CombinedRun` for several
        targets; unfinished experiments can be read as well.

    Raises:
        DataError: A file is missing or damaged; the message names the file and the remedy.

    >>> read_run(Path("nothing"))
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: nothing/experiment.json...
    """
    task = task_of_run(Path(run))
    if task is None:
        return run_files.read_class_run(Path(run))
    if task == COMBINED:
        return read_combined_run(Path(run))
    return read_target_run(Path(run))


def verdict(run: Run, compared: Sequence[Any] | None = None) -> str:
    """Summarise a run directory in one paragraph.

    Args:
        run: The contents of the run directory.
        compared: Its comparisons, if they have been computed already.

    Returns:
        Progress, significant differences, controls, and the effect of the selection protocol.
    """
    return _writers_of(run).verdict(run, compared)


def rows_for_terminal(run: Run) -> list[TerminalTable]:
    """The main tables as plain text, as `scmil run` prints them."""
    return _writers_of(run).rows(run)


def comparisons_for_terminal(
    run: Run, compared: Sequence[Any] | None = None
) -> TerminalTable | None:
    """The comparisons under the leakage-free protocols as plain text; None if there are none."""
    return _writers_of(run).comparisons(run, compared)


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
    own = _writers_of(read)
    compared = own.compare(read)
    write = {
        "html": lambda: own.html(read, compared),
        "md": lambda: own.md(read, compared),
        "tex": lambda: own.tex(read),
    }
    return [_write_text(Path(run) / f"report.{name}", write[name]()) for name in formats]


def _write_text(path: Path, text: str) -> Path:
    write_atomically(path, encode_utf8(text))
    return path
