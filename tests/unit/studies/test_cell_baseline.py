"""The logistic regression on the output of a layer that is not trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from study_cases import read_rows

from scmil.studies.plan import make_plan
from scmil.studies.runner import run
from scmil.training import layer_start


def run_baseline(folder: Path, **model: Any) -> list[dict[str, str]]:
    """Run the baseline with a layer on synthetic bags; returns the rows of results.csv."""
    document = {
        "protocol": {"folds": 3},
        "arms": [{"name": "LR", "model": {"aggregator": "logistic-mean-max", **model}}],
        "grid": {"data.dataset": ["synthetic:bags=30,witness=0.5,strength=3,noise_dims=0"]},
    }
    assert run(make_plan(document, "mine"), folder, jobs=1).failed == {}
    return read_rows(folder / "results.csv")


@pytest.mark.parametrize("refine", ["random", "linear"])
def test_projections_that_are_not_trained_carry_the_signal(tmp_path: Path, refine: str) -> None:
    [row] = run_baseline(tmp_path, refine=refine, sparse_coding={"atoms": 32})
    assert float(row["auc"]) > 0.9
    assert row["density"] == ""
    assert int(row["parameters"]) == 65  # mean and maximum of 32 units, and an intercept


def test_codes_of_a_dictionary_from_the_training_bags_have_a_density(tmp_path: Path) -> None:
    codes = {"atoms": 32, "dictionary": "kmeans"}
    [row] = run_baseline(tmp_path, sparse_coding=codes)
    assert float(row["auc"]) > 0.9
    assert 0 < float(row["density"]) < 0.9


def test_the_dictionary_sees_only_the_training_bags_of_its_fold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[str]] = []
    original = layer_start.start_layers

    def start(model: Any, epoch: int, bags: Any, count: int, seed: int) -> bool:
        rows = list(bags)
        seen.append({name for name, _ in rows})
        assert len(rows) == count
        return original(model, epoch, rows, count, seed)

    monkeypatch.setattr(layer_start, "start_layers", start)
    run_baseline(tmp_path, sparse_coding={"atoms": 8, "dictionary": "kmeans"})
    [predictions] = (tmp_path / "cells").glob("*/predictions.csv")
    tested = read_rows(predictions)
    assert len(seen) == 3
    for fold, train in enumerate(seen):
        test = {row["bag"] for row in tested if row["fold"] == str(fold)}
        assert not train & test
        assert len(train | test) == 30


def test_the_layer_of_the_baseline_is_not_trained(tmp_path: Path) -> None:
    """The same seed gives the same numbers."""
    rows = [
        run_baseline(tmp_path / str(i), refine="random", sparse_coding={"atoms": 4})[0]
        for i in range(2)
    ]
    assert rows[0]["brier"] == rows[1]["brier"]
