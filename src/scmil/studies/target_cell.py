"""The tables of a run of another task than classes: summary, folds and predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from scmil.bags.target_types import ordered_names
from scmil.studies.cell_task import RunTables
from scmil.studies.protocols import Row

if TYPE_CHECKING:
    from scmil.bags.targets import PartTarget, Target, Targets
    from scmil.training.held_out import HeldOut


@dataclass(frozen=True)
class TargetFold:
    """The predictions of the test bags of a fold, by one selection protocol."""

    protocol: str
    repeat: int
    fold: int
    epoch: int
    held_out: HeldOut

    @property
    def place(self) -> Row:
        """The first columns of its rows."""
        return {"protocol": self.protocol, "repeat": self.repeat, "fold": self.fold}

    def of_patients(self, targets: Targets, mode: str) -> TargetFold:
        """The predictions of patients: the mean or the largest over their slides."""
        from scmil.training.patient_predictions import pool_predictions

        return replace(self, held_out=pool_predictions(targets, self.held_out, mode))


def patients_as_units(targets: Targets) -> Targets:
    """The values of patients, for predictions of patients."""
    from scmil.training.patient_predictions import patient_targets

    return patient_targets(targets)


def target_tables(
    targets: Targets, protocols: Sequence[str], folds: Sequence[TargetFold]
) -> RunTables:
    """The summary of every protocol, the metrics of every fold, and all predictions.

    Args:
        targets: The values and patients of all bags.
        protocols: The selection protocols.
        folds: All folds of all repeats, by each protocol.

    Returns:
        The tables.
    """
    scores = [_fold_scores(targets, fold) for fold in folds]
    rows = [
        summarise_targets(
            targets,
            [fold for fold in folds if fold.protocol == name],
            [score for fold, score in zip(folds, scores, strict=True) if fold.protocol == name],
        )
        for name in protocols
    ]
    fold_rows = [
        {**fold.place, "bags": len(fold.held_out.ids), **score, "epoch": fold.epoch}
        for fold, score in zip(folds, scores, strict=True)
    ]
    predictions = (row for fold in folds for row in prediction_rows(targets, fold))
    return RunTables(rows, fold_rows, predictions, metric_names(rows))


def summarise_targets(
    targets: Targets, folds: Sequence[TargetFold], fold_scores: Sequence[Row]
) -> Row:
    """The metrics of one protocol: over all test bags of a repeat, then the mean over repeats.

    The limits of the 95 % intervals are means over repeats as well: repeats have the same patients,
    so that they do not make an interval narrower.

    Args:
        targets: The values and patients of all bags.
        folds: The folds of all repeats.
        fold_scores: The metrics of each of them, for the deviation over folds.

    Returns:
        Numbers of repeats, folds, bags and patients, and each metric with deviations and limits.
    """
    from scmil.stats.bootstrap import number_groups
    from scmil.training.held_out import join_held_out, patients_of_targets, score_held_out
    from scmil.training.target_folds import times_of_scores

    repeats = sorted({fold.repeat for fold in folds})
    joined = [
        join_held_out([fold.held_out for fold in folds if fold.repeat == repeat])
        for repeat in repeats
    ]
    at = times_of_scores(targets)
    found = [score_held_out(targets, one, at=at) for one in joined]
    ids = joined[0].ids
    patients = number_groups(patients_of_targets(targets, ids), len(ids))
    row: Row = {
        "protocol": folds[0].protocol,
        "repeats": len(repeats),
        "folds": sum(fold.repeat == repeats[0] for fold in folds),
        "bags": len(ids),
        "patients": len(np.unique(patients)),
    }
    if targets.task == "survival":
        row["events"] = len(np.unique(patients[targets.array(ids)[:, 1] > 0]))
    for metric in found[0]:
        values = [one[metric].value for one in found]
        row[metric] = _mean_or_none(values)
        row[f"{metric}_sd_repeats"] = _deviation(values)
        row[f"{metric}_sd_folds"] = _deviation([one.get(metric) for one in fold_scores])
        row[f"{metric}_low"] = _mean_or_none([one[metric].interval.low for one in found])
        row[f"{metric}_high"] = _mean_or_none([one[metric].interval.high for one in found])
    return row


def prediction_rows(targets: Targets, fold: TargetFold) -> Iterator[Row]:
    """A row of predictions.csv for every test bag: place, patient, observed and predicted values.

    Args:
        targets: The values and patients of all bags.
        fold: The predictions.

    Yields:
        The rows, all with the same columns.
    """
    from scmil.training.held_out import patients_of_targets

    ids = fold.held_out.ids
    patients = patients_of_targets(targets, ids)
    for position, (bag_id, patient) in enumerate(zip(ids, patients, strict=True)):
        yield {
            **fold.place,
            "bag": bag_id,
            "patient": patient,
            **_observed(targets, bag_id),
            **_predicted(targets.target, fold.held_out, position),
        }


def metric_names(rows: Sequence[Row]) -> tuple[str, ...]:
    """The metrics of summaries, in their order; those that only some rows have come last.

    >>> metric_names([{"protocol": "last", "r2": 0.5, "r2_low": 0.1}])
    ('r2',)
    """
    names = [name for row in rows for name in row if f"{name}_low" in row]
    return tuple(dict.fromkeys(names))


def _fold_scores(targets: Targets, fold: TargetFold) -> Row:
    from scmil.training.held_out import score_fold

    scores = score_fold(targets, fold.held_out)
    return {name: _mean_or_none([value]) for name, value in scores.items()}


def _observed(targets: Targets, bag_id: str) -> Row:
    from scmil.bags.targets import CombinedTarget, LabelsTarget, SurvivalTarget

    target, numbers = targets.target, targets.array([bag_id])[0]
    if isinstance(target, CombinedTarget):
        return {
            f"{name}: {column}": cell
            for number, name in enumerate(target.names)
            for column, cell in _observed_or_empty(targets.part(number), bag_id).items()
        }
    if isinstance(target, SurvivalTarget):
        return {"time": f"{numbers[0]:.9g}", "event": int(numbers[1])}
    if names := ordered_names(target):
        return {"observed": names[int(numbers[0])]}
    if isinstance(target, LabelsTarget):
        return {
            f"y_{name}": None if number != number else int(number)
            for name, number in zip(target.names, numbers, strict=True)
        }
    return {"observed": f"{numbers[0]:.9g}"}


def _observed_or_empty(targets: Targets, bag_id: str) -> Row:
    """The observed columns of one of several targets; empty cells where it is missing."""
    from scmil.bags.targets import SurvivalTarget

    if targets.of(bag_id) is not None:
        return _observed(targets, bag_id)
    target = targets.target
    if isinstance(target, SurvivalTarget):
        return {"time": None, "event": None}
    names = getattr(target, "names", None)
    return {"observed": None} if names is None else {f"y_{name}": None for name in names}


def _predicted(target: Target | PartTarget, found: HeldOut, position: int) -> Row:
    from scmil.bags.targets import CombinedTarget, LabelsTarget

    if isinstance(target, CombinedTarget):
        return {
            f"{name}: {column}": cell
            for name, part, own in zip(target.names, target.parts, found.parts, strict=True)
            for column, cell in _predicted(part, own, position).items()
        }
    outputs = [f"{value:.9g}" for value in found.outputs[position]]
    if found.risk is not None and found.high is not None:
        curve = [f"s_{time:.9g}" for time in found.times]
        return {
            "risk": f"{found.risk[position]:.9g}",
            "high_risk": int(found.high[position]),
            **(dict(zip(curve, outputs, strict=True)) if curve else {}),
        }
    if names := ordered_names(target):
        columns = [f"p_{name}" for name in names]
        predicted = names[int(found.outputs[position].argmax())]
        return {"predicted": predicted, **dict(zip(columns, outputs, strict=True))}
    if isinstance(target, LabelsTarget):
        return {f"p_{name}": p for name, p in zip(target.names, outputs, strict=True)}
    return {"predicted": outputs[0]}


def _mean_or_none(values: Sequence[float]) -> float | None:
    known = [value for value in values if value == value]
    return round(float(np.mean(known)), 7) if known else None


def _deviation(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and value == value]
    return round(float(np.std(known, ddof=1)), 7) if len(known) > 1 else None
