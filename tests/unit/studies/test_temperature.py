"""The temperature comes from the validation split alone, changes no decision, and is applied to
every prediction.
"""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scmil import studies
from scmil.bags.bag import Bag, BagSet
from scmil.bags.formats import export_bags
from scmil.errors import ModelFileError
from scmil.stats.metrics import decide
from scmil.studies.temperature import calibrate_fold, tempered, tempered_threshold
from scmil.training.fold import TrainedFold
from scmil.training.history import History

QUICK: dict[str, Any] = {"aggregator": "mean", "epochs": 4, "recipe": "paper", "test": 0.3}


def noisy_bags(slides: int = 60) -> BagSet:
    """Two classes whose features overlap, so that no split is separated."""
    generator = torch.Generator().manual_seed(0)
    bags = [
        Bag(
            f"s{i:02}",
            torch.randn(1, 6, generator=generator).repeat(4, 1)
            + 0.7 * (i % 2) * torch.eye(6)[0]
            + 0.1 * torch.randn(4, 6, generator=generator),
            label=i % 2,
            patient=f"p{i}",
        )
        for i in range(slides)
    ]
    return BagSet(bags, ["normal", "tumor"])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrated")
    export_bags(noisy_bags(), folder / "bags", "clam")
    data = studies.open_data(folder / "bags", folder / "bags" / "labels.csv")
    for name, calibrate in (("plain", False), ("calibrated", True)):
        studies.train(data, folder / name, calibrate=calibrate, **QUICK)
    return folder


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def fold_of(p: np.ndarray, threshold: float = 0.5) -> TrainedFold:
    return TrainedFold(History(), None, p[None], threshold)


def overconfident(seed: int = 0, bags: int = 80) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and probabilities whose logits are 3 times too large."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=bags)
    labels = (generator.random(bags) < 1 / (1 + np.exp(-logits))).astype(int)
    p = 1 / (1 + np.exp(-3 * logits))
    return labels, np.stack([1 - p, p], 1)


def test_the_temperature_has_the_largest_likelihood_on_the_validation_bags() -> None:
    labels, p = overconfident()
    valid = range(0, 80, 2)
    _, found, note = calibrate_fold(fold_of(p), labels.tolist(), valid)
    assert found is not None
    rows_ = list(valid)

    def loss(temperature: float) -> float:
        q = tempered(p[rows_], temperature)
        return float(-np.log(q[np.arange(len(rows_)), labels[rows_]]).mean())

    grid = np.exp(np.linspace(np.log(0.5), np.log(20), 2000))
    assert found == pytest.approx(grid[np.argmin([loss(t) for t in grid])], rel=0.01)
    assert found > 1.5  # they are overconfident
    assert "fitted on the 40 slides of the validation split" in note


def test_test_labels_do_not_change_the_temperature() -> None:
    labels, p = overconfident()
    valid = range(0, 80, 2)
    other = labels.copy()
    other[1::2] = 1 - other[1::2]
    first = calibrate_fold(fold_of(p), labels.tolist(), valid)
    second = calibrate_fold(fold_of(p), other.tolist(), valid)
    assert first[1] == second[1]
    assert (first[0].probabilities == second[0].probabilities).all()
    changed = labels.copy()
    changed[0] = 1 - changed[0]
    assert calibrate_fold(fold_of(p), changed.tolist(), valid)[1] != first[1]


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.93, -1e-9, 1.0])
def test_decisions_stay_the_same(threshold: float) -> None:
    labels, p = overconfident(1)
    fold, temperature, _ = calibrate_fold(fold_of(p, threshold), labels.tolist(), range(80))
    assert temperature is not None
    assert (decide(fold.probabilities[0], fold.threshold) == decide(p, threshold)).all()
    assert tempered_threshold(threshold, temperature) == fold.threshold


@pytest.mark.parametrize("right", [True, False])
def test_a_validation_split_without_errors_determines_no_temperature(right: bool) -> None:
    labels = np.array([0, 1] * 5)
    p = np.where(labels == (1 if right else 0), 0.8, 0.2)
    fold = fold_of(np.stack([1 - p, p], 1))
    same, temperature, note = calibrate_fold(fold, labels.tolist(), range(10))
    assert (same, temperature) == (fold, None)
    assert "Not calibrated: the 10 slides" in note


def test_training_with_calibrate_changes_probabilities_and_nothing_else(home: Path) -> None:
    plain, calibrated = (read(home / name / "study.json") for name in ("plain", "calibrated"))
    temperature = calibrated["temperature"]
    assert plain["temperature"] is None
    assert temperature is not None
    assert temperature != pytest.approx(1, abs=0.01)
    before, after = (rows(home / name / "predictions.csv") for name in ("plain", "calibrated"))
    assert [row["y_pred"] for row in before] == [row["y_pred"] for row in after]
    p = np.array([[float(row["p_normal"]), float(row["p_tumor"])] for row in before])
    q = np.array([float(row["p_tumor"]) for row in after])
    assert q == pytest.approx(tempered(p, temperature)[:, 1], abs=1e-5)
    # The temperature can be computed from the validation rows of the uncalibrated model.
    valid = [i for i, row in enumerate(before) if row["part"] == "valid"]
    labels = [int(row["y_true"] == "tumor") for row in before]
    assert calibrate_fold(fold_of(p), labels, valid)[1] == pytest.approx(temperature, rel=1e-3)
    assert any("Probabilities are calibrated" in note for note in calibrated["notes"])
    metrics = [
        read(home / name / "metrics.json")["test"]["slide"] for name in ("plain", "calibrated")
    ]
    assert metrics[0]["auc"] == metrics[1]["auc"]
    assert metrics[0]["brier"] != metrics[1]["brier"]


def test_predict_and_heatmaps_apply_the_temperature(home: Path, tmp_path: Path) -> None:
    bags = studies.open_data(home / "bags", home / "bags" / "labels.csv").bags
    expected = {row["slide_id"]: row for row in rows(home / "calibrated" / "predictions.csv")}
    found = studies.predict_folder(home / "calibrated", bags)
    for row in found.rows:
        assert float(row["p_tumor"]) == pytest.approx(
            float(expected[row["slide_id"]]["p_tumor"]), abs=1e-5
        )
        assert row["y_pred"] == expected[row["slide_id"]]["y_pred"]


def test_a_temperature_that_no_model_has_is_rejected(home: Path, tmp_path: Path) -> None:
    import shutil

    folder = Path(shutil.copytree(home / "calibrated", tmp_path / "model"))
    study = read(folder / "study.json")
    for wrong in (0, -1, "hot", 1e9):
        (folder / "study.json").write_text(json.dumps(study | {"temperature": wrong}))
        with pytest.raises(ModelFileError, match="temperature"):
            studies.load_trained_model(folder)
    del study["temperature"]  # of an earlier version
    (folder / "study.json").write_text(json.dumps(study))
    assert studies.load_trained_model(folder)[1].get("temperature") is None


def test_replace_keeps_the_history() -> None:
    labels, p = overconfident(2)
    fold = replace(fold_of(p), history=History(train_loss=[1.0]))
    assert calibrate_fold(fold, labels.tolist(), range(80))[0].history.train_loss == [1.0]
