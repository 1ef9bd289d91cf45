"""Several targets at once: tables, values with holes, checks and strata."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from scmil.bags.audit_targets import check_targets, find_target_problems
from scmil.bags.bag import Bag, BagSet
from scmil.bags.patient_bags import join_slides
from scmil.bags.target_bags import split_strata, with_targets
from scmil.bags.target_tables import TargetColumns, read_targets
from scmil.bags.targets import (
    ClassTarget,
    CombinedTarget,
    GradeTarget,
    LabelsTarget,
    NumberTarget,
    SurvivalTarget,
    Targets,
    merge_values,
    target_from_json,
    targets_from_json,
    values_differ,
)
from scmil.errors import DataError, OptionError

TABLE = """slide_id,case_id,grade,age,er,pr,subtype,os_months,os_event
s0,p0,1,61.5,1,,lobular,12,1
s1,p1,,58,0,1,Ductal,30,0
s2,p2,3,,,0,,,
s3,p3,2,70,1,1,lobular,8,1
s4,p4,,,,,,,
"""
TASK = "ordinal,regression,multilabel,multilabel,class,survival"
COLUMNS = TargetColumns(label=("grade", "age", "er", "pr", "subtype"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "labels.csv"
    path.write_text(TABLE)
    return path


def number_and_grade(values: tuple[object, ...]) -> Targets:
    target = CombinedTarget((NumberTarget("age"), GradeTarget("isup", ("1", "2", "3"))))
    ids = tuple(f"s{i}" for i in range(len(values)))
    return Targets(target, ids, values, (None,) * len(values))  # type: ignore[arg-type]


def test_each_column_has_its_own_kind_and_its_own_holes(table: Path) -> None:
    targets = read_targets(table, TASK, COLUMNS)
    assert targets.target == CombinedTarget(
        (
            GradeTarget("grade", ("1", "2", "3")),
            NumberTarget("age"),
            LabelsTarget(("er", "pr")),
            ClassTarget("subtype", ("Ductal", "lobular")),
            SurvivalTarget("os_months", "os_event"),
        )
    )
    assert targets.of("s0") == (0, 61.5, (True, None), 1, (12.0, True))
    assert targets.of("s2") == (2, None, (None, False), None, None)
    assert targets.of("s4") is None  # nothing is known
    assert targets.known == ("s0", "s1", "s2", "s3")
    assert any("grade: missing for 2 of 5 slides" in note for note in targets.notes)
    assert set(targets.columns) >= {"label grade", "label age", "time", "event"}


def test_values_as_numbers_have_nan_where_a_part_is_missing(table: Path) -> None:
    targets = read_targets(table, TASK, COLUMNS)
    row = targets.array(["s2"])[0]
    expected = [2, math.nan, math.nan, 0, math.nan, math.nan, math.nan]
    np.testing.assert_array_equal(row, expected)
    assert targets.part(4).array(["s3"]).tolist() == [[8.0, 1.0]]


def test_targets_and_values_survive_json(table: Path) -> None:
    targets = read_targets(table, TASK, COLUMNS)
    assert targets_from_json(targets.as_json()) == targets


@pytest.mark.parametrize(
    ("task", "columns", "cause"),
    [
        ("ordinal,regression", TargetColumns(label=("grade",)), "a column for each task"),
        ("survival,survival", TargetColumns(), "one survival at most"),
        ("ordinal,colour", TargetColumns(label=("grade", "age")), "'colour' is unknown"),
        (
            "regression,regression",
            TargetColumns(label=("age", "os_months"), grades=("a", "b")),
            "needs one ordinal task",
        ),
        ("regression,regression", TargetColumns(label=("age", "age")), ""),
    ],
)
def test_tasks_that_do_not_fit_the_columns_are_rejected(
    table: Path, task: str, columns: TargetColumns, cause: str
) -> None:
    with pytest.raises((OptionError, DataError), match=cause or "different names are expected"):
        read_targets(table, task, columns)


def test_yes_no_columns_with_numbers_name_the_task_for_each_column(table: Path) -> None:
    with pytest.raises(DataError, match="--task multilabel,regression"):
        read_targets(table, None, TargetColumns(label=("er", "age")))


def test_a_part_that_cannot_be_learned_is_an_error_and_a_hole_is_a_note() -> None:
    constant = number_and_grade(((5.0, 0), (5.0, None), (5.0, 2)))
    with pytest.raises(DataError, match="age: all 3 numbers are 5"):
        check_targets(constant)
    fine = number_and_grade(((5.0, 0), (6.0, None), (7.0, 2)))
    check_targets(fine)
    holes = [found for found in find_target_problems(fine) if found.code == "holes"]
    assert [(found.severity, found.slides) for found in holes] == [("note", ("s1",))]


def test_a_part_without_any_value_is_an_error() -> None:
    with pytest.raises(DataError, match="isup: 3 of 3 slides have no value"):
        check_targets(number_and_grade(((5.0, None), (6.0, None), (7.0, None))))


def test_strata_are_those_of_the_part_that_most_slides_have() -> None:
    values = tuple((float(i), 0 if i % 2 else None) for i in range(12))
    strata = split_strata(number_and_grade(values), [f"s{i}" for i in range(12)])
    assert strata == [0] * 6 + [1] * 6


@pytest.mark.parametrize(
    "content",
    [
        {"task": "combined"},
        {"task": "combined", "parts": [1, 2]},
        {"task": "combined", "parts": [{"task": "combined", "parts": []}]},
        {"task": "combined", "parts": [{"task": "regression", "name": "a"}]},
        {"task": "class", "name": "a", "classes": ["x", "y"]},
    ],
)
def test_damaged_targets_are_rejected(content: dict[str, object]) -> None:
    with pytest.raises(DataError):
        target_from_json(content)


@pytest.mark.parametrize("value", [(None, None), (1.0,), ("a", 1), (1.0, 3), 5.0])
def test_values_that_do_not_fit_are_rejected(value: object) -> None:
    with pytest.raises(DataError, match="is no value of the task 'combined'"):
        number_and_grade((value,))


def test_slides_of_a_patient_may_have_different_holes() -> None:
    target = number_and_grade(((1.0, 0),)).target
    assert not values_differ(target, [(61.0, None), (None, 1), (61.0, 1), None])
    assert values_differ(target, [(61.0, None), (62.0, 1)])
    assert merge_values(target, [None, (None, 1), (61.0, None)]) == (61.0, 1)
    assert merge_values(target, [None]) is None


def test_joined_slides_have_the_values_of_all() -> None:
    targets = number_and_grade(((5.0, None), (None, 2), (7.0, 0), (6.0, 1)))
    slides = [Bag(f"s{i}", torch.ones(2, 3)) for i in range(4)]
    patients = ("p", "p", "q", "r")
    bags = with_targets(BagSet(slides), replace(targets, patients=patients))
    joined = join_slides(bags)
    assert joined.targets is not None
    assert joined.targets.values == ((5.0, 2), (7.0, 0), (6.0, 1))
