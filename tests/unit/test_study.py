from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scmil import studies as study
from scmil.bags.bag import Bag, BagSet
from scmil.errors import (
    ConfigError,
    DataError,
    ModelFileError,
    OptionError,
    OutputError,
    ScmilError,
    ShapeError,
    WeightsError,
)
from scmil.bags.formats import export

QUICK: dict[str, Any] = {"aggregator": "mean", "epochs": 3}
MADE = {"encoder": "uni_v1", "size_px": 256, "mpp": 0.5, "side_level0": 256.0, "slide_mpp": 0.5, "overlap_px": 0}


def cohort(count: int = 36, classes: int = 3, dim: int = 8, made: dict[str, Any] = MADE) -> BagSet:
    """Two slides a patient; the first features tell the class."""
    generator = torch.Generator().manual_seed(0)
    bags = [
        Bag(
            f"s{i:02}",
            torch.randn(5, dim, generator=generator) + 3 * torch.eye(dim)[i // 2 % classes],
            label=i // 2 % classes,
            patient=f"p{i // 2}",
            xy=256 * torch.arange(10).reshape(5, 2),
            provenance=made,
        )
        for i in range(count)
    ]
    return BagSet(bags, ["normal", "benign", "tumor"][:classes])


@pytest.fixture(params=["clam", "trident"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    export(cohort(), tmp_path / "bags", request.param)
    return tmp_path / "bags"


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `bags` and the `model` that has learned from them."""
    home = tmp_path_factory.mktemp("once")
    export(cohort(), home / "bags", "trident")
    study.train(study.open_data(home / "bags", home / "bags" / "labels.csv"), home / "model", **QUICK)
    return home


@pytest.fixture
def trained(once: Path, tmp_path: Path) -> Path:
    """A copy of the model, to be changed at will."""
    return Path(shutil.copytree(once / "model", tmp_path / "model"))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_model_folder_says_everything(folder: Path, tmp_path: Path) -> None:
    data = study.open_data(folder, folder / "labels.csv")
    told: list[tuple[str, int, int]] = []
    trained = study.train(data, tmp_path / "model", **QUICK, progress=lambda *news: told.append(news))
    page = json.loads((tmp_path / "model/study.json").read_text())
    assert page["classes"] == ["benign", "normal", "tumor"]
    assert page["contract"]["dim"] == 8
    assert page["recipe"]["epochs"] == 3
    assert page["versions"]["torch"] == torch.__version__
    assert len(page["label_table_sha256"]) == 64
    parts = {row["slide_id"]: (row["part"], row["case_id"]) for row in rows(tmp_path / "model/predictions.csv")}
    assert len(parts) == 36
    owners = {name: {case for part, case in parts.values() if part == name} for name in ("train", "valid", "test")}
    assert not owners["train"] & owners["test"] | owners["train"] & owners["valid"] | owners["valid"] & owners["test"]
    test = trained.metrics["test"]
    assert test["patient"]["n"] < test["slide"]["n"]
    assert test["slide"]["auc"]["low"] <= test["slide"]["auc"]["value"] <= test["slide"]["auc"]["high"]
    assert "no medical device" in (tmp_path / "model/MODEL_CARD.md").read_text()
    assert len(rows(tmp_path / "model/history.csv")) == 3
    assert told[-1] == ("training, epochs", 3, 3)
    assert not list((tmp_path / "model").glob("checkpoint*"))


def test_the_same_command_again_trains_nothing_and_another_is_refused(
    once: Path, trained: Path, tmp_path: Path
) -> None:
    data = study.open_data(once / "bags", once / "bags" / "labels.csv")
    before = (trained / "model.safetensors").stat().st_mtime_ns
    again = study.train(data, trained, **QUICK, resume=True)
    assert again.metrics["threshold"] == 0.5
    assert (trained / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match=r"was begun with other settings: seed was 0, now 1. Give --out another"):
        study.train(data, trained, **QUICK, seed=1)
    with pytest.raises(OptionError, match="no training that could go on"):
        study.train(data, tmp_path / "new", **QUICK, resume=True)


def test_an_interrupted_training_ends_with_the_same_model(tmp_path: Path) -> None:
    export(cohort(24, 2), tmp_path / "bags", "clam")
    data = study.open_data(tmp_path / "bags", tmp_path / "bags" / "labels.csv")
    options = {"aggregator": "abmil-gated", "sparse_coding": {"atoms": 9}, "epochs": 4}
    study.train(data, tmp_path / "whole", **options)

    def interrupt(what: str, done: int, total: int) -> None:
        if (what, done) == ("training, epochs", 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study.train(data, tmp_path / "broken", **options, progress=interrupt)
    assert not (tmp_path / "broken/study.json").exists()
    study.train(data, tmp_path / "broken", **options, resume=True)
    for name in ("model.safetensors", "model.json", "history.csv", "predictions.csv", "metrics.json", "study.json"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_a_cross_validation_goes_with_a_model_that_has_no_test_part(tmp_path: Path) -> None:
    export(cohort(24, 2), tmp_path / "bags", "clam")
    data = study.open_data(tmp_path / "bags", tmp_path / "bags" / "labels.csv")
    trained = study.train(data, tmp_path / "model", **QUICK, folds=2)
    assert "test" not in trained.metrics
    assert [(row["level"], row["folds"]) for row in trained.metrics["cross_validation"]] == [
        ("slide", 2),
        ("patient", 2),
    ]
    assert len(trained.study["split"]["train"]) + len(trained.study["split"]["valid"]) == 24
    assert "Cross-validation (1 x 2 folds, patients)" in (tmp_path / "model/MODEL_CARD.md").read_text()


def test_a_cross_validation_weighs_classes_too(tmp_path: Path) -> None:
    export(cohort(24, 2), tmp_path / "bags", "clam")
    data = study.open_data(tmp_path / "bags", tmp_path / "bags" / "labels.csv")
    said = {}
    for weights in (None, [1.0, 30.0]):
        trained = study.train(data, tmp_path / f"model {weights}", **QUICK, folds=2, class_weights=weights)
        cell = next((trained.out / "cross-validation" / "cells").iterdir())
        predictions = rows(cell / "predictions.csv")
        said[str(weights)] = np.mean([float(row["p1"]) for row in predictions])
    assert said["[1.0, 30.0]"] > said["None"] + 0.05


def test_a_table_is_standardised_and_so_are_new_bags(tmp_path: Path) -> None:
    bags = cohort(24, 2)
    x = torch.cat([bag.features for bag in bags]).numpy() * [1, 100, 1, 1, 1, 1, 1, 1] + 1000
    arrays = {"X": x, "bag": np.repeat(np.arange(24), 5), "y": np.array(bags.labels)}
    np.savez(tmp_path / "bags.npz", **arrays)
    data = study.open_data(tmp_path / "bags.npz")
    trained = study.train(data, tmp_path / "model", **QUICK, class_weights="balanced")
    assert trained.study["scaling"]["mean"][0] == pytest.approx(1000, abs=2)
    said = study.predict_folder(tmp_path / "model", data.bags, tmp_path / "p.csv").rows
    before = {row["slide_id"]: row["p_1"] for row in rows(tmp_path / "model/predictions.csv")}
    assert [float(row["p_1"]) for row in said] == pytest.approx(
        [float(before[row["slide_id"]]) for row in said], abs=1e-5
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aggregator": "abml"}, "unknown aggregator 'abml'"),
        ({"aggregator": "logistic-mean-max"}, "an arm of `scmil compare`"),
        ({"recipe": "papr"}, "unknown recipe 'papr'"),
        ({"class_weights": "heavy"}, "class weights 'heavy': 'balanced', or a number for each class."),
        ({"test": 0.9, "valid": 0.5}, "shares between 0 and 1"),
        ({"device": "abacus"}, "device = 'abacus' cannot be used here"),
    ],
)
def test_wrong_options_read_well(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    export(cohort(24, 2), tmp_path / "bags", "clam")
    data = study.open_data(tmp_path / "bags", tmp_path / "bags" / "labels.csv")
    with pytest.raises(ScmilError) as refused:
        study.train(data, tmp_path / "model", **{**QUICK, **options})
    assert message in str(refused.value)


def relabelled(folder: Path, change: dict[str, str]) -> Path:
    """A copy of the table of labels in which some slides have another label; "" takes it away."""
    lines = [line.split(",") for line in (folder / "labels.csv").read_text().splitlines()]
    path = folder.parent / "changed.csv"
    path.write_text("\n".join(",".join([*line[:2], change.get(line[1], line[2])]) for line in lines))
    return path


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"s03": "", "s07": ""}, {}, "bags without a label (2 of 24): s03, s07."),
        ({f"s{i:02}": "normal" for i in range(24)}, {}, "every label is 'normal'; two classes are needed."),
        ({"s00": "rare", "s01": "rare"}, {}, "class 'rare' has only one patient, 'p0'"),
        ({}, {"label": "grade"}, "no column 'grade' for the label; met case_id, slide_id, label."),
        ({}, {"key": "uni"}, "format 'clam' does not take key."),
    ],
)
def test_wrong_labels_are_refused_before_any_bag_is_read(
    change: dict[str, str], options: dict[str, str], message: str, tmp_path: Path
) -> None:
    export(cohort(24, 2), tmp_path / "bags", "clam")
    labels = relabelled(tmp_path / "bags", change)
    for file in (tmp_path / "bags").rglob("*.h5"):
        file.write_bytes(b"never read")
    with pytest.raises(ScmilError) as refused:
        study.open_data(tmp_path / "bags", labels, **options)
    assert message in str(refused.value)


def test_bags_without_a_label_are_left_out_with_a_note(tmp_path: Path) -> None:
    export(cohort(24, 2), tmp_path / "bags", "clam")
    labels = relabelled(tmp_path / "bags", {"s03": ""})
    data = study.open_data(tmp_path / "bags", labels, drop_unlabelled=True)
    assert len(data.bags) == 23
    assert data.notes == (
        "1 of 24 bags have no label and are left out.",
        "slides without a label (1 of 24): s03.",
    )


def test_bags_of_two_encoders_are_refused_before_training(tmp_path: Path) -> None:
    from scmil.bags.hdf5 import write_bag

    for bag in cohort(24, 2):
        other = {"encoder": "resnet18"} if bag.id == "s05" else {}
        made = {**bag.provenance, **other}
        write_bag(Bag(bag.id, bag.features, provenance=made), tmp_path / "bags" / f"{bag.id}.h5")
    export(cohort(24, 2), tmp_path / "clam", "clam")
    data = study.open_data(tmp_path / "bags", tmp_path / "clam" / "labels.csv")
    with pytest.raises(DataError, match=r"2 different encoders: uni_v1 in 23 bags .*; resnet18 in 1 bags \(s05\)"):
        study.train(data, tmp_path / "model", **QUICK)
    assert not (tmp_path / "model").exists()


def test_places_that_are_not_there_and_folders_without_labels_are_named(tmp_path: Path) -> None:
    with pytest.raises(ScmilError, match=r"unknown dataset 'musc1'. Did you mean 'musk1'"):
        study.open_data("musc1")
    with pytest.raises(DataError, match="there is no such folder, table or data set"):
        study.open_data(tmp_path / "nowhere")
    export(cohort(4, 2), tmp_path / "bags", "clam")
    with pytest.raises(DataError, match=r"has no labels in itself. Give a table of them"):
        study.open_data(tmp_path / "bags")


# -------------------------------------------------------------------------------------------------------------- predict


@pytest.mark.parametrize(
    ("bag", "message"),
    [
        (Bag("x", torch.ones(2, 9)), "bag 'x' has 9-dimensional features instead of 8"),
        (Bag("x", torch.ones(2, 8), provenance={"encoder": "resnet18"}), "encoder 'resnet18' instead of 'uni_v1'"),
        (Bag("x", torch.ones(2, 8), provenance={"mpp": 0.25}), "mpp 0.25 instead of 0.5"),
    ],
)
def test_bags_made_in_another_way_are_refused_with_the_remedy(
    trained: Path, bag: Bag, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ShapeError) as refused:
        study.predict_folder(trained, BagSet([bag]), tmp_path / "p.csv")
    assert message in str(refused.value)
    assert "scmil encode SLIDES --encoder uni_v1 --size 256 --mpp 0.5" in str(refused.value)
    assert not (tmp_path / "p.csv").exists()


def test_a_bag_that_fails_is_written_down_and_the_others_go_on(trained: Path, tmp_path: Path) -> None:
    bags = [Bag("good", torch.ones(2, 8)), Bag("bad", torch.full((2, 8), float("nan")))]
    found = study.predict_folder(trained, BagSet(bags), tmp_path / "new" / "p.csv")
    assert [row["slide_id"] for row in rows(tmp_path / "new" / "p.csv")] == ["good"]
    assert "NaN or infinite" in found.failed["bad"]
    assert [row["slide"] for row in rows(tmp_path / "new" / "failures.csv")] == ["bad"]


def test_a_folder_that_is_no_model_is_named(once: Path, trained: Path) -> None:
    with pytest.raises(ModelFileError, match=r"study.json is not there. Is .* a model of `scmil train`"):
        study.load_study(once / "bags")
    page = json.loads((trained / "study.json").read_text())
    (trained / "study.json").write_text(json.dumps({**page, "format": "scmil-study-9"}))
    with pytest.raises(ModelFileError, match="format 'scmil-study-9', and this version reads 'scmil-study-1'"):
        study.load_study(trained)
    (trained / "study.json").write_text("{")
    with pytest.raises(ModelFileError, match="not readable as JSON"):
        study.load_study(trained)


def test_slides_need_a_model_that_knows_its_encoder(tmp_path: Path) -> None:
    export(cohort(24, 2, made={}), tmp_path / "bags", "clam")
    data = study.open_data(tmp_path / "bags", tmp_path / "bags" / "labels.csv")
    study.train(data, tmp_path / "model", **QUICK)
    with pytest.raises(DataError, match="does not know how its bags were made"):
        study.encode_for(tmp_path / "model", [tmp_path / "a.svs"], tmp_path / "work")


# -------------------------------------------------------------------------------------------------------------- compare


def test_a_comparison_has_three_arms_an_aggregator_and_a_baseline(tmp_path: Path) -> None:
    export(cohort(24, 2), tmp_path / "bags", "clam")
    data = study.open_data(tmp_path / "bags", tmp_path / "bags" / "labels.csv")
    found = study.compare(data, tmp_path / "out", ["mean"], folds=2, epochs=2, atoms=9, jobs=1)
    assert found.outcome.failed == {}
    arms = [row["arm"] for row in rows(tmp_path / "out/results.csv") if row["level"] == "slide"]
    assert arms == ["mean", "mean + SC", "mean + linear", "logistic regression on mean and maximum"]
    assert "In short: on this data" in found.verdict
    assert "a logistic regression on the mean and the maximum of each bag does better than" in found.verdict
    page = (tmp_path / "out/report.html").read_text()
    assert "Multiply-adds" in page
    assert "By patient" in page


# ---------------------------------------------------------------------------------------------------- scores of tiles


def placed(bags: BagSet) -> BagSet:
    """The same bags with coordinates."""
    return BagSet(
        [replace(bag, xy=torch.stack([torch.arange(len(bag.features)) * 10] * 2, 1)) for bag in bags], bags.classes
    )


def test_scores_are_kept_and_made_once(tmp_path: Path) -> None:
    export(cohort(24, 2), tmp_path / "bags", "clam")
    data = study.open_data(tmp_path / "bags", tmp_path / "bags" / "labels.csv")
    study.train(data, tmp_path / "model", **QUICK)
    bags = placed(data.bags)
    first = study.score_folder(tmp_path / "model", bags)
    assert len(first.scores) == 24
    assert not first.failed
    files = sorted((tmp_path / "model/maps/scores").iterdir())
    stamps = [file.stat().st_mtime_ns for file in files]
    counted: list[int] = []
    again = study.score_folder(tmp_path / "model", bags, progress=counted.append)
    assert [file.stat().st_mtime_ns for file in files] == stamps
    assert counted == list(range(1, 25))
    said = {row["slide_id"]: row for row in rows(tmp_path / "model/predictions.csv")}
    for id, scores in again.scores.items():
        assert scores.classes[scores.label] == said[id]["y_true"]
        assert scores.probabilities[-1] == pytest.approx(float(said[id][f"p_{scores.classes[-1]}"]), abs=1e-5)


def test_labels_are_counted_as_the_model_counts_them(tmp_path: Path) -> None:
    export(cohort(24, 2), tmp_path / "bags", "clam")
    data = study.open_data(tmp_path / "bags", tmp_path / "bags" / "labels.csv")
    study.train(data, tmp_path / "model", **QUICK)
    last = data.bags.classes[-1]
    only = BagSet([replace(bag, label=0) for bag in placed(data.bags) if bag.label == 1], [last])
    scored = study.score_folder(tmp_path / "model", only, tmp_path / "maps").scores
    assert {scores.classes[scores.label] for scores in scored.values()} == {last}


def test_a_bag_without_coordinates_is_written_down_and_the_others_go_on(tmp_path: Path) -> None:
    export(cohort(24, 2), tmp_path / "bags", "clam")
    data = study.open_data(tmp_path / "bags", tmp_path / "bags" / "labels.csv")
    study.train(data, tmp_path / "model", **QUICK)
    good = placed(data.bags)
    bags = BagSet([replace(good[0], xy=None), *good[1:]], good.classes)
    scored = study.score_folder(tmp_path / "model", bags)
    assert list(scored.failed) == [bags.ids[0]]
    assert "has no coordinates" in (tmp_path / "model/maps/failures.csv").read_text()
    assert len(scored.scores) == 23
    assert not study.score_folder(tmp_path / "model", good).failed  # made good
    assert bags.ids[0] not in (tmp_path / "model/maps/failures.csv").read_text()


# ------------------------------------------------------------------------------------------------ other people's files


def test_a_table_of_others_is_not_replaced_by_predictions(once: Path, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from scmil.cli import app

    out = tmp_path / "labels.csv"
    out.write_text("slide_id,label\n")
    words = ["predict", str(once / "model"), str(once / "bags"), "--out", str(out)]
    said = CliRunner().invoke(app, words)
    assert isinstance(said.exception, OutputError)
    assert "labels.csv is there, and was not written by scmil predict" in str(said.exception)
    assert out.read_text() == "slide_id,label\n"
    assert CliRunner().invoke(app, [*words, "--overwrite"]).exit_code == 0
    assert len(rows(out)) == 36
    assert CliRunner().invoke(app, words).exit_code == 0  # now it is ours


@pytest.mark.parametrize("name", ["predictions.csv", "report.html", "MODEL_CARD.md", "metrics.json", "history.csv"])
def test_a_training_replaces_nothing_that_it_did_not_write(name: str, once: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_text("theirs")
    data = study.open_data(once / "bags", once / "bags" / "labels.csv")
    with pytest.raises(OutputError, match=f"{name} is there, and was not written by scmil train"):
        study.train(data, tmp_path, **QUICK)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_of_two_trainings_into_one_folder_the_second_is_rejected(once: Path, tmp_path: Path) -> None:
    from scmil.studies.train import BEGUN
    from scmil.core.jobs.work import locked

    data = study.open_data(once / "bags", once / "bags" / "labels.csv")
    tried: list[str] = []

    def second(*_: object) -> None:
        if not tried:
            with locked(tmp_path / "model" / BEGUN, wait=False) as free:  # as another process sees it
                tried.append("free" if free else "taken")

    with (
        locked(tmp_path / "model" / BEGUN, wait=False),
        pytest.raises(OutputError, match=r"another training into .*model"),
    ):
        study.train(data, tmp_path / "model", **QUICK)
    study.train(data, tmp_path / "model", **QUICK, progress=lambda what, *_: second() if "epochs" in what else None)
    assert tried == ["taken"]  # while it trains


# --------------------------------------------------------------------------------------------------- names in the table


def labelled_folder(home: Path, names: dict[str, str], rows: dict[str, str]) -> tuple[Path, Path]:
    """A folder of tensors, each with the name of a file, and a table of labels."""
    (home / "bags").mkdir(parents=True)
    for number, file in enumerate(names):
        torch.save(torch.randn(4, 3, generator=torch.Generator().manual_seed(number)), home / "bags" / file)
    (home / "labels.csv").write_text("slide_id,label\n" + "".join(f"{id},{label}\n" for id, label in rows.items()))
    return home / "bags", home / "labels.csv"


def test_labels_without_bags_and_merged_classes_are_noted_when_training(tmp_path: Path) -> None:
    rows_ = {f"s{i}": ["tumour", "normal", "Tumour"][i % 3] for i in range(12)}
    files = {f"{id}.pt": label for id, label in rows_.items()}
    bags, labels = labelled_folder(tmp_path, files, {**rows_, "lost": "normal"})
    data = study.open_data(bags, labels)
    assert "labelled slides without a bag (1 of 13): lost." in data.notes
    assert any("'Tumour' (4), 'tumour' (4) are one class" in note for note in data.notes)
    assert data.bags.classes == ("Tumour", "normal")


def test_two_bags_with_one_row_of_labels_are_rejected(tmp_path: Path) -> None:
    bags, labels = labelled_folder(tmp_path, dict.fromkeys(["a.pt", "a.ome.pt", "b.pt"], ""), {"a": "x", "b": "y"})
    with pytest.raises(DataError, match=r"bags 'a' and 'a\.ome' have the same row 'a' in the table of labels"):
        study.open_data(bags, labels)


def test_a_label_that_is_not_found_by_its_normalisation_alone_is_said_so(tmp_path: Path) -> None:
    files = dict.fromkeys(["Mu\u0308ller.pt", "a.pt", "b.pt"], "")
    bags, labels = labelled_folder(tmp_path, files, {"M\u00fcller": "x", "a": "x", "b": "y"})
    with pytest.raises(DataError, match=r"another Unicode normalisation, as 'M\\xfcller' for the bag 'Mu\\u0308ller'"):
        study.open_data(bags, labels)


def test_words_for_a_missing_label_are_given_on_the_command_line(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from scmil.cli import app

    rows_ = {f"s{i:02}": ["tumour", "normal"][i % 2] for i in range(16)} | {"s16": "unknown"}
    bags, labels = labelled_folder(tmp_path, {f"{id}.pt": "" for id in rows_}, rows_)
    words = ["train", str(bags), str(labels), "--aggregator", "mean", "--epochs", "1", "--out", str(tmp_path / "model")]
    asked = CliRunner().invoke(app, words)
    assert isinstance(asked.exception, DataError)
    assert "'unknown' in line 18" in str(asked.exception)
    audited = CliRunner().invoke(app, ["audit", str(bags), str(labels), "--missing", "unknown"])
    assert "no-label: 1 bag without a label (s16)" in audited.output
    done = CliRunner().invoke(app, [*words, "--missing", "unknown", "--drop-unlabelled"])
    assert done.exit_code == 0, done.output


# ---------------------------------------------------------------------------------------------- a model from a stranger


def edited(model: Path, **changes: Any) -> Path:
    """Another `study.json`; a dot in a name leads into a table."""
    page = json.loads((model / "study.json").read_text())
    for key, value in changes.items():
        *path, last = key.split("__")
        table = page
        for part in path:
            table = table[part]
        table[last] = value
    (model / "study.json").write_text(json.dumps(page))
    return model


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"contract__mpp": 1e-6}, r"mpp = 1e-06: a number from 0\.01 to 1000 is needed"),
        ({"contract__overlap_px": 255}, "overlap_px = 255 of tiles of 256 px: at most 192"),
        ({"contract__size_px": 10**9}, "size_px = 1000000000: a whole number from 1 to 8192"),
        ({"contract__size_px": "256"}, "size_px = '256'"),
        ({"contract__encoder": ["a"]}, "encoder is not a text"),
        ({"contract": None}, "incomplete or wrong"),
        ({"classes": ["normal"]}, "classes are not the names of 3 classes"),
        ({"classes": [1, 2, 3]}, "classes are not the names of 3 classes"),
        ({"threshold": float("nan")}, "threshold = nan"),
        ({"scaling": {"mean": [0.0] * 8, "deviation": [float("nan")] * 8}}, "deviation is not 8 finite numbers"),
        ({"scaling": {"mean": [0.0] * 7, "deviation": [1.0] * 8}}, "mean is not 8 finite numbers"),
        ({"scaling": {"mean": [0.0] * 8, "deviation": [0.0] * 8}}, "a deviation is 0"),
        ({"split": {"train": "all"}}, "split is not lists"),
        ({"settings": []}, "incomplete or wrong"),
    ],
)
def test_a_study_with_numbers_that_no_study_has_is_rejected(trained: Path, change: dict[str, Any], cause: str) -> None:
    with pytest.raises(ModelFileError, match=rf"study\.json.*{cause}"):
        study.load_study(edited(trained, **change))


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whatever is asked of the network or of a hub, or built by timm, is written down, and fails."""
    import socket

    asked: list[str] = []

    def note(*what: object, **_: object) -> Any:
        asked.append(str(what[0]))
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", note)
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: note(address))
    monkeypatch.setattr("scmil.encoding.encoders.weights.download", note)
    monkeypatch.setattr("scmil.encoding.encoders.load_encoder", note_and_call(asked))
    return asked


def note_and_call(asked: list[str]) -> Any:
    from scmil.encoding.encoders import load_encoder

    def call(name: str, *args: Any, **options: Any) -> Any:
        if options.get("offline") is not True:
            asked.append(f"{name}, online")
        return load_encoder(name, *args, **options)

    return call


@pytest.mark.parametrize(
    "name",
    [
        "timm:hf-hub:attacker/evil",
        "timm:hf_hub:attacker/evil",
        "timm:local-dir:/evil",
        "hf-hub:attacker/evil",
        "http://evil.example/model.pt",
        "/evil.pt",
        "timm:hf-hub:attacker/evil, random weights of seed 0",
        "timm:a\nb, random weights of seed 0",
    ],
)
def test_what_a_model_names_is_not_fetched(trained: Path, network: list[str], tmp_path: Path, name: str) -> None:
    model = edited(trained, contract__encoder=name)
    with pytest.raises(WeightsError, match=r"names the encoder .* what a model names is not fetched.*--encoder"):
        study.encode_for(model, [tmp_path / "a.svs"], tmp_path / "work")
    with pytest.raises(WeightsError, match="not fetched"):
        study.encode_for(model, [tmp_path / "a.svs"], tmp_path / "work", weights=tmp_path / "mine.pth")
    assert network == []


def test_weights_of_a_known_encoder_are_not_downloaded_for_a_model_unasked(
    trained: Path, network: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.delenv("SCMIL_WEIGHTS", raising=False)
    monkeypatch.delenv("SCMIL_OFFLINE", raising=False)
    model = edited(trained, contract__encoder="resnet18", contract__encoder_digest=None)
    with pytest.raises(WeightsError, match=r"names the encoder 'resnet18'.*--encoder resnet18; or its file: --weights"):
        study.encode_for(model, [tmp_path / "a.svs"], tmp_path / "work")
    assert network == []
    with pytest.raises(OSError, match="no network in this test"):
        study.encode_for(model, [tmp_path / "a.svs"], tmp_path / "work", encoder="resnet18")
    assert network[0] == "resnet18, online"


def test_an_encoder_that_is_not_the_models_is_rejected(trained: Path, network: list[str], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"--encoder 'resnet18': .* was trained on features of 'uni_v1'"):
        study.encode_for(trained, [tmp_path / "a.svs"], tmp_path / "work", encoder="resnet18")
    assert network == []


def test_a_command_that_is_suggested_cannot_be_more_than_one_command(trained: Path, once: Path) -> None:
    from scmil.bags.formats import open_bags

    model = edited(trained, contract__encoder="x; touch /evil #")
    with pytest.raises(ShapeError, match=r"--encoder 'x; touch /evil #' --size 256"):
        study.predict_folder(model, open_bags(once / "bags"))


def test_class_names_are_text_in_the_model_card(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>[x](http://evil.example)|`a`"
    bags = cohort(24, 2)
    named = BagSet([bags[i] for i in range(24)], [evil, "b\n# heading"])
    export(named, tmp_path / "bags", "clam")
    data = study.open_data(tmp_path / "bags", tmp_path / "bags" / "labels.csv")
    study.train(data, tmp_path / "model", **QUICK)
    text = (tmp_path / "model" / "MODEL_CARD.md").read_text()
    assert evil not in text
    assert "<img" not in text
    assert "](http://" not in text
    assert "\n# heading" not in text
    assert r"&lt;img src=x onerror=alert\(1\)&gt;\[x\]\(http\://evil.example\)\|\`a\`" in text
