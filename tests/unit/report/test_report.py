"""The files that a report consists of."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from synthetic_run import small_run

from scmil.errors import OptionError
from scmil.report import (
    comparisons_for_terminal,
    read_run,
    rows_for_terminal,
    write_report,
)


def test_all_formats_are_written_and_nothing_else_is_left_behind(tmp_path: Path) -> None:
    before = set(small_run(tmp_path).iterdir())
    written = write_report(tmp_path)
    assert [path.name for path in written] == ["report.html", "report.md", "report.tex"]
    assert set(tmp_path.iterdir()) - before == set(written)


def test_an_unknown_format_is_rejected_before_any_file_is_read(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"unknown report format 'pdf'\. Known: html, md, tex"):
        write_report(tmp_path, ["pdf"])


def test_a_run_without_any_result_yet_has_a_report(tmp_path: Path) -> None:
    small_run(tmp_path)
    for name in ("results.csv", "folds.csv"):
        path = tmp_path / name
        path.write_text(path.read_text().splitlines()[0] + "\n")
    assert len(write_report(tmp_path)) == 3
    assert "0 of 6 runs have results" in (tmp_path / "report.md").read_text()
    assert rows_for_terminal(read_run(tmp_path)) == []
    assert comparisons_for_terminal(read_run(tmp_path)) is None


def test_a_report_of_sixty_runs_takes_seconds(tmp_path: Path) -> None:
    methods = [(f"method {i}", None if i % 2 == 0 else f"method {i - 1}") for i in range(12)]
    small_run(tmp_path, methods=methods, datasets=list("abcde"), bags=100, published={})
    start = time.process_time()
    write_report(tmp_path)
    assert time.process_time() - start < 10
