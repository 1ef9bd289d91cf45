"""Folds are trained independently, at once or one by one, with the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from study_cases import EPOCHS, plan_of_folder, plan_of_table, predictions_by_bag, read_rows

from scmil.studies.plan import make_plan
from scmil.studies.runner import run

pytestmark = pytest.mark.slow  # models are trained


def test_the_test_tuned_protocol_is_never_worse_and_uses_the_same_models(
    table: Path, tmp_path: Path
) -> None:
    run(plan_of_table(table), tmp_path / "out", jobs=1)
    accuracy = {
        (row["arm"], row["protocol"]): float(row["accuracy"])
        for row in read_rows(tmp_path / "out" / "results.csv")
    }
    assert all(accuracy[arm, "test-tuned"] >= accuracy[arm, "last"] for arm in ("plain", "SC"))
    folds = read_rows(tmp_path / "out" / "folds.csv")
    compared = 0
    for arm in ("plain", "sc"):
        probabilities = predictions_by_bag(tmp_path / "out" / "cells" / f"bags--{arm}")
        at_the_end = [
            (row["repeat"], row["fold"])
            for row in folds
            if row["cell"] == f"bags--{arm}" and row["protocol"] == "test-tuned"
            if row["epoch"] == str(EPOCHS)
        ]
        compared += len(at_the_end)
        for repeat, fold in at_the_end:
            of_last, of_tuned = (
                probabilities[protocol, repeat, fold] for protocol in ("last", "test-tuned")
            )
            assert of_last == of_tuned
    assert compared, "no fold chose the last epoch: nothing would be compared"


def test_every_fold_and_repeat_starts_from_its_own_weights(tmp_path: Path) -> None:
    """Identical bags and no learning: predictions differ by the initial weights alone."""
    path = tmp_path / "same.csv"
    lines = [f"b{bag},{bag % 2},1.0,-2.0,0.5" for bag in range(12)]
    path.write_text("\n".join(["bag,label,f0,f1,f2", *lines]) + "\n")
    plan = plan_of_table(
        path,
        data={"dataset": str(path), "standardise": False},
        protocol={"selection": ["last"]},
        training={"epochs": 1, "learning_rate": 1e-12},
    )
    run(plan, tmp_path / "out", jobs=1)
    for name in ("same--plain", "same--sc"):
        predictions = predictions_by_bag(tmp_path / "out" / "cells" / name)
        per_model = [{round(float(p), 5) for p in bags.values()} for bags in predictions.values()]
        assert len(per_model) == 6  # 3 folds x 2 repeats
        assert all(len(values) == 1 for values in per_model)
        assert len(set.union(*per_model)) == 6, name


def test_large_bags_train_fold_by_fold_with_the_same_numbers(
    clam_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scmil.studies import cell_training

    plan = plan_of_folder(clam_folder, protocol={"selection": ["last", "nested", "test-tuned"]})
    run(plan, tmp_path / "small", jobs=1, only="*--plain")
    monkeypatch.setattr(cell_training, "LARGE", 0)
    run(plan, tmp_path / "large", jobs=1, only="*--plain")
    cells = [tmp_path / name / "cells/clam--plain" for name in ("small", "large")]
    results = [json.loads((cell / "result.json").read_text()) for cell in cells]
    assert [result["trained"] for result in results] == ["all folds at once", "fold by fold"]
    small, large = (read_rows(cell / "predictions.csv") for cell in cells)
    assert [(p["bag"], p["protocol"]) for p in small] == [(p["bag"], p["protocol"]) for p in large]
    np.testing.assert_allclose(
        [float(p["p1"]) for p in small], [float(p["p1"]) for p in large], atol=1e-5
    )
    chosen = [[(fold["protocol"], fold["epoch"]) for fold in result["folds"]] for result in results]
    assert chosen[0] == chosen[1]
    assert not (cells[1] / "checkpoints").exists()


def test_patience_ends_a_training_early(clam_folder: Path, tmp_path: Path) -> None:
    plan = plan_of_folder(
        clam_folder,
        training={"epochs": 40, "patience": 2, "learning_rate": 0.05},
        protocol={"selection": ["nested"]},
    )
    run(plan, tmp_path / "out", jobs=1, only="*--plain")
    assert len(read_rows(tmp_path / "out/cells/clam--plain/history.csv")) < 40


def test_the_baseline_uses_the_same_splits(clam_folder: Path, tmp_path: Path) -> None:
    arms = [
        {"name": "plain"},
        {
            "name": "LR",
            "against": "plain",
            "model": {"aggregator": "logistic-mean-max", "embed": None},
        },
    ]
    plan = plan_of_folder(clam_folder, arms=arms, training={"recipe": "official", "epochs": 2})
    assert run(plan, tmp_path / "out", jobs=1).failed == {}
    tested = [
        [
            (p["protocol"], p["fold"], p["bag"])
            for p in read_rows(tmp_path / f"out/cells/clam--{arm}/predictions.csv")
        ]
        for arm in ("plain", "lr")
    ]
    assert tested[0] == tested[1]
    best = next(row for row in read_rows(tmp_path / "out" / "results.csv") if row["arm"] == "LR")
    assert float(best["auc"]) > 0.9  # the signal is in the mean


def test_the_baseline_chooses_its_strength_outside_the_test_fold(
    clam_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scmil.training import baseline

    chosen: list[tuple[set[int], set[int]]] = []
    original = baseline.choose_strength

    def choose(x: Any, labels: Any, train: Any, valid: Any, classes: int) -> float:
        chosen.append((set(train), set(valid)))
        return original(x, labels, train, valid, classes)

    monkeypatch.setattr(baseline, "choose_strength", choose)
    arms = [{"name": "LR", "model": {"aggregator": "logistic-mean-max", "embed": None}}]
    plan = plan_of_folder(clam_folder, arms=arms, training={"recipe": "official", "epochs": 1})
    run(plan, tmp_path / "out", jobs=1)
    rows_of_run = read_rows(tmp_path / "out/cells/clam--lr/predictions.csv")
    for protocol, calls in (("last", chosen[:3]), ("nested", chosen[3:])):
        tested = [
            {int(row["bag"][1:]) for row in rows_of_run if (row["protocol"], row["fold"]) == key}
            for key in ((protocol, str(fold)) for fold in range(3))
        ]
        for (train, valid), test in zip(calls, tested, strict=True):
            assert train
            assert valid
            assert not train & valid
            assert not (train | valid) & test


@pytest.mark.slow
def test_instance_labels_are_ranked_by_the_models_of_their_fold(tmp_path: Path) -> None:
    """With a strong signal the positive instances are found; without labels there is no column."""
    document = {
        "protocol": {"folds": 3, "repeats": 2, "selection": ["last", "nested"]},
        "model": {"aggregator": {"name": "abmil-gated", "hidden": 8}, "embed": [16]},
        "training": {"epochs": 25, "learning_rate": 0.003},
        "grid": {"data.dataset": ["synthetic:bags=30,witness=0.3,noise_dims=0,strength=6"]},
    }
    assert run(make_plan(document, "mine"), tmp_path, jobs=1).failed == {}
    rows = {row["protocol"]: row for row in read_rows(tmp_path / "results.csv")}
    for column in ("attention_auc", "attention_ap", "instance_auc", "instance_ap"):
        assert 0.8 < float(rows["last"][column]) <= 1
        assert rows["last"][f"{column}_sd_folds"] != ""
        assert rows["nested"][column] == ""  # those models were not kept
    folds = [row for row in read_rows(tmp_path / "folds.csv") if row["protocol"] == "last"]
    means = [
        np.mean([float(row["instance_auc"]) for row in folds if row["repeat"] == repeat])
        for repeat in ("0", "1")
    ]
    assert float(rows["last"]["instance_auc"]) == pytest.approx(np.mean(means), abs=1e-6)
