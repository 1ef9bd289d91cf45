"""The tables of a run directory, and how often the results are read for them."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from scmil.studies import results, runner
from scmil.studies.plan import Cell, Plan, make_plan

RUNS = 12


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each result.json was read."""
    counts: Counter[str] = Counter()
    read = results.read_json_file

    def read_counting(path: Path) -> dict[str, Any]:
        counts[f"{path.parent.name}/{path.name}"] += 1
        return read(path)

    monkeypatch.setattr(results, "read_json_file", read_counting)
    return counts


def plan_of(runs: int = RUNS) -> Plan:
    grid = {"protocol.seed": list(range(runs))}
    return make_plan({"data": {"dataset": "musk1"}, "grid": grid}, "mine")


def write_result(cell: Cell, folder: Path, *_: Any) -> None:
    """In place of a training: a result without metrics."""
    row = {"protocol": "last", "repeats": 1, "folds": 1, "bags": 2}
    content = {"digest": cell.digest, "rows": [row], "folds": [], "parameters": 3}
    folder.mkdir(parents=True, exist_ok=True)
    further = {"density": None, "seconds": 1.0, "data": {"digest": "0" * 64}}
    (folder / "result.json").write_text(json.dumps(content | further))


def cells_in_table(out: Path) -> list[str]:
    with (out / "results.csv").open(newline="") as file:
        return [row["cell"] for row in csv.DictReader(file)]


def test_each_result_is_read_once_however_many_runs_there_are(
    tmp_path: Path, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "run_cell", write_result)
    plan = plan_of()
    runner.run(plan, tmp_path, jobs=1)
    assert cells_in_table(tmp_path) == [cell.name for cell in plan.cells]
    assert set(reads.values()) == {1}
    assert len(reads) == RUNS


def test_a_result_that_has_changed_is_read_again_and_a_deleted_one_leaves_the_tables(
    tmp_path: Path, reads: Counter[str]
) -> None:
    plan = plan_of(3)
    tables = results.ResultTables.of_plan(plan, tmp_path)
    folders = [results.cell_folder(tmp_path, cell) for cell in plan.cells]
    for cell, folder in zip(plan.cells, folders, strict=True):
        write_result(cell, folder)
    tables.gather()
    path = folders[1] / "result.json"
    path.write_text(path.read_text().replace('"parameters": 3', '"parameters": 12345'))
    (folders[2] / "result.json").unlink()
    tables.gather()
    assert cells_in_table(tmp_path) == [cell.name for cell in plan.cells[:2]]
    assert "12345" in (tmp_path / "results.csv").read_text()
    assert sorted(reads.values()) == [1, 1, 2]
