"""What `scmil train` uses of which split, and the files that it writes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from study_cases import QUICK, cohort, count_reads, open_clam_cohort, read_rows

from scmil import studies
from scmil.bags.bag import Bag, BagSet
from scmil.bags.formats import export_bags
from scmil.errors import DataError, ScmilError
from scmil.stats.metrics import youden_threshold

pytestmark = pytest.mark.slow  # models are trained

PATIENTS, SLIDES, TILES, DIM = 30, 2, 4, 3


def weak_cohort(identical_slides: bool = False, signal: float = 0.2) -> BagSet:
    """Two slides per patient whose features overlap between the classes, with shifted means."""
    generator = torch.Generator().manual_seed(1)
    bags = []
    for patient in range(PATIENTS):
        label = patient % 2
        draws = [
            torch.randn(TILES, DIM, generator=generator) + signal * label + 5 for _ in range(SLIDES)
        ]
        for slide in range(SLIDES):
            features = draws[0] if identical_slides else draws[slide]
            slide_id = f"p{patient:02}-{slide}"
            bags.append(Bag(slide_id, features, label=label, patient=f"p{patient:02}"))
    return BagSet(bags, ["normal", "tumor"])


def train(bags: BagSet, folder: Path, **options: Any) -> studies.Trained:
    export_bags(bags, folder / "bags", "clam")
    data = studies.open_data(folder / "bags", folder / "bags" / "labels.csv")
    settings: dict[str, Any] = {"aggregator": "mean", "epochs": 3, "test": 0.3, "valid": 0.3}
    return studies.train(data, folder / "model", **{**settings, **options})


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weak")
    train(weak_cohort(), folder)
    return folder / "model"


def test_each_bag_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = count_reads(monkeypatch)
    train(weak_cohort(), tmp_path)
    assert len(reads) == PATIENTS * SLIDES
    assert set(reads.values()) == {1}
    reads.clear()
    bags = tmp_path / "bags"
    studies.evaluate_cohort(
        tmp_path / "model", bags, bags / "labels.csv", tmp_path / "tested", overlap="allow"
    )
    assert len(reads) == PATIENTS * SLIDES
    assert set(reads.values()) == {1}


def read_predictions(model: Path) -> dict[str, list[dict[str, str]]]:
    """Rows of predictions.csv by split."""
    splits: dict[str, list[dict[str, str]]] = {}
    with (model / "predictions.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            splits.setdefault(row["part"], []).append(row)
    return splits


def best_threshold(rows: list[dict[str, str]]) -> float:
    labels = np.array([row["y_true"] == "tumor" for row in rows], np.int64)
    return float(youden_threshold(labels, np.array([float(row["p_tumor"]) for row in rows])))


def test_the_threshold_is_chosen_on_the_validation_split(model_folder: Path) -> None:
    best = {name: best_threshold(rows) for name, rows in read_predictions(model_folder).items()}
    assert abs(best["valid"] - best["test"]) > 1e-4, "these bags cannot tell the splits apart"
    assert abs(best["valid"] - best["train"]) > 1e-4, "these bags cannot tell the splits apart"
    chosen = json.loads((model_folder / "study.json").read_text())["threshold"]
    assert chosen == pytest.approx(best["valid"], abs=1e-6)


def test_the_chosen_threshold_decides_about_every_slide(model_folder: Path) -> None:
    threshold = json.loads((model_folder / "study.json").read_text())["threshold"]
    for rows in read_predictions(model_folder).values():
        for row in rows:
            above = float(row["p_tumor"]) > threshold
            assert row["y_pred"] == ("tumor" if above else "normal"), row["slide_id"]
    assert json.loads((model_folder / "metrics.json").read_text())["threshold"] == threshold


def test_features_are_scaled_by_the_moments_of_the_training_split(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, TILES, DIM)) * [1, 9, 0.1] + [0, 50, 7]
    x += np.arange(40)[:, None, None]  # so that no split has the moments of another
    np.savez(
        tmp_path / "bags.npz",
        X=x.reshape(-1, DIM),
        bag=np.repeat(np.arange(40), TILES),
        y=np.arange(40) % 2,
    )
    data = studies.open_data(tmp_path / "bags.npz")
    trained = studies.train(data, tmp_path / "model", aggregator="mean", epochs=1)
    training = set(trained.study["split"]["train"])
    rows = np.concatenate([bag.features.numpy() for bag in data.bags if bag.id in training])
    scaling = trained.study["scaling"]
    assert scaling["mean"] == pytest.approx(rows.mean(0).tolist(), rel=1e-5)
    assert scaling["deviation"] == pytest.approx(rows.std(0).tolist(), rel=1e-3)
    everything = np.concatenate([bag.features.numpy() for bag in data.bags]).mean(0).tolist()
    assert scaling["mean"] != pytest.approx(everything, rel=1e-3)


def test_intervals_are_drawn_over_patients_and_not_over_slides(tmp_path: Path) -> None:
    """If the slides of each patient are identical, slide and patient intervals are equal."""
    metrics = train(weak_cohort(identical_slides=True, signal=0), tmp_path).metrics["test"]
    slides, patients = metrics["slide"], metrics["patient"]
    assert (slides["n"], patients["n"]) == (SLIDES * patients["n"], slides["patients"])
    for name in ("accuracy", "auc"):
        assert slides[name] == pytest.approx(patients[name], abs=1e-6), name
        assert slides[name]["low"] < slides[name]["high"], name


def test_no_patient_is_in_two_splits(model_folder: Path) -> None:
    cases = {
        name: {row["case_id"] for row in rows}
        for name, rows in read_predictions(model_folder).items()
    }
    assert sum(map(len, cases.values())) == len(set.union(*cases.values())) == PATIENTS


@pytest.mark.slow
def test_a_heavier_class_gets_a_higher_probability(tmp_path: Path) -> None:
    means = {}
    for weights in ((1.0, 1.0), (1.0, 20.0)):
        folder = tmp_path / str(weights[1])
        folder.mkdir()
        train(weak_cohort(), folder, class_weights=weights, epochs=5)
        rows = [row for rows in read_predictions(folder / "model").values() for row in rows]
        means[weights] = np.mean([float(row["p_tumor"]) for row in rows])
    assert means[1.0, 20.0] > means[1.0, 1.0] + 0.05


@pytest.mark.parametrize("name", ["clam", "trident"])
def test_a_model_folder_records_data_split_and_metrics(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "bags"
    export_bags(cohort(), folder, name)
    data = studies.open_data(folder, folder / "labels.csv")
    reported: list[tuple[str, int, int]] = []
    trained = studies.train(
        data, tmp_path / "model", **QUICK, progress=lambda *message: reported.append(message)
    )
    study = json.loads((tmp_path / "model/study.json").read_text())
    assert study["classes"] == ["benign", "normal", "tumor"]
    assert study["contract"]["dim"] == 8
    assert study["recipe"]["epochs"] == 3
    assert study["versions"]["torch"] == torch.__version__
    assert len(study["label_table_sha256"]) == 64
    splits = {
        row["slide_id"]: (row["part"], row["case_id"])
        for row in read_rows(tmp_path / "model/predictions.csv")
    }
    assert len(splits) == 36
    owners = {
        name: {case for split, case in splits.values() if split == name}
        for name in ("train", "valid", "test")
    }
    assert (
        not owners["train"] & owners["test"]
        | owners["train"] & owners["valid"]
        | owners["valid"] & owners["test"]
    )
    test = trained.metrics["test"]
    assert test["patient"]["n"] < test["slide"]["n"]
    assert (
        test["slide"]["auc"]["low"] <= test["slide"]["auc"]["value"] <= test["slide"]["auc"]["high"]
    )
    assert "Not a medical device." in (tmp_path / "model/MODEL_CARD.md").read_text()
    assert len(read_rows(tmp_path / "model/history.csv")) == 3
    assert reported[-1] == ("training, epochs", 3, 3)
    assert not list((tmp_path / "model").glob("checkpoint*"))


def test_a_model_with_a_cross_validation_has_no_test_split(tmp_path: Path) -> None:
    data = open_clam_cohort(tmp_path)
    trained = studies.train(data, tmp_path / "model", **QUICK, folds=2)
    assert "test" not in trained.metrics
    assert [(row["level"], row["folds"]) for row in trained.metrics["cross_validation"]] == [
        ("slide", 2),
        ("patient", 2),
    ]
    assert len(trained.study["split"]["train"]) + len(trained.study["split"]["valid"]) == 24
    assert (
        "Cross-validation (1 x 2 folds, patients)" in (tmp_path / "model/MODEL_CARD.md").read_text()
    )


@pytest.mark.slow
def test_a_cross_validation_uses_the_class_weights(tmp_path: Path) -> None:
    data = open_clam_cohort(tmp_path)
    means = {}
    for weights in (None, [1.0, 30.0]):
        trained = studies.train(
            data, tmp_path / f"model {weights}", **QUICK, folds=2, class_weights=weights
        )
        cell = next((trained.out / "cross-validation" / "cells").iterdir())
        predictions = read_rows(cell / "predictions.csv")
        means[str(weights)] = np.mean([float(row["p1"]) for row in predictions])
    assert means["[1.0, 30.0]"] > means["None"] + 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aggregator": "abml"}, "unknown aggregator 'abml'"),
        ({"aggregator": "logistic-mean-max"}, "a method of `scmil compare` only"),
        ({"recipe": "papr"}, "unknown recipe 'papr'"),
        (
            {"class_weights": "heavy"},
            "class weights 'heavy': 'balanced' or one number for each class",
        ),
        ({"test": 0.9, "valid": 0.5}, "use fractions between 0 and 1"),
        ({"device": "abacus"}, "device = 'abacus' is not available"),
    ],
)
def test_wrong_options_are_reported(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    data = open_clam_cohort(tmp_path)
    with pytest.raises(ScmilError) as raised:
        studies.train(data, tmp_path / "model", **{**QUICK, **options})
    assert message in str(raised.value)


def test_bags_of_two_encoders_are_rejected_before_training(tmp_path: Path) -> None:
    from scmil.bags.hdf5 import write_bag

    for bag in cohort(24, 2):
        other = {"encoder": "resnet18"} if bag.id == "s05" else {}
        made = {**bag.provenance, **other}
        write_bag(Bag(bag.id, bag.features, provenance=made), tmp_path / "bags" / f"{bag.id}.h5")
    export_bags(cohort(24, 2), tmp_path / "clam", "clam")
    data = studies.open_data(tmp_path / "bags", tmp_path / "clam" / "labels.csv")
    with pytest.raises(
        DataError, match=r"2 different encoders: uni_v1 in 23 bags .*; resnet18 in 1 bags \(s05\)"
    ):
        studies.train(data, tmp_path / "model", **QUICK)
    assert not (tmp_path / "model").exists()


def test_a_step_that_is_too_long_is_in_the_model_card_and_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scmil.training.history.LONGEST_STEP", 0.0)
    trained = train(weak_cohort(), tmp_path, sparse_coding=True, epochs=1)
    note = "The step |D|^2 / mu of the sparse coding layer rose to"
    assert trained.study["notes"][-1].startswith(note)
    assert (
        "of the sparse coding layer rose to" in (tmp_path / "model" / "MODEL_CARD.md").read_text()
    )
    assert note in (tmp_path / "model" / "report.html").read_text()
    assert "step" in (tmp_path / "model" / "history.csv").read_text().splitlines()[0].split(",")
