"""The metrics of a model of classes on another cohort, and the change of the metrics of any task
against the internal estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scmil.core.run_format import RESULT
from scmil.core.shapes import Numbers
from scmil.report.run_files import ResultTable
from scmil.stats.bootstrap import Interval
from scmil.stats.small_samples import METHODS, difference_interval, proportion_interval
from scmil.studies.external_calibration import calibration_of
from scmil.studies.external_targets import internal_targets
from scmil.studies.model_folder import Page, read_page
from scmil.studies.model_metrics import estimate_json, interval_of_all, pool_by_patient
from scmil.studies.train_state import CROSS
from scmil.studies.training_fingerprint import Fingerprint

DECIDED = ("accuracy", "balanced_accuracy", "f1")  # metrics that depend on the threshold
RANKED = ("brier", "calibration_error")
LEVELS = ("slide", "patient")
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class ClassPredictions:
    """Probabilities of classes with what is needed to score them.

    Attributes:
        classes: Names of the classes.
        labels: Class of each slide (b,).
        p: Probabilities (b, c).
        thresholds: Threshold on the second of two classes (b,): the folds of a cross-validation
            have different ones. NaN: the likeliest class is predicted.
        patients: Patient of each slide; None is a patient of its own.
    """

    classes: tuple[str, ...]
    labels: Labels
    p: Numbers
    thresholds: Numbers
    patients: tuple[str | None, ...]

    @property
    def decided(self) -> Labels:
        """The predicted class of each slide."""
        likeliest = self.p.argmax(1)
        if self.p.shape[1] > 2:
            return likeliest
        above = (self.p[:, 1] > self.thresholds).astype(np.int64)
        return np.where(np.isnan(self.thresholds), likeliest, above)

    @property
    def groups(self) -> list[str]:
        """The patient of each slide, or a name of its own."""
        return [f"bag {i}" if own is None else own for i, own in enumerate(self.patients)]

    def by_patient(self) -> ClassPredictions | None:
        """The mean of each patient; None if every patient has one slide, or if the slides of a
        patient have different classes.
        """
        both = np.column_stack([self.p, self.thresholds])
        averaged = pool_by_patient(self.labels, both, self.groups)
        if averaged is None:
            return None
        labels, means = averaged
        return ClassPredictions(
            self.classes, labels, means[:, :-1], means[:, -1], (None,) * len(labels)
        )


def score_classes(predictions: ClassPredictions) -> Page:
    """Return metrics with 95 % intervals, by slide and by patient, and the calibration.

    Args:
        predictions: Probabilities, thresholds, labels and patients.

    Returns:
        `slide` and, if patients have several slides, `patient` with the metrics of `scmil train`
        and the recall of each class; `confusion`, whose rows are the true classes; `calibration`
        by class, that of the second of two.

    >>> p = np.array([[0.9, 0.1], [0.2, 0.8]] * 4)
    >>> labels, patients = np.array([0, 1] * 4), (None,) * 8
    >>> found = score_classes(ClassPredictions(("a", "b"), labels, p, np.full(8, 0.5), patients))
    >>> found["slide"]["recall of b"], found["confusion"]
    ({'value': 1.0, 'low': 0.510109, 'high': 1.0}, [[4, 0], [0, 4]])
    """
    page: Page = {"intervals": METHODS, **_levels(predictions)}
    classes = range(len(predictions.classes))
    decided = predictions.decided
    page["confusion"] = [
        [int(((predictions.labels == i) & (decided == j)).sum()) for j in classes] for i in classes
    ]
    scored = [1] if len(classes) == 2 else [i for i in classes if (predictions.labels == i).any()]
    page["calibration"] = {
        predictions.classes[i]: calibration_of(
            (predictions.labels == i).astype(float),
            predictions.p[:, i].clip(0, 1),
            predictions.groups,
        )
        for i in scored
    }
    return page


def _levels(predictions: ClassPredictions) -> Page:
    averaged = predictions.by_patient()
    by_patient = {} if averaged is None else {"patient": _metrics(averaged)}
    return {"slide": _metrics(predictions), **by_patient}


def _metrics(predictions: ClassPredictions) -> Page:
    labels, groups = predictions.labels, predictions.groups
    own = None if set(predictions.patients) == {None} else groups
    hard = np.eye(predictions.p.shape[1])[predictions.decided]
    ranked = interval_of_all(labels, predictions.p, own, 0.5)
    decided = interval_of_all(labels, hard, own, 0.5)
    page: Page = {"n": ranked["n"], "patients": ranked["patients"]}
    page |= {"auc": ranked["auc"]} | {name: decided[name] for name in DECIDED}
    for number, name in enumerate(predictions.classes):
        rows = np.flatnonzero(labels == number)
        if len(rows):
            right = (predictions.decided[rows] == number).astype(float)
            interval = proportion_interval(right, [groups[i] for i in rows])
            page[f"recall of {name}"] = estimate_json(float(right.mean()), *interval)
    return page | {name: ranked[name] for name in RANKED}


# --------------------------------------------------------------------------- the internal estimate


def internal_estimate(folder: Path, study: Page, training: Fingerprint) -> Page | None:
    """Return the metrics that the model folder has of patients it was not trained on.

    They are those of the cross-validation, whose predictions of the first repeat are pooled, or
    those of the test split.

    Args:
        folder: The model folder.
        study: The content of `study.json`.
        training: The fingerprint of the training.

    Returns:
        `source` in words and the metrics by level; None if there are none.
    """
    metrics = read_page(folder / "metrics.json") if (folder / "metrics.json").is_file() else {}
    if "target" in study:
        return internal_targets(metrics)
    patients = {slide.id: slide.patient for slide in training.slides}
    classes = tuple(study["classes"])
    for path in sorted((folder / CROSS / "cells").glob(f"*/{RESULT}")):
        predictions, source = _read_cross_validation(
            path.with_name("predictions.csv"), classes, patients
        )
        return {"source": source, **_levels(predictions)}
    path = folder / "predictions.csv"
    if not study["split"].get("test") or not path.is_file():
        return None
    table = ResultTable(path, ["slide_id", "part", "y_true", *(f"p_{name}" for name in classes)])
    rows = np.flatnonzero(table.text("part") == "test").tolist()
    p = np.column_stack([table.numbers(f"p_{name}")[rows] for name in classes])
    labels = [classes.index(name) for name in table.text("y_true")[rows].tolist()]
    names = [patients.get(slide) for slide in table.text("slide_id")[rows].tolist()]
    thresholds = np.full(len(rows), study["threshold"], float)
    predictions = ClassPredictions(classes, np.array(labels), p, thresholds, tuple(names))
    return {"source": "the internal test split", **_levels(predictions)}


def _read_cross_validation(
    path: Path, classes: tuple[str, ...], patients: dict[str, str | None]
) -> tuple[ClassPredictions, str]:
    """The predictions of the held-out slides of the first repeat, and where they come from."""
    columns = [f"p{number}" for number in range(len(classes))]
    table = ResultTable(path, ["repeat", "fold", "bag", "label", "threshold", *columns])
    repeats, folds = table.numbers("repeat"), table.numbers("fold")
    rows = np.flatnonzero(repeats == 0).tolist()
    p = np.column_stack([table.numbers(name)[rows] for name in columns])
    names = tuple(patients.get(bag) for bag in table.text("bag")[rows].tolist())
    labels = table.numbers("label")[rows].astype(np.int64)
    predictions = ClassPredictions(classes, labels, p, table.numbers("threshold")[rows], names)
    source = f"the cross-validation with {len(np.unique(folds))} folds"
    if repeats.max() > 0:
        source += " (predictions of the first repeat)"
    return predictions, source


def change_of(external: Page, internal: Page | None) -> Page:
    """Return the difference of each metric to the internal estimate with a 95 % interval.

    The two cohorts have different patients, so that the estimates are independent: the interval
    comes from those of both (MOVER).

    >>> metric = {"auc": {"value": 0.9, "low": 0.8, "high": 0.95}}
    >>> change_of({"slide": metric}, {"slide": metric})["slide"]["auc"]["value"]
    0.0
    """
    page: Page = {}
    for level in LEVELS:
        own, other = external.get(level), (internal or {}).get(level)
        if isinstance(own, dict) and isinstance(other, dict):
            shared = [name for name in own if isinstance(own[name], dict) and name in other]
            page[level] = {name: _difference(own[name], other[name]) for name in shared}
    return page


def _difference(own: Page, other: Page) -> Page:
    (value, *limits), (reference, *other_limits) = (
        _with_nan([each.get(key) for key in ("value", "low", "high")]) for each in (own, other)
    )
    interval = difference_interval(value, Interval(*limits), reference, Interval(*other_limits))
    return estimate_json(value - reference, *interval)


def _with_nan(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else float(value) for value in values]
