"""The checks of targets: times to an event, numbers, grades and several labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from scmil.bags.audit_checks import IMBALANCE, Finding
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
from scmil.core.text import first_names
from scmil.errors import DataError

FEW_EVENTS = 10
FAR_OUT = 10.0  # times the median absolute deviation, scaled to a standard deviation
MOST_OF_UNIT = {"day": 36_525.0, "month": 1_200.0, "year": 100.0}  # a hundred years


def check_targets(targets: Targets) -> None:
    """Raise if a model cannot be trained on these targets.

    Raises:
        DataError: Lists every error that `find_target_problems` finds, with what to do.

    >>> values = tuple((float(i), False) for i in range(1, 4))
    >>> check_targets(Targets(SurvivalTarget(), ("a", "b", "c"), values, (None,) * 3))
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: no-events: all 3 times are censored. ...
    """
    errors = [str(f) for f in find_target_problems(targets) if f.severity == "error"]
    if errors:
        raise DataError(" ".join(errors))


def find_target_problems(targets: Targets) -> Iterator[Finding]:
    """Find targets that cannot be learned, or that look like mistakes of a table.

    Args:
        targets: The targets.

    Yields:
        Errors (no slide has a value, one patient, no events, times that are not above 0, one grade,
        a constant number, labels that have one value), warnings and notes.
    """
    known = targets.known
    if lost := tuple(bag_id for bag_id in targets.ids if targets.of(bag_id) is None):
        severity = "warning" if known else "error"
        sentence = f"{len(lost)} of {len(targets)} slides have no value"
        yield Finding(severity, "no-value", sentence, "Add the values, or leave them out.", lost)
    if not known:
        return
    patients = {
        bag_id: patient or f"slide {bag_id}"
        for bag_id, patient in zip(targets.ids, targets.patients, strict=True)
    }
    if len({patients[bag_id] for bag_id in known}) < 2:
        sentence = f"all {len(known)} slides with a value belong to one patient"
        yield Finding("error", "one-patient", sentence, "Add slides of other patients.")
    if isinstance(targets.target, CombinedTarget):
        yield from _find_part_problems(targets, targets.target)
        return
    yield from _find_contradictions(targets, patients)
    yield from _CHECKS[targets.task](targets, targets.array(known))


def _find_part_problems(targets: Targets, target: CombinedTarget) -> Iterator[Finding]:
    """Find the problems of each part; slides without its value are a note."""
    for number, name in enumerate(target.names):
        for found in find_target_problems(targets.part(number)):
            hole = found.code == "no-value" and found.severity == "warning"
            yield replace(
                found,
                severity="note" if hole else found.severity,
                code="holes" if hole else found.code,
                sentence=f"{name}: {found.sentence}",
                remedy="They count for the other targets only." if hole else found.remedy,
            )


def _find_class_problems(targets: Targets, values: Numbers) -> Iterator[Finding]:
    assert isinstance(targets.target, ClassTarget)
    classes = targets.target.classes
    counts = np.bincount(values[:, 0].astype(int), minlength=len(classes))
    if (counts > 0).sum() < 2:
        sentence = f"only one class occurs: {classes[int(counts.argmax())]}"
        yield Finding("error", "one-class", sentence, "Add slides of other classes.")


def _find_contradictions(targets: Targets, patients: Mapping[str, str]) -> Iterator[Finding]:
    """Find patients whose slides have different times to an event; other values may differ."""
    if not isinstance(targets.target, SurvivalTarget):
        return
    first: dict[str, object] = {}
    wrong: dict[str, None] = {}
    for bag_id in targets.known:
        patient = patients[bag_id]
        if first.setdefault(patient, targets.of(bag_id)) != targets.of(bag_id):
            wrong[patient] = None
    if wrong:
        sentence = f"{len(wrong)} patients have slides with different times or events"
        remedy = "A patient has one follow-up: correct the table."
        yield Finding("error", "contradiction", sentence, remedy, tuple(wrong))


def _find_survival_problems(targets: Targets, values: Numbers) -> Iterator[Finding]:
    times, events = values.T
    number, n = int(events.sum()), len(times)
    remedy = "Check which value of the column means an event (event_value=, --event-value)."
    if not number:
        sentence = f"all {n} times are censored"
        yield Finding(
            "error", "no-events", sentence, f"Without events nothing is learned. {remedy}"
        )
    elif number < FEW_EVENTS:
        sentence = f"{number} events in {n} slides"
        yield Finding("warning", "few-events", sentence, "The intervals will be very wide.")
    if number == n:
        yield Finding("note", "no-censoring", f"all {n} times are events", remedy)
    if wrong := _slides(targets, times <= 0):
        sentence = f"{len(wrong)} times are 0 or negative"
        remedy = "A follow-up is longer than 0: correct the times, or leave these slides out."
        yield Finding("error", "time", sentence, remedy, wrong)
    elif len(times) > 1 and times.min() == times.max():
        yield Finding("error", "constant", "all times are equal", "Check the column.")
    assert isinstance(targets.target, SurvivalTarget)
    yield from _find_unit_problems(targets, targets.target.time, times)


def _find_unit_problems(targets: Targets, column: str, times: Numbers) -> Iterator[Finding]:
    """Find times that are longer than a life in the unit of their column."""
    unit = next(
        (unit for unit in MOST_OF_UNIT if re.search(rf"{unit}s?\b|{unit}s?_", column.lower())), None
    )
    if unit is None:
        sentence = (
            f"the column {column!r} does not say the unit of its times ({_describe_range(times)})"
        )
        yield Finding(
            "note", "unit", sentence, "State days, months or years where you report them."
        )
    elif long := _slides(targets, times > MOST_OF_UNIT[unit]):
        sentence = f"times in {column!r} of more than a hundred years ({_describe_range(times)})"
        yield Finding("warning", "unit", sentence, "Are they in another unit?", long)


def _find_number_problems(targets: Targets, values: Numbers) -> Iterator[Finding]:
    numbers = values[:, 0]
    if len(numbers) > 1 and numbers.min() == numbers.max():
        sentence = f"all {len(numbers)} numbers are {numbers[0]:g}"
        yield Finding("error", "constant", sentence, "Check the column: there is nothing to learn.")
        return
    centre = float(np.median(numbers))
    spread = 1.4826 * float(np.median(np.abs(numbers - centre)))
    if spread > 0 and (far := _slides(targets, np.abs(numbers - centre) > FAR_OUT * spread)):
        sentence = f"{len(far)} numbers are far from the others ({_describe_range(numbers)})"
        remedy = "Check their units and decimal points; the Huber loss limits their influence."
        yield Finding("warning", "outlier", sentence, remedy, far)


def _find_grade_problems(targets: Targets, values: Numbers) -> Iterator[Finding]:
    assert isinstance(targets.target, GradeTarget)
    grades = targets.target.grades
    counts = np.bincount(values[:, 0].astype(int), minlength=len(grades))
    listed = ", ".join(f"{name} {count}" for name, count in zip(grades, counts, strict=True))
    if (counts > 0).sum() < 2:
        sentence = f"only one grade occurs: {listed}"
        yield Finding("error", "one-grade", sentence, "Add slides of other grades.")
    elif absent := [name for name, count in zip(grades, counts, strict=True) if not count]:
        sentence = f"no slide has the grade {first_names(absent)} ({listed})"
        remedy = "A model cannot predict it. Is the scale right, or were grades joined?"
        yield Finding("warning", "grade-gap", sentence, remedy)
    if counts.max() > IMBALANCE * max(1, counts[counts > 0].min()):
        yield Finding("note", "imbalance", f"grades of different size: {listed}", "Report kappa.")


def _find_label_problems(targets: Targets, values: Numbers) -> Iterator[Finding]:
    assert isinstance(targets.target, LabelsTarget)
    useless = []
    for name, column in zip(targets.target.names, values.T, strict=True):
        known = column[~np.isnan(column)]
        if len(known) and 0 < known.sum() < len(known):
            if len(known) < len(column):
                sentence = f"{name!r} is missing for {len(column) - len(known)} slides"
                yield Finding("note", "holes", sentence, "They count for the other labels only.")
            continue
        useless.append(name)
        what = (
            "never known" if not len(known) else ("always" if known.sum() else "never") + " present"
        )
        sentence = f"the label {name!r} is {what} ({len(known)} slides)"
        remedy = "Leave it out: it cannot be learned, and has no metrics."
        yield Finding("warning", "one-value", sentence, remedy)
    if len(useless) == len(targets.target.names):
        sentence = "no label has both values"
        remedy = "Check the columns (label=, --label), or add slides with the other value."
        yield Finding("error", "no-label", sentence, remedy)


def _slides(targets: Targets, chosen: NDArray[np.bool_]) -> tuple[str, ...]:
    return tuple(
        bag_id for bag_id, is_chosen in zip(targets.known, chosen, strict=True) if is_chosen
    )


def _describe_range(values: Numbers) -> str:
    return f"{values.min():g} to {values.max():g}, median {np.median(values):g}"


_CHECKS: Mapping[str, Callable[[Targets, Numbers], Iterator[Finding]]] = {
    SurvivalTarget.task: _find_survival_problems,
    NumberTarget.task: _find_number_problems,
    GradeTarget.task: _find_grade_problems,
    LabelsTarget.task: _find_label_problems,
    ClassTarget.task: _find_class_problems,
}
