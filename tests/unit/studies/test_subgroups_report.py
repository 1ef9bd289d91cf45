"""Subgroups of a model folder, of a run directory, and of a model with a cross-validation."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from command import scmil
from synthetic_run import write_run

from scmil.errors import DataError, OptionError, OutputError
from scmil.studies.subgroups import report_subgroups

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
    assert "site b, 20 patients: accuracy 0.5" in text
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
