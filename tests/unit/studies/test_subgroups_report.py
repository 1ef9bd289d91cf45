"""Subgroups of a model folder, of a run directory, and of a model with a cross-validation."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import scmil
from synthetic_run import write_run
from synthetic_target_run import write_target_run

from scmil.core.tables import records_csv
from scmil.errors import DataError, OptionError, OutputError
from scmil.stats import target_subgroups
from scmil.studies.subgroups import report_subgroups

pytestmark = pytest.mark.slow  # models are trained

SLIDES = 60


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The files of a model folder that are read; slides of site `b` are wrong more often."""
    folder = tmp_path / "model"
    folder.mkdir()
    names = [f"s{i}" for i in range(SLIDES)]
    study = {"classes": ["normal", "tumor"], "split": {"train": ["x"], "test": names}}
    (folder / "study.json").write_text(json.dumps(study))
    generator = np.random.default_rng(0)
    with (folder / "predictions.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        columns = ["slide_id", "case_id", "part", "y_true", "y_pred", "p_normal", "p_tumor"]
        writer.writerow(columns)
        writer.writerow(["x", "px", "train", "tumor", "normal", 0.9, 0.1])
        for i, name in enumerate(names):
            label, wrong = i % 2, i // 2 % 3 == 1 and i % 4 < 2
            p = 0.5 + (0.3 if label != wrong else -0.3) + 0.1 * generator.random()
            word = ("normal", "tumor")
            writer.writerow(
                [name, f"p{i}", "test", word[label], word[p > 0.5], f"{1 - p:.5g}", f"{p:.5g}"]
            )
    return folder


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    path = tmp_path / "labels.csv"
    rows = [f"p{i},s{i},{'abc'[i // 2 % 3]},{'fm'[i // 6 % 2]}" for i in range(SLIDES)]
    path.write_text("\n".join(["case_id,slide_id,site,sex", *rows]))
    return path


def test_only_the_test_split_of_a_model_counts(model: Path, labels: Path) -> None:
    report = report_subgroups(model, labels, ["site", "sex"])
    assert sum(group.slides for group in report.table.groups if group.column == "site") == SLIDES
    worst = report.table.worst
    assert worst is not None
    assert (worst.column, worst.worst) == ("site", "b")
    page, table = (path.read_text() for path in report.files)
    assert "Largest of 8 compared gaps" in page
    assert "Holm&#x27;s correction" in page
    rows = list(csv.DictReader(table.splitlines()))
    assert {(row["column"], row["group"]) for row in rows} == {
        ("site", "a"),
        ("site", "b"),
        ("site", "c"),
        ("sex", "f"),
        ("sex", "m"),
    }


def test_the_command_prints_groups_the_gap_and_the_files(model: Path, labels: Path) -> None:
    text = scmil("subgroups", model, labels, "--by", "site, sex").stdout
    assert "site b, 20 patients: AUC 0.4" in text
    assert "adjusted p" in text
    page = json.loads(scmil("subgroups", model, labels, "--by", "sex", "--json").stdout)
    assert {gap["column"] for gap in page["gaps"]} == {"sex"}
    assert "no column is given" in scmil("subgroups", model, labels, "--by", ",", code=1).stderr


def test_files_of_others_are_not_replaced(model: Path, labels: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "subgroups.csv").write_text("mine")
    with pytest.raises(OutputError, match=r"subgroups\.csv exists"):
        report_subgroups(model, labels, ["sex"], out=tmp_path / "out")


def test_slides_that_the_table_does_not_have_are_noted(model: Path, labels: Path) -> None:
    lines = labels.read_text().splitlines()
    labels.write_text("\n".join(lines[:-3]))
    report = report_subgroups(model, labels, ["sex"])
    assert report.notes == ("3 tested slides are not in the table: s57, s58, s59.",)
    labels.write_text(lines[0] + "\np,other,a,f\n")
    with pytest.raises(DataError, match="none of the 60 tested slides is in the table"):
        report_subgroups(model, labels, ["sex"])
    with pytest.raises(DataError, match="no column 'age' for the groups"):
        report_subgroups(model, labels, ["age"])


def test_a_run_is_judged_by_its_test_folds(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run", datasets=("musk1",), failed=(), protocols=("last",), repeats=2, folds=3
    )
    bags = sorted(
        {row["bag"] for path in run.rglob("cells/*/predictions.csv") for row in _rows(path)}
    )
    path = tmp_path / "labels.csv"
    lines = [f"p{i},{bag},{'fm'[i // 2 % 2]}" for i, bag in enumerate(bags)]
    path.write_text("\n".join(["case_id,slide_id,sex", *lines]))
    with pytest.raises(OptionError, match="--method: several are there"):
        report_subgroups(run, path, ["sex"])
    with pytest.raises(OptionError, match="'X' is not there"):
        report_subgroups(run, path, ["sex"], method="X")
    report = report_subgroups(run, path, ["sex"], method="ABMIL + SC")
    assert sum(group.slides for group in report.table.groups) == len(bags) == 60
    assert report.origin == "test folds of ABMIL + SC on musk1, selection protocol 'last'"


def test_a_model_without_tested_slides_is_rejected(model: Path, labels: Path) -> None:
    study = {"classes": ["normal", "tumor"], "split": {"train": ["x"], "valid": ["y"]}}
    (model / "study.json").write_text(json.dumps(study))
    with pytest.raises(DataError, match="neither a test split nor a cross-validation"):
        report_subgroups(model, labels, ["sex"])
    with pytest.raises(OptionError, match="is a model folder, which has one method"):
        report_subgroups(model, labels, ["sex"], method="abmil")


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


TASKS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "survival": ({"time": "os", "event": "dead"}, ["risk"]),
    "regression": ({"name": "age"}, ["age"]),
    "ordinal": ({"name": "grade", "grades": ["1", "2", "3"]}, ["1", "2", "3"]),
    "multilabel": ({"names": ["tp53", "msi"]}, ["tp53", "msi"]),
}
FOUND = {
    "survival": "concordance",
    "regression": "R²",
    "ordinal": "quadratic kappa",
    "multilabel": "macro AUC",
}


def write_task_model(folder: Path, task: str) -> Path:
    """The files of a model folder of a task; slides of site `b` are predicted at random."""
    target, names = TASKS[task]
    folder.mkdir()
    slides = [f"s{i}" for i in range(SLIDES)]
    study = {
        "classes": names,
        "task": task,
        "target": {"task": task, **target},
        "split": {"train": ["x"], "test": slides},
    }
    (folder / "study.json").write_text(json.dumps(study))
    random = np.random.default_rng(0)
    rows = []
    for i, slide in enumerate(["x", *slides]):
        truth = float(random.normal())
        at_random = slide != "x" and (i - 1) // 2 % 3 == 1
        guess = float(random.normal()) if at_random else truth + float(random.normal()) / 5
        cells: dict[str, object] = {"slide_id": slide, "case_id": f"p{slide[1:] or 'x'}"}
        cells["part"] = "test" if slide != "x" else "train"
        if task == "survival":
            cells |= {"y_os": f"{np.exp(-truth):.5f}", "y_dead": int(random.random() < 0.8)}
            cells |= {"y_pred": "", "p_risk": guess}
        elif task == "regression":
            cells |= {"y_age": truth, "y_pred": guess, "p_age": guess}
        elif task == "ordinal":
            grade, own = (1 + int(np.digitize(value, [-0.5, 0.5])) for value in (truth, guess))
            cells |= {"y_grade": grade, "y_pred": own, "p_1": 0.2, "p_2": 0.3, "p_3": 0.5}
        else:
            p = 1 / (1 + np.exp(-guess))
            cells |= {"y_tp53": int(truth > 0), "y_msi": "" if i % 9 == 0 else int(truth > 0.1)}
            cells |= {"y_pred": "", "p_tp53": p, "p_msi": p}
        rows.append(cells)
    (folder / "predictions.csv").write_bytes(records_csv(rows))
    return folder


@pytest.mark.parametrize("task", TASKS)
def test_a_model_of_every_task_has_subgroups_with_the_worst_gap(
    tmp_path: Path, labels: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_subgroups, "DRAWS", 50)
    model = write_task_model(tmp_path / task, task)
    report = report_subgroups(model, labels, ["site", "sex"])
    assert report.task == task
    worst = report.table.worst
    assert worst is not None
    assert (worst.column, worst.worst) == ("site", "b")
    assert worst.adjusted < 0.05
    page = report.files[0].read_text()
    gaps = len(report.table.gaps)
    assert f"correction for all {gaps} gaps" in page
    assert f"Largest of {gaps} compared gaps" in page
    assert f"Task: {task}." in page
    text = scmil("subgroups", model, labels, "--by", "site").stdout
    assert f"site b, 20 patients: {FOUND[task]}" in text


@pytest.mark.parametrize("task", TASKS)
def test_a_run_of_every_task_has_subgroups(
    tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_subgroups, "DRAWS", 50)
    run = write_target_run(tmp_path / "run", task, n=48)
    rows = [f"p{i},s{i},{'ab'[i % 2]}" for i in range(48)]
    table = tmp_path / "sites.csv"
    table.write_text("\n".join(["case_id,slide_id,site", *rows]))
    with pytest.raises(OptionError, match="--method: several are there"):
        report_subgroups(run, table, ["site"])
    report = report_subgroups(run, table, ["site"], method="plain + SC")
    assert sum(group.slides for group in report.table.groups) == 48
    assert report.origin == "test folds of plain + SC on cohort, selection protocol 'last'"
