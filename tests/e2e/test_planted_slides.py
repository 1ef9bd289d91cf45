"""Every task from synthetic slides to a second hospital, through the command line.

Two cohorts are generated, tiled and encoded once: ours, and one of another stain and scanner. The
outcomes depend on the tissue in a known way; with those of other patients nothing can be found.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from scmil.cli import app

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

TASKS = {
    "survival": ["--task", "survival"],
    "regression": ["--task", "regression", "--label", "tumour_fraction"],
    "ordinal": ["--task", "ordinal", "--label", "grade"],
    "multilabel": ["--task", "multilabel", "--label", "inflammation,necrosis"],
}
MAIN = {
    "survival": ("c_index", 0.5),
    "regression": ("r2", 0.0),
    "ordinal": ("kappa", 0.0),
    "multilabel": ("macro: auc", 0.5),
}
OUTCOMES = ("os_months", "os_event", "tumour_fraction", "grade", "inflammation", "necrosis")


def call(*words: str | Path) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, f"{words}\n{result.output}\n{result.exception!r}"
    return result.output


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def without_signal(table: Path, out: Path) -> None:
    """The outcomes of each patient are those of another one."""
    rows = rows_of(table)
    order = np.random.default_rng(0).permutation(len(rows))
    mixed = [
        row | {name: rows[other][name] for name in OUTCOMES}
        for row, other in zip(rows, order, strict=True)
    ]
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(mixed)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hospitals")
    cohorts = {"ours": ("28", "0", "a"), "theirs": ("24", "7", "b")}
    for name, (slides, seed, scanner) in cohorts.items():
        call(
            *("paint", "--out", folder / name, "--slides", slides, "--side", "1000"),
            *("--outcomes", "planted", "--seed", seed, "--scanner", scanner),
        )
        call("tile", folder / name, "--out", folder / f"work-{name}", "--size", "128")
        call("encode", folder / f"work-{name}", "--encoder", "efficientnet-lite0")
    without_signal(folder / "ours" / "labels.csv", folder / "random.csv")
    return folder


def bags_of(home: Path, name: str) -> Path:
    [bags] = (home / f"work-{name}" / "bags").iterdir()
    return bags


def test_the_slides_of_the_second_hospital_are_from_another_scanner(home: Path) -> None:
    for name, scanner in (("ours", "a"), ("theirs", "b")):
        assert {row["scanner"] for row in rows_of(home / name / "labels.csv")} == {scanner}


@pytest.mark.parametrize("task", TASKS)
def test_a_task_from_slides_to_another_hospital(home: Path, task: str) -> None:
    metric, chance = MAIN[task]
    ours, theirs, model = bags_of(home, "ours"), bags_of(home, "theirs"), home / f"model-{task}"
    labels, options = home / "ours" / "labels.csv", [*TASKS[task], "--drop-unlabelled"]
    call(
        *("train", ours, labels, *options, "--aggregator", "mean", "--recipe", "paper"),
        *("--epochs", "20", "--out", model),
    )
    found = {}
    for name, table in (("planted", labels), ("random", home / "random.csv")):
        run = home / f"{task}-{name}"
        call(
            *("compare", ours, table, *options, "--aggregator", "mean", "--refine", "linear"),
            *("--folds", "4", "--repeats", "1", "--epochs", "20", "--selection", "last"),
            *("--jobs", "1", "--out", run),
        )
        call("report", run)
        assert "Results" in (run / "report.html").read_text()
        found[name] = {row["arm"]: row for row in rows_of(run / "results.csv")}
    for arm in found["planted"]:
        assert float(found["planted"][arm][f"{metric}_low"]) > chance, arm
        assert float(found["random"][arm][f"{metric}_low"]) <= chance, arm
    call(
        "test",
        model,
        theirs,
        home / "theirs" / "labels.csv",
        "--drop-unlabelled",
        "--out",
        home / task,
    )
    page = json.loads((home / task / "metrics.json").read_text())
    assert page["metrics"]["slide"][metric]["low"] > chance
    call("predict", model, theirs, "--out", home / f"{task}.csv")
    assert len(rows_of(home / f"{task}.csv")) == 24
    maps = home / f"{task}-maps"
    call(
        "heatmap", model, theirs, "--slides", home / "theirs", "--score", "evidence", "--out", maps
    )
    assert len(list(maps.rglob("*.png"))) >= 24
