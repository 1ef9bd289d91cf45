from __future__ import annotations

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
    return save_model(build_model(20, 2, "abmil", sparse_coding={"atoms": 16}, seed=0), tmp_path / "model")


def test_a_float64_model_comes_back_as_float64(tmp_path: Path) -> None:
    model = build_model(20, 2, "dsmil", seed=0).double()
    assert next(load_model(save_model(model, tmp_path)).parameters()).dtype == torch.float64


def test_a_loaded_model_trains_on(saved: Path) -> None:
    model = load_model(saved)
    model.loss(model(torch.randn(5, 20)), 1).backward()
    assert all(p.requires_grad and p.grad is not None and p.device.type == "cpu" for p in model.parameters())


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
    assert all(torch.equal(a, b) for a, b in zip(before.parameters(), load_model(saved).parameters(), strict=True))


def damage(path: Path, how: str) -> None:
    page = path / "model.json"
    weights = path / "model.safetensors"
    if how == "truncated":
        weights.write_bytes(weights.read_bytes()[:-10])
    elif how == "no weights":
        weights.unlink()
    elif how == "no page":
        page.unlink()
    elif how == "not json":
        page.write_text("{")
    elif how == "foreign":
        page.write_text('{"format": "pt", "weights": []}')
    elif how == "a list":
        page.write_text("[1]")
    elif how == "nested":
        page.write_text("[" * 100_000)
    else:
        content = json.loads(page.read_text())
        if how == "incomplete":
            del content["sha256"]
        elif how == "dtype":
            content["dtype"] = "nn"
        elif how == "other widths":
            content["model"]["embed"] = [7]
        elif how == "terabytes":
            content["model"] |= {"dim": 2**20, "embed": [2**20]}
        elif how == "ten million layers":
            content["model"]["sparse_coding"]["layers"] = 10**7
        elif how == "ten million modules":
            content["model"]["aggregator"] = {"name": "ilra", "layers": 10**7}
        elif how == "a long list":
            content["model"]["embed"] = [8] * 10**5
        elif how == "an endless integer":
            content["model"]["dim"] = 10**4000
        elif how == "a text for a number":
            content["model"]["classes"] = "2"
        elif how == "other dtype":
            content["dtype"] = "float64"
        elif how == "unknown aggregator":
            content["model"]["aggregator"] = "os.system"
        elif how == "unknown key":
            content["model"]["run"] = "rm -rf"
        elif how == "huge header":
            import hashlib

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
        ("foreign", "format 'pt', and this version reads 'scmil-model-1'"),
        ("a list", "format 'list'"),
        ("nested", "not JSON"),
        ("incomplete", "incomplete or wrong: sha256"),
        ("dtype", "incomplete or wrong: dtype"),
        ("other widths", "its tensors are not those of the model.*embed.0.weight"),
        ("terabytes", "its tensors are not those of the model.*embed.0.weight"),
        ("ten million layers", "layers = 10000000: a whole number from 1 to 1000 is needed"),
        ("ten million modules", "layers = 10000000: a whole number from 1 to 1000 is needed"),
        ("a long list", "embed has 100000 entries, and 1000 is the most"),
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
    with pytest.raises(ModelFileError, match=message) as refused:
        load_model(saved)
    assert str(saved) in str(refused.value)


def test_only_built_models_are_saved(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="only a model of build_model"):
        save_model(MILModel(nn.Identity(), nn.Identity(), nn.Identity()), tmp_path)
    model = build_model(20, 2, {"name": "dtfd-afs", "generator": torch.Generator()})
    with pytest.raises(ModelFileError, match=r"cannot be written to model\.json"):
        save_model(model, tmp_path)


def test_a_model_with_nan_weights_is_rejected_by_its_name(tmp_path: Path) -> None:
    model = build_model(20, 2, "abmil", seed=0)
    next(model.parameters()).data[0, 0] = float("nan")
    with pytest.raises(
        ModelFileError, match=r"model\.safetensors: NaN or infinite weights in 1 of \d+ tensors, such as"
    ):
        load_model(save_model(model, tmp_path / "model"))


def test_a_model_page_that_is_a_pipe_is_not_waited_for(saved: Path) -> None:
    (saved / "model.json").unlink()
    os.mkfifo(saved / "model.json")
    with pytest.raises(ModelFileError, match="a pipe, a device or a folder"):
        load_model(saved)
