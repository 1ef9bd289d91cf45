from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scmil.errors import ConfigError
from scmil.experiment import run, splits_of
from scmil.plan import Plan, make_plan

EPOCHS = 3


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """24 bags of 4 instances, of which the first feature tells the class of most."""
    generator = np.random.default_rng(0)
    path = tmp_path / "bags.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["bag", "label", "patient", *(f"f{i}" for i in range(5))])
        for bag in range(24):
            for x in generator.normal(size=(4, 5)) + (bag % 2) * np.array([2, 0, 0, 0, 0]):
                writer.writerow([f"b{bag}", bag % 2, f"p{bag // 2 if bag < 4 else bag}", *x.round(4)])
    return path


def plan_of(table: Path, **document: Any) -> Plan:
    protocol = {"folds": 3, "repeats": 2, "selection": ["last", "nested", "test-tuned"], **document.pop("protocol", {})}
    arms = [
        {"name": "plain"},
        {"name": "SC", "against": "plain", "model": {"sparse_coding": {"atoms": 9, "layers": 2}}},
    ]
    base = {
        "data": {"dataset": str(table)},
        "protocol": protocol,
        "model": {"aggregator": "abmil", "embed": [4]},
        "training": {"epochs": EPOCHS, "learning_rate": 0.01},
        "arms": arms,
    }
    return make_plan({**base, **document}, "mine")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_writes_every_file_of_every_cell(table: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    outcome = run(plan_of(table), tmp_path / "out", jobs=1, progress=lambda *news: seen.append(news))
    assert (outcome.before, outcome.finished, outcome.failed) == (0, 2, {})
    assert seen[-1][1:] == (2 * EPOCHS, 2 * EPOCHS)  # nested trains once more
    results = rows(tmp_path / "out" / "results.csv")
    assert [(row["arm"], row["protocol"]) for row in results] == [
        (arm, protocol) for arm in ("plain", "SC") for protocol in ("last", "nested", "test-tuned")
    ]
    assert len(rows(tmp_path / "out" / "folds.csv")) == 2 * 3 * 6
    cell = tmp_path / "out" / "cells" / "bags--sc"
    predictions = rows(cell / "predictions.csv")
    assert len(predictions) == 3 * 2 * 24  # every bag once a repeat and protocol
    history = rows(cell / "history.csv")
    assert [row["training"] for row in history] == ["full"] * EPOCHS + ["inner"] * EPOCHS
    result = json.loads((cell / "result.json").read_text())
    assert 0 < result["density"] <= 1
    assert result["settings"]["model"]["sparse_coding"]["atoms"] == 9


def test_results_follow_from_the_predictions(table: Path, tmp_path: Path) -> None:
    run(plan_of(table), tmp_path / "out", jobs=1)
    for row in rows(tmp_path / "out" / "results.csv"):
        said = [
            p
            for p in rows(tmp_path / "out/cells" / row["cell"] / "predictions.csv")
            if p["protocol"] == row["protocol"]
        ]
        folds: dict[tuple[str, str], list[float]] = {}
        for p in said:
            hit = (float(p["p1"]) > float(p["threshold"])) == (p["label"] == "1")
            folds.setdefault((p["repeat"], p["fold"]), []).append(float(hit))
        assert float(row["accuracy"]) == pytest.approx(np.mean([np.mean(hits) for hits in folds.values()]), abs=1e-6)


def test_the_test_tuned_protocol_is_never_worse_and_uses_the_same_models(table: Path, tmp_path: Path) -> None:
    run(plan_of(table), tmp_path / "out", jobs=1)
    by = {(row["arm"], row["protocol"]): float(row["accuracy"]) for row in rows(tmp_path / "out" / "results.csv")}
    assert all(by[arm, "test-tuned"] >= by[arm, "last"] for arm in ("plain", "SC"))


def test_cells_beside_each_other_give_the_same_numbers(table: Path, tmp_path: Path) -> None:
    for name, jobs in (("one", 1), ("two", 2)):
        run(plan_of(table), tmp_path / name, jobs=jobs)
    assert without_times(tmp_path / "one") == without_times(tmp_path / "two")


def without_times(out: Path) -> list[dict[str, str]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows(out / "results.csv")]


def test_a_cell_with_a_result_is_not_run_again(table: Path, tmp_path: Path) -> None:
    plan, out = plan_of(table), tmp_path / "out"
    assert run(plan, out, jobs=1, only="*--plain").finished == 1
    assert len(rows(out / "results.csv")) == 3
    before = (out / "cells/bags--plain/result.json").stat().st_mtime_ns
    outcome = run(plan, out, jobs=1)
    assert (outcome.before, outcome.finished) == (1, 1)
    assert (out / "cells/bags--plain/result.json").stat().st_mtime_ns == before


def test_results_of_other_settings_are_refused_and_not_mixed(table: Path, tmp_path: Path) -> None:
    run(plan_of(table), tmp_path / "out", jobs=1, only="*--plain")
    with pytest.raises(ConfigError, match="1 cells were made with other settings, the first is 'bags--plain'"):
        run(plan_of(table, training={"epochs": 2}), tmp_path / "out", jobs=1)
    with pytest.raises(ConfigError, match="--only x: no cell has such a name"):
        run(plan_of(table), tmp_path / "out", only="x")


def test_a_cell_that_fails_is_written_down_and_the_others_go_on(table: Path, tmp_path: Path) -> None:
    plan = plan_of(table)
    small = tmp_path / "small.csv"
    small.write_text("bag,label,f0\na,0,1\nb,1,2\n")
    plan.cells[0].settings["data"]["dataset"] = str(small)
    outcome = run(plan, tmp_path / "out", jobs=1)
    assert outcome.finished == 1
    assert outcome.failed["bags--plain"].startswith("SplitError: ")
    assert json.loads((tmp_path / "out/cells/bags--plain/failed.json").read_text())["traceback"] is None


def test_patients_are_never_on_both_sides(table: Path) -> None:
    from scmil.datasets import load_dataset

    bags = load_dataset(str(table))
    for inner in (False, True):
        for split in (s for folds in splits_of(plan_of(table).cells[0], bags, inner) for s in folds):
            sides = [{bags.patients[i] for i in part} for part in split]
            assert not sides[0] & sides[1]
            assert not sides[0] & sides[2]
            assert bool(split.valid) == inner


def test_given_splits_are_used(table: Path, tmp_path: Path) -> None:
    from scmil.datasets import load_dataset
    from scmil.splits import save_splits, stratified_folds

    bags = load_dataset(str(table))
    given = [stratified_folds(list(bags.labels), 4, seed=9, groups=list(bags.patients))]
    save_splits(tmp_path / "splits.csv", given, bags.ids)
    plan = plan_of(table, protocol={"splits": str(tmp_path / "splits.csv")})
    assert splits_of(plan.cells[0], bags, inner=False) == given


def test_a_holdout_is_one_fold_a_repeat(table: Path, tmp_path: Path) -> None:
    run(plan_of(table, protocol={"kind": "holdout", "test": 0.25, "selection": ["last"]}), tmp_path / "out", jobs=1)
    assert [(row["folds"], row["repeats"]) for row in rows(tmp_path / "out" / "results.csv")] == [("1", "2")] * 2


def test_a_table_with_three_classes_and_one_without_labels(table: Path, tmp_path: Path) -> None:
    header, *lines = table.read_text().splitlines()
    three = [line.split(",") for line in lines]
    for number, fields in enumerate(three):
        fields[1] = str(number // 4 % 3)
    table.write_text("\n".join([header, *(",".join(fields) for fields in three)]))
    plan = plan_of(table, protocol={"folds": 2})
    assert run(plan, tmp_path / "three", jobs=1).failed == {}
    assert "p2" in rows(tmp_path / "three/cells/bags--sc/predictions.csv")[0]
    for fields in three[:4]:
        fields[1] = ""
    table.write_text("\n".join([header, *(",".join(fields) for fields in three)]))
    failed = run(plan, tmp_path / "unlabelled", jobs=1).failed
    assert failed["bags--plain"] == "DataError: bags without a label: b0."
