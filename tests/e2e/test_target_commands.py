"""`scmil compare`, `run` and `report` of tasks other than classes, from the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from command import scmil
from target_folder import DATA, OPTIONS, write_target_folder

MAIN = {
    "survival": ("c_index", 0.5),
    "regression": ("r2", 0.0),
    "ordinal": ("kappa", 0.0),
    "multilabel": ("macro: auc", 0.5),
}


def experiment(home: Path, task: str) -> Path:
    """A network on the bags, trained long enough to find the signal."""
    data = "\n".join(f'{key} = "{value}"' for key, value in DATA[task].items())
    path = home / f"{task}.toml"
    path.write_text(
        f"""
        title = "{task}"
        [data]
        dataset = "bags"
        labels = "values.csv"
        standardise = true
        {data}
        [protocol]
        folds = 2
        selection = ["last", "nested"]
        [model]
        aggregator = "mean"
        embed = [8]
        [training]
        epochs = 6
        learning_rate = 0.01
        weight_decay = 0.0
        """
    )
    return path


def results(out: Path) -> list[dict[str, str]]:
    with (out / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("task", MAIN)
def test_run_finds_the_signal_and_none_where_there_is_none(tmp_path: Path, task: str) -> None:
    metric, chance = MAIN[task]
    low = {}
    for signal in (1.0, 0.0):
        home = tmp_path / f"cohort{signal:g}"
        home.mkdir()
        write_target_folder(home, n=48, signal=signal)
        out = home / "out"
        answer = scmil("run", experiment(home, task), "--out", out, "--jobs", 1, "--json")
        found = json.loads(answer.stdout)
        assert found["failed"] == {}
        assert metric in found["results"][0]
        assert "chance" in found["verdict"]
        assert any(f"task: {task!r}" in note for note in found["notes"])
        low[signal] = float(results(out)[0][f"{metric}_low"])
        assert (out / "report.html").read_text().count("<h2>") > 3
    assert low[1.0] > chance
    assert low[0.0] < chance + 0.05


@pytest.mark.parametrize("task", MAIN)
def test_compare_states_the_task_and_writes_its_report(tmp_path: Path, task: str) -> None:
    home = write_target_folder(tmp_path, n=32, slides=2)
    out = home / "out"
    command = [home / "bags", home / "values.csv", *OPTIONS[task], "--out", out]
    command += ["--aggregator", "mean", "--refine", "linear", "--folds", 2, "--repeats", 1]
    command += ["--epochs", 1, "--jobs", 1]
    printed = scmil("compare", *command)
    if task == "multilabel":  # the only one that is inferred here
        assert "task: 'multilabel' (inferred from the columns)" in printed.stderr
    assert "Comparisons" in printed.stdout
    assert [row["arm"] for row in results(out)][:2] == ["mean", "mean + linear"]
    assert results(out)[2]["arm"].endswith("regression on mean and maximum")
    before = (out / "report.html").read_bytes()
    again = scmil("compare", *command)  # resumes: nothing is left to do
    assert "Report:" in again.stdout
    scmil("report", out)
    assert (out / "report.html").read_bytes() == before


def test_wrong_input_is_rejected_before_training(tmp_path: Path) -> None:
    home = write_target_folder(tmp_path, n=16)
    base = ["compare", home / "bags", home / "values.csv", "--out", home / "out"]
    printed = scmil(*base, "--task", "survival", "--loss", "huber", code=1)
    assert "loss = 'huber' for the task 'survival'. Known: discrete, cox." in printed.stderr
    printed = scmil(*base, "--task", "regression", "--label", "slide_id", code=1)
    assert "is no number" in printed.stderr
    assert not (home / "out").exists()
