"""What is predicted for a slide: a time to an event, a number, an ordered grade, or several labels.

A target describes the question, and `Targets` holds the answers of a table. Classes, the default
task, are in `labels.py` and in `Bag.label`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np

from scmil.bags.label_records import Column, columns_json
from scmil.bags.slide_ids import slide_id
from scmil.core.shapes import Numbers
from scmil.errors import DataError

MOST_OUTPUTS = 1000  # grades or labels; more are damage, or ids in the wrong column


@dataclass(frozen=True)
class SurvivalTarget:
    """A time to an event that may be censored; a value is `(time, event)`.

    Attributes:
        time: Name of the column of times.
        event: Name of the column of events.
    """

    time: str = "time"
    event: str = "event"
    task: ClassVar[str] = "survival"
    width: ClassVar[int] = 2


@dataclass(frozen=True)
class NumberTarget:
    """A number; a value is a float.

    Attributes:
        name: Name of the column.
    """

    name: str = "value"
    task: ClassVar[str] = "regression"
    width: ClassVar[int] = 1


@dataclass(frozen=True)
class GradeTarget:
    """An ordered grade; a value is its position in `grades`.

    Attributes:
        name: Name of the column.
        grades: Names of the grades, from the lowest.
    """

    name: str
    grades: tuple[str, ...]
    task: ClassVar[str] = "ordinal"
    width: ClassVar[int] = 1

    def __post_init__(self) -> None:
        _check_output_names(self.grades, "grades")


@dataclass(frozen=True)
class LabelsTarget:
    """Several yes/no labels; a value has True, False or None (missing) for each.

    Attributes:
        names: Names of the labels.
    """

    names: tuple[str, ...]
    task: ClassVar[str] = "multilabel"

    def __post_init__(self) -> None:
        _check_output_names(self.names, "labels", least=1)

    @property
    def width(self) -> int:
        """Number of labels."""
        return len(self.names)


Target: TypeAlias = SurvivalTarget | NumberTarget | GradeTarget | LabelsTarget
Value: TypeAlias = tuple[float, bool] | float | int | tuple[bool | None, ...]
TARGETS: dict[str, type[Target]] = {
    kind.task: kind for kind in (SurvivalTarget, NumberTarget, GradeTarget, LabelsTarget)
}
TASKS = ("class", *TARGETS)


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
        """Name of the task: survival, regression, ordinal or multilabel."""
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
        """The values of slides as numbers (slides, width), with NaN for a missing label.

        Times to an event have two columns, the time and 0 or 1; labels have a column each.

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
        rows = [as_numbers(self.of(bag_id)) for bag_id in ids]
        return np.array(rows, dtype=float).reshape(len(ids), self.target.width)

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
}


def as_numbers(value: Value | None) -> list[float]:
    """A value as a list of numbers, NaN for a missing label.

    >>> as_numbers((3.0, True)), as_numbers(2), as_numbers((False, None))
    ([3.0, 1.0], [2.0], [0.0, nan])
    """
    parts = value if isinstance(value, tuple) else (value,)
    return [math.nan if part is None else float(part) for part in parts]


def target_json(target: Target) -> dict[str, Any]:
    """A target as JSON values.

    >>> target_json(NumberTarget("age"))
    {'task': 'regression', 'name': 'age'}
    """
    return {"task": target.task} | {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(target).items()
    }


def target_from_json(content: Mapping[str, Any]) -> Target:
    """The target that `target_json` wrote.

    Raises:
        DataError: If the content is not a target.

    >>> target_from_json({"task": "ordinal", "name": "gleason", "grades": ["1", "2", "3"]}).grades
    ('1', '2', '3')
    """
    fields = dict(content)
    task = fields.pop("task", None)
    if task not in TARGETS:
        raise DataError(f"task {task!r}: one of {', '.join(TARGETS)} is expected.")
    texts = (value for value in fields.values() for value in _as_parts(value))
    if not all(isinstance(text, str) for text in texts):
        raise DataError(f"the target {content!r} has a name that is not text.")
    tuples: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    try:
        return TARGETS[task](**tuples)
    except TypeError as error:
        raise DataError(f"the target {content!r} cannot be read: {error}.") from None


def targets_from_json(content: Mapping[str, Any]) -> Targets:
    """The targets that `Targets.as_json` wrote.

    Raises:
        DataError: If the content is incomplete or a value does not fit the target.
    """
    try:
        return Targets(
            target_from_json(content["target"]),
            tuple(map(str, content["ids"])),
            tuple(tuple(v) if isinstance(v, list) else v for v in content["values"]),
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


def _as_parts(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else (value,)


def _check_output_names(names: Sequence[str], noun: str, least: int = 2) -> None:
    if not least <= len(names) <= MOST_OUTPUTS or len(set(names)) < len(names):
        raise DataError(
            f"{noun} {list(names)[:5]}: {least} to {MOST_OUTPUTS} different names are expected, "
            f"and {len(names)} were found."
        )


def _fits_target(target: Target, value: object) -> bool:
    if isinstance(target, SurvivalTarget):
        pair = isinstance(value, tuple) and len(value) == 2
        return pair and _is_finite_number(value[0]) and isinstance(value[1], bool)  # type: ignore[index]
    if isinstance(target, NumberTarget):
        return _is_finite_number(value)
    if isinstance(target, GradeTarget):
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and 0 <= value < len(target.grades)  # type: ignore[operator]
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
