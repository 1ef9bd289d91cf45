"""The report as Markdown and LaTeX."""

from __future__ import annotations

import re
from pathlib import Path

from scmil.report import (
    read_run,
)
from scmil.report.comparisons import compare_methods
from scmil.report.markdown_latex import write_latex, write_markdown


def test_markdown_rows_have_the_cells_of_their_header(run: Path) -> None:
    read = read_run(run)
    text = write_markdown(read, compare_methods(read))
    tables = re.findall(r"(?:^\|.*\|$\n?)+", text, re.M)
    assert len(tables) == 6
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1
    assert "<script" not in text
    assert r"ABMIL \| a\_b" in text


def test_latex_rows_have_the_columns_of_their_table(run: Path) -> None:
    text = write_latex(read_run(run))
    assert text.count(r"\begin{tabular}{lccc}") == text.count(r"\bottomrule") == 3
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {3}
    assert r"\textcolor{gray}{\scriptsize 0.900" in text
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
