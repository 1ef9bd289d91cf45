from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from scmil import MILModel, build_model, load_model, save_model
from scmil.errors import ModelFileError


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_model(
        build_model(20, 2, "abmil", sparse_coding={"atoms": 16}, seed=0), tmp_path / "model"
    )


def test_a_float64_model_comes_back_as_float64(tmp_path: Path) -> None:
    model = build_model(20, 2, "dsmil", seed=0).double()
    assert next(load_model(save_model(model, tmp_path)).parameters()).dtype == torch.float64


def test_a_loaded_model_trains_on(saved: Path) -> None:
    model = load_model(saved)
    model.loss(model(torch.randn(5, 20)), 1).backward()
    assert all(
        p.requires_grad and p.grad is not None and p.device.type == "cpu"
        for p in model.parameters()
    )


def test_no_temporary_file_is_left(saved: Path) -> None:
    assert sorted(os.listdir(saved)) == ["model.json", "model.safetensors"]


def test_a_failed_write_leaves_the_old_model(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load_model(saved)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_model(build_model(20, 2, "abmil", sparse_coding={"atoms": 16}, seed=1), saved)
    monkeypatch.undo()
    assert sorted(os.listdir(saved)) == ["model.json", "model.safetensors"]
    assert all(
        torch.equal(a, b)
        for a, b in zip(before.parameters(), load_model(saved).parameters(), strict=True)
    )


# Changes of the text of model.json.
TEXTS = {
    "not json": "{",
    "foreign": '{"format": "pt", "weights": []}',
    "a list": "[1]",
    "nested": "[" * 100_000,
}
# Changes of its keys, and of the keys below "model".
KEYS: dict[str, dict[str, Any]] = {"dtype": {"dtype": "nn"}, "other dtype": {"dtype": "float64"}}
MODEL_KEYS: dict[str, dict[str, Any]] = {
    "other widths": {"embed": [7]},
    "terabytes": {"dim": 2**20, "embed": [2**20]},
    "ten million layers": {"sparse_coding": {"atoms": 16, "layers": 10**7}},
    "ten million modules": {"aggregator": {"name": "ilra", "layers": 10**7}},
    "a long list": {"embed": [8] * 10**5},
    "an endless integer": {"dim": 10**4000},
    "a text for a number": {"classes": "2"},
    "unknown aggregator": {"aggregator": "os.system"},
    "unknown key": {"run": "rm -rf"},
}


def damage(path: Path, how: str) -> None:
    page, weights = path / "model.json", path / "model.safetensors"
    if how == "truncated":
        weights.write_bytes(weights.read_bytes()[:-10])
    elif how in ("no weights", "no page"):
        (weights if how == "no weights" else page).unlink()
    elif how in TEXTS:
        page.write_text(TEXTS[how])
    else:
        content = json.loads(page.read_text())
        content |= KEYS.get(how, {})
        content["model"] |= MODEL_KEYS.get(how, {})
        if how == "incomplete":
            del content["sha256"]
        elif how == "huge header":
            weights.write_bytes((2**62).to_bytes(8, "little") + b"{}")
            content["sha256"] = hashlib.sha256(weights.read_bytes()).hexdigest()
        page.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("truncated", "its sha256 differs"),
        ("no weights", "A model is two files"),
        ("no page", "Is the folder a model of scmil"),
        ("not json", "not JSON"),
        ("foreign", "format 'pt', but this version reads 'scmil-model-1'"),
        ("a list", "format 'list'"),
        ("nested", "not JSON"),
        ("incomplete", "incomplete or wrong: sha256"),
        ("dtype", "incomplete or wrong: dtype"),
        ("other widths", "its tensors are not those of the model.*embed.0.weight"),
        ("terabytes", "its tensors are not those of the model.*embed.0.weight"),
        ("ten million layers", "layers = 10000000: a whole number from 1 to 1000 is needed"),
        ("ten million modules", "layers = 10000000: a whole number from 1 to 1000 is needed"),
        ("a long list", "embed has 100000 entries; at most 1000 are supported"),
        ("an endless integer", r"dim = about 10\^4000: a whole number from 1 to 1048576 is needed"),
        ("a text for a number", "no model can be built from it"),
        ("other dtype", "its tensors are not those of the model.*different: dtype"),
        ("unknown aggregator", "no model can be built from it .*unknown aggregator 'os.system'"),
        ("unknown key", "no model can be built from it"),
        ("huge header", "not a safetensors file"),
    ],
)
def test_damaged_and_hostile_files_are_refused_by_name(saved: Path, how: str, message: str) -> None:
    damage(saved, how)
    with pytest.raises(ModelFileError, match=message) as caught:
        load_model(saved)
    assert str(saved) in str(caught.value)


def test_only_built_models_are_saved(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="only models of build_model"):
        save_model(MILModel(nn.Identity(), nn.Identity(), nn.Identity()), tmp_path)
    model = build_model(20, 2, {"name": "dtfd-afs", "generator": torch.Generator()})
    with pytest.raises(ModelFileError, match=r"cannot be written to model\.json"):
        save_model(model, tmp_path)


def test_a_model_with_nan_weights_is_rejected_by_its_name(tmp_path: Path) -> None:
    model = build_model(20, 2, "abmil", seed=0)
    next(model.parameters()).data[0, 0] = float("nan")
    with pytest.raises(
        ModelFileError,
        match=r"model\.safetensors: NaN or infinite weights in 1 of \d+ tensors, such as",
    ):
        load_model(save_model(model, tmp_path / "model"))


def test_a_model_page_that_is_a_pipe_is_not_waited_for(saved: Path) -> None:
    (saved / "model.json").unlink()
    os.mkfifo(saved / "model.json")
    with pytest.raises(ModelFileError, match="a pipe, a device or a folder"):
        load_model(saved)


def test_the_output_rule_of_a_model_comes_back(tmp_path: Path) -> None:
    model = build_model(8, 2, {"name": "dsmil", "streams": 2}, output="sigmoid", seed=0)
    assert load_model(save_model(model, tmp_path)).output == "sigmoid"
    page = json.loads((tmp_path / "model.json").read_text())
    del page["model"]["output"]  # as files of earlier versions
    (tmp_path / "model.json").write_text(json.dumps(page))
    assert load_model(tmp_path).output == "softmax"
