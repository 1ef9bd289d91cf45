"""Several targets of one label table: a task for each column, with holes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from scmil.bags.class_names import order_classes
from scmil.bags.targets import (
    PARTS,
    ClassTarget,
    CombinedTarget,
    PartTarget,
    Value,
    part_name,
)
from scmil.core.text import first_names
from scmil.errors import OptionError

if TYPE_CHECKING:
    from scmil.bags.target_tables import TableReader

Parsed: TypeAlias = tuple[PartTarget, dict[str, Value | None]]
Parsers: TypeAlias = Mapping[str, Callable[["TableReader"], Parsed]]


def split_tasks(task: str) -> tuple[str, ...]:
    """The tasks that are separated by commas.

    Raises:
        OptionError: If one of several is unknown.

    >>> split_tasks("ordinal, regression"), split_tasks("ordinal")
    (('ordinal', 'regression'), ('ordinal',))
    """
    tasks = tuple(word.strip() for word in task.split(","))
    if len(tasks) > 1 and (unknown := [each for each in tasks if each not in PARTS]):
        raise OptionError(f"task = {task!r}: {unknown[0]!r} is unknown. Known: {', '.join(PARTS)}.")
    return tasks


def read_combined(
    reader: TableReader, tasks: Sequence[str], parsers: Parsers
) -> tuple[CombinedTarget, dict[str, Value | None]]:
    """Read a target for each task; the columns of the labels have the order of the tasks.

    Survival has the columns of the times and events. All columns of the task multilabel are one
    part.

    Args:
        reader: Reads columns of the table.
        tasks: The tasks, at least two.
        parsers: How each task is read.

    Returns:
        The target, and the value of each slide; None if all parts are missing.

    Raises:
        OptionError: If the numbers of tasks and columns do not agree.
        DataError: If a cell is no value of its task.
    """
    requested = reader.requested
    _check_tasks(reader, tasks)
    columns = iter(requested.label)
    by_task = [(task, () if task == "survival" else (next(columns),)) for task in tasks]
    labels = tuple(name for task, names in by_task if task == "multilabel" for name in names)
    first = tasks.index("multilabel") if labels else None
    parts: list[Parsed] = []
    for position, (task, names) in enumerate(by_task):
        if task == "multilabel" and position != first:
            continue
        own = labels if task == "multilabel" else names
        ordered = requested.ordered.get(names[0]) if names else None
        grades = (ordered or requested.grades) if task == "ordinal" else None
        reader.requested = replace(requested, label=own, grades=grades)
        parts.append(_read_class(reader, ordered) if task == "class" else parsers[task](reader))
        if "label" in reader.columns:
            reader.columns[f"label {part_name(parts[-1][0])}"] = reader.columns.pop("label")
    reader.requested = requested
    target = CombinedTarget(tuple(part for part, _ in parts))
    values: dict[str, Value | None] = {}
    for slide in parts[0][1]:
        value = tuple(own[slide] for _, own in parts)
        values[slide] = None if set(value) == {None} else value  # type: ignore[assignment]
    for name, (_, found) in zip(target.names, parts, strict=True):
        if lost := [slide for slide, value in found.items() if value is None]:
            reader.notes.append(
                f"{name}: missing for {len(lost)} of {len(found)} slides, which count for the "
                f"other targets: {first_names(lost)}."
            )
    return target, values


def _check_tasks(reader: TableReader, tasks: Sequence[str]) -> None:
    columns, survival = reader.requested.label, tasks.count("survival")
    if survival > 1 or len(columns) != len(tasks) - survival:
        raise OptionError(
            f"task = {','.join(tasks)} with the columns {', '.join(columns) or '(none)'}: a column "
            "for each task in the same order is expected, and one survival at most, which has "
            "--time and --event. For example: --task ordinal,regression --label grade,age."
        )
    if reader.requested.grades is not None and tasks.count("ordinal") != 1:
        raise OptionError(
            f"grades = {','.join(reader.requested.grades)} needs one ordinal task, and "
            f"{tasks.count('ordinal')} of the tasks are. Write grades as whole numbers in the "
            "table, and omit the names."
        )


def _read_class(reader: TableReader, given: Sequence[str] | None) -> Parsed:
    name = reader.label()
    cells = reader.cells(name)
    words = [record.label for record in cells.values()]
    classes, spelled = order_classes(reader.table.path, words, given)
    if given is None:
        reader.notes.append(f"classes of {name!r}: {', '.join(classes)}.")
    position = {word: classes.index(own) for word, own in spelled.items()}
    return ClassTarget(name, classes), {
        slide: None if record.label is None else position[record.label]
        for slide, record in cells.items()
    }
