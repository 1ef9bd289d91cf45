"""Predictions of survival and of numbers in the result folders of other tools: STAMP's.

STAMP writes `patient-preds.csv` with PATIENT, pred_score (before: pred_risk), time and event for
survival, and with PATIENT, the target, pred and loss for a number. A higher score is an earlier
event. The cut-off of the training is in the name of a column, `cut_off=0.12`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scmil.bags.table_rows import TextTable
from scmil.core.shapes import Numbers
from scmil.errors import DataError
from scmil.stats.bootstrap import MetricEstimate
from scmil.stats.concordance import (
    SIZE_PER_EVENT,
    concordance,
    concordance_interval,
    concordance_ipcw,
)
from scmil.stats.regression import regression_intervals, score_regression
from scmil.stats.small_samples import auc_interval

RISK = ("pred_score", "pred_risk")
UNKNOWN_VALUES = ("", "nan", "none")
INTERVALS = {
    "survival": "score intervals of the concordances; that of the mean over folds at the number "
    "of events",
    "regression": "R² and the mean absolute error by Student's t on a log scale with the "
    "jackknife over patients",
}


@dataclass(frozen=True)
class OutcomeTable:
    """The predictions of one fold: patients, observed values (b, k) and predictions (b,).

    `observed` has the time and the event, or the number. `left_out` are patients without a value.
    """

    path: Path
    task: str
    names: tuple[str, ...]
    observed: Numbers
    predicted: Numbers
    left_out: tuple[str, ...] = ()


class OutcomeMetric(NamedTuple):
    """A metric of a fold, or of all folds, with the number of patients."""

    fold: int | None
    metric: str
    patients: int
    estimate: MetricEstimate


def read_outcomes(table: TextTable) -> OutcomeTable | None:
    """Read the predictions of survival or of a number; None if the table has neither.

    Raises:
        DataError: A value is not a number, or no patient has one.
    """
    patients = table.need(["PATIENT"], "patient", "the column")
    risk, time, event = (table.find(names) for names in (RISK, ["time"], ["event"]))
    if risk is not None and time is not None and event is not None:
        return _parse_outcomes(table, "survival", patients, [time, event], risk)
    predicted, others = table.find(["pred"]), ("PATIENT", "pred", "loss")
    targets = [at for at, name in enumerate(table.header) if name not in others]
    if predicted is None or len(targets) != 1:
        return None
    first = next((row[targets[0]] for _, row in table.lines if not _is_empty(row[targets[0]])), "")
    if not _is_finite_number(first):
        return None
    return _parse_outcomes(table, "regression", patients, targets, predicted)


def _parse_outcomes(
    table: TextTable, task: str, patients: int, observed: Sequence[int], predicted: int
) -> OutcomeTable:
    names, values, left_out = [], [], []
    for line, row in table.lines:
        cells = [row[at] for at in (*observed, predicted)]
        if any(map(_is_empty, cells)):
            left_out.append(row[patients])
            continue
        if wrong := [cell for cell in cells if not _is_finite_number(cell)]:
            raise DataError(
                f"{table.path}, line {line}: {wrong[0]!r} is not a number. Write the predictions "
                "again."
            )
        if task == "survival" and float(cells[1]) not in (0, 1):
            raise DataError(
                f"{table.path}, line {line}: event = {cells[1]!r}, but 1 (event) or 0 (censored) "
                "is expected. Write the predictions again."
            )
        names.append(row[patients])
        values.append([float(cell) for cell in cells])
    if not names:
        raise DataError(f"{table.path}: no patient has an observed value and a prediction.")
    numbers = np.array(values)
    return OutcomeTable(
        table.path, task, tuple(names), numbers[:, :-1], numbers[:, -1], tuple(left_out)
    )


def _is_empty(cell: str) -> bool:
    return cell.strip().lower() in UNKNOWN_VALUES


def _is_finite_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def outcome_metrics(tables: Mapping[int, OutcomeTable]) -> Iterator[OutcomeMetric]:
    """The metrics of each fold, and of all folds if there are several.

    Risks are compared only within a fold, because each fold has its own model; numbers of all folds
    are one sample.

    >>> observed, risk = np.array([[1.0, 1.0], [2.0, 0.0]]), np.array([0.9, 0.1])
    >>> table = OutcomeTable(Path("a.csv"), "survival", ("p", "q"), observed, risk)
    >>> [(found.metric, found.estimate.value) for found in outcome_metrics({0: table})]
    [('c_index', 1.0), ('uno_c', 1.0)]
    """
    for number, table in sorted(tables.items()):
        for metric, estimate in _metrics_of(table).items():
            yield OutcomeMetric(number, metric, len(set(table.names)), estimate)
    if len(tables) > 1:
        yield from _metrics_of_all(list(tables.values()))


def _metrics_of(table: OutcomeTable) -> dict[str, MetricEstimate]:
    if table.task == "regression":
        return _regression(table.observed[:, 0], table.predicted, table.names)
    times, events = table.observed.T
    who = list(table.names)
    return {
        "c_index": MetricEstimate(
            concordance(times, events, table.predicted),
            concordance_interval(times, events, table.predicted, who),
        ),
        "uno_c": MetricEstimate(
            concordance_ipcw(times, events, table.predicted),
            concordance_interval(times, events, table.predicted, who, ipcw=True),
        ),
    }


def _metrics_of_all(tables: Sequence[OutcomeTable]) -> Iterator[OutcomeMetric]:
    names = [name for table in tables for name in table.names]
    patients = len(set(names))
    if tables[0].task == "regression":
        observed = np.concatenate([table.observed[:, 0] for table in tables])
        predicted = np.concatenate([table.predicted for table in tables])
        for metric, estimate in _regression(observed, predicted, names).items():
            yield OutcomeMetric(None, metric, patients, estimate)
        return
    values = [
        concordance(table.observed[:, 0], table.observed[:, 1], table.predicted) for table in tables
    ]
    known = [value for value in values if math.isfinite(value)]
    events = {
        name
        for table in tables
        for name, event in zip(table.names, table.observed[:, 1], strict=True)
        if event
    }
    if known:
        mean, folds = float(np.mean(known)), len(known)
        size = SIZE_PER_EVENT * len(events) / folds
        interval = auc_interval(mean, size, size, 1 / folds)
        yield OutcomeMetric(None, "c_index", patients, MetricEstimate(mean, interval))


def _regression(
    observed: Numbers, predicted: Numbers, names: Sequence[str]
) -> dict[str, MetricEstimate]:
    scores = score_regression(observed, predicted)
    intervals = regression_intervals(observed, predicted, list(names))
    return {name: MetricEstimate(scores[name], intervals[name]) for name in ("r2", "mae")}
