"""The contents of the main tables, independent of their format: results, published numbers, and the
best of each column.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from scmil.report.comparisons import MethodComparison, compare_methods
from scmil.report.html.markup import ABSENT, change, format_number, p_value
from scmil.report.run import METRIC_NAMES, TUNED, Estimate, Key, Run
from scmil.stats.metrics import LARGER_IS_BETTER

MEANING = {
    "last": "last epoch, threshold 0.5; nothing is selected",
    "nested": "epoch and threshold selected on a validation split of the training folds",
    TUNED: "epoch and threshold selected on the test fold itself",
}
WARNING = (
    "Epoch and threshold were selected on the test fold itself, so these results are biased "
    "upwards. They are shown because published results were very likely obtained in this way."
)


def explained_protocol(protocol: str) -> str:
    """The name of a selection protocol with its definition.

    >>> explained_protocol("last")
    '“last” (last epoch, threshold 0.5; nothing is selected)'
    """
    return f"“{protocol}” ({MEANING[protocol]})" if protocol in MEANING else f"“{protocol}”"


class TableEntry(NamedTuple):
    """Our result and the published one; NaN where there is none."""

    mean: float
    sd: float = math.nan
    published: float = math.nan
    best: bool = False
    low: float = math.nan
    high: float = math.nan

    @property
    def difference(self) -> float:
        """Our result minus the published one."""
        return self.mean - self.published


class Row(NamedTuple):
    """One method: an entry per data set or None, and their mean if no entry is missing."""

    method: str
    entries: tuple[TableEntry | None, ...]
    mean: TableEntry | None

    @property
    def all_entries(self) -> tuple[TableEntry | None, ...]:
        """The data sets, then their mean."""
        return (*self.entries, self.mean)


class TerminalTable(NamedTuple):
    """A table as plain text for the terminal."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str


def main_table(run: Run, protocol: str, metric: str = "accuracy") -> list[Row]:
    """The table of one protocol; the best of each column is marked if the protocol is
    leakage-free.
    """
    rows = []
    for method in run.methods:
        entries = tuple(
            find_entry(run, Key(method.name, dataset, protocol), metric) for dataset in run.datasets
        )
        if any(entries):
            rows.append(Row(method.name, entries, _mean_entry(entries)))
    return rows if protocol == TUNED else _mark_best(rows, metric)


def find_entry(run: Run, key: Key, metric: str) -> TableEntry | None:
    """The entry of a result; None if there is none."""
    if key not in run.results:
        return None
    estimate = run.results[key].metrics[metric]
    published = run.published.get(key[:2]) if metric == "accuracy" else None
    return TableEntry(
        estimate.mean,
        estimate.sd,
        published.accuracy if published else math.nan,
        low=estimate.low,
        high=estimate.high,
    )


def _mean_entry(entries: Sequence[TableEntry | None]) -> TableEntry | None:
    present = [entry for entry in entries if entry]
    # A mean over other data sets than in the other rows would mislead.
    if len(present) < len(entries) or len(entries) < 2:
        return None
    return TableEntry(
        _average(e.mean for e in present), math.nan, _average(e.published for e in present)
    )


def _average(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))  # NaN if any is


def _mark_best(rows: Sequence[Row], metric: str) -> list[Row]:
    """Mark the best entries; equal after rounding is equally good."""
    best_of = max if LARGER_IS_BETTER[metric] else min
    columns = []
    for column in zip(*(row.all_entries for row in rows)):
        means = [round(entry.mean, 3) for entry in column if entry and math.isfinite(entry.mean)]
        best = best_of(means, default=math.nan)
        columns.append(
            [entry and entry._replace(best=round(entry.mean, 3) == best) for entry in column]
        )
    return [
        Row(row.method, tuple(entries[:-1]), entries[-1])
        for row, entries in zip(rows, zip(*columns))
    ]


def caption(run: Run, protocol: str, metric: str = "accuracy") -> str:
    """The caption of a table: metric, selection protocol, number of repeats."""
    result = next(result for key, result in run.results.items() if key.protocol == protocol)
    name = METRIC_NAMES[metric]
    smaller = "" if LARGER_IS_BETTER[metric] else ", smaller is better"
    over = (
        f"mean ± standard deviation over {result.repeats} repeats of"
        if result.repeats > 1
        else "mean over"
    )
    return (
        f"{name[0].upper()}{name[1:]}{smaller}: {over} {result.folds} folds. "
        f"Selection protocol “{protocol}”: {MEANING.get(protocol, 'as defined by the experiment')}."
    )


def spread(estimate: Estimate | TableEntry) -> str:
    """A mean with its standard deviation, if there is one.

    >>> spread(TableEntry(0.9, 0.0123)), spread(TableEntry(0.9))
    ('0.900 ±0.012', '0.900')
    """
    return format_number(estimate.mean) + (
        f" ±{format_number(estimate.sd)}" if math.isfinite(estimate.sd) else ""
    )


def class_rows_for_terminal(run: Run) -> list[TerminalTable]:
    """The main tables as plain text, as `scmil run` prints them.

    Args:
        run: The contents of a run directory.

    Returns:
        One table per selection protocol that has results.
    """
    tables = []
    for protocol in run.protocols:
        rows = main_table(run, protocol)
        with_mean = any(row.mean for row in rows)
        columns = ("", *run.datasets, *(["mean"] if with_mean else []))
        written = tuple(
            (row.method, *(_for_terminal(entry) for entry in row.all_entries[: len(columns) - 1]))
            for row in rows
        )
        note = WARNING if protocol == TUNED else ""
        tables.append(TerminalTable(caption(run, protocol), columns, written, note))
    return tables


def _for_terminal(entry: TableEntry | None) -> str:
    if entry is None:
        return ABSENT
    beside = (
        ""
        if math.isnan(entry.published)
        else f"\n{format_number(entry.published)} published ({change(entry.difference)})"
    )
    return spread(entry) + beside


def class_comparisons_for_terminal(
    run: Run, compared: Sequence[MethodComparison] | None = None
) -> TerminalTable | None:
    """The comparisons under the leakage-free protocols as plain text.

    Args:
        run: The contents of a run directory.
        compared: Its comparisons, if they have been computed already.

    Returns:
        The table; None if no two methods can be compared.
    """
    rows = [
        (
            f"{each.method}\nagainst {each.against}",
            each.dataset,
            each.protocol,
            f"{change(each.accuracy.delta)}\n({change(each.interval.low)} to "
            f"{change(each.interval.high)})",
            p_value(each.accuracy.p),
            p_value(each.holm_p),
        )
        for each in (compare_methods(run) if compared is None else compared)
        if each.protocol in run.leakage_free
    ]
    columns = ("", "data set", "protocol", "Δ accuracy", "p", "p Wilcoxon")
    note = (
        "p: corrected t-test of Nadeau and Bengio, which accounts for overlapping training folds; "
        "prefer it to the Wilcoxon test."
        if run.has_folds
        else "p: permutation test over the bags of the test set."
    )
    return TerminalTable("Comparisons", columns, tuple(rows), note) if rows else None
