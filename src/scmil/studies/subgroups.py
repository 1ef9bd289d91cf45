"""Metrics by subgroup of a model folder or a run directory, from its test predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from scmil.bags.slide_columns import read_slide_column
from scmil.bags.slide_ids import slide_id
from scmil.core.outputs import Outputs
from scmil.core.tables import records_csv
from scmil.core.text import encode_utf8, first_names
from scmil.errors import DataError, OptionError
from scmil.report.run_files import ResultTable, read_class_run
from scmil.report.subgroup_page import write_subgroup_page
from scmil.stats.bootstrap import Groups
from scmil.stats.subgroups import SlideOutcomes, SubgroupTable, compare_subgroups
from scmil.studies.model_folder import STUDY, read_page
from scmil.studies.train_state import CROSS

FILES = ("subgroups.html", "subgroups.csv")


@dataclass(frozen=True)
class FoundPredictions:
    """Test predictions of one model: slides, their outcomes, classes, and where they are from."""

    slides: tuple[str, ...]
    outcomes: SlideOutcomes
    classes: tuple[str, ...]
    origin: str


@dataclass(frozen=True)
class SubgroupReport:
    """The metrics by subgroup, what they are computed from, and the files that were written."""

    origin: str
    classes: tuple[str, ...]
    table: SubgroupTable
    notes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()

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
    columns: dict[str, list[str | None]] = {}
    patients: list[str | None] = [None] * len(found.slides)
    absent: list[str] = []
    for name in dict.fromkeys(by):
        records = read_slide_column(labels, name)
        own = [records.get(slide_id(slide)) for slide in found.slides]
        columns[name] = [None if record is None else record.label for record in own]
        patients = [None if record is None else record.patient for record in own]
        absent = [slide for slide, record in zip(found.slides, own, strict=True) if record is None]
    if len(absent) == len(found.slides):
        raise DataError(
            f"{labels}: none of the {len(found.slides)} tested slides is in the table; they are "
            f"such as {first_names(found.slides)}. Give the table of these slides."
        )
    outcomes = found.outcomes
    if not any(patient is not None for patient in outcomes.patients):
        outcomes = replace(outcomes, patients=patients)
    table = compare_subgroups(outcomes, columns)
    notes = []
    if absent:
        notes.append(f"{len(absent)} tested slides are not in the table: {first_names(absent)}.")
    if all(patient is None for patient in outcomes.patients):
        notes.append("no patients are known: every slide counts as one.")
    report = SubgroupReport(found.origin, found.classes, table, tuple(notes))
    return _write_subgroups(report, Path(folder if out is None else out), overwrite)


def _write_subgroups(report: SubgroupReport, folder: Path, overwrite: bool) -> SubgroupReport:
    outputs = Outputs(folder, "subgroups", overwrite)
    page, csv = (folder / name for name in FILES)
    folder.mkdir(parents=True, exist_ok=True)
    text = write_subgroup_page(report.origin, report.classes, report.table, report.notes)
    outputs.write(page, encode_utf8(text))
    outputs.write(csv, records_csv(report.rows()))
    return replace(report, files=(page, csv))


def _find_predictions(folder: Path, method: str | None, dataset: str | None) -> FoundPredictions:
    if (folder / STUDY).is_file():
        if method or dataset:
            raise OptionError(
                f"{folder} is a model folder, which has one method and one data set. Omit the "
                "option."
            )
        study = read_page(folder / STUDY)
        if study["split"].get("test"):
            return _of_model(folder, study)
        if not (folder / CROSS).is_dir():
            raise DataError(
                f"{folder}: the model has neither a test split nor a cross-validation, so nothing "
                "can be said about subgroups. Train it with a test split or with --folds."
            )
        return _of_run(folder / CROSS, None, None, tuple(study["classes"]))
    return _of_run(folder, method, dataset, ())


def _of_model(folder: Path, study: Mapping[str, Any]) -> FoundPredictions:
    classes = tuple(study["classes"])
    needed = ["slide_id", "case_id", "part", "y_true", "y_pred", *(f"p_{name}" for name in classes)]
    table = ResultTable(folder / "predictions.csv", needed)
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
) -> FoundPredictions:
    run = read_class_run(folder)
    if not run.predictions:
        raise DataError(f"{folder}: no run has predictions yet. Finish the experiment first.")
    method = _choose("method", method, list(dict.fromkeys(key.method for key in run.predictions)))
    dataset = _choose(
        "dataset", dataset, list(dict.fromkeys(key.dataset for key in run.predictions))
    )
    protocol = (run.leakage_free or run.protocols)[0]
    key = next(key for key in run.predictions if key == (method, dataset, protocol))
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
    origin = f"test folds of {method} on {dataset}, selection protocol {protocol!r}"
    return FoundPredictions(tuple(positions), outcomes, names, origin)


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
