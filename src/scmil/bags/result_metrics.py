"""The metrics of another tool's predictions, computed again with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scmil.bags.labels import Labels
from scmil.bags.result_folders import PredictionTable, ResultFolder
from scmil.bags.result_outcomes import outcome_metrics
from scmil.bags.slide_ids import patient_of_barcode
from scmil.stats.bootstrap import Interval
from scmil.stats.fold_intervals import FoldScores, mean_fold_auc, mean_fold_auc_interval
from scmil.stats.metrics import decide, score_all
from scmil.stats.small_samples import metric_intervals, proportion_interval, wilson_interval

SHOWN = ("accuracy", "balanced_accuracy", "f1", "auc")
# The metrics that the tools claim, under the names of scmil.
CLAIMED = {
    "test_acc": "accuracy",
    "test_auc": "auc",
    "test_macro_auc": "auc",
    "test_bacc": "balanced_accuracy",
}


# Names in the text report; the other metrics are in the JSON only.
METRIC_TEXT = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "c_index": "C index",
    "r2": "R²",
    "mae": "mean absolute error",
}


@dataclass(frozen=True)
class ResultRow:
    """A metric of a fold, or of all folds: recomputed with its interval, and as claimed."""

    fold: int | None
    metric: str
    slides: int
    patients: int | None
    value: float
    low: float
    high: float
    claimed: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the fields; None for what is not defined."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }


class KnownPatients:
    """The patient of each name in the files of a result folder."""

    def __init__(self, found: ResultFolder, labels: Labels | None) -> None:
        self._of_patients, self._labels = found.of_patients, labels
        names = {
            name for fold in found.folds.values() for own in fold.subsets.values() for name in own
        }
        names |= {name for own in found.predicted_names.values() for name in own}
        self.known = {name: patient for name in names if (patient := self.of(name)) is not None}
        self.names = names

    def of(self, name: str) -> str | None:
        """The patient of a slide, None if unknown."""
        if self._of_patients:
            return name
        patient = None if self._labels is None else self._labels.of(name)[1]
        return patient or patient_of_barcode(name)


def fold_metrics(found: ResultFolder, patients: KnownPatients) -> Iterator[ResultRow]:
    """The metrics of each fold, at the most probable class, as the tools compute them."""
    for number, table in sorted(found.predictions.items()):
        fold = _scores_of_fold(table, patients)
        values = score_all(fold.labels, fold.probabilities)
        intervals = metric_intervals(fold.labels, fold.probabilities, 0.5, list(fold.units))
        claims = _claims(found, number)
        for metric in SHOWN:
            yield ResultRow(
                number,
                metric,
                len(table.names),
                len(set(fold.units)),
                values[metric],
                *intervals[metric],
                claims.get(metric),
            )
    for number in sorted(found.claims.keys() - found.predictions.keys()):
        yield from _claims_alone(found, number, patients)


def _claims_alone(found: ResultFolder, number: int, patients: KnownPatients) -> Iterator[ResultRow]:
    """A claimed accuracy without predictions: its interval follows from the number of patients."""
    fold = found.folds.get(number)
    names = [] if fold is None else list(dict.fromkeys(fold.subsets.get("test", ())))
    units = [patients.known.get(name, name) for name in names]
    for metric, claimed in _claims(found, number).items():
        low = high = math.nan
        if metric == "accuracy" and names and 0 <= claimed <= 1:
            low, high = _accuracy_interval(claimed, len(names), units)
        yield ResultRow(
            number, metric, len(names), len(set(units)) or None, math.nan, low, high, claimed
        )


def _accuracy_interval(accuracy: float, slides: int, units: Sequence[str]) -> Interval:
    """Wilson's interval with a sample of one slide per patient, because it is not known which
    slides were right.
    """
    return wilson_interval(accuracy, min(slides, len(set(units))))


def mean_metrics(found: ResultFolder, patients: KnownPatients) -> Iterator[ResultRow]:
    """Accuracy over all tested slides and the mean AUC over folds, if there are several folds."""
    if len(found.predictions) < 2:
        return
    tables = [table for _, table in sorted(found.predictions.items())]
    if len({table.classes for table in tables}) > 1:
        return
    folds = [_scores_of_fold(table, patients) for table in tables]
    hits: dict[str, list[float]] = {}
    for table, fold in zip(tables, folds, strict=True):
        right = decide(fold.probabilities) == fold.labels
        for name, own in zip(table.names, right.tolist(), strict=True):
            hits.setdefault(name, []).append(float(own))
    means = [float(np.mean(values)) for values in hits.values()]
    units = [patients.known.get(name, name) for name in hits]
    repeats = max(1, round(sum(map(len, hits.values())) / len(hits)))
    claims = [_claims(found, number) for number in sorted(found.predictions)]
    for metric, value, interval in (
        ("accuracy", float(np.mean(means)), proportion_interval(means, units)),
        ("auc", mean_fold_auc(folds), mean_fold_auc_interval(folds, repeats)),
    ):
        known = [claim[metric] for claim in claims if metric in claim]
        claimed = float(np.mean(known)) if len(known) == len(claims) and metric == "auc" else None
        yield ResultRow(None, metric, len(hits), len(set(units)), value, *interval, claimed)


def _scores_of_fold(table: PredictionTable, patients: KnownPatients) -> FoldScores:
    labels: NDArray[np.int64] = np.array([table.classes.index(own) for own in table.labels])
    return FoldScores(
        labels, table.probabilities, [patients.known.get(name, name) for name in table.names]
    )


def _claims(found: ResultFolder, number: int) -> Mapping[str, float]:
    """The metrics that files claim for the test split of a fold; of several the last."""
    claims: dict[str, float] = {}
    for _, values in found.claims.get(number, ()):
        claims |= {
            CLAIMED[name]: value
            for name, value in values.items()
            if name in CLAIMED and math.isfinite(value)
        }
    return claims


def other_metrics(found: ResultFolder) -> Iterator[ResultRow]:
    """The metrics of survival or of numbers, of each fold and of all of them."""
    for one in outcome_metrics(found.outcomes):
        value, interval = one.estimate
        yield ResultRow(one.fold, one.metric, one.patients, one.patients, value, *interval)


def describe_row(row: ResultRow) -> str:
    """A metric with its interval and the claimed value, as text."""
    where = "all folds" if row.fold is None else f"fold {row.fold}"
    claimed = "" if row.claimed is None else f"; claimed {row.claimed:.3f}"
    size = f"{row.slides} tested" + (f" of {row.patients} patients" if row.patients else "")
    metric = METRIC_TEXT.get(row.metric, row.metric)
    if math.isnan(row.value):
        interval = f" (95 % interval {row.low:.3f} to {row.high:.3f})" if row.low == row.low else ""
        return f"{where}, {size}: {metric} not recomputed, no predictions{claimed}{interval}"
    return f"{where}, {size}: {metric} {row.value:.3f} ({row.low:.3f} to {row.high:.3f}){claimed}"
