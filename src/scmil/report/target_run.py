"""A run directory of another task than classes: survival, numbers, grades or several labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scmil.core.run_format import MAIN_METRICS
from scmil.report.run import TUNED, Key, Numbers, PlannedRun, Run
from scmil.report.run_files import (
    ResultTable,
    damaged_file,
    read_costs,
    read_experiment,
    read_failures,
    read_folds,
    read_history,
    read_plan_file,
    read_results,
)
from scmil.stats.bootstrap import number_groups

MEANING = {
    "last": "last epoch; nothing is selected",
    "nested": "epoch selected on a validation split of the training folds",
    TUNED: "epoch selected on the test fold itself",
}
WARNING = (
    "The epoch was selected on the test fold itself, so these results are biased upwards. They "
    "show how large this bias is, and estimate nothing else."
)
# Names of the metrics, in the order of tables; AUCs at a time follow the mean AUC.
NAMES = {
    "class": {  # among several targets
        "auc": "AUC",
        "balanced_accuracy": "balanced accuracy",
        "f1": "F1",
        "accuracy": "accuracy",
    },
    "survival": {
        "c_index": "C index",
        "uno_c": "Uno's C",
        "auc": "mean AUC",
        "integrated_brier": "integrated Brier score",
    },
    "regression": {
        "r2": "R²",
        "pearson": "Pearson",
        "spearman": "Spearman",
        "mae": "mean absolute error",
    },
    "ordinal": {"kappa": "quadratic kappa", "mae": "error in grades", "accuracy": "accuracy"},
    "multilabel": {
        "macro: auc": "macro AUC",
        "macro: balanced_accuracy": "macro balanced accuracy",
        "macro: f1": "macro F1",
        "macro: brier": "macro Brier score",
    },
}
LABEL_METRICS = {
    "auc": "AUC",
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1",
    "brier": "Brier score",
}
SMALLER_IS_BETTER = ("integrated_brier", "mae", "macro: brier")
INTERVALS = {
    "survival": "C indices and the AUC at a time have score intervals that hold for few patients; "
    "the mean AUC and the integrated Brier score have percentile bootstrap intervals over "
    "patients, that of the mean AUC at least as wide as the mean of those at its times.",
    "regression": "R² and the mean absolute error have intervals by Student's t on a log scale "
    "with the jackknife over patients; the correlations have Fisher's at the number of patients.",
    "ordinal": "The quadratic kappa has a percentile bootstrap interval over patients; error and "
    "accuracy have Wilson's at the effective number of patients.",
    "class": "The AUC has a score interval that holds for few patients; the others have Wilson's.",
    "multilabel": "Macro averages have percentile bootstrap intervals over patients, at least as "
    "wide as those of the labels, combined as if these were independent. Of each "
    "label, the AUC has a score interval that holds for few patients, balanced accuracy and F1 "
    "have Wilson's, and the Brier score a bootstrap interval.",
}
UNITS = {
    "survival": "Each patient counts once: risks and survival curves of slides of a patient are "
    "averaged.",
}
UNITS_OF_PATIENTS = {
    "mean": "Each patient counts once, with the mean of the predictions of the slides.",
    "max": "Each patient counts once, with the largest prediction of the slides.",
    "joined": "Each patient counts once, with one bag of all slides.",
}
UNITS_OF_SLIDES = (
    "Each slide is predicted and counted by itself; in intervals and tests the slides of a patient "
    "stay together."
)


class HeldOutRows(NamedTuple):
    """Test predictions: one row per bag and repeat."""

    repeats: NDArray[np.int64]
    bags: NDArray[np.str_]
    patients: NDArray[np.int64]  # a number for each patient
    # Time and event; the number; the position of the grade; labels with NaN where one is missing.
    observed: Numbers
    # Risk and whether it is high; the number; the position of the grade; probabilities.
    predicted: Numbers


@dataclass(frozen=True, eq=False)
class TargetRun(Run):
    """The contents of a run directory of another task; the experiment may be unfinished."""

    task: str = ""
    targets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by data set
    held_out: Mapping[Key, HeldOutRows] = field(default_factory=dict)

    @property
    def main(self) -> str:
        """The metric that methods are compared by."""
        return MAIN_METRICS[self.task][0]

    @property
    def chance(self) -> float:
        """The value of the main metric by chance."""
        return MAIN_METRICS[self.task][1]

    @property
    def main_name(self) -> str:
        """The name of the main metric."""
        return NAMES[self.task][self.main]

    @property
    def the_main(self) -> str:
        """The name of the main metric in a sentence."""
        return self.main_name if self.task in ("regression", "class") else f"the {self.main_name}"

    @property
    def headline(self) -> tuple[str, ...]:
        """The metrics that are printed."""
        return tuple(NAMES[self.task])

    @property
    def patient_mode(self) -> str | None:
        """How slides become predictions of patients; None if slides are counted."""
        modes = {(one.settings.get("data") or {}).get("patient") for one in self.planned}
        mode = next(iter(modes)) if len(modes) == 1 else None
        return mode if mode in UNITS_OF_PATIENTS else None

    def metric_names(self, dataset: str) -> dict[str, str]:
        """The metrics of the tables of a data set, with their names."""
        names = NAMES[self.task]
        present = {
            name: None
            for key, result in self.results.items()
            if key.dataset == dataset
            for name, estimate in result.metrics.items()
            if np.isfinite(estimate.mean)
        }
        found = {}
        for name, text in names.items():
            if name in present:
                found[name] = text
            if name == "auc":
                found |= {at: _auc_name(at) for at in present if at.startswith("auc@")}
        return found

    @property
    def explanation(self) -> str:
        """What is counted, which intervals the metrics have, and what repeats are used for."""
        units = UNITS.get(self.task, UNITS_OF_SLIDES)
        if self.patient_mode is not None:
            units = UNITS_OF_PATIENTS[self.patient_mode]
        text = f"{units} 95 % intervals: {INTERVALS[self.task]}"
        if any(result.repeats > 1 for result in self.results.values()):
            text += " Values and limits are means over the repeats."
        return text


def _auc_name(metric: str) -> str:
    time = metric.removeprefix("auc@")
    try:
        return f"AUC at {float(time):.3g}"
    except ValueError:
        return f"AUC at {time}"


def explained_selection(protocol: str) -> str:
    """The name of a selection protocol with its definition.

    >>> explained_selection("last")
    '“last” (last epoch; nothing is selected)'
    """
    return f"“{protocol}” ({MEANING[protocol]})" if protocol in MEANING else f"“{protocol}”"


def task_of_run(run: Path) -> str | None:
    """The task of a run directory; None for classes.

    Raises:
        DataError: `experiment.json` is missing or damaged, or its task is unknown.
    """
    task = read_plan_file(run).get("task")
    if task is None or task in MAIN_METRICS:
        return task
    raise damaged_file(run / "experiment.json", f"unknown task {str(task)[:40]!r}")


def read_target_run(run: Path) -> TargetRun:
    """Read a run directory of another task than classes.

    Raises:
        DataError: A file is missing or damaged; the message names the file and the remedy.
    """
    described, plan = read_experiment(run), read_plan_file(run)
    task, planned = str(plan["task"]), described["planned"]
    targets = plan.get("targets")
    if not isinstance(targets, dict) or not all(isinstance(t, dict) for t in targets.values()):
        raise damaged_file(run / "experiment.json", "without the targets of its task")
    path = run / "results.csv"
    started = ResultTable(path, ["cell"]).length > 0
    main = (MAIN_METRICS[task][0],)
    results = read_results(path, planned, required=main, further=None) if started else {}
    done = [one for one in planned if any(key[:2] == (one.method, one.dataset) for key in results)]
    held_out = {}
    for one in done:
        own = {
            key: result for key, result in results.items() if key[:2] == (one.method, one.dataset)
        }
        expected = {key.protocol: result.repeats * result.bags for key, result in own.items()}
        target = {"task": task, **targets.get(one.dataset, {})}
        for protocol, rows in read_held_out(run, one, target, expected).items():
            held_out[Key(one.method, one.dataset, protocol)] = rows
    return TargetRun(
        folder=run,
        results=results,
        folds=read_folds(run / "folds.csv", results, main[0]) if started else {},
        predictions={},
        history={(one.method, one.dataset): read_history(run, one) for one in done},
        failed=read_failures(run, [one for one in planned if one not in done]),
        costs=read_costs(run / "costs.csv"),
        task=task,
        targets=targets,
        held_out=held_out,
        **described,
    )


def read_held_out(
    run: Path,
    one: PlannedRun,
    target: Mapping[str, Any],
    expected: Mapping[str, int],
    prefix: str = "",
) -> dict[str, HeldOutRows]:
    """The predictions of a run by protocol, in the same order for all methods.

    Args:
        run: The run directory.
        one: The run.
        target: Its target, as JSON values.
        expected: The number of predictions by each protocol.
        prefix: Of the columns of one of several targets; bags without its value are left out.

    Raises:
        DataError: The file is damaged, or has another number of predictions.
    """
    path = run / "cells" / one.name / "predictions.csv"
    task = str(target.get("task"))
    observed, predicted = (
        [prefix + name for name in names] for names in _value_columns(task, target)
    )
    table = ResultTable(path, ["protocol", "repeat", "bag", "patient", *observed, *predicted])
    protocols, bags, repeats = table.text("protocol"), table.text("bag"), table.numbers("repeat")
    values = [
        np.stack([_column(table, name, prefix, target) for name in names], axis=1)
        for names in (observed, predicted)
    ]
    known = np.asarray(~np.isnan(values[0]).all(1))
    patients = np.array(_numbered_patients(table.columns["bag"], table.columns["patient"]))
    found = {}
    for protocol, count in expected.items():
        rows = np.flatnonzero(protocols == protocol)
        if len(rows) != count:
            raise damaged_file(
                path, f"{len(rows)} predictions by protocol {protocol!r}, expected {count}"
            )
        rows = rows[known[rows]]
        rows = rows[np.lexsort((bags[rows], repeats[rows]))]
        found[protocol] = HeldOutRows(
            repeats[rows].astype(np.int64),
            bags[rows],
            number_groups(patients[rows].tolist(), len(rows)),
            values[0][rows],
            values[1][rows],
        )
    return found


def _value_columns(task: str, target: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    if task == "survival":
        return ["time", "event"], ["risk", "high_risk"]
    if task == "multilabel":
        names = [str(name) for name in target.get("names", ())]
        return [f"y_{name}" for name in names], [f"p_{name}" for name in names]
    if task == "class":
        return ["observed"], [f"p_{name}" for name in target.get("classes", ())]
    return ["observed"], ["predicted"]


def _column(table: ResultTable, name: str, prefix: str, target: Mapping[str, Any]) -> Numbers:
    """A column as numbers, grades and classes as their positions; NaN where one is missing."""
    own = name.removeprefix(prefix)
    may_be_empty = own.startswith("y_") or (prefix != "" and own in ("observed", "time", "event"))
    listed = target.get("grades") or target.get("classes")
    if not listed or own not in ("observed", "predicted"):
        return table.numbers(name, empty=may_be_empty)
    position = {str(grade): float(i) for i, grade in enumerate(listed)}
    if may_be_empty:
        position[""] = math.nan
    for line, cell in enumerate(table.columns[name], start=2):
        if cell not in position:
            kind = "grade" if "grades" in target else "class"
            raise damaged_file(table.path, f"line {line}, {name}: {cell!r} is not a {kind}")
    return np.array([position[cell] for cell in table.columns[name]])


def _numbered_patients(bags: Iterable[str], patients: Iterable[str]) -> list[int]:
    """A number for each patient; a bag without one is a patient of its own in all repeats."""
    seen: dict[tuple[str, str], int] = {}
    keys = (("patient", p) if p else ("bag", b) for b, p in zip(bags, patients))
    return [seen.setdefault(key, len(seen)) for key in keys]
