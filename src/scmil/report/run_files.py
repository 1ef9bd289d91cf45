"""A run folder as one object: what was planned, what is finished, what failed. Reads files, computes nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scmil.errors import DataError
from scmil.report.files import Numbers, Table, damaged

FORMAT = "scmil-run-1"
METRIC_NAMES = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1",
    "brier": "Brier score",
    "calibration_error": "calibration error",
}
FURTHER = ("froc",)  # metrics that some runs have
PROTOCOLS = ("last", "nested", "test-tuned")  # in the order of the report; the last one is not honest
TUNED = "test-tuned"
UNRECORDED = "not recorded: results of an earlier version"


class Key(NamedTuple):
    """The place of a number: which arm, on which data set, by which protocol."""

    arm: str
    dataset: str
    protocol: str


class Arm(NamedTuple):
    """A row of the table, and the row it is compared with."""

    name: str
    against: str | None


class Cell(NamedTuple):
    """A unit of work: one arm on one data set."""

    name: str
    dataset: str
    arm: str
    protocols: tuple[str, ...]
    settings: Mapping[str, Any]


class Published(NamedTuple):
    """What a paper says of one arm on one data set."""

    accuracy: float
    sd: float


class Estimate(NamedTuple):
    """A metric: its mean, how it varies over repeats, and its 95 % interval."""

    mean: float
    sd: float
    low: float
    high: float


class Result(NamedTuple):
    """What a cell scored by one protocol, and what it cost."""

    metrics: Mapping[str, Estimate]
    repeats: int
    folds: int
    bags: int
    parameters: float
    density: float
    seconds: float
    data: str = ""  # the first digits of the digest of its data; results of earlier versions have none


class Cost(NamedTuple):
    """What a cell took beyond what its result says: NaN where it was not measured."""

    multiply_adds: float = math.nan  # of one bag of median size
    memory_mib: float = math.nan  # the peak above what the process had before


class Predictions(NamedTuple):
    """Every tested bag of every repeat: a row each."""

    bags: NDArray[np.str_]
    labels: NDArray[np.int64]
    thresholds: Numbers
    probabilities: Numbers  # (rows, classes)


@dataclass(frozen=True, eq=False)
class Run:
    """A finished or half-finished experiment."""

    folder: Path
    title: str
    about: str
    arms: tuple[Arm, ...]
    datasets: tuple[str, ...]
    protocol: Mapping[str, Any]
    training: Mapping[str, Any]
    cells: tuple[Cell, ...]
    published: Mapping[tuple[str, str], Published]
    published_note: str
    versions: Mapping[str, str]
    results: Mapping[Key, Result]
    folds: Mapping[Key, Mapping[tuple[int, int], float]]  # accuracy by repeat and fold
    predictions: Mapping[Key, Predictions]
    history: Mapping[tuple[str, str], Mapping[str, Numbers]]  # by arm and data set: epoch, train_loss, test_accuracy
    failed: Mapping[str, str]
    by_patient: Mapping[Key, Result] = field(default_factory=dict)  # where a patient has several slides
    costs: Mapping[str, Cost] = field(default_factory=dict)  # by cell

    @property
    def protocols(self) -> list[str]:
        """The protocols that have results: honest ones first."""
        met = {key.protocol for key in self.results}
        return [name for name in PROTOCOLS if name in met] + sorted(met - set(PROTOCOLS))

    @property
    def honest(self) -> list[str]:
        """The protocols that choose nothing on the test folds."""
        return [name for name in self.protocols if name != TUNED]

    @property
    def has_folds(self) -> bool:
        """Whether bags were tested in turn; otherwise one test set was kept apart, and only training was repeated."""
        return all(result.folds > 1 for result in self.results.values())

    @property
    def finished(self) -> list[Cell]:
        """The cells whose every protocol has a result."""
        return [
            cell for cell in self.cells if all(Key(cell.arm, cell.dataset, p) in self.results for p in cell.protocols)
        ]

    @property
    def data(self) -> dict[str, str]:
        """The first digits of the digest of each data set, or that it was not recorded."""
        digests: dict[str, set[str]] = {}
        for key, result in self.results.items():
            digests.setdefault(key.dataset, set()).add(result.data or UNRECORDED)
        return {dataset: ", ".join(sorted(found)) for dataset, found in digests.items()}

    @property
    def missing(self) -> list[Cell]:
        """The cells that are neither finished nor failed."""
        finished = {cell.name for cell in self.finished}
        return [cell for cell in self.cells if cell.name not in finished and cell.name not in self.failed]


def read_run(run: Path) -> Run:
    """Read the folder that `scmil run` writes; a file that is missing or damaged is named, with what to do."""
    plan_file = Path(run) / "experiment.json"
    plan = _read_plan(plan_file)
    try:
        arms = tuple(Arm(str(arm["name"]), arm["against"]) for arm in plan["arms"])
        cells = tuple(
            Cell(str(c["cell"]), str(c["dataset"]), str(c["arm"]), tuple(c["protocols"]), dict(c["settings"]))
            for c in plan["cells"]
        )
        published = {
            (str(row["arm"]), str(row["dataset"])): Published(_plain(row["accuracy"]), _plain(row.get("sd")))
            for row in plan.get("published", [])
        }
        described: dict[str, Any] = {
            "title": str(plan["title"] or plan["name"]),
            "about": str(plan.get("about") or ""),
            "datasets": tuple(str(name) for name in plan["datasets"]),
            "protocol": dict(plan["protocol"]),
            "training": dict(plan["training"]),
            "published_note": str(plan.get("published_note") or ""),
            "versions": dict(plan.get("versions", {})),
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(plan_file, f"{type(error).__name__} {error} while reading the plan") from None
    _check_names(plan_file, arms, described["datasets"], cells)
    results = _read_results(Path(run) / "results.csv", cells, "slide")
    done = [cell for cell in cells if any(key[:2] == (cell.arm, cell.dataset) for key in results)]
    return Run(
        folder=Path(run),
        arms=arms,
        cells=cells,
        published=published,
        results=results,
        folds=_read_folds(Path(run) / "folds.csv", results),
        predictions={key: rows for cell in done for key, rows in _read_predictions(Path(run), cell, results).items()},
        history={(cell.arm, cell.dataset): _read_history(Path(run), cell) for cell in done},
        failed=_read_failures(Path(run), [cell for cell in cells if cell not in done]),
        by_patient=_read_results(Path(run) / "results.csv", cells, "patient"),
        costs=_read_costs(Path(run) / "costs.csv"),
        **described,
    )


def _plain(value: Any) -> float:
    return math.nan if value is None else float(value)


def _read_plan(path: Path) -> dict[str, Any]:
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} does not exist: a report needs the folder that `scmil run` wrote.") from None
    except ValueError as error:
        raise damaged(path, f"not readable as JSON ({error})") from None
    if not isinstance(plan, dict) or plan.get("format") != FORMAT:
        met = plan.get("format") if isinstance(plan, dict) else None
        raise DataError(
            f"{path}: format {met!r}, expected {FORMAT!r}. Report it with the version of scmil that wrote it."
        )
    return plan


def _check_names(path: Path, arms: Sequence[Arm], datasets: Sequence[str], cells: Sequence[Cell]) -> None:
    names = {arm.name for arm in arms}
    for arm in arms:
        if arm.against is not None and arm.against not in names:
            raise damaged(path, f"arm {arm.name!r} is compared with {arm.against!r}, which is not an arm")
    for cell in cells:
        if cell.arm not in names or cell.dataset not in datasets:
            raise damaged(path, f"cell {cell.name!r} is of an arm or a data set that is not listed")
        if Path(cell.name).name != cell.name or cell.name in ("", ".", ".."):
            raise damaged(path, f"cell {cell.name!r} is not the name of a folder")
    if len({(cell.arm, cell.dataset) for cell in cells}) < len(cells):
        raise damaged(path, "two cells have the same arm and the same data set")


def _read_results(path: Path, cells: Sequence[Cell], level: str) -> dict[Key, Result]:
    parts = ("", "_sd_repeats", "_low", "_high")
    metric_columns = [metric + part for metric in METRIC_NAMES for part in parts]
    counts = ("repeats", "folds", "bags", "parameters", "density", "seconds")
    table = Table(path, ["cell", "dataset", "arm", "protocol", *counts, *metric_columns])
    metrics = [*METRIC_NAMES, *(name for name in FURTHER if all(name + part in table.columns for part in parts))]
    metric_columns = [metric + part for metric in metrics for part in parts]
    values = {column: table.numbers(column, empty=column not in counts[:3]) for column in (*counts, *metric_columns)}
    planned = {(cell.name, cell.dataset, cell.arm) for cell in cells}
    results: dict[Key, Result] = {}
    levels = table.columns.get("level", ("slide",) * table.length)  # a run whose patients have one slide each says none
    made_from = table.columns.get("data", ("",) * table.length)
    for i in (i for i in range(table.length) if (levels[i] or "slide") == level):
        cell, dataset, arm, protocol = (table.columns[name][i] for name in ("cell", "dataset", "arm", "protocol"))
        if (cell, dataset, arm) not in planned:
            raise damaged(path, f"line {i + 2}: cell {cell!r} is not one of experiment.json")
        row = {column: float(numbers[i]) for column, numbers in values.items()}
        results[Key(arm, dataset, protocol)] = Result(
            metrics={metric: Estimate(*(row[metric + part] for part in parts)) for metric in metrics},
            repeats=int(row["repeats"]),
            folds=int(row["folds"]),
            bags=int(row["bags"]),
            parameters=row["parameters"],
            density=row["density"],
            seconds=row["seconds"],
            data=made_from[i],
        )
    return results


def _read_folds(path: Path, results: Mapping[Key, Result]) -> dict[Key, dict[tuple[int, int], float]]:
    table = Table(path, ["dataset", "arm", "protocol", "repeat", "fold", "accuracy"])
    places = zip(table.numbers("repeat").astype(int).tolist(), table.numbers("fold").astype(int).tolist())
    keys = zip(*(table.columns[name] for name in ("arm", "dataset", "protocol")))
    folds: dict[Key, dict[tuple[int, int], float]] = {}
    for key, place, accuracy in zip(keys, places, table.numbers("accuracy").tolist()):
        folds.setdefault(Key(*key), {})[place] = accuracy
    for key, result in results.items():
        if len(folds.get(key, ())) != result.repeats * result.folds:
            met = len(folds.get(key, ()))
            raise damaged(path, f"{met} folds of {', '.join(key)}, expected {result.repeats * result.folds}")
    return folds


def _read_predictions(run: Path, cell: Cell, results: Mapping[Key, Result]) -> dict[Key, Predictions]:
    path = run / "cells" / cell.name / "predictions.csv"
    table = Table(path, ["protocol", "repeat", "bag", "label", "threshold", "p0", "p1"])
    classes = sorted(
        (name for name in table.columns if name[:1] == "p" and name[1:].isdigit()), key=lambda p: int(p[1:])
    )
    probabilities = np.stack([table.numbers(name) for name in classes], axis=1)
    protocols, bags, thresholds = table.text("protocol"), table.text("bag"), table.numbers("threshold")
    labels = table.numbers("label").astype(np.int64)
    by_repeat = np.lexsort((bags, table.numbers("repeat")))  # so that rows of two arms stand side by side
    found: dict[Key, Predictions] = {}
    for key, result in results.items():
        if key[:2] == (cell.arm, cell.dataset):
            rows = by_repeat[protocols[by_repeat] == key.protocol]
            if len(rows) != (expected := result.repeats * result.bags):
                raise damaged(path, f"{len(rows)} predictions by protocol {key.protocol!r}, expected {expected}")
            found[key] = Predictions(bags[rows], labels[rows], thresholds[rows], probabilities[rows])
    return found


def _read_history(run: Path, cell: Cell) -> dict[str, Numbers]:
    names = ("epoch", "train_loss", "test_accuracy")
    table = Table(run / "cells" / cell.name / "history.csv", ["training", *names])
    kinds = table.text("training")
    shown = kinds == ("full" if "full" in kinds else "inner")
    return {name: table.numbers(name, empty=True)[shown] for name in names}


def _read_costs(path: Path) -> dict[str, Cost]:
    if not path.exists():  # of an older version
        return {}
    table = Table(path, ["cell", *Cost._fields])
    numbers = zip(*(table.numbers(name, empty=True).tolist() for name in Cost._fields))
    return {cell: Cost(*row) for cell, row in zip(table.columns["cell"], numbers)}


def _read_failures(run: Path, cells: Iterable[Cell]) -> dict[str, str]:
    failures = {}
    for cell in cells:
        path = run / "cells" / cell.name / "failed.json"
        if path.exists():
            try:
                failures[cell.name] = str(json.loads(path.read_text(encoding="utf-8"))["error"])
            except (ValueError, KeyError, TypeError):
                raise damaged(path, 'not readable as {"error": "..."}') from None
    return failures
