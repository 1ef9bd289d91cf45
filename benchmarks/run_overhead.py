"""What an experiment of many runs costs beside the training itself.

    python benchmarks/run_overhead.py           half a minute on one core

Two costs are measured, each the old way and the new way in turns, so that both see the same load:

- reading the bags: every run reads and validates all bags of the cohort, or all runs of a process
  share the bags that the first of them read;
- gathering the tables: every `result.json` is read after every run, or only those that are new.

Writes benchmarks/results/run_overhead.json; a ratio is old / new, from the fastest turn of each.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from scmil.bags.bag import Bag, BagSet
from scmil.bags.formats import export_bags
from scmil.core.atomic import write_atomically
from scmil.studies.plan import Plan, make_plan
from scmil.studies.results import ResultTables, cell_folder, gather
from scmil.studies.run_bags import open_run_bags, release_run_bags

RESULTS = Path(__file__).parent / "results" / "run_overhead.json"
TURNS = 2
BAGS, TILES, DIM, METHODS = 10, 200, 256, 16  # five aggregators by three methods, and a baseline
RUNS, FOLDS = 40, 50


def read_bags(plan: Plan, out: Path, shared: bool) -> None:
    """Open the bags of every run, as `run` does before it trains."""
    release_run_bags()
    for cell in plan.cells:
        if not shared:
            release_run_bags()
        for _ in open_run_bags(cell, out).features:
            pass  # training needs them all


def gather_tables(plan: Plan, folder: Path, content: str, keep: bool) -> None:
    """Write results one after the other into a new directory, and the tables after each."""
    out = Path(tempfile.mkdtemp(dir=folder))
    tables = ResultTables.of_plan(plan, out)
    for cell in plan.cells:
        write_atomically(cell_folder(out, cell) / "result.json", content.encode())
        if keep:
            tables.gather()
        else:
            gather(plan, out)


def in_turns(old: Callable[[], None], new: Callable[[], None]) -> dict[str, Any]:
    """Seconds of both ways, measured alternately, and the ratio of the fastest."""
    seconds: dict[str, list[float]] = {"old": [], "new": []}
    for _ in range(TURNS):
        for name, way in (("old", old), ("new", new)):
            start = time.perf_counter()
            way()
            seconds[name].append(round(time.perf_counter() - start, 3))
    return {"seconds": seconds, "ratio": round(min(seconds["old"]) / min(seconds["new"]), 2)}


def measure_reading(folder: Path) -> dict[str, Any]:
    """The cohort of a comparison of five aggregators."""
    generator = torch.Generator().manual_seed(0)
    bags = [
        Bag(f"s{i}", torch.randn(TILES, DIM, generator=generator), label=i % 2) for i in range(BAGS)
    ]
    export_bags(BagSet(bags), folder / "bags", "clam")
    data = {"dataset": str(folder / "bags"), "labels": str(folder / "bags" / "labels.csv")}
    seeds = {"protocol.seed": list(range(METHODS))}
    plan = make_plan({"data": data, "grid": seeds}, "reading")
    found = in_turns(
        lambda: read_bags(plan, folder / "out", shared=False),
        lambda: read_bags(plan, folder / "out", shared=True),
    )
    return {"bags": BAGS, "megabytes": BAGS * TILES * DIM * 4 // 10**6, "runs": METHODS, **found}


def measure_gathering(folder: Path) -> dict[str, Any]:
    """An experiment of many runs, each of five repeats of ten folds by two protocols."""
    seeds = {"protocol.seed": list(range(RUNS))}
    plan = make_plan({"data": {"dataset": "musk1"}, "grid": seeds}, "gathering")
    numbers = {f"metric_{i}": i / 7 for i in range(30)}
    folds = [{"protocol": name, "fold": i, **numbers} for name in "ab" for i in range(FOLDS)]
    rows = [{"protocol": name, **numbers} for name in "ab"]
    further = {"parameters": 1, "density": None, "seconds": 1.0}
    content = json.dumps({"rows": rows, "folds": folds, **further})
    folder.mkdir()
    found = in_turns(
        lambda: gather_tables(plan, folder, content, keep=False),
        lambda: gather_tables(plan, folder, content, keep=True),
    )
    return {"runs": RUNS, "folds": 2 * FOLDS, **found}


def main() -> None:
    """Measure both, and write the result."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        page = {
            "reading bags": measure_reading(Path(folder) / "reading"),
            "gathering tables": measure_gathering(Path(folder) / "gathering"),
        }
    for name, found in page.items():
        print(f"{name}: old / new {found['ratio']}, seconds {found['seconds']}", flush=True)
    write_atomically(RESULTS, (json.dumps(page, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
