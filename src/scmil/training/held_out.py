"""Predictions of held-out bags for tasks other than classes, and their metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scmil.bags.targets import (
    ClassTarget,
    CombinedTarget,
    GradeTarget,
    LabelsTarget,
    NumberTarget,
    SurvivalTarget,
    Targets,
)
from scmil.core.shapes import Numbers
from scmil.errors import OptionError
from scmil.stats.bootstrap import MetricEstimate, number_groups
from scmil.stats.concordance import concordance, concordance_ipcw
from scmil.stats.metrics import score_all
from scmil.stats.multilabel import macro_scores, score_multilabel
from scmil.stats.ordinal import ordinal_intervals, score_ordinal
from scmil.stats.regression import regression_intervals, score_regression
from scmil.stats.small_samples import UNKNOWN, metric_intervals
from scmil.stats.survival import LogRank, log_rank, majority_of_patients
from scmil.stats.survival_scores import survival_intervals

CLASS_METRICS = ("auc", "balanced_accuracy", "f1", "accuracy")  # of a class among several targets


@dataclass(frozen=True)
class HeldOut:
    """Predictions of bags by models that were not trained on their patients.

    Attributes:
        ids: The bags.
        outputs: A number, probabilities of grades or labels, or survival at `times` (b, w).
        risk: Risk of an event, higher for an earlier one; None for other tasks.
        high: Whether the risk is above the median of the training split; None for other tasks.
        times: The times of the survival in `outputs`; empty for Cox and other tasks.
        parts: Of several targets, the predictions of each; `outputs` then has all of them.
    """

    ids: tuple[str, ...]
    outputs: Numbers
    risk: Numbers | None = None
    high: NDArray[np.bool_] | None = None
    times: tuple[float, ...] = ()
    parts: tuple[HeldOut, ...] = ()

    def subset(self, ids: Sequence[str]) -> HeldOut:
        """The predictions of some of the bags."""
        position = {bag_id: place for place, bag_id in enumerate(self.ids)}
        rows = [position[bag_id] for bag_id in ids]
        return HeldOut(
            tuple(ids),
            self.outputs[rows],
            None if self.risk is None else self.risk[rows],
            None if self.high is None else self.high[rows],
            self.times,
            tuple(part.subset(ids) for part in self.parts),
        )


def join_held_out(parts: Sequence[HeldOut]) -> HeldOut:
    """The predictions of several folds as one.

    >>> parts = [HeldOut((name,), np.array([[1.0]])) for name in "ab"]
    >>> join_held_out(parts).ids
    ('a', 'b')
    """
    first = parts[0]
    return HeldOut(
        tuple(bag_id for part in parts for bag_id in part.ids),
        np.concatenate([part.outputs for part in parts]),
        None if first.risk is None else np.concatenate([_risk_of_part(part) for part in parts]),
        None if first.high is None else np.concatenate([_high_of_part(part) for part in parts]),
        first.times,
        tuple(
            join_held_out([part.parts[number] for part in parts])
            for number in range(len(first.parts))
        ),
    )


def known_parts(targets: Targets, predictions: HeldOut) -> Iterator[tuple[str, Targets, HeldOut]]:
    """The name, targets and predictions of each of several targets, of the bags that have it.

    A target that none of the bags has is left out.
    """
    assert isinstance(targets.target, CombinedTarget)
    for number, name in enumerate(targets.target.names):
        own = targets.part(number)
        if ids := [bag_id for bag_id in predictions.ids if own.of(bag_id) is not None]:
            yield name, own, predictions.parts[number].subset(ids)


def score_held_out(
    targets: Targets, predictions: HeldOut, draws: int = 1000, at: Sequence[float] = ()
) -> dict[str, MetricEstimate]:
    """The metrics of the task with 95 % intervals over patients.

    For survival the risks of the slides of a patient are averaged.

    Args:
        targets: The targets.
        predictions: The predictions.
        draws: Number of bootstrap resamples, where there are any.
        at: Times of the AUC of predictions without survival curves (Cox); those of the curves are
            used if there are any.

    Returns:
        The metrics by name; those of several labels are `label: metric`, and `macro: metric`, those
        of several targets `target: metric`.

    >>> targets = Targets(NumberTarget(), ("a", "b", "c"), (1.0, 2.0, 3.0), (None,) * 3)
    >>> held_out = HeldOut(("a", "b", "c"), np.array([[1.0], [2.0], [4.0]]))
    >>> score_held_out(targets, held_out)["r2"].value
    0.5
    """
    target = targets.target
    if isinstance(target, CombinedTarget):
        return {
            f"{name}: {metric}": found
            for name, own, part in known_parts(targets, predictions)
            for metric, found in score_held_out(own, part, draws, at).items()
        }
    values, outputs = targets.array(predictions.ids), predictions.outputs
    patients = patients_of_targets(targets, predictions.ids)
    if isinstance(target, SurvivalTarget):
        by_patient = _survival_of_patients(values, predictions, patients)
        return survival_intervals(
            *by_patient[:3],
            survival=by_patient[3] if predictions.times else None,
            at=predictions.times or at,
            draws=draws,
        )
    if isinstance(target, NumberTarget):
        scores = score_regression(values[:, 0], outputs[:, 0])
        intervals = regression_intervals(values[:, 0], outputs[:, 0], patients)
    elif isinstance(target, GradeTarget):
        grades = values[:, 0].astype(int), outputs.argmax(1), len(target.grades)
        scores = score_ordinal(*grades)
        intervals = ordinal_intervals(*grades, patients, draws)
    elif isinstance(target, ClassTarget):
        return _score_classes(values[:, 0].astype(int), outputs, patients)
    else:
        return _score_labels(target, values, outputs, patients, draws)
    return {name: MetricEstimate(value, intervals[name]) for name, value in scores.items()}


def score_fold(targets: Targets, predictions: HeldOut) -> dict[str, float]:
    """The metrics of one fold without intervals, by the names of `score_held_out`.

    Survival has the two concordances, several labels have the macro averages: a fold is small.

    >>> targets = Targets(NumberTarget(), ("a", "b", "c"), (1.0, 2.0, 3.0), (None,) * 3)
    >>> score_fold(targets, HeldOut(("a", "b", "c"), np.array([[1.0], [2.0], [4.0]])))["r2"]
    0.5
    """
    target = targets.target
    if isinstance(target, CombinedTarget):
        return {
            f"{name}: {metric}": value
            for name, own, part in known_parts(targets, predictions)
            for metric, value in score_fold(own, part).items()
        }
    values, outputs = targets.array(predictions.ids), predictions.outputs
    if isinstance(target, ClassTarget):
        scores = score_all(values[:, 0].astype(int), outputs)
        return {name: scores[name] for name in CLASS_METRICS}
    if isinstance(target, SurvivalTarget):
        patients = patients_of_targets(targets, predictions.ids)
        times, events, risk, _ = _survival_of_patients(values, predictions, patients)
        return {
            "c_index": concordance(times, events, risk),
            "uno_c": concordance_ipcw(times, events, risk),
        }
    if isinstance(target, NumberTarget):
        return score_regression(values[:, 0], outputs[:, 0])
    if isinstance(target, GradeTarget):
        return score_ordinal(values[:, 0].astype(int), outputs.argmax(1), len(target.grades))
    scores = macro_scores(values, outputs)
    return {f"macro: {name}": value for name, value in scores.items()}


def risk_groups(targets: Targets, predictions: HeldOut) -> LogRank:
    """The log-rank test of patients with a risk above and below the cut-off of the training split.

    A patient has a high risk if more than half of the slides have one.

    Raises:
        OptionError: If the task is not survival.
        DataError: If all patients are in one group.
    """
    if predictions.high is None:
        raise OptionError(f"risk groups need the task 'survival', not {targets.task!r}.")
    patients = patients_of_targets(targets, predictions.ids)
    units = number_groups(patients, len(predictions.ids))
    first = np.unique(units, return_index=True)[1]
    values = targets.array(predictions.ids)[first]
    high = majority_of_patients(units, predictions.high)
    return log_rank(values[:, 0], values[:, 1], high.tolist())


def patients_of_targets(targets: Targets, ids: Sequence[str]) -> list[str | None]:
    """The patient of each bag; None where it is unknown."""
    patients = dict(zip(targets.ids, targets.patients, strict=True))
    return [patients.get(bag_id) for bag_id in ids]


def _survival_of_patients(
    values: Numbers, predictions: HeldOut, patients: list[str | None]
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Times, events, mean risks and mean outputs of patients."""
    units = number_groups(patients, len(values))
    sizes = np.bincount(units)

    def mean(column: Numbers) -> Numbers:
        return np.bincount(units, column) / sizes

    first = np.unique(units, return_index=True)[1]
    curves = np.stack([mean(column) for column in predictions.outputs.T], axis=1)
    return values[first, 0], values[first, 1], mean(_risk_of_part(predictions)), curves


def _risk_of_part(part: HeldOut) -> Numbers:
    assert part.risk is not None
    return part.risk


def _high_of_part(part: HeldOut) -> NDArray[np.bool_]:
    assert part.high is not None
    return part.high


def _score_classes(
    labels: NDArray[np.int64], outputs: Numbers, patients: list[str | None]
) -> dict[str, MetricEstimate]:
    scores = score_all(labels, outputs)
    if labels.min() == labels.max():
        return {name: MetricEstimate(math.nan, UNKNOWN) for name in CLASS_METRICS}
    intervals = metric_intervals(labels, outputs, 0.5, patients)
    return {name: MetricEstimate(scores[name], intervals[name]) for name in CLASS_METRICS}


def _score_labels(
    target: LabelsTarget,
    values: Numbers,
    outputs: Numbers,
    patients: list[str | None],
    draws: int,
) -> dict[str, MetricEstimate]:
    found = score_multilabel(target.names, values, outputs, patients, draws=draws)
    scores = {
        f"{name}: {metric}": MetricEstimate(value, row.intervals[metric])
        for name, row in found.labels.items()
        for metric, value in row.scores.items()
    }
    return scores | {
        f"macro: {metric}": MetricEstimate(value, found.macro_intervals[metric])
        for metric, value in found.macro.items()
    }
