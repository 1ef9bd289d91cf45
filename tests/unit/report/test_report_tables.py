"""The tables of results, for pages and for the terminal."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from synthetic_run import EVIL

from scmil.report import (
    comparisons_for_terminal,
    read_run,
    rows_for_terminal,
)
from scmil.report.comparisons import compare_methods
from scmil.report.html.markup import change
from scmil.report.tables import WARNING, main_table


def test_only_the_best_leakage_free_result_is_marked(run: Path) -> None:
    read = read_run(run)
    for protocol in read.protocols:
        best = [
            entry.mean
            for row in main_table(read, protocol)
            for entry in row.entries[:1]
            if entry and entry.best
        ]
        every = [row.entries[0].mean for row in main_table(read, protocol) if row.entries[0]]
        assert best == ([] if protocol == "test-tuned" else [max(every)])
    brier = [row.entries[0] for row in main_table(read, "last", "brier") if row.entries[0]]
    assert [entry.best for entry in brier] == [
        entry.mean == min(e.mean for e in brier) for entry in brier
    ]


def test_a_mean_over_data_sets_needs_all_of_them(run: Path) -> None:
    rows = {row.method: row for row in main_table(read_run(run), "last")}
    assert rows[EVIL].mean is None
    entries = [entry for entry in rows["ABMIL + SC"].entries if entry]
    assert rows["ABMIL + SC"].mean is not None
    assert rows["ABMIL + SC"].mean.mean == pytest.approx((entries[0].mean + entries[1].mean) / 2)
    assert math.isnan(rows["ABMIL + SC"].mean.published)  # fox is not published


def test_the_difference_is_ours_minus_the_published_one(run: Path, page: str) -> None:
    entry = main_table(read_run(run), "last")[1].entries[0]
    assert entry is not None
    assert entry.published == 0.969
    shown = f"{entry.mean - 0.969:+.3f}".replace("-", "−")
    assert f'<span class="published">0.969 <span class="down">{shown}</span></span>' in page


def test_the_terminal_gets_the_same_numbers(run: Path) -> None:
    last, _, tuned = rows_for_terminal(read_run(run))
    assert last.columns == ("", "musk1", "fox", "mean")
    entry = main_table(read_run(run), "last")[0].entries[0]
    assert entry is not None
    assert last.rows[0][1].startswith(f"{entry.mean:.3f} ±{entry.sd:.3f}\n0.900 published (")
    assert (last.note, tuned.note) == ("", WARNING)
    assert last.rows[2][2:] == ("–", "–")


def test_the_terminal_gets_the_comparisons_of_leakage_free_protocols(run: Path) -> None:
    table = comparisons_for_terminal(read_run(run))
    assert table is not None
    compared = [each for each in compare_methods(read_run(run)) if each.protocol != "test-tuned"]
    assert len(table.rows) == len(compared) > 0
    assert table.rows[0][:3] == (
        f"{compared[0].method}\nagainst {compared[0].against}",
        "musk1",
        "last",
    )
    assert table.rows[0][3].startswith(change(compared[0].accuracy.delta))
