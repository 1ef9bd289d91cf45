"""The command import-model: from a checkpoint of the authors to predictions and heatmaps."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from command import scmil
from golden_numbers import Golden

from scmil import Bag, write_bag
from scmil.viz.viewer import Library

GOLDEN = Golden("dsmil_2class")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in DSMIL's layout for TCGA lung, bags, and the imported model."""
    home = tmp_path_factory.mktemp("home")
    torch.save(GOLDEN.tensors, home / "tcga.pth", _use_new_zipfile_serialization=False)
    for bag in GOLDEN.bags:
        x = GOLDEN.x(bag)
        xy = torch.stack([torch.arange(len(x)) * 256, torch.zeros(len(x), dtype=torch.long)], 1)
        origin = {"encoder": "simclr", "side_level0": 256.0, "slide_mpp": 0.5}
        written = Bag(f"slide_{bag}", x, xy=xy, provenance=origin)
        write_bag(written, home / "bags" / f"{written.id}.h5", dtype="float32")
    imported = scmil(
        "import-model", home / "tcga.pth", "--as", "dsmil", "--encoder", "simclr",
        "--classes", "LUAD,LUSC", "--out", home / "model", "--json",
    )  # fmt: skip
    (home / "imported.json").write_text(imported.stdout)
    return home


def test_the_command_says_where_every_tensor_went(home: Path) -> None:
    page = json.loads((home / "imported.json").read_text())
    assert page["tensors"].keys() == GOLDEN.tensors.keys()
    assert (page["output"], page["threshold"]) == ("sigmoid", None)
    assert page["classes"] == ["LUAD", "LUSC"]
    assert page["contract"] == {"dim": 24, "encoder": "simclr"}


def test_predict_writes_the_probabilities_of_the_authors(home: Path) -> None:
    scmil("predict", home / "model", home / "bags", "--out", home / "predictions.csv")
    with (home / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(GOLDEN.bags)
    for bag, row in enumerate(rows):
        logits = GOLDEN.get("logits", bag)
        assert logits is not None
        expected = logits[0].sigmoid()
        actual = [float(row["p_LUAD"]), float(row["p_LUSC"])]
        assert actual == pytest.approx(expected.tolist(), abs=1e-5)
        assert row["y_pred"] == ("LUAD", "LUSC")[int(expected.argmax())]


def test_heatmaps_and_the_viewer_show_the_same_probabilities(home: Path) -> None:
    done = scmil("heatmap", home / "model", home / "bags", "--score", "probability:LUSC", "--json")
    page = json.loads(done.stdout)
    assert len(page["done"]) == len(GOLDEN.bags)
    assert not page["failed"]
    shown: dict[str, Any] = Library([home / "model"]).page()
    for bag, line in enumerate(shown["slides"]):
        logits = GOLDEN.get("logits", bag)
        assert logits is not None
        assert line["models"][0]["probability"] == pytest.approx(
            float(logits.sigmoid().max()), abs=1e-5
        )


def test_a_missing_and_an_extra_tensor_are_listed_and_nothing_is_written(
    home: Path, tmp_path: Path
) -> None:
    state = {**GOLDEN.tensors, "b_classifier.extra": torch.ones(1)}
    del state["b_classifier.fcc.bias"]
    torch.save(state, tmp_path / "a.pth")
    out = tmp_path / "model"
    words = ("import-model", tmp_path / "a.pth", "--as", "dsmil", "--encoder", "x", "--out", out)
    message = scmil(*words, code=1).stderr
    assert "ModelFileError" in message
    assert "Missing: b_classifier.fcc.bias." in message
    assert "Not expected: b_classifier.extra." in message
    assert "Traceback" not in message
    assert not out.exists()


class Call:
    """An object whose pickle calls a function."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.folder),)


def test_a_hostile_checkpoint_is_rejected_and_not_run(tmp_path: Path) -> None:
    content = {"state_dict": GOLDEN.tensors, "x": Call(tmp_path / "called")}
    torch.save(content, tmp_path / "a.ckpt")
    words = ("import-model", tmp_path / "a.ckpt", "--as", "dsmil", "--encoder", "x")
    message = scmil(*words, "--out", tmp_path / "model", code=1).stderr
    assert "not run" in message
    assert not (tmp_path / "called").exists()
    assert not (tmp_path / "model").exists()


def test_the_encoder_must_be_named(home: Path, tmp_path: Path) -> None:
    words = ("import-model", home / "tcga.pth", "--as", "dsmil", "--out", tmp_path / "model")
    assert "--encoder" in scmil(*words, code=2).stderr


def test_an_option_that_no_tensor_shows_is_given(tmp_path: Path) -> None:
    torch.save(Golden("stamp_vit").tensors, tmp_path / "vit.pth")
    words = ("import-model", tmp_path / "vit.pth", "--as", "transformer", "--encoder", "uni")
    scmil(*words, "--option", "heads=4", "--out", tmp_path / "model")
    model = json.loads((tmp_path / "model" / "study.json").read_text())["settings"]["model"]
    assert model["aggregator"]["heads"] == 4
    rejected = scmil(*words, "--option", "heads", code=1)
    assert "--option 'heads': expected NAME=VALUE, such as heads=4" in rejected.stderr
