from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scmil.errors import ConfigError, OutputError
from scmil.studies.runner import run, splits_of
from scmil.studies.plan import Plan, make_plan

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
    from scmil.bags.datasets import load_dataset

    bags = load_dataset(str(table))
    for inner in (False, True):
        for split in (s for folds in splits_of(plan_of(table).cells[0], bags, inner) for s in folds):
            sides = [{bags.patients[i] for i in part} for part in split]
            assert not sides[0] & sides[1]
            assert not sides[0] & sides[2]
            assert bool(split.valid) == inner


def test_given_splits_are_used(table: Path, tmp_path: Path) -> None:
    from scmil.bags.datasets import load_dataset
    from scmil.bags.splits import save_splits, stratified_folds

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
    assert failed["bags--plain"].startswith("DataError: bags without a label (1 of 24): b0. Label them,")


# ------------------------------------------------------------------------------------------------------ bags of folders


@pytest.fixture
def cohort(tmp_path: Path) -> Path:
    """A CLAM folder of 24 slides of 12 patients, of which the first feature tells the class, and its labels.csv."""
    import torch

    from scmil.bags.bag import Bag, BagSet
    from scmil.bags.formats import export

    generator = torch.Generator().manual_seed(0)
    bags = [
        Bag(
            f"s{i:02}",
            torch.randn(6, 5, generator=generator) + 2 * (i // 2 % 2) * torch.eye(5)[0],
            label=i // 2 % 2,
            patient=f"p{i // 2}",
        )
        for i in range(24)
    ]
    export(BagSet(bags, ["normal", "tumor"]), tmp_path / "clam", "clam")
    return tmp_path / "clam"


def cohort_plan(folder: Path, **document: Any) -> Plan:
    data = {"dataset": str(folder), "labels": str(folder / "labels.csv"), **document.pop("data", {})}
    protocol = {"repeats": 1, "selection": ["last", "nested"], **document.pop("protocol", {})}
    return plan_of(folder, data=data, protocol=protocol, **document)


def test_a_folder_of_another_tool_is_a_data_set_and_patients_get_rows_of_their_own(
    cohort: Path, tmp_path: Path
) -> None:
    assert run(cohort_plan(cohort), tmp_path / "out", jobs=1).failed == {}
    found = rows(tmp_path / "out" / "results.csv")
    assert [(row["protocol"], row["level"], row["bags"]) for row in found if row["arm"] == "SC"] == [
        ("last", "slide", "24"),
        ("nested", "slide", "24"),
        ("last", "patient", "12"),
        ("nested", "patient", "12"),
    ]
    said = [p for p in rows(tmp_path / "out/cells/clam--sc/predictions.csv") if p["protocol"] == "last"]
    hits: dict[str, list[float]] = {}
    for patient in {int(p["bag"][1:]) // 2 for p in said}:
        own = [p for p in said if int(p["bag"][1:]) // 2 == patient]
        right = (np.mean([float(p["p1"]) for p in own]) > 0.5) == (own[0]["label"] == "1")
        hits.setdefault(own[0]["fold"], []).append(float(right))
    row = next(row for row in found if row["arm"] == "SC" and (row["protocol"], row["level"]) == ("last", "patient"))
    assert float(row["accuracy"]) == pytest.approx(np.mean([np.mean(each) for each in hits.values()]), abs=1e-6)


def test_large_bags_train_fold_by_fold_with_the_same_numbers(
    cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scmil.studies import runner as experiment

    plan = cohort_plan(cohort, protocol={"selection": ["last", "nested", "test-tuned"]})
    run(plan, tmp_path / "small", jobs=1, only="*--plain")
    monkeypatch.setattr(experiment, "LARGE", 0)
    run(plan, tmp_path / "large", jobs=1, only="*--plain")
    cells = [tmp_path / name / "cells/clam--plain" for name in ("small", "large")]
    results = [json.loads((cell / "result.json").read_text()) for cell in cells]
    assert [result["trained"] for result in results] == ["all folds at once", "fold by fold"]
    small, large = (rows(cell / "predictions.csv") for cell in cells)
    assert [(p["bag"], p["protocol"]) for p in small] == [(p["bag"], p["protocol"]) for p in large]
    np.testing.assert_allclose([float(p["p1"]) for p in small], [float(p["p1"]) for p in large], atol=1e-5)
    chosen = [[(fold["protocol"], fold["epoch"]) for fold in result["folds"]] for result in results]
    assert chosen[0] == chosen[1]
    assert not (cells[1] / "checkpoints").exists()


def test_patience_ends_a_training_early(cohort: Path, tmp_path: Path) -> None:
    plan = cohort_plan(
        cohort, training={"epochs": 40, "patience": 2, "learning_rate": 0.05}, protocol={"selection": ["nested"]}
    )
    run(plan, tmp_path / "out", jobs=1, only="*--plain")
    assert len(rows(tmp_path / "out/cells/clam--plain/history.csv")) < 40


def test_the_baseline_is_an_arm_on_the_same_splits(cohort: Path, tmp_path: Path) -> None:
    arms = [
        {"name": "plain"},
        {"name": "LR", "against": "plain", "model": {"aggregator": "logistic-mean-max", "embed": None}},
    ]
    plan = cohort_plan(cohort, arms=arms, training={"recipe": "official", "epochs": 2})
    assert run(plan, tmp_path / "out", jobs=1).failed == {}
    tested = [
        [(p["protocol"], p["fold"], p["bag"]) for p in rows(tmp_path / f"out/cells/clam--{arm}/predictions.csv")]
        for arm in ("plain", "lr")
    ]
    assert tested[0] == tested[1]
    best = next(row for row in rows(tmp_path / "out" / "results.csv") if row["arm"] == "LR")
    assert float(best["auc"]) > 0.9  # the signal is in the mean


def test_every_cell_says_what_it_cost(table: Path, tmp_path: Path) -> None:
    run(plan_of(table, protocol={"selection": ["last"]}), tmp_path / "out", jobs=1)
    plain, coded = rows(tmp_path / "out" / "costs.csv")
    assert int(coded["multiply_adds"]) > int(plain["multiply_adds"]) > 0
    assert int(coded["parameters"]) > int(plain["parameters"])
    assert float(plain["memory_mib"]) >= 0


def test_slides_without_a_label_are_left_out_only_if_asked(cohort: Path, tmp_path: Path) -> None:
    lines = (cohort / "labels.csv").read_text().splitlines()
    (cohort / "labels.csv").write_text("\n".join(lines[:-4]))
    plan = cohort_plan(cohort, protocol={"folds": 2})
    failed = run(plan, tmp_path / "refused", jobs=1).failed
    assert "bags without a label (4 of 24): s20, s21, s22, s23. Label them, or leave them out" in failed["clam--plain"]
    plan = cohort_plan(cohort, protocol={"folds": 2}, data={"drop_unlabelled": True})
    assert run(plan, tmp_path / "dropped", jobs=1, only="*--plain").failed == {}
    assert rows(tmp_path / "dropped" / "results.csv")[0]["bags"] == "20"


@pytest.mark.parametrize("name", ["results.csv", "report.md", "experiment.json"])
def test_files_of_others_are_not_replaced_by_a_run(name: str, table: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text('{"format": "theirs"}')
    with pytest.raises(OutputError, match=f"{name} .*not written by scmil run"):
        run(plan_of(table), out, jobs=1)
    assert {path.name: path.read_text() for path in out.iterdir()} == {name: '{"format": "theirs"}'}
