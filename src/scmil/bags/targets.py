"""What is predicted for a slide: a time to an event, a number, an ordered grade, or several labels.

A target describes the question, and `Targets` holds the answers of a table. Classes, the default
task, are in `labels.py` and in `Bag.label`. Several targets at once are a `CombinedTarget`, whose
parts may be missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from scmil.bags.label_records import Column, columns_json
from scmil.bags.slide_ids import slide_id
from scmil.bags.target_types import (
    PARTS,
    TARGETS,
    TASKS,
    ClassTarget,
    CombinedTarget,
    GradeTarget,
    LabelsTarget,
    NumberTarget,
    PartTarget,
    SurvivalTarget,
    Target,
    Value,
    part_name,
    target_from_json,
    target_json,
)
from scmil.core.shapes import Numbers
from scmil.errors import DataError

__all__ = [
    "PARTS",
    "TARGETS",
    "TASKS",
    "ClassTarget",
    "CombinedTarget",
    "GradeTarget",
    "LabelsTarget",
    "NumberTarget",
    "PartTarget",
    "SurvivalTarget",
    "Target",
    "Targets",
    "Value",
    "as_numbers",
    "merge_values",
    "part_name",
    "target_from_json",
    "target_json",
    "targets_from_json",
    "values_differ",
]


@dataclass(frozen=True)
class Targets:
    """The target of each slide.

    Args:
        target: What the values are.
        ids: The slides.
        values: The value of each slide; None if it is missing.
        patients: The patient of each slide; None if unknown.
        notes: What was merged, left out or inferred while reading.
        columns: The columns that were used, by role.

    Raises:
        DataError: If lengths or values do not fit the target.

    >>> targets = Targets(SurvivalTarget(), ("s1", "s2"), ((12.5, True), None), ("ann", None))
    >>> targets.of("s1"), targets.of("s2.svs"), targets.task, targets.known
    ((12.5, True), None, 'survival', ('s1',))
    >>> targets_from_json(targets.as_json()) == targets
    True
    """

    target: Target
    ids: tuple[str, ...]
    values: tuple[Value | None, ...]
    patients: tuple[str | None, ...]
    notes: tuple[str, ...] = ()
    columns: Mapping[str, Column] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.values) == len(self.patients):
            raise DataError(
                f"{len(self.ids)} slides, {len(self.values)} values and {len(self.patients)} "
                "patients: one of each is expected for every slide."
            )
        if len(set(self.ids)) < len(self.ids):
            raise DataError("a slide is listed twice. Each slide has one target: keep one.")
        for bag_id, value in zip(self.ids, self.values, strict=True):
            if value is not None and not _fits_target(self.target, value):
                raise DataError(
                    f"slide {bag_id!r}: {value!r} is no value of the task {self.task!r}. Expected: "
                    f"{EXPECTED[self.task]}."
                )

    @property
    def task(self) -> str:
        """Name of the task: survival, regression, ordinal, multilabel or combined."""
        return self.target.task

    @cached_property
    def _position(self) -> dict[str, int]:
        return {slide_id(bag_id): position for position, bag_id in enumerate(self.ids)}

    def __contains__(self, bag_id: str) -> bool:
        return slide_id(bag_id) in self._position

    def __len__(self) -> int:
        return len(self.ids)

    def of(self, bag_id: str) -> Value | None:
        """The value of a slide, by id or file name; None if it is missing."""
        position = self._position.get(slide_id(bag_id))
        return None if position is None else self.values[position]

    @property
    def known(self) -> tuple[str, ...]:
        """The slides whose value is not missing."""
        return tuple(i for i, value in zip(self.ids, self.values, strict=True) if value is not None)

    def array(self, ids: Sequence[str]) -> Numbers:
        """The values of slides as numbers (slides, width), with NaN for a missing label or part.

        Times to an event have two columns, the time and 0 or 1; labels have a column each; parts of
        a combined target follow each other.

        Raises:
            DataError: If a slide has no value.

        >>> labels = Targets(LabelsTarget(("a", "b")), ("s1",), ((True, None),), (None,))
        >>> labels.array(["s1"]).tolist()
        [[1.0, nan]]
        """
        if missing := [bag_id for bag_id in ids if self.of(bag_id) is None]:
            raise DataError(
                f"slide {missing[0]!r} has no value for the task {self.task!r} "
                f"({len(missing)} of {len(ids)}). Add it to the table, or leave the slide out."
            )
        rows = [_value_numbers(self.target, self.of(bag_id)) for bag_id in ids]
        return np.array(rows, dtype=float).reshape(len(ids), self.target.width)

    def part(self, number: int) -> Targets:
        """One part of a combined target as targets of its own; None where it is missing.

        >>> target = CombinedTarget((NumberTarget("age"), GradeTarget("isup", ("1", "2"))))
        >>> both = Targets(target, ("s1", "s2"), ((61.0, None), (None, 1)), (None, None))
        >>> both.part(1).values, both.part(1).known
        ((None, 1), ('s2',))
        """
        assert isinstance(self.target, CombinedTarget)
        values = tuple(None if value is None else value[number] for value in self.values)  # type: ignore[index]
        return Targets(self.target.parts[number], self.ids, values, self.patients)  # type: ignore[arg-type]

    def as_json(self) -> dict[str, Any]:
        """The targets as JSON values."""
        return {
            "target": target_json(self.target),
            "ids": list(self.ids),
            "values": [list(v) if isinstance(v, tuple) else v for v in self.values],
            "patients": list(self.patients),
            "notes": list(self.notes),
            "columns": columns_json(self.columns),
        }


EXPECTED = {
    "survival": "a time and True or False",
    "regression": "a finite number",
    "ordinal": "the position of a grade",
    "multilabel": "True, False or None for each label, and one that is not None",
    "combined": "the value of each part or None, and one that is not None",
}


def as_numbers(value: Value | None) -> list[float]:
    """A value as a list of numbers, NaN for a missing label or part.

    >>> as_numbers((3.0, True)), as_numbers(2), as_numbers((False, None))
    ([3.0, 1.0], [2.0], [0.0, nan])
    """
    if isinstance(value, tuple):
        return [number for part in value for number in as_numbers(part)]
    return [math.nan if value is None else float(value)]


def merge_values(target: Target, values: Sequence[Value | None]) -> Value | None:
    """The value of a patient from those of the slides: the first that is known.

    Of several targets, each part is that of the first slide that has it.

    >>> both = CombinedTarget((NumberTarget("age"), GradeTarget("isup", ("1", "2"))))
    >>> merge_values(both, [(61.0, None), None, (None, 1)])
    (61.0, 1)
    """
    known = [value for value in values if value is not None]
    if not isinstance(target, CombinedTarget) or not known:
        return known[0] if known else None
    parts = zip(*known, strict=True)
    return tuple(next((own for own in part if own is not None), None) for part in parts)


def values_differ(target: Target, values: Sequence[Value | None]) -> bool:
    """Whether the slides of a patient have different values; missing parts do not differ.

    >>> values_differ(NumberTarget(), [1.0, 2.0]), values_differ(NumberTarget(), [1.0, 1.0])
    (True, False)
    """
    if not isinstance(target, CombinedTarget):
        return len(set(values)) > 1
    parts = zip(*(value for value in values if value is not None), strict=True)
    return any(len({own for own in part if own is not None}) > 1 for part in parts)


def _value_numbers(target: Target | PartTarget, value: Value | None) -> list[float]:
    """A value as numbers, as many as the target is wide."""
    if value is None:
        return [math.nan] * target.width
    if not isinstance(target, CombinedTarget):
        return as_numbers(value)
    pairs = zip(target.parts, value, strict=True)  # type: ignore[arg-type]
    return [number for part, own in pairs for number in _value_numbers(part, own)]


def targets_from_json(content: Mapping[str, Any]) -> Targets:
    """The targets that `Targets.as_json` wrote.

    Raises:
        DataError: If the content is incomplete or a value does not fit the target.
    """
    try:
        return Targets(
            target_from_json(content["target"]),
            tuple(map(str, content["ids"])),
            tuple(_as_tuple(value) for value in content["values"]),
            tuple(None if p is None else str(p) for p in content["patients"]),
            tuple(map(str, content.get("notes", ()))),
            {
                role: Column(str(column["name"]), bool(column["inferred"]))
                for role, column in content.get("columns", {}).items()
            },
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"these are no targets: {type(error).__name__} {error}. Write them again."
        ) from None


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def _fits_target(target: Target | PartTarget, value: object) -> bool:
    if isinstance(target, CombinedTarget):
        return (
            isinstance(value, tuple)
            and len(value) == len(target.parts)
            and set(value) != {None}
            and all(
                own is None or _fits_target(part, own)
                for part, own in zip(target.parts, value, strict=True)
            )
        )
    if isinstance(target, SurvivalTarget):
        pair = isinstance(value, tuple) and len(value) == 2
        return pair and _is_finite_number(value[0]) and isinstance(value[1], bool)  # type: ignore[index]
    if isinstance(target, NumberTarget):
        return _is_finite_number(value)
    if isinstance(target, GradeTarget | ClassTarget):
        names = target.grades if isinstance(target, GradeTarget) else target.classes
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and 0 <= value < len(names)  # type: ignore[operator]
    known = {True, False, None}
    return (
        isinstance(value, tuple)
        and len(value) == len(target.names)
        and all(part is None or isinstance(part, bool) for part in value)
        and set(value) <= known
        and set(value) != {None}
    )


def _is_finite_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
