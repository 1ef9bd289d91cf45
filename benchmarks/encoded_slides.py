"""Is the signal of encoded synthetic slides found, at home and in another hospital?

    python benchmarks/encoded_slides.py

Two cohorts are generated, tiled and encoded: ours, and one of another stain and scanner. For each
task, methods are compared by cross-validation on ours, and a model is trained on all our slides and
tested on theirs, through the command line. The outcomes depend on the tissue in a known way; with
those of other patients nothing can be found. The settings were chosen on cohorts of seeds from 100
on; the seeds below were used once, for the committed result. The claim is about the method `mean`:
the lower end of its 95 % interval is above chance with the signal, and not without it. The other
methods of the comparison are shown beside it.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

RESULTS = Path(__file__).parent / "results" / "encoded_slides.json"
SLIDES, SEEDS = (100, 100), (0, 7)  # ours, theirs
ENCODER = "efficientnet-lite0"
SIDE_PX = 1000  # about eight tiles of 256 px
# All features on their own scale: with --standardise, one that is zero in nearly all tiles of a
# training split is divided by a tiny deviation, and a single tile may dominate a prediction.
TRAINING = ("--aggregator", "mean", "--recipe", "abmil", "--epochs", "20", "--drop-unlabelled")
FOLDS, METHOD = 4, "mean"
Run = Callable[..., object]
Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A task on the command line, its metric, and the value of the metric without signal."""

    options: tuple[str, ...]
    metric: str
    chance: float


TASKS = {
    "survival": Task(("--task", "survival"), "c_index", 0.5),
    "regression": Task(("--task", "regression", "--label", "tumour_fraction"), "r2", 0.0),
    "ordinal": Task(("--task", "ordinal", "--label", "grade"), "kappa", 0.0),
    "multilabel": Task(
        ("--task", "multilabel", "--label", "inflammation,necrosis"), "macro: auc", 0.5
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, help="folder to keep slides, models and reports")
    parser.add_argument("--slides", type=int, nargs=2, default=SLIDES, metavar=("OURS", "THEIRS"))
    parser.add_argument("--seeds", type=int, nargs=2, default=SEEDS, metavar=("OURS", "THEIRS"))
    options = parser.parse_args()
    with TemporaryDirectory() as temporary:
        home = options.work or Path(temporary)
        make_hospitals(run_command, home, options.slides, options.seeds)
        rows = [row for task in TASKS for row in find_signal(run_command, home, task)]
    content = {"slides": list(options.slides), "seeds": list(options.seeds), "rows": rows}
    options.out.write_text(json.dumps(content, indent=2) + "\n")
    print(as_markdown(rows))
    return int(not all(row["as expected"] for row in claimed(rows)))


def claimed(rows: list[Row]) -> list[Row]:
    """The rows that the claim is about: a task at home and elsewhere, with and without signal."""
    return [row for row in rows if row["method"] == METHOD]


def run_command(*words: object) -> None:
    scmil = Path(sys.executable).with_name("scmil")
    subprocess.run([scmil, *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def make_hospitals(run: Run, home: Path, slides: tuple[int, int], seeds: tuple[int, int]) -> None:
    """Write slides, bags, and the tables `planted.csv` and `random.csv` of both hospitals."""
    for name, count, seed, scanner in zip(("ours", "theirs"), slides, seeds, "ab", strict=True):
        folder = home / name
        for outcomes in ("random", "planted"):  # the second time, the slides are there
            run(
                *("paint", "--out", folder / "slides", "--slides", count, "--side", SIDE_PX),
                *("--outcomes", outcomes, "--seed", seed, "--scanner", scanner),
            )
            table = (folder / "slides" / "labels.csv").read_bytes()
            (folder / f"{outcomes}.csv").write_bytes(table)
        # Nothing is marked, and the second stain has the colours of red ink.
        run("tile", folder / "slides", "--out", folder / "work", "--no-pen")
        run("encode", folder / "work", "--encoder", ENCODER)


def find_signal(run: Run, home: Path, task: str) -> list[Row]:
    """The estimates of a task by cross-validation on ours and by a model of ours on theirs."""
    model = train(run, home, task, FOLDS)
    return [
        row
        for outcomes in ("planted", "random")
        for row in (
            *compare(run, home, task, outcomes, "--folds", FOLDS, "--repeats", 1),
            test(run, home, task, model, outcomes),
        )
    ]


def bags(home: Path, hospital: str) -> Path:
    return home / hospital / "work" / "bags" / ENCODER


def train(run: Run, home: Path, task: str, folds: int) -> Path:
    """A model of our slides, without a test split; a fifth of them selects the epoch."""
    model = home / task / "model"
    words = (*TASKS[task].options, *TRAINING, "--folds", folds, "--out", model)
    run("train", bags(home, "ours"), home / "ours" / "planted.csv", *words)
    return model


def compare(run: Run, home: Path, task: str, outcomes: str, *options: object) -> list[Row]:
    """Cross-validate on our slides, with the outcomes of the tissue or of other patients."""
    out = home / task / f"compare-{outcomes}"
    run(
        *("compare", bags(home, "ours"), home / "ours" / f"{outcomes}.csv", *TASKS[task].options),
        *(*TRAINING, "--refine", "sc", "--selection", "last", "--jobs", 1, "--out", out, *options),
    )
    metric = TASKS[task].metric
    with (out / "results.csv").open(newline="") as file:
        return [
            _row(task, outcomes, "ours", row["arm"], *(float(row[metric + k]) for k in ENDS))
            for row in csv.DictReader(file)
        ]


def test(run: Run, home: Path, task: str, model: Path, outcomes: str) -> Row:
    """Test a model of ours on their slides."""
    out = home / task / f"test-{outcomes}"
    table = home / "theirs" / f"{outcomes}.csv"
    run("test", model, bags(home, "theirs"), table, "--drop-unlabelled", "--out", out)
    page = json.loads((out / "metrics.json").read_text())
    found = page["metrics"]["slide"][TASKS[task].metric]
    row = _row(task, outcomes, "theirs", METHOD, found["value"], found["low"], found["high"])
    return row | {"feature shift": page["feature_shift"]["cohort"]["distance"]}


ENDS = ("", "_low", "_high")


def _row(
    task: str, outcomes: str, hospital: str, method: str, value: float, low: float, high: float
) -> Row:
    found = low > TASKS[task].chance
    return {
        "task": task,
        "outcomes": outcomes,
        "hospital": hospital,
        "method": method,
        "metric": TASKS[task].metric,
        "value": round(value, 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "as expected": found == (outcomes == "planted"),
    }


def as_markdown(rows: list[Row]) -> str:
    """The table of the documentation: the rows of a task, with and without signal."""
    lines = [
        "| task, metric | slides | method | planted signal | outcomes of other patients |",
        "|---|---|---|---|---|",
    ]
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        key = (f"{row['task']}, {row['metric']}", row["hospital"], row["method"])
        mark = "" if row["as expected"] else " (not as expected)"
        estimate = f"{row['value']:.2f} ({row['low']:.2f} to {row['high']:.2f}){mark}"
        cells.setdefault(key, {})[row["outcomes"]] = estimate
    return "\n".join(lines + [f"| {' | '.join((*key, *cells[key].values()))} |" for key in cells])


if __name__ == "__main__":
    sys.exit(main())
