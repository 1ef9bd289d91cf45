"""Patients are counted, not slides."""

from __future__ import annotations

from pathlib import Path

import pytest

from scmil.bags.patient_counts import count_patients
from scmil.bags.target_tables import TargetColumns
from scmil.errors import DataError


def table(folder: Path, *lines: str) -> Path:
    path = folder / "labels.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_slides_of_a_patient_count_once_and_missing_labels_not(tmp_path: Path) -> None:
    rows = ["p,a,x", "p,b,x", "q,c,y", "r,d,"]
    found = count_patients(table(tmp_path, "case_id,slide_id,label", *rows))
    assert (found.task, found.counts, found.slides) == ("class", {"x": 1, "y": 1}, 3)


def test_a_patient_with_two_classes_counts_for_the_most_frequent(tmp_path: Path) -> None:
    rows = ["p,a,x", "p,b,y", "p,c,y", "q,d,x"]
    found = count_patients(table(tmp_path, "case_id,slide_id,label", *rows))
    assert found.counts == {"x": 1, "y": 1}
    assert "1 patients have slides of several classes" in found.notes[-1]


def test_without_patients_slides_count_and_it_is_noted(tmp_path: Path) -> None:
    found = count_patients(table(tmp_path, "slide_id,label", "a,x", "b,y", "c,y"))
    assert found.counts == {"x": 1, "y": 2}
    assert found.notes[-1] == "the table has no patients: every slide counts as one."


def test_events_are_counted_by_patient(tmp_path: Path) -> None:
    rows = ["p,a,5,1", "p,b,5,1", "q,c,7,0", "r,d,,"]
    found = count_patients(table(tmp_path, "case_id,slide_id,os_time,os_event", *rows))
    assert (found.task, found.counts) == ("survival", {"events": 1, "censored": 1})


def test_a_table_without_times_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no slide has a time and an event"):
        count_patients(table(tmp_path, "case_id,slide_id,os_time,os_event", "p,a,,"))


def test_several_labels_are_counted_by_patient_where_they_are_known(tmp_path: Path) -> None:
    rows = ["p,a,1,0", "p,b,0,0", "q,c,0,", "r,d,0,1"]
    path = table(tmp_path, "case_id,slide_id,tp53,msi", *rows)
    found = count_patients(path, TargetColumns(label=("tp53", "msi")))
    assert (found.task, found.patients, found.slides) == ("multilabel", 3, 4)
    assert found.labels == {
        "tp53": {"absent": 2, "present": 1},
        "msi": {"absent": 1, "present": 1},
    }


def test_numbers_and_grades_are_counted_by_patient(tmp_path: Path) -> None:
    rows = ["p,a,1,40.5", "p,b,1,41", "q,c,3,70", "r,d,,66"]
    path = table(tmp_path, "case_id,slide_id,grade,age", *rows)
    numbers = count_patients(path, TargetColumns(label=("age",)), task="regression")
    assert (numbers.task, numbers.counts) == ("regression", {"patients": 3})
    grades = count_patients(path, TargetColumns(label=("grade",)), task="ordinal")
    assert (grades.task, grades.counts) == ("ordinal", {"1": 1, "3": 1})
