"""Every task from the command line: train, predict, test on another cohort, heatmap."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from target_cases import TASKS, rename_cohort, target_cohort
from typer.testing import CliRunner

from scmil.cli import app

MAIN = {"survival": "c_index", "regression": "r2", "ordinal": "kappa", "multilabel": "macro: auc"}
CHANCE = {"survival": 0.5, "regression": 0.0, "ordinal": 0.0, "multilabel": 0.5}


def call(*words: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, f"{words}\n{result.output}\n{result.exception!r}"
    return result.output + str(result.exception or "")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    target_cohort(folder / "ours", count=60)
    target_cohort(folder / "theirs", count=60, seed=1)
    target_cohort(folder / "random", count=60, seed=2, signal=False)
    for name, prefix in (("theirs", "t"), ("random", "r")):  # other slides and patients
        rename_cohort(folder / name, prefix)
    return folder


@pytest.mark.parametrize("task", TASKS)
def test_a_task_from_training_to_another_hospital(home: Path, task: str) -> None:
    ours, model = home / "ours", home / task
    call(
        *("train", ours / "bags", ours / "labels.csv", *TASKS[task], "--drop-unlabelled"),
        *("--aggregator", "mean", "--recipe", "paper", "--epochs", "25", "--out", model),
    )
    call("predict", model, ours / "bags", "--out", home / f"{task}.csv")
    with (home / f"{task}.csv").open(newline="") as file:
        assert len([*csv.DictReader(file)]) == 60
    found = {}
    for name in ("theirs", "random"):
        out = home / f"{task}-{name}"
        labels = home / name / "labels.csv"
        call("test", model, home / name / "bags", labels, "--out", out, "--drop-unlabelled")
        page = json.loads((out / "metrics.json").read_text())
        found[name] = page["metrics"]["slide"][MAIN[task]]
        assert page["task"] == task
        report = (out / "report.html").read_text()
        assert "External validation" in report
        with (out / "predictions.csv").open(newline="") as file:
            assert {"slide_id", "y_pred"} < set(next(csv.DictReader(file)))
    assert found["theirs"]["low"] > CHANCE[task]
    assert found["random"]["low"] < CHANCE[task]
    leaked = call(
        *("test", model, ours / "bags", ours / "labels.csv", "--out", home / f"{task}-leak"),
        "--drop-unlabelled",
        code=1,
    )
    assert "were used to train the model" in " ".join(leaked.split())
    maps = home / f"{task}-maps"
    call("heatmap", model, ours / "bags", "--score", "evidence", "--only", "s00", "--out", maps)


def test_several_targets_from_training_to_another_hospital(home: Path) -> None:
    ours, model = home / "ours", home / "several"
    call(
        *("train", ours / "bags", ours / "labels.csv", "--task", "ordinal,regression,survival"),
        *("--label", "grade,age", "--aggregator", "mean", "--recipe", "paper", "--epochs", "12"),
        *("--folds", "2", "--keep-folds", "--out", model),
    )
    main = {"grade": "kappa", "age": "r2", "survival": "c_index"}
    found = {}
    for name in ("theirs", "random"):
        out, labels = home / f"several-{name}", home / name / "labels.csv"
        words = call("test", model, home / name / "bags", labels, "--out", out)
        assert "grade, 60 slides of 60 patients:" in words
        page = json.loads((out / "metrics.json").read_text())
        assert page["model"]["ensemble"] == 2
        found[name] = {part: page["metrics"][part]["slide"][main[part]] for part in main}
        assert "survival: survival by risk" in (out / "report.html").read_text()
    for part, chance in (("grade", 0.0), ("age", 0.0), ("survival", 0.5)):
        assert found["theirs"][part]["low"] > chance, part
        assert found["random"][part]["low"] < chance + 0.05, part
    maps = (model, home / "theirs/bags", "--also", model / "ensemble", "--only", "ts00")
    words = call("heatmap", *maps, "--score", "probability:age", "--out", home / "maps")
    assert "probability:age: 1 made" in words
