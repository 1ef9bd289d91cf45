"""Numbers of patients of a label table: by class, with an event and censored, or with a label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from scmil.bags.label_records import describe_inferred
from scmil.bags.labels import read_labels
from scmil.bags.table_rows import read_rows
from scmil.bags.target_tables import TargetColumns, infer_task, read_targets
from scmil.bags.targets import GradeTarget, LabelsTarget, Targets
from scmil.errors import DataError
from scmil.stats.groups import group_positions


@dataclass(frozen=True)
class PatientCounts:
    """The patients of a table.

    Attributes:
        task: The task.
        counts: Patients of each class or grade, `{"events": ..., "censored": ...}`, or
            `{"patients": ...}` of a number. With several labels, patients with a known label.
        slides: Slides with a label.
        notes: How the table was read.
        labels: Of several labels, the patients with (`present`) and without (`absent`) each.
    """

    task: str
    counts: Mapping[str, int]
    slides: int
    notes: tuple[str, ...] = ()
    labels: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def patients(self) -> int:
        """Number of patients with a label."""
        return sum(self.counts.values())


def count_patients(
    path: str | Path,
    columns: TargetColumns | None = None,
    missing: Sequence[str] | None = None,
    task: str | None = None,
) -> PatientCounts:
    """Count the patients of a label table.

    A patient with slides of several classes or grades counts for the most frequent one; a slide
    without a patient counts as one. A patient has an event or a label if one slide has.

    Args:
        path: The table.
        columns: The columns that the user requested.
        missing: Words that mean a missing label, see `read_labels`.
        task: The task; None infers it from the columns, see `infer_task`.

    Returns:
        The counts.

    Raises:
        DataError: The table cannot be read, or has no labels.
        OptionError: The task is unknown.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "labels.csv"
    >>> _ = path.write_text("case_id,slide_id,label\\np,a,x\\np,b,x\\nq,c,y\\n")
    >>> count_patients(path).counts
    {'x': 1, 'y': 1}
    """
    columns = columns or TargetColumns()
    task = task or infer_task(read_rows(path), columns)
    if task != "class":
        return _count_targets(read_targets(path, task, columns, missing=missing or ()), path)
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


def _count_targets(targets: Targets, path: str | Path) -> PatientCounts:
    """The patients of another task than classes."""
    known = targets.known
    if not known:
        what = "a time and an event" if targets.task == "survival" else "a value"
        raise DataError(f"{path}: no slide has {what}. Fill in the columns.")
    of_id = dict(zip(targets.ids, targets.patients, strict=True))
    members = group_positions(of_id[slide] for slide in known)
    values = targets.array(known)
    notes = [f"{line}." for line in describe_inferred(targets.columns)]
    notes += [note for note in targets.notes if note.startswith("the column")]
    notes += _without_patients(targets.patients)
    labels: dict[str, Mapping[str, int]] = {}
    counts = {"patients": len(members)}
    if targets.task == "survival":
        events = sum(values[own, 1].max() > 0 for own in members.values())
        counts = {"events": int(events), "censored": len(members) - int(events)}
    elif isinstance(targets.target, GradeTarget):
        grades = [
            Counter(values[own, 0].astype(int)).most_common(1)[0][0] for own in members.values()
        ]
        counts = {
            name: grades.count(i) for i, name in enumerate(targets.target.grades) if i in grades
        }
    elif isinstance(targets.target, LabelsTarget):
        for name, column in zip(targets.target.names, values.T, strict=True):
            own = [column[positions] for positions in members.values()]
            seen = [bool(np.nanmax(part)) for part in own if np.isfinite(part).any()]
            labels[name] = {"absent": seen.count(False), "present": seen.count(True)}
    return PatientCounts(targets.task, counts, len(known), tuple(notes), labels)


def _without_patients(patients: Sequence[str | None]) -> tuple[str, ...]:
    if any(patient is not None for patient in patients):
        return ()
    return ("the table has no patients: every slide counts as one.",)
