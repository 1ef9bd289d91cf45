from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmil.models as theirs
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from scmil import MILModel, ReleasedSparseCoding, SparseCoding, build_model, load_model, plug_into, save_model
from scmil import model as room
from scmil.errors import ModelFileError, OptionError, UnknownNameError
from scmil.model import LinearRefine


def test_figure_one_is_embed_refine_aggregate() -> None:
    model = build_model(1024, 2, "abmil-gated", sparse_coding=True, seed=0)
    x = torch.randn(5, 1024)
    whole = model(x).logits
    torch.testing.assert_close(whole, model.aggregate(model.refine(model.embed(x))).logits)
    assert isinstance(model.refine, SparseCoding)


def test_the_embedding_of_a_cosine_dictionary_is_a_square() -> None:
    model = build_model(1024, 2, "transmil", sparse_coding=True)
    assert isinstance(model.refine, SparseCoding)
    assert model.refine.dim == 484
    random = build_model(1024, 2, "transmil", sparse_coding={"dictionary": "random"})
    assert isinstance(random.refine, SparseCoding)
    assert random.refine.dim == 512


@pytest.mark.parametrize(
    ("name", "dim"), [("dsmil", 300), ("ilra", 300), ("mi-net-ds", 300), ("abmil", 484), ("mi-net", 64)]
)
def test_sparse_coding_stands_after_the_embedding_and_on_raw_features_where_there_is_none(name: str, dim: int) -> None:
    model = build_model(300, 2, name, sparse_coding=True)
    assert isinstance(model.refine, SparseCoding)
    assert model.refine.dim == dim


def test_the_control_has_the_width_and_the_input_of_sparse_coding() -> None:
    model = build_model(300, 2, "dsmil", refine="linear", sparse_coding={"atoms": 100, "layers": 7})
    assert isinstance(model.refine, LinearRefine)
    x = torch.randn(4, 300)
    assert model.refine(x).shape == (4, 100)
    torch.testing.assert_close(model.refine(x), model.refine(50 * x))
    released = build_model(300, 2, "dsmil", refine="released")
    assert isinstance(released.refine, ReleasedSparseCoding)


def test_widths_that_are_given_have_biases_unless_they_are_refused() -> None:
    assert build_model(20, 2, "abmil", embed=[8]).embed[0].bias is not None  # type: ignore[index]
    assert build_model(20, 2, "abmil", embed={"widths": [8], "bias": False}).embed[0].bias is None  # type: ignore[index]
    assert build_model(20, 2, "abmil").embed[0].bias is None  # type: ignore[index]  (the authors' release)


def test_a_seed_gives_the_same_model_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, other = build_model(20, 2, "abmil", seed=3), build_model(20, 2, "abmil", seed=3)
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"aggregator": "abmill"}, UnknownNameError, "Did you mean 'abmil'"),
        ({"classes": 1}, OptionError, "at least two classes"),
        ({"refine": "dense"}, OptionError, "Known: sparse-coding, linear, released"),
        ({"sparse_coding": {"atom": 3}}, OptionError, "sparse_coding: .*'atom'"),
        ({"aggregator": {"name": "abmil", "heads": 3}}, OptionError, "It takes: dim, classes, hidden, gated"),
    ],
)
def test_wrong_names_and_options_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build_model(**{"dim": 20, "classes": 2, **options})


def test_infinite_features_are_counted_and_located() -> None:
    x = torch.zeros(5, 20)
    x[3, 1] = float("inf")
    with pytest.raises(room.BagError, match=r"1 of the bag's 5 instances .* the first is number 3"):
        build_model(20, 2, "mean")(x)


def test_large_finite_features_are_not_taken_for_infinite() -> None:
    room.check_bag(torch.full((4, 4), 3e38))


def test_whole_models_are_stacked_over_one_bag() -> None:
    models = [build_model(20, 2, "abmil-gated", sparse_coding={"atoms": 16}, embed=[9], seed=s) for s in range(3)]
    parameters, buffers = stack_module_state(models)  # type: ignore[arg-type]
    x = torch.randn(6, 20)

    def logits(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        return functional_call(models[0], (parameters, buffers), (x,)).logits

    torch.testing.assert_close(vmap(logits)(parameters, buffers), torch.stack([model(x).logits for model in models]))


# -------------------------------------------------------------------------------------------------------- plug and play

OUTSIDE = {
    "ABMIL": lambda: theirs.ABMIL(in_shape=(64,)),
    "ABMIL gated": lambda: theirs.ABMIL(in_shape=(64,), gated=True),
    "DSMIL": lambda: theirs.DSMIL(in_shape=(64,)),
    "CLAM_SB": lambda: theirs.CLAM_SB(in_shape=(64,)),
    "TransMIL": lambda: theirs.TransMIL(in_shape=(64,)),
    "TransformerABMIL": lambda: theirs.TransformerABMIL(in_shape=(64,)),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_the_module_plugs_into_models_of_torchmil(name: str) -> None:
    model = plug_into(OUTSIDE[name](), dim=30, atoms=64, call={"return_att": True})
    prediction = model(torch.randn(17, 30))
    assert prediction.logits.shape == (2,)
    assert prediction.attention.sum().item() == pytest.approx(1, abs=1e-5)
    model.loss(prediction, 1).backward()
    assert all(p.grad is not None and (p.grad != 0).any() for p in model.refine.parameters())


def test_outside_logits_are_those_of_the_outside_module() -> None:
    module = theirs.ABMIL(in_shape=(64,)).eval()
    model, x = plug_into(module, dim=30, atoms=64), torch.randn(17, 30)
    torch.testing.assert_close(model(x).logits[1], module(model.refine(x)[None])[0])
    assert model(x).attention.isnan().all()  # not asked for, so not told


class Flat(nn.Module):
    """Takes (n, d), and returns logits and weights."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        assert h.ndim == 2
        return self.head(h.mean(0)), torch.full((len(h),), 1 / len(h))


def test_a_module_without_a_batch_axis_and_with_ready_weights() -> None:
    prediction = plug_into(Flat(), dim=30, atoms=64, attention="weights")(torch.randn(4, 30))
    assert prediction.logits.shape == (3,)
    torch.testing.assert_close(prediction.attention, torch.full((4,), 0.25))


def test_what_gives_no_logits_of_a_bag_is_refused() -> None:
    with pytest.raises(OptionError, match=r"Linear gives no logits for a bag.*let it pool"):
        plug_into(nn.Linear(64, 3), dim=30, atoms=64)
    with pytest.raises(OptionError, match="Build it for 64-dimensional embeddings"):
        plug_into(theirs.ABMIL(in_shape=(99,)), dim=30, atoms=64)
    with pytest.raises(OptionError, match="Known: softmax, weights"):
        plug_into(Flat(), dim=30, atoms=64, attention="max")


# -------------------------------------------------------------------------------------------------------- save and load


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_model(build_model(20, 2, "abmil", sparse_coding={"atoms": 16}, seed=0), tmp_path / "model")


def test_a_float64_model_comes_back_as_float64(tmp_path: Path) -> None:
    model = build_model(20, 2, "dsmil", seed=0).double()
    assert next(load_model(save_model(model, tmp_path)).parameters()).dtype == torch.float64


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
