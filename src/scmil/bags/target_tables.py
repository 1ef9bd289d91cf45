"""Targets from label tables: which columns they are in, and how their cells are written."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scmil.bags.combined_tables import Parsed, read_combined, split_tasks
from scmil.bags.label_records import Column, Record, RecordReader, describe_inferred, merge_records
from scmil.bags.labels import BLANK
from scmil.bags.slide_ids import patient_of_barcode
from scmil.bags.table_rows import LABEL, TextTable, read_rows
from scmil.bags.targets import (
    TASKS,
    GradeTarget,
    LabelsTarget,
    NumberTarget,
    SurvivalTarget,
    Target,
    Targets,
    Value,
)
from scmil.core.tables import column_names
from scmil.core.text import first_names
from scmil.errors import DataError, OptionError

# Columns that leave no doubt; of several outcomes in one table none is chosen.
TIME = (
    "time",
    "survival_time",
    "survival_months",
    "survival_days",
    "os_time",
    "os_months",
    "os_days",
    "os.time",
    "overall_survival",
    "overall_survival_months",
    "pfs_time",
    "pfs_months",
    "dfs_time",
    "dfs_months",
    "followup_time",
)
EVENT = (
    "event",
    "status",
    "os_event",
    "os_status",
    "vital_status",
    "pfs_event",
    "pfs_status",
    "dfs_event",
    "dfs_status",
    "event_observed",
)
CENSORED = ("censorship", "censored")  # 1 means no event
YES = ("1", "1.0", "true", "yes", "y", "dead", "deceased", "died", "death", "event")
NO = ("0", "0.0", "false", "no", "n", "alive", "living", "censored", "no event", "event-free")
LABEL_YES = ("1", "1.0", "true", "yes", "y", "positive", "pos", "present", "mutated", "+")
LABEL_NO = ("0", "0.0", "false", "no", "n", "negative", "neg", "absent", "wild type", "wt")


@dataclass(frozen=True)
class TargetColumns:
    """The columns that the user requested; None where scmil chooses.

    Attributes:
        label: Columns of the label; several for several labels.
        time: Column of the times to an event.
        event: Column of the events.
        slide: Column of the slides.
        patient: Column of the patients.
        grades: Names of the grades, from the lowest.
        event_value: The word that means an event; all others are censored.
        ordered: The grades or classes of columns of several targets, where a model has fixed them.
    """

    label: Sequence[str] = ()
    time: str | None = None
    event: str | None = None
    slide: str | None = None
    patient: str | None = None
    grades: Sequence[str] | None = None
    event_value: str | None = None
    ordered: Mapping[str, Sequence[str]] = field(default_factory=dict)


def infer_task(table: TextTable, columns: TargetColumns | None = None) -> str:
    """The task that the columns of a table leave no doubt about.

    Several labels that are requested are the task multilabel; a requested time or event is
    survival, and so are columns such as `os_time` and `os_event` in a table without a label.
    Everything else is a class: numbers and grades can be classes, so their tasks must be requested.

    Args:
        table: The table.
        columns: The columns that the user requested.

    Returns:
        "class", "survival" or "multilabel".

    >>> infer_task(TextTable(Path("a.csv"), ("slide", "os_time", "os_event"), ()))
    'survival'
    """
    columns = columns or TargetColumns()
    if columns.time or columns.event:
        return "survival"
    if columns.label:
        return "multilabel" if len(columns.label) > 1 else "class"
    found = [table.find(names) is not None for names in (TIME, (*EVENT, *CENSORED))]
    return "survival" if all(found) and table.find(LABEL) is None else "class"


def read_targets(
    path: str | Path,
    task: str | None = None,
    columns: TargetColumns | None = None,
    *,
    slides: str | Path | None = None,
    missing: Sequence[str] = (),
) -> Targets:
    """Read times, numbers, grades or several labels of slides from a .csv, .tsv or .xlsx table.

    Args:
        path: The table of slides, or with `slides` a table of patients.
        task: "survival", "regression", "ordinal" or "multilabel"; several with commas, one for each
            column of `columns.label`, where "class" is possible too; None if the columns leave no
            doubt.
        columns: Names of columns, grades, and the word for an event; chosen by scmil where they
            leave no doubt, which is noted.
        slides: A second table that lists the slides of each patient, as STAMP uses it.
        missing: Words that mean a missing value, beside empty cells, NaN and n/a.

    Returns:
        The targets; slides without a value have None.

    Raises:
        DataError: The table cannot be read, lacks a column, contradicts itself, or has a cell that
            is no value of the task; the message names the line.
        OptionError: The task is unknown or is "class", for which `read_labels` is the function.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "labels.csv"
    >>> rows = ["case_id,slide_id,os_months,os_status", "p1,a.svs,12.5,1:DECEASED", "p2,b.svs,30,0"]
    >>> _ = path.write_text("\\n".join(rows))
    >>> targets = read_targets(path)
    >>> targets.values, targets.notes[0]
    (((12.5, True), (30.0, False)), "task: 'survival' (inferred from the columns).")
    """
    table, columns = read_rows(path), columns or TargetColumns()
    notes = []
    if task is None:
        task = infer_task(table, columns)
        notes.append(f"task: {task!r} (inferred from the columns).")
    tasks = split_tasks(task)
    if len(tasks) == 1 and task not in TASKS:
        raise OptionError(f"task = {task!r}. Known: {', '.join(TASKS)}.")
    if task == "class":
        raise OptionError(
            "the task 'class' has labels, not targets: read them with read_labels, or state the "
            f"task: {', '.join(TASKS[1:])}."
        )
    reader = TableReader(table, None if slides is None else read_rows(slides), columns, missing)
    target: Target
    if len(tasks) > 1:
        target, values = read_combined(reader, tasks, _PARSERS)
    else:
        target, values = _PARSERS[task](reader)  # type: ignore[assignment]
    if lost := [bag_id for bag_id, value in values.items() if value is None]:
        reader.notes.append(
            f"slides without a value ({len(lost)} of {len(values)}): {first_names(lost)}."
        )
    return Targets(
        target,
        tuple(values),
        tuple(values.values()),
        tuple(reader.patients[bag_id] for bag_id in values),
        tuple(dict.fromkeys([*notes, *reader.inferred(), *reader.notes])),
        reader.columns,
    )


class TableReader:
    """Reads single columns of the tables, merged by slide."""

    def __init__(
        self,
        table: TextTable,
        slide_table: TextTable | None,
        columns: TargetColumns,
        missing: Sequence[str],
    ) -> None:
        self.table, self.slide_table, self.requested = table, slide_table, columns
        self.words = {*BLANK, *(word.strip().lower() for word in missing)}
        self.notes: list[str] = []
        self.columns: dict[str, Column] = {}
        self.patients: dict[str, str | None] = {}

    def inferred(self) -> list[str]:
        """A note for each column that scmil chose."""
        return [f"{line}." for line in describe_inferred(self.columns)]

    def choose(self, role: str, requested: str | None, names: Sequence[str]) -> str:
        """The name of a column: as requested, or the only one of these names."""
        if requested is None:
            lower = {name.lower(): name for name in self.table.header}
            found = [lower[name] for name in names if name in lower]
            if len(found) > 1:
                raise DataError(
                    f"{self.table.path}: the columns {column_names(found)} can be the {role}. Name "
                    f"the column: {role}=."
                )
        position = self.table.need([requested] if requested else names, role, f"{role}=")
        name = self.table.header[position]
        self.columns[role] = Column(name, requested is None and name.lower() != role)
        return name

    def cells(self, name: str) -> dict[str, Record]:
        """The record of each slide, whose label is the cell of a column."""
        own = RecordReader(self.requested.slide, name, self.requested.patient, self.words)
        if self.slide_table is None:
            records = own.read(self.table)
        else:
            records = own.join(self.table, self.slide_table)
        merged = merge_records(records, own.notes)
        if not merged:
            raise DataError(
                f"{self.table.path}: the table has a header but no rows. Add a row for each slide."
            )
        self.notes += own.notes
        for role in ("slide", "patient"):
            if role in own.columns:
                self.columns[role] = own.columns[role]
        for bag_id, record in merged.items():
            self.patients[bag_id] = record.patient or patient_of_barcode(bag_id)
        return merged

    def label(self) -> str:
        """The name of the label column of a task with one column."""
        if len(self.requested.label) > 1:
            raise OptionError(
                f"label = {', '.join(self.requested.label)}: this task has one column. Name one, "
                "use the task multilabel, or a task for each: --task ordinal,regression."
            )
        return self.choose("label", next(iter(self.requested.label), None), LABEL)


def _read_survival(reader: TableReader) -> Parsed:
    requested = reader.requested
    time = reader.choose("time", requested.time, TIME)
    event = reader.choose("event", requested.event, (*EVENT, *CENSORED))
    times, events = reader.cells(time), reader.cells(event)
    inverted = event.lower() in CENSORED and requested.event_value is None
    if inverted:
        reader.notes.append(f"the column {event!r} is read as 1 = censored, 0 = event.")
    words = {record.label.lower() for record in events.values() if record.label is not None}
    if requested.event_value is None and words <= {"1", "2", "1.0", "2.0"} and len(words) == 2:
        raise DataError(
            f"{reader.table.path}: the column {event!r} is coded 1 and 2, and 1 (event) and 0 "
            "(censored) are expected. Which one is the event? State it: "
            "event_value='2', on the command line --event-value 2."
        )
    values: dict[str, Value | None] = {}
    for bag_id, record in times.items():
        happened = _event(events[bag_id], event, requested.event_value)
        length = _number(record, time)
        known = happened is not None and length is not None
        values[bag_id] = (length, happened != inverted) if known else None
    return SurvivalTarget(time, event), values


def _event(record: Record, column: str, event_value: str | None) -> bool | None:
    if record.label is None:
        return None
    word = record.label.strip().lower()
    if event_value is not None:
        return word == event_value.strip().lower()
    # cBioPortal writes "1:DECEASED" and "0:LIVING".
    return _yes_or_no(record, column, word.partition(":")[0], YES, NO, "event_value=WORD")


def _yes_or_no(
    record: Record, column: str, word: str, yes: Sequence[str], no: Sequence[str], option: str
) -> bool:
    if word in yes or word in no:
        return word in yes
    raise DataError(
        f"{record.where}: {record.label!r} in the column {column!r} is neither 1 nor 0, nor a word "
        f"such as {yes[5]!r} or {no[5]!r}. Write 1 or 0 ({option})."
    )


def _number(record: Record, column: str) -> float | None:
    if record.label is None:
        return None
    try:
        value = float(record.label)
    except ValueError:
        value = math.nan
    if math.isfinite(value):
        return value
    comma = (
        " Write the decimal point as a point." if re.fullmatch(r"-?\d+,\d+", record.label) else ""
    )
    raise DataError(
        f"{record.where}: {record.label!r} in the column {column!r} is no number.{comma} Correct "
        "it, or leave the cell empty if it is missing (missing=WORD, --missing WORD for words)."
    )


def _read_number(reader: TableReader) -> Parsed:
    name = reader.label()
    values = {bag_id: _number(record, name) for bag_id, record in reader.cells(name).items()}
    return NumberTarget(name), dict(values)


def _read_grade(reader: TableReader) -> Parsed:
    name = reader.label()
    cells = reader.cells(name)
    words = {record.label for record in cells.values() if record.label is not None}
    grades = tuple(reader.requested.grades or _whole_numbers(reader, name, words))
    position = {grade.lower(): number for number, grade in enumerate(grades)}
    values: dict[str, Value | None] = {}
    for bag_id, record in cells.items():
        if record.label is not None and record.label.lower() not in position:
            raise DataError(
                f"{record.where}: {record.label!r} in the column {name!r} is none of the grades "
                f"{first_names(grades)}. Correct it, or list all grades in their order: grades=."
            )
        values[bag_id] = None if record.label is None else position[record.label.lower()]
    return GradeTarget(name, grades), values


def _whole_numbers(reader: TableReader, name: str, words: set[str]) -> list[str]:
    """The grades from the lowest to the highest number, also those that do not occur."""
    if not words or not all(re.fullmatch(r"-?\d{1,6}", word) for word in words):
        odd = sorted(word for word in words if not re.fullmatch(r"-?\d{1,6}", word))
        raise DataError(
            f"{reader.table.path}: the grades in the column {name!r} are no whole numbers "
            f"({first_names(odd) or 'the column is empty'}). List them in their order: "
            "grades=['low', 'medium', 'high'], on the command line --grades low,medium,high."
        )
    numbers = sorted(map(int, words))
    if numbers[0] == numbers[-1]:
        raise DataError(
            f"{reader.table.path}: every grade in the column {name!r} is {numbers[0]}, and at "
            "least two are needed. Add slides of other grades, or check the column; if it is a "
            "part of a cohort, list all grades: grades=, on the command line --grades 1,2,3."
        )
    return [str(number) for number in range(numbers[0], numbers[-1] + 1)]


def _read_labels(reader: TableReader) -> Parsed:
    if not reader.requested.label:
        raise OptionError(
            f"{reader.table.path}: the task multilabel needs the columns of the labels, of "
            f"{column_names(reader.table.header)}. Name them: label=['a', 'b']."
        )
    header, need = reader.table.header, reader.table.need
    names = tuple(header[need([name], "label", "label=")] for name in reader.requested.label)
    reader.columns |= {f"label {name}": Column(name, False) for name in names}
    columns = [reader.cells(name) for name in names]
    values: dict[str, Value | None] = {}
    for bag_id in columns[0]:
        parts = tuple(
            None if record.label is None else _label_value(record, name)
            for name, record in ((name, cells[bag_id]) for name, cells in zip(names, columns))
        )
        values[bag_id] = None if set(parts) == {None} else parts
    return LabelsTarget(names), values


def _label_value(record: Record, column: str) -> bool:
    word = str(record.label).strip().lower()
    option = "empty if it is missing; other columns need a task each: --task multilabel,regression"
    return _yes_or_no(record, column, word, LABEL_YES, LABEL_NO, option)


_PARSERS: Mapping[str, Callable[[TableReader], Parsed]] = {
    "survival": _read_survival,
    "regression": _read_number,
    "ordinal": _read_grade,
    "multilabel": _read_labels,
}
