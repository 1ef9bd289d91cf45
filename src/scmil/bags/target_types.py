"""The kinds of targets: what a value of each means, and how wide it is as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, ClassVar, TypeAlias

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


@dataclass(frozen=True)
class ClassTarget:
    """A class, as a part of a `CombinedTarget`; a value is its position in `classes`.

    Attributes:
        name: Name of the column.
        classes: Names of the classes.
    """

    name: str
    classes: tuple[str, ...]
    task: ClassVar[str] = "class"
    width: ClassVar[int] = 1

    def __post_init__(self) -> None:
        _check_output_names(self.classes, "classes")


PartTarget: TypeAlias = SurvivalTarget | NumberTarget | GradeTarget | LabelsTarget | ClassTarget


@dataclass(frozen=True)
class CombinedTarget:
    """Several targets at once; a value has that of each part, None where it is missing.

    Attributes:
        parts: The targets, at most one of them a time to an event.

    >>> target = CombinedTarget((SurvivalTarget(), NumberTarget("age")))
    >>> target.names, target.width, target.columns
    (('survival', 'age'), 3, (slice(0, 2, None), slice(2, 3, None)))
    """

    parts: tuple[PartTarget, ...]
    task: ClassVar[str] = "combined"

    def __post_init__(self) -> None:
        _check_output_names(self.names, "targets")
        if sum(isinstance(part, SurvivalTarget) for part in self.parts) > 1:
            raise DataError("two of the targets are times to an event: one is possible.")

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each part: its column, or "survival" and "labels"."""
        return tuple(part_name(part) for part in self.parts)

    @property
    def width(self) -> int:
        """Numbers of a value, of all parts."""
        return sum(part.width for part in self.parts)

    @property
    def columns(self) -> tuple[slice, ...]:
        """The columns of each part in `Targets.array`."""
        ends = list(accumulate(part.width for part in self.parts))
        return tuple(slice(a, b) for a, b in zip([0, *ends], ends, strict=False))


def part_name(part: PartTarget) -> str:
    """The name of a part of a combined target, which is the prefix of its metrics."""
    if isinstance(part, SurvivalTarget):
        return "survival"
    return "labels" if isinstance(part, LabelsTarget) else part.name


def ordered_names(target: Target | PartTarget) -> tuple[str, ...]:
    """The names of the grades or classes that a value is the position of; empty for others.

    >>> ordered_names(GradeTarget("isup", ("1", "2"))), ordered_names(NumberTarget())
    (('1', '2'), ())
    """
    if isinstance(target, GradeTarget):
        return target.grades
    return target.classes if isinstance(target, ClassTarget) else ()


Target: TypeAlias = SurvivalTarget | NumberTarget | GradeTarget | LabelsTarget | CombinedTarget
PartValue: TypeAlias = tuple[float, bool] | float | int | tuple[bool | None, ...]
Value: TypeAlias = PartValue | tuple[PartValue | None, ...]
TARGETS: dict[str, type[SurvivalTarget | NumberTarget | GradeTarget | LabelsTarget]] = {
    kind.task: kind for kind in (SurvivalTarget, NumberTarget, GradeTarget, LabelsTarget)
}
PARTS: dict[str, type[PartTarget]] = {**TARGETS, ClassTarget.task: ClassTarget}
TASKS = ("class", *TARGETS)


def target_json(target: Target | PartTarget) -> dict[str, Any]:
    """A target as JSON values.

    >>> target_json(NumberTarget("age"))
    {'task': 'regression', 'name': 'age'}
    """
    if isinstance(target, CombinedTarget):
        return {"task": target.task, "parts": [target_json(part) for part in target.parts]}
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
    task = content.get("task")
    if task == CombinedTarget.task:
        parts = content.get("parts")
        if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
            raise DataError(f"the target {content!r} has no list of parts.")
        return CombinedTarget(tuple(_read_target(part, PARTS) for part in parts))
    return _read_target(content, TARGETS)  # type: ignore[return-value]


def _read_target(content: Mapping[str, Any], kinds: Mapping[str, type[PartTarget]]) -> PartTarget:
    fields = dict(content)
    task = fields.pop("task", None)
    if task not in kinds:
        raise DataError(
            f"task {task!r}: one of {', '.join([*kinds, CombinedTarget.task])} is expected."
        )
    texts = (value for value in fields.values() for value in _as_parts(value))
    if not all(isinstance(text, str) for text in texts):
        raise DataError(f"the target {content!r} has a name that is not text.")
    tuples: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    try:
        return kinds[task](**tuples)
    except TypeError as error:
        raise DataError(f"the target {content!r} cannot be read: {error}.") from None


def _as_parts(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else (value,)


def _check_output_names(names: Sequence[str], noun: str, least: int = 2) -> None:
    if not least <= len(names) <= MOST_OUTPUTS or len(set(names)) < len(names):
        raise DataError(
            f"{noun} {list(names)[:5]}: {least} to {MOST_OUTPUTS} different names are expected, "
            f"and {len(names)} were found."
        )
