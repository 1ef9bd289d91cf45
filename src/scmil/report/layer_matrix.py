"""Many methods as a matrix: a row per reference method, a column per layer in front of it.

A comparison of all aggregators with several layers has over a hundred methods. With one row each,
neither a table nor a forest plot can be read; as a matrix it is a table of the aggregators.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from scmil.report.comparisons import MethodComparison
from scmil.report.run import Key, Run
from scmil.report.tables import Row, TableEntry, find_entry
from scmil.stats.metrics import LARGER_IS_BETTER

FEWEST_METHODS = 24  # with fewer, a report has one row per method
WITHOUT = "without"
SIGNIFICANT = 0.05


class LayerMatrix(NamedTuple):
    """The methods by reference method and layer; `others` have neither a layer nor a variant."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]  # `WITHOUT`, then the layers
    methods: Mapping[tuple[str, str], str]
    others: tuple[str, ...]


class LayerEffect(NamedTuple):
    """One layer against another, or against none, over all reference methods."""

    layer: str
    against: str
    pairs: int
    accuracy: float  # mean difference
    auc: float
    better: int  # by accuracy
    worse: int
    # Significant differences of single methods; None if the two were not compared by a test.
    gains: int | None
    losses: int | None

    @property
    def equal(self) -> int:
        """The number of reference methods without a difference."""
        return self.pairs - self.better - self.worse


def layer_matrix(run: Run) -> LayerMatrix | None:
    """The methods as a matrix; None if there are few of them, or if they do not form one.

    The layer of a method is what its name has behind the name of its reference method.
    """
    methods = {(m.against or m.name, _layer_of(m.name, m.against)): m.name for m in run.methods}
    columns = tuple(dict.fromkeys(layer for _, layer in methods))
    rows = tuple(dict.fromkeys(m.against for m in run.methods if m.against))
    of_matrix = {place: name for place, name in methods.items() if place[0] in rows}
    if len(run.methods) < FEWEST_METHODS or 2 * len(of_matrix) <= len(rows) * len(columns):
        return None
    others = tuple(name for (row, _), name in methods.items() if row not in rows)
    return LayerMatrix(rows, columns, of_matrix, others)


def _layer_of(name: str, against: str | None) -> str:
    """The layer in the name of a method.

    >>> _layer_of("abmil + SC", "abmil"), _layer_of("abmil", None)
    ('SC', 'without')
    """
    if against is None:
        return WITHOUT
    return name.removeprefix(against).strip(" +,") or name


def matrix_rows(
    run: Run, matrix: LayerMatrix, dataset: str, protocol: str, metric: str = "accuracy"
) -> list[Row]:
    """The results of one data set: a row per reference method, whose best layer is marked; then
    the mean over the rows without a gap, and the other methods in the first column.
    """
    rows = [
        _mark_row(
            metric,
            row,
            [
                _entry(run, matrix, row, column, dataset, protocol, metric)
                for column in matrix.columns
            ],
        )
        for row in matrix.rows
    ]
    full = [row for row in rows if all(row.entries)]
    if len(full) > 1:
        means = [
            TableEntry(float(np.mean([row.entries[i].mean for row in full])))  # type: ignore[union-attr]
            for i in range(len(matrix.columns))
        ]
        rows.append(_mark_row(metric, f"mean of {len(full)}", means))
    gaps: list[TableEntry | None] = [None] * (len(matrix.columns) - 1)
    for name in matrix.others:
        entry = find_entry(run, Key(name, dataset, protocol), metric)
        rows.append(Row(name, (entry, *gaps), None))
    return [row for row in rows if any(row.entries)]


def _entry(
    run: Run,
    matrix: LayerMatrix,
    row: str,
    column: str,
    dataset: str,
    protocol: str,
    metric: str,
) -> TableEntry | None:
    name = matrix.methods.get((row, column))
    return None if name is None else find_entry(run, Key(name, dataset, protocol), metric)


def _mark_row(metric: str, name: str, entries: Sequence[TableEntry | None]) -> Row:
    better = max if LARGER_IS_BETTER[metric] else min
    means = [round(e.mean, 3) for e in entries if e and math.isfinite(e.mean)]
    best = better(means, default=math.nan)
    marked = (e and e._replace(best=round(e.mean, 3) == best) for e in entries)
    return Row(name, tuple(marked), None)


def layer_effects(
    run: Run,
    matrix: LayerMatrix,
    compared: Iterable[MethodComparison],
    dataset: str,
    protocol: str,
) -> list[LayerEffect]:
    """Every layer against none, and the first layer against the others, over the aggregators."""
    tested = {
        each.method: each.accuracy
        for each in compared
        if (each.dataset, each.protocol) == (dataset, protocol)
    }
    first, *others = matrix.columns[1:]
    pairs = [(layer, WITHOUT) for layer in matrix.columns[1:]]
    effects = []
    for layer, against in [*pairs, *((first, other) for other in others)]:
        methods = [
            (matrix.methods[row, layer], matrix.methods[row, against])
            for row in matrix.rows
            if (row, layer) in matrix.methods and (row, against) in matrix.methods
        ]
        deltas = [_differences(run, dataset, protocol, *pair) for pair in methods]
        deltas = [delta for delta in deltas if delta is not None]
        if not deltas:
            continue
        accuracies, aucs = (np.array(values) for values in zip(*deltas, strict=True))
        sure = [
            tested[name].delta
            for name, _ in methods
            if against == WITHOUT and name in tested and tested[name].p < SIGNIFICANT
        ]
        effects.append(
            LayerEffect(
                layer,
                against,
                len(deltas),
                float(accuracies.mean()),
                float(aucs.mean()),
                int((accuracies > 0).sum()),
                int((accuracies < 0).sum()),
                sum(delta > 0 for delta in sure) if against == WITHOUT else None,
                sum(delta < 0 for delta in sure) if against == WITHOUT else None,
            )
        )
    return effects


def _differences(
    run: Run, dataset: str, protocol: str, method: str, against: str
) -> tuple[float, float] | None:
    """The differences of accuracy and AUC; None if one of the two has no result."""
    found = [run.results.get(Key(name, dataset, protocol)) for name in (method, against)]
    if found[0] is None or found[1] is None:
        return None
    a, b = found[0].metrics, found[1].metrics
    accuracy = round(a["accuracy"].mean - b["accuracy"].mean, 9)  # equal up to rounding is equal
    return accuracy, a["auc"].mean - b["auc"].mean


def final_losses(run: Run, matrix: LayerMatrix, dataset: str) -> dict[tuple[str, str], float]:
    """The training loss of the last epoch by reference method and layer, where it is known."""
    found = {}
    for place, name in matrix.methods.items():
        history = run.history.get((name, dataset))
        if history is not None:
            known = history["train_loss"][np.isfinite(history["train_loss"])]
            if len(known):
                found[place] = float(known[-1])
    return found
