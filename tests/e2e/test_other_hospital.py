"""`scmil test`: a model on another cohort, with and without planted leaks."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command import Finished, scmil
from torch import Tensor
from two_hospitals import hospital, renamed, write_hospital

from scmil.bags.bag import Bag

OWN = hospital("ours", seed=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the first hospital."""
    folder = tmp_path_factory.mktemp("ours")
    bags, labels = write_hospital(folder / "bags", OWN)
    words = ["--aggregator", "mean", "--epochs", "4", "--out", folder / "model"]
    scmil("train", bags, labels, *words)
    return folder / "model"


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three models of a cross-validation of the first hospital."""
    folder = tmp_path_factory.mktemp("ensemble")
    bags, labels = write_hospital(folder / "bags", OWN)
    words = ["--aggregator", "mean", "--epochs", "2", "--folds", "3", "--keep-folds"]
    scmil("train", bags, labels, *words, "--out", folder / "model")
    return folder / "model"


def fitted(model: Path) -> list[Bag]:
    """The slides that the weights of the model come from."""
    split = json.loads((model / "study.json").read_text())["split"]
    return [bag for bag in OWN if bag.id in split["train"]]


def run(
    model: Path, folder: Path, bags: list[Bag], *words: str, code: int = 0
) -> tuple[Finished, dict[str, Any]]:
    """Test the model on a cohort; the result, and metrics.json."""
    cohort, labels = write_hospital(folder / "cohort", bags)
    finished = scmil("test", model, cohort, labels, "--out", folder / "out", *words, code=code)
    path = folder / "out" / "metrics.json"
    return finished, json.loads(path.read_text()) if path.exists() else {}


def test_a_distinct_cohort_has_no_overlap_and_a_whole_page(model: Path, tmp_path: Path) -> None:
    finished, page = run(model, tmp_path, hospital("theirs", seed=1, slides=24, shift=0.5))
    assert page["overlap"] == {
        "rule": "reject",
        "features_compared": True,
        "ids_compared": True,
        "patients_compared": True,
        "fitted": 0,
        "excluded": 0,
        "in_internal_test": 0,
    }
    own = page["metrics"]["slide"]
    assert (own["n"], own["patients"]) == (24, 12)
    assert own["auc"]["low"] < own["auc"]["value"] <= own["auc"]["high"]
    assert page["internal"]["source"] == "the internal test split"
    change = page["change"]["slide"]["auc"]
    assert change["value"] == pytest.approx(
        own["auc"]["value"] - page["internal"]["slide"]["auc"]["value"], abs=2e-6
    )
    assert change["low"] <= change["value"] <= change["high"]
    shift = page["feature_shift"]
    assert shift["cohort"]["distance"] == pytest.approx(0.5, abs=0.1)
    assert shift["internal"]["test"]["distance"] < 0.25
    text = (tmp_path / "out" / "report.html").read_text()
    for part in ("Calibration", "Confusion matrix", "Case mix", "No slide of this cohort"):
        assert part in text
    with (tmp_path / "out" / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["slide_id"] for row in rows] == [f"theirs_{i:02}" for i in range(24)]
    assert "AUC" in text
    assert "change" in finished.stdout


def drop_tiles(x: Tensor) -> Tensor:
    return x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[: len(x) // 2]]


def add_noise(x: Tensor) -> Tensor:
    return x + 0.01 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x,
        lambda x: x.half().float(),
        lambda x: x.flip(0),
        add_noise,
        drop_tiles,
        lambda x: add_noise(drop_tiles(x)).half().float(),
    ],
    ids=["copy", "float16", "reordered", "noise", "half", "all"],
)
def test_training_slides_under_other_names_are_found(
    model: Path, tmp_path: Path, change: Callable[[Tensor], Tensor]
) -> None:
    leaks = fitted(model)[:6]
    bags = [*hospital("theirs", seed=1, slides=12), *renamed(leaks, change)]
    finished, page = run(model, tmp_path, bags, code=1)
    assert "6 of 18 slides of this cohort were used to train the model" in finished.stderr
    assert "--exclude-overlap" in finished.stderr
    for number, leak in enumerate(leaks):
        assert f"copy_x_{number} (patient stranger_x_{number}): {leak.id} of the" in finished.stderr
    assert "theirs_" not in finished.stderr
    assert page == {}


def test_patients_of_the_training_are_found_by_their_ids(model: Path, tmp_path: Path) -> None:
    patient = fitted(model)[0].patient
    bags = hospital("theirs", seed=1, slides=12)
    bags[2:4] = [replace(bag, patient=patient) for bag in bags[2:4]]
    finished, _ = run(model, tmp_path, bags, code=1)
    assert "2 of 12 slides" in finished.stderr
    assert "theirs_02" in finished.stderr
    assert "same patient id" in finished.stderr


def test_the_other_slides_of_a_renamed_patient_are_left_out_as_well(
    model: Path, tmp_path: Path
) -> None:
    bags = hospital("theirs", seed=1, slides=12)
    bags[0] = replace(bags[0], features=fitted(model)[0].features)
    _, page = run(model, tmp_path, bags, "--exclude-overlap")
    assert page["overlap"]["excluded"] == 2
    assert page["metrics"]["slide"]["n"] == 10
    rows = (tmp_path / "out" / "overlap.csv").read_text()
    assert "another slide of this patient is in the training" in rows


def test_overlap_can_be_left_out_or_allowed_with_a_warning(model: Path, tmp_path: Path) -> None:
    bags = [*hospital("theirs", seed=1, slides=12), *renamed(fitted(model)[:4])]
    finished, page = run(model, tmp_path / "a", bags, "--exclude-overlap")
    assert (page["metrics"]["slide"]["n"], page["overlap"]["excluded"]) == (12, 4)
    assert "4 slides were used to train the model; they were left out" in finished.stderr
    _, without = run(model, tmp_path / "b", bags[:12])
    assert page["metrics"] == without["metrics"]
    _, page = run(model, tmp_path / "c", bags, "--allow-overlap")
    assert (page["metrics"]["slide"]["n"], page["overlap"]["fitted"]) == (16, 4)
    assert "are not an external validation" in (tmp_path / "c/out/report.html").read_text()
    finished, _ = run(model, tmp_path / "d", bags, "--allow-overlap", "--exclude-overlap", code=1)
    assert "Choose one" in finished.stderr
    finished, _ = run(model, tmp_path / "e", bags[12:], "--exclude-overlap", code=1)
    assert "no slide is left" in finished.stderr


def test_slides_of_the_internal_test_split_are_noted_but_no_error(
    model: Path, tmp_path: Path
) -> None:
    split = json.loads((model / "study.json").read_text())["split"]
    tested = [bag for bag in OWN if bag.id in split["test"]]
    _, page = run(model, tmp_path, [*hospital("theirs", 1, 12), *tested])
    assert (page["overlap"]["fitted"], page["overlap"]["in_internal_test"]) == (0, len(tested))


def test_a_model_without_a_fingerprint_is_compared_by_ids_and_says_so(
    model: Path, tmp_path: Path
) -> None:
    old = Path(shutil.copytree(model, tmp_path / "old"))
    (old / "training_fingerprint.json").unlink()
    leaks = fitted(model)[:2]
    finished, _ = run(old, tmp_path / "a", [*hospital("theirs", 1, 12), *leaks], code=1)
    assert "same slide id" in finished.stderr
    _, page = run(old, tmp_path / "b", [*hospital("theirs", 1, 12), *renamed(leaks)])
    assert page["overlap"]["features_compared"] is False
    assert page["feature_shift"] is None
    text = (tmp_path / "b/out/report.html").read_text()
    assert "the same slides under other names would not be found" in text


def test_an_ensemble_predicts_the_mean_and_the_spread_of_its_models(
    ensemble: Path, tmp_path: Path
) -> None:
    from scmil.models.files import load_model
    from scmil.training.fitting import predict

    bags = hospital("theirs", seed=1, slides=12)
    _, page = run(ensemble, tmp_path, bags)
    assert page["model"]["ensemble"] == 3
    assert page["internal"]["source"] == "the cross-validation with 3 folds"
    assert page["internal"]["slide"]["n"] == len(OWN)
    finished = scmil(
        "predict", ensemble, tmp_path / "cohort", "--out", tmp_path / "p.csv", "--json"
    )
    rows = json.loads(finished.stdout)["predictions"]
    members = [load_model(ensemble / "ensemble" / f"fold_{i}") for i in (1, 2, 3)]
    p = torch.stack([predict(member, bags) for member in members]).double()[:, :, 1]
    assert [float(row["p_tumor"]) for row in rows] == pytest.approx(p.mean(0).tolist(), abs=1e-5)
    assert [float(row["sd_tumor"]) for row in rows] == pytest.approx(p.std(0).tolist(), abs=1e-5)
    with (tmp_path / "out" / "predictions.csv").open(newline="") as file:
        tested = list(csv.DictReader(file))
    assert [row["p_tumor"] for row in tested] == [row["p_tumor"] for row in rows]
    assert (
        "mean of 3 models"
        in scmil("predict", ensemble, tmp_path / "cohort", "--out", tmp_path / "p.csv").stdout
    )


def test_each_model_of_an_ensemble_was_trained_without_its_fold(ensemble: Path) -> None:
    pages = [
        json.loads((ensemble / "ensemble" / f"fold_{i}" / "fold.json").read_text())
        for i in (1, 2, 3)
    ]
    held_out = [slide for page in pages for slide in page["split"]["test"]]
    assert sorted(held_out) == sorted(bag.id for bag in OWN)
    for page in pages:
        assert not {*page["split"]["train"], *page["split"]["valid"]} & {*page["split"]["test"]}
    assert not list((ensemble / "cross-validation").rglob("model.safetensors"))
