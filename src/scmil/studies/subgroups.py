"""Metrics by subgroup of a model folder or a run directory, from its test predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from scmil.bags.label_records import Record
from scmil.bags.slide_columns import read_slide_column
from scmil.bags.slide_ids import slide_id
from scmil.bags.targets import (
    ClassTarget,
    CombinedTarget,
    PartTarget,
    Target,
    part_name,
    target_from_json,
    target_json,
)
from scmil.core.outputs import Outputs
from scmil.core.run_format import COMBINED
from scmil.core.tables import records_csv
from scmil.core.text import encode_utf8, first_names
from scmil.errors import DataError, OptionError
from scmil.models.answers import answer_names
from scmil.report.combined_run import read_combined_run
from scmil.report.run import Key, Run
from scmil.report.run_files import ResultTable, read_class_run
from scmil.report.subgroup_page import write_subgroup_page
from scmil.report.target_model_page import table_of_part
from scmil.report.target_run import TargetRun, read_target_run, task_of_run
from scmil.stats.bootstrap import Groups
from scmil.stats.subgroups import SlideOutcomes, SubgroupTable, compare_subgroups, merge_tables
from scmil.stats.target_subgroups import TargetOutcomes
from scmil.studies.model_folder import STUDY, read_page
from scmil.studies.target_metrics import observed_columns
from scmil.studies.train_state import CROSS

FILES = ("subgroups.html", "subgroups.csv")


@dataclass(frozen=True)
class FoundPredictions:
    """Test predictions of one model: slides, their outcomes, classes or names of answers, where
    they are from, the task, and the name of one of several targets.
    """

    slides: tuple[str, ...]
    outcomes: SlideOutcomes | TargetOutcomes
    classes: tuple[str, ...]
    origin: str
    task: str = "class"
    target: str = ""

    def column(self, name: str) -> str:
        """The name of a column of groups in tables, which names one of several targets."""
        return f"{self.target}: {name}" if self.target else name


@dataclass(frozen=True)
class SubgroupReport:
    """The metrics by subgroup, what they are computed from, and the files that were written.

    Of several targets the columns are `target: column`, and `tasks` has the task of each target.
    """

    origin: str
    classes: tuple[str, ...]
    table: SubgroupTable
    notes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    task: str = "class"
    tasks: Mapping[str, str] = field(default_factory=dict)

    def task_of(self, column: str) -> str:
        """The task of the metrics of a column, which begins with one of several targets."""
        own = (task for name, task in self.tasks.items() if column.startswith(f"{name}: "))
        return next(own, self.task)

    def rows(self) -> list[dict[str, Any]]:
        """Return a record for each metric of each group."""
        return [
            {
                "column": group.column,
                "group": group.name,
                "slides": group.slides,
                "patients": group.patients,
                "small": group.small,
                "metric": metric,
                "value": _rounded_or_none(estimate.value),
                "low": _rounded_or_none(estimate.interval.low),
                "high": _rounded_or_none(estimate.interval.high),
            }
            for group in self.table.groups
            for metric, estimate in group.metrics.items()
        ]

    def as_json(self) -> dict[str, Any]:
        """Return groups, gaps and notes as JSON values."""
        return {
            "origin": self.origin,
            "task": self.task,
            "classes": list(self.classes),
            "groups": self.rows(),
            "gaps": [gap._asdict() for gap in self.table.gaps],
            "not_compared": list(self.table.not_compared),
            "notes": list(self.notes),
            "files": [str(path) for path in self.files],
        }


def report_subgroups(
    folder: str | Path,
    labels: str | Path,
    by: Sequence[str],
    *,
    method: str | None = None,
    dataset: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
) -> SubgroupReport:
    """Compute the metrics of subgroups on test predictions and write a page and a table.

    Args:
        folder: A model folder of `train`, or a run directory of `run` or `compare`. A model that
            was trained with folds is judged by its cross-validation.
        labels: The table with the columns of the subgroups.
        by: Names of the columns, such as sex, site and scanner.
        method: The method of a run directory that has several.
        dataset: The data set of a run directory that has several.
        out: The folder of the files; None is `folder`.
        overwrite: Whether files of others are replaced.

    Returns:
        The report.

    Raises:
        DataError: A file is damaged, or a column has too many or too few values.
        OptionError: No column is given, or a method has to be chosen.
        OutputError: A file of others is in the way.
    """
    if not by:
        raise OptionError("no column is given. Name the columns of the subgroups: --by sex,site.")
    found = _find_predictions(Path(folder), method, dataset)
    columns = {name: read_slide_column(labels, name) for name in dict.fromkeys(by)}
    slides = list(dict.fromkeys(slide for part in found for slide in part.slides))
    known = set(next(iter(columns.values())))
    absent = [slide for slide in slides if slide_id(slide) not in known]
    if len(absent) == len(slides):
        raise DataError(
            f"{labels}: none of the {len(slides)} tested slides is in the table; they are such as "
            f"{first_names(slides)}. Give the table of these slides."
        )
    notes = []
    if absent:
        notes.append(f"{len(absent)} tested slides are not in the table: {first_names(absent)}.")
    parts = [_with_patients(part, columns) for part in found]
    if all(patient is None for part in parts for patient in part.outcomes.patients):
        notes.append("no patients are known: every slide counts as one.")
    tables = [_compare(part, columns, notes) for part in parts]
    first, table = found[0], merge_tables(tables)
    tasks = {part.target: part.task for part in found if part.target}
    task = COMBINED if tasks else first.task
    report = SubgroupReport(first.origin, first.classes, table, tuple(notes), (), task, tasks)
    return _write_subgroups(report, Path(folder if out is None else out), overwrite)


def _with_patients(
    found: FoundPredictions, columns: Mapping[str, Mapping[str, Record]]
) -> FoundPredictions:
    """The predictions with the patients of the table, unless their own are known."""
    if any(patient is not None for patient in found.outcomes.patients):
        return found
    records = list(columns.values())[-1]
    own = [records.get(slide_id(slide)) for slide in found.slides]
    patients = [None if record is None else record.patient for record in own]
    return replace(found, outcomes=replace(found.outcomes, patients=patients))


def _compare(
    found: FoundPredictions, columns: Mapping[str, Mapping[str, Record]], notes: list[str]
) -> SubgroupTable:
    """Compare the groups of all columns; of several targets those columns that vary."""
    groups: dict[str, list[str | None]] = {}
    for name, records in columns.items():
        own = [records.get(slide_id(slide)) for slide in found.slides]
        values = [None if record is None else record.label for record in own]
        if found.target and len({*values} - {None}) < 2:
            notes.append(
                f"{found.target}: the {len(values)} tested slides with a value are not of two "
                f"groups of the column {name!r}, so it is not compared for this target."
            )
        else:
            groups[found.column(name)] = values
    return compare_subgroups(found.outcomes, groups)


def _write_subgroups(report: SubgroupReport, folder: Path, overwrite: bool) -> SubgroupReport:
    outputs = Outputs(folder, "subgroups", overwrite)
    page, csv = (folder / name for name in FILES)
    folder.mkdir(parents=True, exist_ok=True)
    text = write_subgroup_page(
        report.origin, report.classes, report.table, report.notes, report.task, report.tasks
    )
    outputs.write(page, encode_utf8(text))
    outputs.write(csv, records_csv(report.rows()))
    return replace(report, files=(page, csv))


def _find_predictions(
    folder: Path, method: str | None, dataset: str | None
) -> list[FoundPredictions]:
    """The test predictions, of several targets those of each."""
    if (folder / STUDY).is_file():
        if method or dataset:
            raise OptionError(
                f"{folder} is a model folder, which has one method and one data set. Omit the "
                "option."
            )
        study = read_page(folder / STUDY)
        if study["split"].get("test"):
            target = study.get("target")
            return [_of_model(folder, study)] if target is None else _of_target_model(folder, study)
        if not (folder / CROSS).is_dir():
            raise DataError(
                f"{folder}: the model has neither a test split nor a cross-validation, so nothing "
                "can be said about subgroups. Train it with a test split or with --folds."
            )
        return _of_run(folder / CROSS, None, None, tuple(study["classes"]))
    return _of_run(folder, method, dataset, ())


def _of_target_model(folder: Path, study: Mapping[str, Any]) -> list[FoundPredictions]:
    """The test predictions of a model of another task than classes, or of each of its targets."""
    target = target_from_json(study["target"])
    needed = ["slide_id", "case_id", "part", "y_pred", *observed_columns(target)]
    needed += [f"p_{name}" for name in study["classes"]]
    table = ResultTable(folder / "predictions.csv", needed)
    if not isinstance(target, CombinedTarget):
        return [_targets_of_model(folder, target, table)]
    found = []
    for part in target.parts:
        own = table_of_part(table, target_json(part))
        if (own.text("part") == "test").any():
            made = _targets_of_model(folder, part, own)
            found.append(replace(made, target=part_name(part)))
    return found


def _of_model(folder: Path, study: Mapping[str, Any]) -> FoundPredictions:
    classes = tuple(study["classes"])
    needed = ["slide_id", "case_id", "part", "y_true", "y_pred", *(f"p_{name}" for name in classes)]
    table = ResultTable(folder / "predictions.csv", needed)
    return _classes_of_model(folder, classes, table)


def _classes_of_model(
    folder: Path, classes: tuple[str, ...], table: ResultTable
) -> FoundPredictions:
    test = np.flatnonzero(table.text("part") == "test")
    truth, predicted = table.text("y_true")[test], table.text("y_pred")[test]
    outcomes = SlideOutcomes(
        np.array([classes.index(str(name)) for name in truth]),
        (truth == predicted).astype(float),
        np.stack([table.numbers(f"p_{name}")[test] for name in classes], axis=1),
        [str(case) or None for case in table.text("case_id")[test]],
    )
    slides = tuple(map(str, table.text("slide_id")[test]))
    return FoundPredictions(slides, outcomes, classes, f"test split of {folder.name}")


def _of_run(
    folder: Path, method: str | None, dataset: str | None, classes: tuple[str, ...]
) -> list[FoundPredictions]:
    if (task := task_of_run(folder)) == COMBINED:
        parts = read_combined_run(folder).parts
        chosen = {
            name: _choose_key(part, part.held_out, method, dataset) for name, part in parts.items()
        }
        return [
            replace(_targets_of_run(part, chosen[name]), target=name)
            for name, part in parts.items()
        ]
    if task is not None:
        targets = read_target_run(folder)
        return [_targets_of_run(targets, _choose_key(targets, targets.held_out, method, dataset))]
    run = read_class_run(folder)
    key = _choose_key(run, run.predictions, method, dataset)
    rows = run.predictions[key]
    positions: dict[str, list[int]] = {}
    for i, bag in enumerate(rows.bags):
        positions.setdefault(str(bag), []).append(i)
    p, labels = rows.probabilities, rows.labels
    right = (
        (p[:, 1] > rows.thresholds) == labels if p.shape[1] == 2 else p.argmax(1) == labels
    ).astype(float)
    outcomes = SlideOutcomes(
        np.array([labels[own[0]] for own in positions.values()]),
        np.array([right[own].mean() for own in positions.values()]),
        np.stack([p[own].mean(0) for own in positions.values()]),
        _unknown(len(positions)),
    )
    names = classes or tuple(f"class {c}" for c in range(p.shape[1]))
    return [FoundPredictions(tuple(positions), outcomes, names, _origin_of(key))]


def _targets_of_model(
    folder: Path, target: Target | PartTarget, table: ResultTable
) -> FoundPredictions:
    """The test predictions of a model of one target."""
    task, names, observed = target.task, answer_names(target), observed_columns(target)
    if isinstance(target, ClassTarget):
        return _classes_of_model(folder, names, table)
    test = np.flatnonzero(table.text("part") == "test")
    if task == "ordinal":
        columns = [[observed[0]], ["y_pred"]]
        values = [
            np.array([[names.index(str(cell))] for cell in table.text(name)[test]], dtype=float)
            for [name] in columns
        ]
    else:
        columns = [observed, [f"p_{name}" for name in names]]
        values = [
            np.stack([table.numbers(name, empty=True)[test] for name in own], axis=1)
            for own in columns
        ]
    patients = [str(case) or None for case in table.text("case_id")[test]]
    outcomes = TargetOutcomes(task, values[0], values[1], patients, names)
    slides = tuple(map(str, table.text("slide_id")[test]))
    return FoundPredictions(slides, outcomes, names, f"test split of {folder.name}", task)


def _targets_of_run(run: TargetRun, key: Key) -> FoundPredictions:
    """The test predictions of a run of another task; those of a slide are averaged over repeats."""
    rows, target = run.held_out[key], run.targets[key.dataset]
    bags, first, unit = np.unique(rows.bags, return_index=True, return_inverse=True)
    counts = np.bincount(unit.reshape(-1))
    predicted = np.stack(
        [np.bincount(unit.reshape(-1), column) / counts for column in rows.predicted.T], axis=1
    )
    if run.task == "ordinal":
        predicted = predicted.round()
    patients = [str(rows.patients[i]) for i in first.tolist()]
    names = tuple(target.get("grades") or target.get("names") or target.get("classes") or ())
    if run.task == "class":
        right = (rows.predicted.argmax(1) == rows.observed[:, 0]).astype(float)
        share = np.bincount(unit.reshape(-1), right) / counts
        labels = rows.observed[first, 0].astype(np.int64)
        classes = SlideOutcomes(labels, share, predicted, patients)
        return FoundPredictions(tuple(map(str, bags)), classes, names, _origin_of(key))
    outcomes = TargetOutcomes(run.task, rows.observed[first], predicted, patients, names)
    return FoundPredictions(tuple(map(str, bags)), outcomes, names, _origin_of(key), run.task)


def _choose_key(
    run: Run, predictions: Mapping[Key, Any], method: str | None, dataset: str | None
) -> Key:
    """The method and the data set of a run directory, under the first leakage-free protocol."""
    if not predictions:
        raise DataError(f"{run.folder}: no run has predictions yet. Finish the experiment first.")
    method = _choose("method", method, list(dict.fromkeys(key.method for key in predictions)))
    dataset = _choose("dataset", dataset, list(dict.fromkeys(key.dataset for key in predictions)))
    return Key(method, dataset, (run.leakage_free or run.protocols)[0])


def _origin_of(key: Key) -> str:
    return f"test folds of {key.method} on {key.dataset}, selection protocol {key.protocol!r}"


def _unknown(slides: int) -> Groups:
    return [None] * slides


def _choose(option: str, given: str | None, names: Sequence[str]) -> str:
    if given is None and len(names) == 1:
        return names[0]
    if given not in names:
        found = "several are there" if given is None else f"{given!r} is not there"
        raise OptionError(f"--{option}: {found}. Choose one of {', '.join(map(repr, names))}.")
    return str(given)


def _rounded_or_none(value: float) -> float | None:
    return round(float(value), 6) if np.isfinite(value) else None
