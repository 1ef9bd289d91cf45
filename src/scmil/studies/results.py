"""The files of a run directory: `experiment.json`, and the tables `results.csv`, `folds.csv` and
`costs.csv`, gathered from the `result.json` of every run.
"""

from __future__ import annotations

import csv
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scmil.core.atomic import write_atomically
from scmil.core.fingerprint import stat_of
from scmil.core.jobs.locks import locked
from scmil.core.run_format import EXPERIMENT, FAILED, FORMAT, RESULT
from scmil.core.tables import records_csv
from scmil.errors import ConfigError
from scmil.stats.metrics import METRICS
from scmil.studies.localise import LOCATED, SUFFIXES
from scmil.studies.plan import Cell, Plan
from scmil.studies.protocols import Row
from scmil.studies.target_data import CLASS, read_data_targets

COSTS = ("parameters", "multiply_adds", "seconds", "memory_mib", "density")
DIGITS = 16  # of a digest, in tables


def cell_folder(out: Path, cell: Cell) -> Path:
    """The folder of a run's files."""
    return out / "cells" / cell.name


def is_done(out: Path, cell: Cell) -> bool:
    """Whether a run has its result."""
    return (cell_folder(out, cell) / RESULT).exists()


def describe_plan(plan: Plan, data: Path | None = None) -> Row:
    """The content of `experiment.json`: what the report needs to know of the plan."""
    first = plan.cells[0].settings.to_json()
    return {
        "format": FORMAT,
        "name": plan.name,
        "title": plan.title,
        "about": plan.about,
        **_describe_task(plan, data),
        "arms": [{"name": name, "against": against} for name, against in plan.arms],
        "datasets": plan.datasets,
        "protocol": {key: value for key, value in first["protocol"].items() if key != "selection"},
        "training": first["training"],
        "cells": [
            {
                "cell": cell.name,
                "dataset": cell.dataset,
                "arm": cell.arm,
                "protocols": cell.protocols,
                "settings": cell.settings.to_json(),
            }
            for cell in plan.cells
        ],
        "published": list(plan.published),
        "published_note": plan.published_note,
        "versions": versions(),
    }


def _describe_task(plan: Plan, folder: Path | None) -> Row:
    """The task of the experiment and the target of each data set; nothing for classes."""
    from scmil.bags.targets import target_json

    targets = {}
    for cell in plan.cells:
        data = cell.settings.data
        if data.task in (None, CLASS) or cell.dataset in targets:  # plans state other tasks
            continue
        if (found := read_data_targets(data, folder)) is not None:
            targets[cell.dataset] = target_json(found.target)
    if not targets:
        return {}
    return {"task": next(iter(targets.values()))["task"], "targets": targets}


def versions() -> dict[str, str]:
    """The versions of everything that numbers depend on."""
    import torch

    import scmil

    return {
        "scmil": scmil.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def read_json_file(path: Path) -> Row:
    """Read a JSON file of a run directory."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(
            f"{path}: damaged ({error}). Delete the file, and the run is made again."
        ) from None
    return content if isinstance(content, dict) else {}


# ------------------------------------------------------------------------------------------ tables


class _Place(NamedTuple):
    """The first columns of every table."""

    cell: str
    dataset: str
    arm: str


class _ResultFile(NamedTuple):
    """The content of a `result.json`, and the state of the file when it was read."""

    stat: tuple[int, ...]
    result: Row


class ResultTables:
    """The results of an experiment, and the tables that are gathered from them.

    A `result.json` is read once, and again only if the file has changed: an experiment of a
    thousand runs does not read a thousand files after each of them.
    """

    def __init__(self, places: Sequence[_Place], out: Path) -> None:
        self._places, self._out = places, out
        self._files: dict[str, _ResultFile] = {}

    @classmethod
    def of_plan(cls, plan: Plan, out: Path) -> ResultTables:
        """The tables of all runs of a plan."""
        return cls([_Place(cell.name, cell.dataset, cell.arm) for cell in plan.cells], out)

    def results(self) -> dict[str, Row]:
        """The content of each `result.json` that exists now, by the name of the run."""
        for place in self._places:
            self._read_if_changed(place.cell)
        return {name: file.result for name, file in self._files.items()}

    def gather(self) -> None:
        """Write the tables from all finished runs, in the order of the plan."""
        # Of two processes, the later one has read all that the earlier one has.
        with locked(self._out / "results.csv", wait=True):
            results = self.results()
            places = [place for place in self._places if place.cell in results]
            _write_tables([(place, results[place.cell]) for place in places], self._out)

    def _read_if_changed(self, name: str) -> None:
        path = self._out / "cells" / name / RESULT
        try:
            stat = stat_of([path])
        except (FileNotFoundError, NotADirectoryError):
            self._files.pop(name, None)
            return
        if name not in self._files or self._files[name].stat != stat:
            self._files[name] = _ResultFile(stat, read_json_file(path))


def gather(plan: Plan, out: Path) -> None:
    """Write `results.csv`, `folds.csv` and `costs.csv` from the finished runs."""
    ResultTables.of_plan(plan, out).gather()


def gather_again(out: Path) -> None:
    """Gather results that are not in the tables, because a process was killed before it wrote them.

    Nothing is written if there are none.
    """
    try:
        cells = json.loads((out / EXPERIMENT).read_text(encoding="utf-8"))["cells"]
        places = [_Place(*(str(cell[key]) for key in _Place._fields)) for cell in cells]
        with (out / "results.csv").open(encoding="utf-8", newline="") as file:
            known = {row["cell"] for row in csv.DictReader(file)}
    except (OSError, ValueError, KeyError, TypeError):
        return  # not a run directory, or a damaged one: the report raises the error
    if any(
        place.cell not in known and (out / "cells" / place.cell / RESULT).is_file()
        for place in places
    ):
        ResultTables(places, out).gather()


def _write_tables(finished: Sequence[tuple[_Place, Row]], out: Path) -> None:
    results: list[Row] = []
    folds: list[Row] = []
    costs: list[Row] = []
    for place, result in finished:
        first = place._asdict()
        cost = {key: result[key] for key in ("parameters", "density", "seconds")}
        made_from = {"data": str((result.get("data") or {}).get("digest", ""))[:DIGITS]}
        results += [{**first, **row, **cost, **made_from} for row in result["rows"]]
        folds += [{**first, **row} for row in result["folds"]]
        costs.append({**first, **{key: result.get(key) for key in (*COSTS, "trained")}})
    of_task = dict.fromkeys(name for _, result in finished for name in result.get("metrics", ()))
    located = (name for name in LOCATED if any(name in row for row in results))
    names = [*of_task] if of_task else [*METRICS, *located]
    metrics = [f"{metric}{suffix}" for metric in names for suffix in SUFFIXES]
    start = [*_Place._fields, "protocol"]
    end = ["parameters", "density", "seconds", "data"]
    level = ["level"] * any("level" in row for row in results)
    counts = [name for name in ("patients", "events") if any(name in row for row in results)]
    columns = [*start, *level, "repeats", "folds", "bags", *counts, *metrics, *end]
    write_atomically(out / "results.csv", records_csv(results, columns))
    if of_task:
        names = [name for name in names if any(name in row for row in folds)]
    chosen = ["epoch"] if of_task else ["epoch", "threshold"]
    columns = [*start, "repeat", "fold", "bags", *names, *chosen]
    write_atomically(out / "folds.csv", records_csv(folds, columns))
    columns = [*_Place._fields, *COSTS, "trained"]
    write_atomically(out / "costs.csv", records_csv(costs, columns))


__all__ = [
    "EXPERIMENT",
    "FAILED",
    "FORMAT",
    "RESULT",
    "ResultTables",
    "cell_folder",
    "describe_plan",
    "gather",
    "gather_again",
    "is_done",
    "read_json_file",
    "versions",
]
