"""The main table, before it has a look: which number stands where, beside which published one, and which is best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from scmil.stats.metrics import LARGER_IS_BETTER
from scmil.report.comparisons import Compared, compare_arms
from scmil.report.html.markup import ABSENT, change, number, p_value
from scmil.report.run_files import METRIC_NAMES, TUNED, Estimate, Key, Run

MEANING = {
    "last": "the last epoch, threshold 0.5; nothing is chosen",
    "nested": "epoch and threshold chosen on a validation part of the training folds",
    TUNED: "best epoch and best threshold of each test fold",
}
WARNING = (
    "Epoch and threshold were chosen on the test fold itself, so these numbers are too good by construction; "
    "they are shown because published numbers are very likely of this kind."
)


class Entry(NamedTuple):
    """Ours, and the published number beside it; NaN where there is none."""

    mean: float
    sd: float = math.nan
    published: float = math.nan
    best: bool = False

    @property
    def difference(self) -> float:
        """How far ours is above the published number."""
        return self.mean - self.published


class Row(NamedTuple):
    """One arm: an entry for each data set (None where there is no result), and their mean if all are there."""

    arm: str
    entries: tuple[Entry | None, ...]
    mean: Entry | None

    @property
    def all_entries(self) -> tuple[Entry | None, ...]:
        """The data sets, then their mean."""
        return (*self.entries, self.mean)


class TerminalTable(NamedTuple):
    """A table as plain text, for `rich` or anything else."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str


def main_table(run: Run, protocol: str, metric: str = "accuracy") -> list[Row]:
    """The table of one protocol; the best of every column is marked if the protocol is honest."""
    rows = []
    for arm in run.arms:
        entries = tuple(_entry(run, Key(arm.name, dataset, protocol), metric) for dataset in run.datasets)
        if any(entries):
            rows.append(Row(arm.name, entries, _mean(entries)))
    return rows if protocol == TUNED else _mark_best(rows, metric)


def _entry(run: Run, key: Key, metric: str) -> Entry | None:
    if key not in run.results:
        return None
    estimate = run.results[key].metrics[metric]
    published = run.published.get(key[:2]) if metric == "accuracy" else None
    return Entry(estimate.mean, estimate.sd, published.accuracy if published else math.nan)


def _mean(entries: Sequence[Entry | None]) -> Entry | None:
    present = [entry for entry in entries if entry]
    if len(present) < len(entries) or len(entries) < 2:  # a mean over other data sets than the row above misleads
        return None
    return Entry(_average(e.mean for e in present), math.nan, _average(e.published for e in present))


def _average(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))  # NaN if any is


def _mark_best(rows: Sequence[Row], metric: str) -> list[Row]:
    """Entries that are printed alike are equally good."""
    best_of = max if LARGER_IS_BETTER[metric] else min
    columns = []
    for column in zip(*(row.all_entries for row in rows)):
        means = [round(entry.mean, 3) for entry in column if entry and math.isfinite(entry.mean)]
        best = best_of(means, default=math.nan)
        columns.append([entry and entry._replace(best=round(entry.mean, 3) == best) for entry in column])
    return [Row(row.arm, tuple(entries[:-1]), entries[-1]) for row, entries in zip(rows, zip(*columns))]


def caption(run: Run, protocol: str, metric: str = "accuracy") -> str:
    """What the table shows, by which protocol, over how many repeats."""
    result = next(result for key, result in run.results.items() if key.protocol == protocol)
    name = METRIC_NAMES[metric]
    smaller = "" if LARGER_IS_BETTER[metric] else ", smaller is better"
    over = f"mean ± standard deviation over {result.repeats} repeats of" if result.repeats > 1 else "mean over"
    return (
        f"{name[0].upper()}{name[1:]}{smaller}: {over} {result.folds} folds. "
        f"Protocol “{protocol}”: {MEANING.get(protocol, 'as the experiment defines it')}."
    )


def spread(estimate: Estimate | Entry) -> str:
    """A mean with its standard deviation, where it has one.

    >>> spread(Entry(0.9, 0.0123)), spread(Entry(0.9))
    ('0.900 ±0.012', '0.900')
    """
    return number(estimate.mean) + (f" ±{number(estimate.sd)}" if math.isfinite(estimate.sd) else "")


def rows_for_terminal(run: Run) -> list[TerminalTable]:
    """The main tables as plain text, one for each protocol: what `scmil run` prints when it is done."""
    tables = []
    for protocol in run.protocols:
        rows = main_table(run, protocol)
        with_mean = any(row.mean for row in rows)
        columns = ("", *run.datasets, *(["mean"] if with_mean else []))
        written = tuple(
            (row.arm, *(_for_terminal(entry) for entry in row.all_entries[: len(columns) - 1])) for row in rows
        )
        note = WARNING if protocol == TUNED else ""
        tables.append(TerminalTable(caption(run, protocol), columns, written, note))
    return tables


def _for_terminal(entry: Entry | None) -> str:
    if entry is None:
        return ABSENT
    beside = (
        "" if math.isnan(entry.published) else f"\n{number(entry.published)} published ({change(entry.difference)})"
    )
    return spread(entry) + beside


def comparisons_for_terminal(run: Run, compared: Sequence[Compared] | None = None) -> TerminalTable | None:
    """What each arm changes against the one it names, by the honest protocols; None if nothing is compared."""
    rows = [
        (
            f"{each.arm}\nagainst {each.against}",
            each.dataset,
            each.protocol,
            f"{change(each.accuracy.delta)}\n({change(each.interval.low)} to {change(each.interval.high)})",
            p_value(each.accuracy.p),
            p_value(each.holm_p),
        )
        for each in (compare_arms(run) if compared is None else compared)
        if each.protocol in run.honest
    ]
    columns = ("", "data set", "protocol", "Δ accuracy", "p", "p Wilcoxon")
    note = (
        "p: Nadeau and Bengio's corrected t-test, which allows for folds that share bags; judge by it."
        if run.has_folds
        else "p: permutation test over the bags of the one test set."
    )
    return TerminalTable("Comparisons", columns, tuple(rows), note) if rows else None
