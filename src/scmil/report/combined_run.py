"""A run directory of several targets at once: each target is a run of its own task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from scmil.core.run_format import COMBINED, MAIN_METRICS
from scmil.report.run import Key, PlannedRun, Result, Run
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
from scmil.report.target_run import INTERVALS, HeldOutRows, TargetRun, read_held_out


@dataclass(frozen=True, eq=False)
class CombinedRun(Run):
    """The contents of a run directory of several targets; the experiment may be unfinished."""

    parts: Mapping[str, TargetRun] = field(default_factory=dict)  # by the name of the target


def name_of_part(target: Mapping[str, Any]) -> str:
    """The name of one of several targets, from its JSON values; the prefix of its metrics.

    >>> name_of_part({"task": "ordinal", "name": "isup"}), name_of_part({"task": "survival"})
    ('isup', 'survival')
    """
    return {"survival": "survival", "multilabel": "labels"}.get(
        str(target.get("task")), str(target.get("name"))
    )


def main_metrics(target: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Column and name of the main metric of a target, or of each of several targets.

    >>> main_metrics({"task": "combined", "parts": [{"task": "ordinal", "name": "isup"}]})
    [('isup: kappa', 'isup: quadratic kappa')]
    """
    if target["task"] != COMBINED:
        main = MAIN_METRICS[target["task"]]
        return [(main.column, main.name)]
    return [
        (f"{name_of_part(part)}: {column}", f"{name_of_part(part)}: {name}")
        for part in target["parts"]
        for column, name in main_metrics(part)
    ]


def shown_metrics(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Column and name of the metrics that a text shows, from the content of `metrics.json`.

    >>> shown_metrics({"task": "regression"})
    [('r2', 'R²')]
    """
    if metrics["task"] == COMBINED:
        return [(str(column), str(name)) for column, name in metrics["main"].items()]
    return main_metrics(metrics)


def describe_intervals(target: Mapping[str, Any]) -> str:
    """How the intervals of a target are computed, or of each of several targets."""
    if target["task"] != COMBINED:
        return INTERVALS[target["task"]]
    return " ".join(f"{name_of_part(part)}: {INTERVALS[part['task']]}" for part in target["parts"])


def read_combined_run(run: Path) -> CombinedRun:
    """Read a run directory of several targets.

    Raises:
        DataError: A file is missing or damaged; the message names the file and the remedy.
    """
    described = read_experiment(run)
    planned: tuple[PlannedRun, ...] = described["planned"]
    by_dataset = _targets_of(run)
    path = run / "results.csv"
    started = ResultTable(path, ["cell"]).length > 0
    required = [column for column, _ in main_metrics(next(iter(by_dataset.values())))]
    results = read_results(path, planned, required=required, further=None) if started else {}
    done = [one for one in planned if any(key[:2] == (one.method, one.dataset) for key in results)]
    common = {
        "folder": run,
        "folds": {},
        "predictions": {},
        "history": {(one.method, one.dataset): read_history(run, one) for one in done},
        "failed": read_failures(run, [one for one in planned if one not in done]),
        "costs": read_costs(run / "costs.csv"),
        **described,
    }
    first = next(iter(by_dataset.values()))["parts"]
    parts = {
        name_of_part(part): _read_part(run, common, results, done, by_dataset, number)
        for number, part in enumerate(first)
    }
    return CombinedRun(results=results, parts=parts, **common)


def _targets_of(run: Path) -> dict[str, Mapping[str, Any]]:
    """The combined target of each data set, with the same parts."""
    targets = read_plan_file(run).get("targets")
    if not isinstance(targets, dict) or not targets:
        raise damaged_file(run / "experiment.json", "without the targets of its task")
    names = set()
    for target in targets.values():
        parts = target.get("parts") if isinstance(target, dict) else None
        if not isinstance(parts, list) or not all(
            isinstance(part, dict) and part.get("task") in INTERVALS for part in parts
        ):
            raise damaged_file(run / "experiment.json", "with a target that has no parts")
        names.add(tuple(name_of_part(part) for part in parts))
    if len(names) > 1:
        raise damaged_file(run / "experiment.json", "with data sets of different targets")
    return targets


def _read_part(
    run: Path,
    common: Mapping[str, Any],
    results: Mapping[Key, Result],
    done: list[PlannedRun],
    by_dataset: Mapping[str, Mapping[str, Any]],
    number: int,
) -> TargetRun:
    """One target with its own metrics, and the predictions of the bags that have a value."""
    targets = {dataset: target["parts"][number] for dataset, target in by_dataset.items()}
    first = next(iter(targets.values()))
    prefix = f"{name_of_part(first)}: "
    held_out: dict[Key, HeldOutRows] = {}
    for one in done:
        own = {key: r for key, r in results.items() if key[:2] == (one.method, one.dataset)}
        expected = {key.protocol: result.repeats * result.bags for key, result in own.items()}
        found = read_held_out(run, one, targets[one.dataset], expected, prefix)
        held_out |= {Key(one.method, one.dataset, name): rows for name, rows in found.items()}
    [(main, _)] = main_metrics(first)
    folds = read_folds(run / "folds.csv", results, f"{prefix}{main}") if results else {}
    return TargetRun(
        **{**common, "title": f"{common['title']} · {name_of_part(first)}", "folds": folds},
        results={
            key: result._replace(
                bags=len(np.unique(held_out[key].bags)),
                metrics={
                    name.removeprefix(prefix): estimate
                    for name, estimate in result.metrics.items()
                    if name.startswith(prefix)
                },
            )
            for key, result in results.items()
        },
        task=str(first["task"]),
        targets=targets,
        held_out=held_out,
    )
