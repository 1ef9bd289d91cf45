"""Which task `[data]` describes, and its values from the table of labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from scmil.bags.combined_tables import split_tasks
from scmil.bags.datasets import load_targets, target_tasks, words_of
from scmil.bags.table_rows import read_rows
from scmil.bags.target_tables import TargetColumns, infer_task, read_targets
from scmil.bags.targets import TASKS, Targets
from scmil.errors import OptionError
from scmil.studies.settings import DataSettings

CLASS = "class"


def read_data_targets(settings: DataSettings, data: Path | None = None) -> Targets | None:
    """Read the values of the task, from the table of labels or of a data set that has them.

    Args:
        settings: `[data]`.
        data: A folder with data sets.

    Returns:
        The values; None if the task is the prediction of classes.

    Raises:
        DataError: The table cannot be read, or a cell is no value of the task.
        OptionError: The task is unknown, or needs a table of labels.
    """
    task = task_of(settings)
    if task == CLASS:
        return None
    if settings.labels is None and task in target_tasks(settings.dataset):
        return load_targets(settings.dataset, task, data=data)
    if settings.labels is None:
        raise OptionError(
            f"the task {task!r} needs a table with the values of each slide. Give the table: "
            "LABELS on the command line, or labels = PATH under [data]."
        )
    targets = read_targets(
        settings.labels,
        task,
        _columns_of(settings),
        missing=words_of(settings.missing) or (),
    )
    if settings.task is None:
        note = f"task: {task!r} (inferred from the columns)."
        targets = replace(targets, notes=(note, *targets.notes))
    return targets


def task_of(settings: DataSettings) -> str:
    """The task as it was given, or as the columns of the label table leave no doubt about.

    Raises:
        DataError: The table cannot be read.
        OptionError: The task is unknown.

    >>> task_of(DataSettings("musk1", True)), task_of(DataSettings("b", True, time="os"))
    ('class', 'survival')
    """
    if settings.task is not None:
        if len(split_tasks(settings.task)) == 1 and settings.task not in TASKS:
            raise OptionError(f"task = {settings.task!r}. Known: {', '.join(TASKS)}.")
        return settings.task
    if settings.time or settings.event:
        return "survival"
    if settings.labels is None:
        return CLASS
    table = read_rows(settings.labels)
    if settings.label is not None and settings.label in table.header:
        return CLASS
    return infer_task(table, _columns_of(settings))


def _columns_of(settings: DataSettings) -> TargetColumns:
    return TargetColumns(
        label=tuple(words_of(settings.label) or ()),
        time=settings.time,
        event=settings.event,
        grades=words_of(settings.grades),
        event_value=settings.event_value,
    )
