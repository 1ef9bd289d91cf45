"""Read the files of a run directory."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scmil.core.run_format import FORMAT
from scmil.core.tables import unescape_formula
from scmil.errors import DataError
from scmil.report.run import (
    FURTHER,
    METRIC_NAMES,
    Cost,
    Estimate,
    Key,
    Method,
    Numbers,
    PlannedRun,
    Predictions,
    Published,
    Result,
    Run,
)


def read_class_run(run: Path) -> Run:
    """Read a run directory that `scmil run` has written.

    Args:
        run: The run directory.

    Returns:
        Its contents; unfinished experiments can be read as well.

    Raises:
        DataError: A file is missing or damaged; the message names the file and the remedy.

    >>> read_class_run(Path("nothing"))
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: nothing/experiment.json...
    """
    described = read_experiment(Path(run))
    planned: tuple[PlannedRun, ...] = described["planned"]
    results = read_results(Path(run) / "results.csv", planned)
    done = [one for one in planned if any(key[:2] == (one.method, one.dataset) for key in results)]
    return Run(
        folder=Path(run),
        results=results,
        folds=read_folds(Path(run) / "folds.csv", results),
        predictions={
            key: rows
            for one in done
            for key, rows in _read_predictions(Path(run), one, results).items()
        },
        history={(one.method, one.dataset): read_history(Path(run), one) for one in done},
        failed=read_failures(Path(run), [one for one in planned if one not in done]),
        by_patient=read_results(Path(run) / "results.csv", planned, "patient"),
        costs=read_costs(Path(run) / "costs.csv"),
        **described,
    )


def read_experiment(run: Path) -> dict[str, Any]:
    """Read `experiment.json`; returns the fields of a `Run` that it describes.

    Raises:
        DataError: The file is missing or damaged.
    """
    plan_file = run / "experiment.json"
    plan = read_plan_file(run)
    try:
        methods = tuple(Method(str(method["name"]), method["against"]) for method in plan["arms"])
        planned = tuple(
            PlannedRun(
                str(c["cell"]),
                str(c["dataset"]),
                str(c["arm"]),
                tuple(c["protocols"]),
                dict(c["settings"]),
            )
            for c in plan["cells"]
        )
        published = {
            (str(row["arm"]), str(row["dataset"])): Published(
                _number_or_nan(row["accuracy"]), _number_or_nan(row.get("sd"))
            )
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
            "methods": methods,
            "planned": planned,
            "published": published,
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged_file(
            plan_file, f"{type(error).__name__} {error} while reading the experiment"
        ) from None
    _check_names(plan_file, methods, described["datasets"], planned)
    return described


def _number_or_nan(value: Any) -> float:
    return math.nan if value is None else float(value)


def read_plan_file(run: Path) -> dict[str, Any]:
    """Read `experiment.json` as it is.

    Raises:
        DataError: The file is missing or damaged.
    """
    path = run / "experiment.json"
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{path} does not exist, expected a run directory written by `scmil run`. "
            "Check the path."
        ) from None
    except ValueError as error:
        raise damaged_file(path, f"not readable as JSON ({error})") from None
    if not isinstance(plan, dict) or plan.get("format") != FORMAT:
        actual = plan.get("format") if isinstance(plan, dict) else None
        raise DataError(
            f"{path}: format {actual!r}, expected {FORMAT!r}. "
            "Use the version of scmil that wrote it."
        )
    return plan


def _check_names(
    path: Path, methods: Sequence[Method], datasets: Sequence[str], planned: Sequence[PlannedRun]
) -> None:
    names = {method.name for method in methods}
    for method in methods:
        if method.against is not None and method.against not in names:
            raise damaged_file(
                path,
                f"method {method.name!r} is compared with {method.against!r}, which is not listed",
            )
    for one in planned:
        if one.method not in names or one.dataset not in datasets:
            raise damaged_file(
                path, f"run {one.name!r} has a method or data set that is not listed"
            )
        if Path(one.name).name != one.name or one.name in ("", ".", ".."):
            raise damaged_file(path, f"run {one.name!r} is not the name of a folder")
    if len({(one.method, one.dataset) for one in planned}) < len(planned):
        raise damaged_file(path, "two runs have the same method and the same data set")


def read_results(
    path: Path,
    planned: Sequence[PlannedRun],
    level: str = "slide",
    required: Sequence[str] = tuple(METRIC_NAMES),
    further: Sequence[str] | None = FURTHER,
) -> dict[Key, Result]:
    """Read `results.csv`: the required metrics, and further ones that it has (None is all)."""
    parts = ("", "_sd_repeats", "_low", "_high")
    metric_columns = [metric + part for metric in required for part in parts]
    counts = ("repeats", "folds", "bags", "parameters", "density", "seconds")
    table = ResultTable(path, ["cell", "dataset", "arm", "protocol", *counts, *metric_columns])
    found = [name for name in table.columns if all(name + part in table.columns for part in parts)]
    wanted = [name for name in found if name not in required] if further is None else further
    metrics = [*required, *(name for name in wanted if name in found)]
    metric_columns = [metric + part for metric in metrics for part in parts]
    values = {
        column: table.numbers(column, empty=column not in counts[:3])
        for column in (*counts, *metric_columns)
    }
    known = {(one.name, one.dataset, one.method) for one in planned}
    results: dict[Key, Result] = {}
    # There is no such column if each patient has one slide.
    levels = table.columns.get("level", ("slide",) * table.length)
    made_from = table.columns.get("data", ("",) * table.length)
    for i in (i for i in range(table.length) if (levels[i] or "slide") == level):
        name, dataset, method, protocol = (
            table.columns[column][i] for column in ("cell", "dataset", "arm", "protocol")
        )
        if (name, dataset, method) not in known:
            raise damaged_file(path, f"line {i + 2}: run {name!r} is not in experiment.json")
        row = {column: float(numbers[i]) for column, numbers in values.items()}
        results[Key(method, dataset, protocol)] = Result(
            metrics={
                metric: Estimate(*(row[metric + part] for part in parts)) for metric in metrics
            },
            repeats=int(row["repeats"]),
            folds=int(row["folds"]),
            bags=int(row["bags"]),
            parameters=row["parameters"],
            density=row["density"],
            seconds=row["seconds"],
            data=made_from[i],
        )
    return results


def read_folds(
    path: Path, results: Mapping[Key, Result], metric: str = "accuracy"
) -> dict[Key, dict[tuple[int, int], float]]:
    """The metric of each fold, by its repeat and number; NaN where a fold does not define it.

    Raises:
        DataError: The file is missing or damaged, or has not all folds of the results.
    """
    table = ResultTable(path, ["dataset", "arm", "protocol", "repeat", "fold", metric])
    places = zip(
        table.numbers("repeat").astype(int).tolist(), table.numbers("fold").astype(int).tolist()
    )
    keys = zip(*(table.columns[name] for name in ("arm", "dataset", "protocol")))
    folds: dict[Key, dict[tuple[int, int], float]] = {}
    values = table.numbers(metric, empty=metric != "accuracy").tolist()
    for key, place, value in zip(keys, places, values):
        folds.setdefault(Key(*key), {})[place] = value
    for key, result in results.items():
        if len(folds.get(key, ())) != result.repeats * result.folds:
            actual = len(folds.get(key, ()))
            raise damaged_file(
                path,
                f"{actual} folds of {', '.join(key)}, expected {result.repeats * result.folds}",
            )
    return folds


def _read_predictions(
    run: Path, one: PlannedRun, results: Mapping[Key, Result]
) -> dict[Key, Predictions]:
    path = run / "cells" / one.name / "predictions.csv"
    table = ResultTable(path, ["protocol", "repeat", "bag", "label", "threshold", "p0", "p1"])
    classes = sorted(
        (name for name in table.columns if name[:1] == "p" and name[1:].isdigit()),
        key=lambda p: int(p[1:]),
    )
    probabilities = np.stack([table.numbers(name) for name in classes], axis=1)
    protocols, bags, thresholds = (
        table.text("protocol"),
        table.text("bag"),
        table.numbers("threshold"),
    )
    labels = table.numbers("label").astype(np.int64)
    # The same order for all methods, so that rows can be compared.
    by_repeat = np.lexsort((bags, table.numbers("repeat")))
    predictions: dict[Key, Predictions] = {}
    for key, result in results.items():
        if key[:2] == (one.method, one.dataset):
            rows = by_repeat[protocols[by_repeat] == key.protocol]
            if len(rows) != (expected := result.repeats * result.bags):
                raise damaged_file(
                    path,
                    f"{len(rows)} predictions by protocol {key.protocol!r}, expected {expected}",
                )
            predictions[key] = Predictions(
                bags[rows], labels[rows], thresholds[rows], probabilities[rows]
            )
    return predictions


def read_history(run: Path, one: PlannedRun) -> dict[str, Numbers]:
    """The training curve of one run."""
    names = ("epoch", "train_loss", "test_accuracy")
    table = ResultTable(run / "cells" / one.name / "history.csv", ["training", *names])
    kinds = table.text("training")
    shown = kinds == ("full" if "full" in kinds else "inner")
    return {name: table.numbers(name, empty=True)[shown] for name in names}


def read_costs(path: Path) -> dict[str, Cost]:
    """Read `costs.csv`; empty if there is none."""
    if not path.exists():  # written by an earlier version
        return {}
    table = ResultTable(path, ["cell", *Cost._fields])
    numbers = zip(*(table.numbers(name, empty=True).tolist() for name in Cost._fields))
    return {name: Cost(*row) for name, row in zip(table.columns["cell"], numbers)}


def read_failures(run: Path, planned: Iterable[PlannedRun]) -> dict[str, str]:
    """The cause of each run that failed."""
    failures = {}
    for one in planned:
        path = run / "cells" / one.name / "failed.json"
        if path.exists():
            try:
                failures[one.name] = str(json.loads(path.read_text(encoding="utf-8"))["error"])
            except (ValueError, KeyError, TypeError):
                raise damaged_file(path, 'not readable as {"error": "..."}') from None
    return failures


def damaged_file(path: Path, what: str) -> DataError:
    """The error for a damaged file of a run directory: the file, the problem, and what to do."""
    return DataError(
        f"{path}: {what}. Run `scmil run` on the same experiment again: finished runs are kept."
    )


class ResultTable:
    """A CSV file by columns; errors name the file and the line."""

    def __init__(self, path: Path, needed: Iterable[str]) -> None:
        self.path = path
        try:
            with path.open(newline="", encoding="utf-8") as file:
                header, *rows = list(csv.reader(file, strict=True)) or [[]]
        except FileNotFoundError:
            raise damaged_file(path, "the file does not exist") from None
        except (UnicodeDecodeError, csv.Error) as error:
            raise damaged_file(path, f"not readable as CSV ({error})") from None
        if absent := [name for name in needed if name not in header]:
            raise damaged_file(path, f"without the column {absent[0]!r}")
        for line, row in enumerate(rows, start=2):
            if len(row) != len(header):
                raise damaged_file(
                    path, f"line {line} has {len(row)} fields, expected {len(header)}"
                )
        self.length = len(rows)
        rows = [[unescape_formula(field) for field in row] for row in rows]
        self.columns = dict(zip(header, zip(*rows) if rows else [()] * len(header)))

    def text(self, column: str) -> NDArray[np.str_]:
        """A column as text."""
        return np.array(self.columns[column], dtype=np.str_)

    def numbers(self, column: str, *, empty: bool = False) -> Numbers:
        """A column as numbers; with `empty`, empty fields become NaN, otherwise they raise an
        error.
        """
        values = self.columns[column]
        try:
            numbers = np.array([value or "nan" for value in values], dtype=np.float64)
        except ValueError:
            bad = next(i for i, value in enumerate(values) if value and not _is_number(value))
            raise damaged_file(
                self.path, f"line {bad + 2}, {column}: {values[bad]!r} is not a number"
            ) from None
        if not empty and not np.isfinite(numbers).all():
            line = int(np.flatnonzero(~np.isfinite(numbers))[0]) + 2
            raise damaged_file(self.path, f"line {line}, {column}: a number is missing")
        return numbers


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
