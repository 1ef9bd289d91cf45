"""Numbers of patients of a label table: by class, or with an event and censored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scmil.bags.label_records import describe_inferred
from scmil.bags.labels import read_labels
from scmil.bags.table_rows import read_rows
from scmil.bags.target_tables import TargetColumns, infer_task, read_targets
from scmil.errors import DataError, OptionError
from scmil.stats.groups import group_positions


@dataclass(frozen=True)
class PatientCounts:
    """The patients of a table.

    Attributes:
        task: "class" or "survival".
        counts: Patients of each class, or `{"events": ..., "censored": ...}`.
        slides: Slides with a label.
        notes: How the table was read.
    """

    task: str
    counts: Mapping[str, int]
    slides: int
    notes: tuple[str, ...] = ()

    @property
    def patients(self) -> int:
        """Number of patients with a label."""
        return sum(self.counts.values())


def count_patients(
    path: str | Path, columns: TargetColumns | None = None, missing: Sequence[str] | None = None
) -> PatientCounts:
    """Count the patients of a label table.

    A patient with slides of several classes counts for the most frequent one; a slide without a
    patient counts as one. For survival, a patient has an event if one slide has.

    Args:
        path: The table.
        columns: The columns that the user requested.
        missing: Words that mean a missing label, see `read_labels`.

    Returns:
        The counts. The task is survival if a time or event is requested, or if the columns leave
        no doubt.

    Raises:
        DataError: The table cannot be read, or has no labels.
        OptionError: Several label columns are requested.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "labels.csv"
    >>> _ = path.write_text("case_id,slide_id,label\\np,a,x\\np,b,x\\nq,c,y\\n")
    >>> count_patients(path).counts
    {'x': 1, 'y': 1}
    """
    columns = columns or TargetColumns()
    task = infer_task(read_rows(path), columns)
    if task == "survival":
        return _count_events(path, columns, missing or ())
    if task != "class":
        raise OptionError(
            f"label = {', '.join(columns.label)}: one column is expected. Name one of them."
        )
    labels = read_labels(
        path,
        label=next(iter(columns.label), None),
        slide=columns.slide,
        patient=columns.patient,
        missing=missing,
    )
    known = [i for i, name in enumerate(labels.names) if name is not None]
    members = group_positions(labels.patients[i] for i in known)
    counts = dict.fromkeys(labels.classes, 0)
    mixed = 0
    for positions in members.values():
        own = Counter(labels.names[known[i]] for i in positions)
        counts[str(own.most_common(1)[0][0])] += 1
        mixed += len(own) > 1
    notes = [f"{line}." for line in describe_inferred(labels.columns)]
    if mixed:
        notes.append(
            f"{mixed} patients have slides of several classes and count for the most frequent one."
        )
    return PatientCounts("class", counts, len(known), (*notes, *_without_patients(labels.patients)))


def _count_events(
    path: str | Path, columns: TargetColumns, missing: Sequence[str]
) -> PatientCounts:
    targets = read_targets(path, "survival", columns, missing=missing)
    events: dict[str | int, bool] = {}
    slides = 0
    for i, (value, patient) in enumerate(zip(targets.values, targets.patients, strict=True)):
        if isinstance(value, tuple) and len(value) == 2:
            unit = i if patient is None else patient
            events[unit] = events.get(unit, False) or bool(value[1])
            slides += 1
    if not events:
        raise DataError(f"{path}: no slide has a time and an event. Fill in the two columns.")
    happened = sum(events.values())
    counts = {"events": happened, "censored": len(events) - happened}
    notes = [f"{line}." for line in describe_inferred(targets.columns)]
    notes += [note for note in targets.notes if note.startswith("the column")]
    return PatientCounts("survival", counts, slides, (*notes, *_without_patients(targets.patients)))


def _without_patients(patients: Sequence[str | None]) -> tuple[str, ...]:
    if any(patient is not None for patient in patients):
        return ()
    return ("the table has no patients: every slide counts as one.",)
