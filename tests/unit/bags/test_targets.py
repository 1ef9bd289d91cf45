"""Targets are read from tables, checked, and written as JSON without loss."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from scmil.bags.audit import audit
from scmil.bags.audit_targets import check_targets, find_target_problems
from scmil.bags.bag import Bag, BagSet
from scmil.bags.table_rows import read_rows
from scmil.bags.target_tables import TargetColumns, infer_task, read_targets
from scmil.bags.targets import (
    GradeTarget,
    LabelsTarget,
    NumberTarget,
    SurvivalTarget,
    Targets,
    target_from_json,
    target_json,
    targets_from_json,
)
from scmil.errors import DataError, OptionError


def table(folder: Path, *lines: str, name: str = "labels.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def survival(*pairs: tuple[float, bool], patients: tuple[str | None, ...] = ()) -> Targets:
    ids = tuple(f"s{i}" for i in range(len(pairs)))
    return Targets(SurvivalTarget("time_days"), ids, pairs, patients or (None,) * len(pairs))


def numbers(*values: float | None) -> Targets:
    ids = tuple(f"s{i}" for i in range(len(values)))
    return Targets(NumberTarget(), ids, values, (None,) * len(values))


def codes(targets: Targets) -> dict[str, str]:
    return {finding.code: finding.severity for finding in find_target_problems(targets)}


def test_times_and_events_are_read_by_their_names(tmp_path: Path) -> None:
    path = table(tmp_path, "slide,case_id,OS_months,OS_status", "a.svs,p1,12.5,1", "b,p1,12.5,1")
    targets = read_targets(path)
    assert targets.values == ((12.5, True), (12.5, True))
    assert targets.target == SurvivalTarget("OS_months", "OS_status")
    assert targets.patients == ("p1", "p1")
    assert "task: 'survival' (inferred from the columns)." in targets.notes
    assert "time column: 'OS_months' (inferred)." in targets.notes
    assert "event column: 'OS_status' (inferred)." in targets.notes
    named = TargetColumns(time="os_months", event="os_status")
    stated = read_targets(path, "survival", named)
    assert stated.values == targets.values
    assert not any("time" in note or "task" in note for note in stated.notes)


@pytest.mark.parametrize(
    ("yes", "no"),
    [("1", "0"), ("dead", "alive"), ("True", "False"), ("1:DECEASED", "0:LIVING"), ("1.0", "0.0")],
)
def test_events_are_read_in_their_usual_spellings(tmp_path: Path, yes: str, no: str) -> None:
    path = table(tmp_path, "slide,time,event", f"a,1,{yes}", f"b,2,{no}", "c,3,")
    targets = read_targets(path)
    assert targets.values == ((1.0, True), (2.0, False), None)
    assert "slides without a value (1 of 3): c." in targets.notes


def test_censorship_is_the_opposite_of_an_event(tmp_path: Path) -> None:
    path = table(tmp_path, "slide,survival_months,censorship", "a,1,1", "b,2,0")
    targets = read_targets(path)
    assert targets.values == ((1.0, False), (2.0, True))
    assert "the column 'censorship' is read as 1 = censored, 0 = event." in targets.notes


def test_one_and_two_are_asked_about(tmp_path: Path) -> None:
    path = table(tmp_path, "slide,time,status", "a,1,1", "b,2,2")
    with pytest.raises(DataError, match=r"coded 1 and 2.*event_value="):
        read_targets(path)
    targets = read_targets(path, columns=TargetColumns(event_value="2"), task="survival")
    assert targets.values == ((1.0, False), (2.0, True))


def test_patients_and_slides_in_two_tables_are_joined(tmp_path: Path) -> None:
    clinical = table(tmp_path, "PATIENT,time,event", "p1,3,1", "p2,4,0", name="clini.csv")
    slides = table(tmp_path, "PATIENT,FILENAME", "p1,a.h5", "p1,b.h5", "p2,c.h5", name="slides.csv")
    targets = read_targets(clinical, slides=slides)
    assert targets.ids == ("a", "b", "c")
    assert targets.values == ((3.0, True), (3.0, True), (4.0, False))
    assert targets.patients == ("p1", "p1", "p2")


def test_numbers_and_their_missing_values(tmp_path: Path) -> None:
    path = table(tmp_path, "slide,label", "a,1.5", "b,nan", "c,-2e3", "d,unknown")
    targets = read_targets(path, "regression", missing=["unknown"])
    assert targets.values == (1.5, None, -2000.0, None)
    assert targets.known == ("a", "c")
    assert targets.array(["c", "a"]).tolist() == [[-2000.0], [1.5]]


def test_grades_are_whole_numbers_or_listed(tmp_path: Path) -> None:
    path = table(tmp_path, "slide,isup", "a,1", "b,4", "c,2")
    targets = read_targets(path, "ordinal", TargetColumns(label=["isup"]))
    assert targets.target == GradeTarget("isup", ("1", "2", "3", "4"))
    assert targets.values == (0, 3, 1)
    words = table(tmp_path, "slide,label", "a,High", "b,low", name="words.csv")
    targets = read_targets(words, "ordinal", TargetColumns(grades=("low", "medium", "high")))
    assert targets.values == (2, 0)
    with pytest.raises(DataError, match=r"no whole numbers \(High, low\).*grades="):
        read_targets(words, "ordinal")
    with pytest.raises(DataError, match=r"line 2: 'High'.* none of the grades"):
        read_targets(words, "ordinal", TargetColumns(grades=("low", "mid")))


def test_several_labels_may_have_holes(tmp_path: Path) -> None:
    path = table(tmp_path, "slide,TP53,kras", "a,1,0", "b,,positive", "c,,", "d,wt,mutated")
    columns = TargetColumns(label=["tp53", "KRAS"])
    targets = read_targets(path, columns=columns)
    assert targets.target == LabelsTarget(("TP53", "kras"))
    assert targets.values == ((True, False), (None, True), None, (False, True))
    with pytest.raises(OptionError, match=r"label="):
        read_targets(path, "multilabel")


def test_the_task_is_inferred_only_without_doubt(tmp_path: Path) -> None:
    both = read_rows(table(tmp_path, "slide,label,time,event", "a,1,2,0"))
    assert infer_task(both) == "class"
    assert infer_task(both, TargetColumns(time="time")) == "survival"
    assert infer_task(both, TargetColumns(label=["label"])) == "class"
    assert infer_task(both, TargetColumns(label=["a", "b"])) == "multilabel"
    two = table(tmp_path, "slide,os_time,pfs_time,os_event", "a,1,2,0")
    with pytest.raises(DataError, match=r"'os_time' and 'pfs_time'|os_time.*pfs_time.*time="):
        read_targets(two)


@pytest.mark.parametrize(
    ("lines", "task", "message"),
    [
        (("slide,time,event", "a,x,1"), None, r"line 2: 'x' in the column 'time' is no number"),
        (("slide;time;event", "a;1,5;1"), None, "decimal point as a point"),
        (("slide,time,event", "a,1,maybe"), None, r"'maybe' .* is neither 1 nor 0.*event_value="),
        (("slide,time,event",), None, "a header but no rows"),
        (("slide,time,event", "a,1,1", "a,2,1"), None, "One slide has one label"),
        (("slide,x,event", "a,1,1"), "survival", r"no column 'time'.*time="),
        (("slide,label", "a,x"), "regression", "is no number"),
        (("slide,label", "a,inf"), "regression", "is no number"),
    ],
)
def test_wrong_cells_are_rejected_with_their_line(
    tmp_path: Path, lines: tuple[str, ...], task: str | None, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_targets(table(tmp_path, *lines), task)


def test_unknown_tasks_and_classes_are_rejected(tmp_path: Path) -> None:
    path = table(tmp_path, "slide,label", "a,x")
    with pytest.raises(OptionError, match="Known: class, survival, regression, ordinal, multil"):
        read_targets(path, "survivall")
    with pytest.raises(OptionError, match="read_labels"):
        read_targets(path)
    with pytest.raises(OptionError, match="this task has one column"):
        read_targets(path, "regression", TargetColumns(label=["a", "b"]))


@pytest.mark.parametrize(
    "targets",
    [
        survival((1.0, True), (2.5, False), patients=("p", None)),
        numbers(1.5, None, -2),
        Targets(GradeTarget("g", ("1", "2")), ("a", "b"), (1, None), ("p", None), ("note",)),
        Targets(LabelsTarget(("x", "y")), ("a",), ((True, None),), (None,)),
    ],
    ids=lambda targets: targets.task,
)
def test_targets_survive_json(targets: Targets) -> None:
    assert targets_from_json(json.loads(json.dumps(targets.as_json()))) == targets
    assert target_from_json(json.loads(json.dumps(target_json(targets.target)))) == targets.target


@pytest.mark.parametrize(
    ("target", "value"),
    [
        (SurvivalTarget(), (1.0, 1)),
        (SurvivalTarget(), 1.0),
        (NumberTarget(), float("nan")),
        (NumberTarget(), True),
        (GradeTarget("g", ("1", "2")), 2),
        (GradeTarget("g", ("1", "2")), 0.5),
        (LabelsTarget(("a", "b")), (True,)),
        (LabelsTarget(("a", "b")), (None, None)),
        (LabelsTarget(("a", "b")), (1, 0)),
    ],
)
def test_values_must_fit_their_target(target: object, value: object) -> None:
    with pytest.raises(DataError, match=r"slide 'a': .* is no value of the task"):
        Targets(target, ("a",), (value,), (None,))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Targets(NumberTarget(), ("a",), (), ()), "one of each"),
        (lambda: Targets(NumberTarget(), ("a", "a"), (1, 2), (None, None)), "listed twice"),
        (lambda: GradeTarget("g", ("1",)), "2 to 1000 different names"),
        (lambda: LabelsTarget(("a", "a")), "different names"),
        (lambda: target_from_json({"task": "x"}), "one of survival"),
        (lambda: target_from_json({"task": "regression", "unit": "m"}), "cannot be read"),
        (lambda: target_from_json({"task": "regression", "name": 3}), "not text"),
        (lambda: targets_from_json({"target": {"task": "regression"}}), "no targets: KeyError"),
        (lambda: numbers(None).array(["s0"]), r"no value for the task 'regression' \(1 of 1\)"),
    ],
)
def test_invalid_targets_are_rejected(call: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        call()


def test_survival_problems_are_found() -> None:
    sound = [(float(i), i % 2 == 0) for i in range(1, 41)]
    assert codes(survival(*sound)) == {}
    assert codes(survival((1.0, False), (2.0, False)))["no-events"] == "error"
    assert codes(survival((1.0, True), (2.0, True)))["no-censoring"] == "note"
    assert codes(survival(*sound, (0.0, True)))["time"] == "error"
    assert codes(survival(*sound, (-3.0, True)))["time"] == "error"
    assert codes(survival((1.0, True), (2.0, False)))["few-events"] == "warning"
    assert codes(survival((2.0, True), (2.0, False)))["constant"] == "error"
    patients = ("p", "p", "q")
    different = survival((1.0, True), (2.0, True), (3.0, False), patients=patients)
    assert codes(different)["contradiction"] == "error"
    assert codes(survival(*sound[:3], patients=("p",) * 3))["one-patient"] == "error"


def test_units_of_times_are_checked() -> None:
    ids, values = ("a", "b"), ((1.0, True), (5000.0, False))
    for name, severity in (("os_months", "warning"), ("os_days", None), ("time", "note")):
        found = codes(Targets(SurvivalTarget(name), ids, values, (None, None)))
        assert found.get("unit") == severity, name


def test_number_problems_are_found() -> None:
    assert codes(numbers(*range(20))) == {}
    assert codes(numbers(2.0, 2.0)) == {"constant": "error"}
    assert codes(numbers(*range(20), 1e6)) == {"outlier": "warning"}
    assert codes(numbers(*range(20), None)) == {"no-value": "warning"}
    assert codes(numbers(None, None)) == {"no-value": "error"}


def test_grade_problems_are_found() -> None:
    def grades(*values: int) -> Targets:
        ids = tuple(f"s{i}" for i in range(len(values)))
        return Targets(GradeTarget("g", ("1", "2", "3")), ids, values, (None,) * len(values))

    assert codes(grades(0, 1, 2)) == {}
    assert codes(grades(0, 2, 0)) == {"grade-gap": "warning"}
    assert codes(grades(1, 1)) == {"one-grade": "error"}
    assert codes(grades(0, 1, 2, 2, 2, 2)) == {"imbalance": "note"}


def test_label_problems_are_found() -> None:
    def labels(*values: tuple[bool | None, ...]) -> Targets:
        ids = tuple(f"s{i}" for i in range(len(values)))
        return Targets(LabelsTarget(("a", "b")), ids, values, (None,) * len(values))

    assert codes(labels((True, False), (False, True))) == {}
    assert codes(labels((True, False), (False, False))) == {"one-value": "warning"}
    assert codes(labels((True, False), (False, True), (None, True))) == {"holes": "note"}
    assert codes(labels((True, None), (True, False)))["no-label"] == "error"


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (survival((1.0, False), (2.0, False)), "no-events: all 2 times are censored"),
        (survival((1.0, True), (-2.0, False)), r"time: 1 times are 0 or negative \(s1\)"),
        (numbers(1.0, 1.0), "constant: all 2 numbers are 1"),
        (numbers(1.0), "one-patient"),
    ],
)
def test_training_is_rejected_with_what_to_do(targets: Targets, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_targets(targets)
    check_targets(numbers(1.0, 2.0, 3.0))


def test_the_audit_checks_targets_instead_of_classes() -> None:
    bags = BagSet([Bag(f"s{i}", torch.rand(4, 3)) for i in range(4)])
    targets = survival((1.0, False), (2.0, False), (3.0, False), patients=("p", "q", "q"))
    result = audit(bags, targets=targets)
    found = {finding.code: finding for finding in result.findings}
    assert not result.ok
    assert found["no-events"].severity == "error"
    assert found["contradiction"].slides == ("q",)
    assert found["no-value"].slides == ("s3",)
    assert "no-label" not in found
    assert result.counts["patients"] == 3
