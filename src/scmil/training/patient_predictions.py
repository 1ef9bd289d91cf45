"""Predictions of patients from those of their slides, for tasks other than classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scmil.bags.targets import (
    ClassTarget,
    CombinedTarget,
    GradeTarget,
    PartTarget,
    Target,
    Targets,
    merge_values,
)
from scmil.core.shapes import Numbers
from scmil.stats.groups import group_positions, pool_slides
from scmil.training.held_out import HeldOut, patients_of_targets


def patient_targets(targets: Targets) -> Targets:
    """A value for each patient, that of the slides; slides without a patient stay as they are.

    Of several targets, a part is that of the first slide that has it. The ids are the patients.

    >>> from scmil.bags.targets import NumberTarget
    >>> slides = Targets(NumberTarget(), ("a", "b", "c"), (1.0, 1.0, 2.0), ("p", "p", None))
    >>> patient_targets(slides).ids, patient_targets(slides).values
    (('p', 'c'), (1.0, 2.0))
    """
    members = _members(targets, targets.ids)
    values = [[targets.of(bag_id) for bag_id in own] for own in members.values()]
    return Targets(
        targets.target,
        tuple(members),
        tuple(merge_values(targets.target, own) for own in values),
        tuple(members),
        targets.notes,
        targets.columns,
    )


def pool_predictions(targets: Targets, predictions: HeldOut, mode: str = "mean") -> HeldOut:
    """The mean or the largest prediction over the slides of each patient.

    The largest is the highest number, risk or probability of a label, and the slide with the
    highest expected grade.

    Args:
        targets: The targets of the slides.
        predictions: Predictions of slides; all tested slides of a patient are among them.
        mode: "mean" or "max".

    Returns:
        The predictions of the patients, by the ids of `patient_targets`.

    >>> from scmil.bags.targets import NumberTarget
    >>> slides = Targets(NumberTarget(), ("a", "b"), (1.0, 1.0), ("p", "p"))
    >>> found = HeldOut(("a", "b"), np.array([[2.0], [4.0]]))
    >>> [pool_predictions(slides, found, mode).outputs.tolist() for mode in ("mean", "max")]
    [[[3.0]], [[4.0]]]
    """
    members = _members(targets, predictions.ids)
    place = {bag_id: position for position, bag_id in enumerate(predictions.ids)}
    rows = [np.array([place[bag_id] for bag_id in own]) for own in members.values()]
    return _pool_rows(targets.target, tuple(members), predictions, rows, mode)


def _pool_rows(
    target: Target | PartTarget,
    ids: tuple[str, ...],
    found: HeldOut,
    rows: list[NDArray[np.int64]],
    mode: str,
) -> HeldOut:
    if isinstance(target, CombinedTarget):
        parts = tuple(
            _pool_rows(part, ids, own, rows, mode)
            for part, own in zip(target.parts, found.parts, strict=True)
        )
        return HeldOut(ids, np.concatenate([part.outputs for part in parts], 1), parts=parts)
    if found.risk is not None and found.high is not None:
        if mode == "max":
            chosen = np.array([own[found.risk[own].argmax()] for own in rows])
            outputs, risk, high = found.outputs[chosen], found.risk[chosen], found.high[chosen]
            return HeldOut(ids, outputs, risk, high, found.times)
        outputs = np.stack([found.outputs[own].mean(0) for own in rows])
        risk = np.array([found.risk[own].mean() for own in rows])
        high = np.array([found.high[own].mean() > 0.5 for own in rows])
        return HeldOut(ids, outputs, risk, high, found.times)
    return HeldOut(ids, np.stack([_pool_outputs(target, found.outputs[own], mode) for own in rows]))


def _pool_outputs(target: Target | PartTarget, outputs: Numbers, mode: str) -> Numbers:
    if mode == "mean":
        return np.asarray(outputs.mean(0))
    if isinstance(target, GradeTarget):
        expected = outputs @ np.arange(outputs.shape[1])
        return np.asarray(outputs[expected.argmax()])
    return pool_slides(outputs, mode) if isinstance(target, ClassTarget) else outputs.max(0)


def _members(targets: Targets, ids: tuple[str, ...]) -> dict[str, list[str]]:
    """The slides of each patient, by the id of the patient."""
    groups = group_positions(patients_of_targets(targets, ids))
    return {
        ids[positions[0]] if isinstance(patient, tuple) else str(patient): [
            ids[position] for position in positions
        ]
        for patient, positions in groups.items()
    }
