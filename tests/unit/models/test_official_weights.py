"""Checkpoints in the authors' layouts become models, and every tensor is accounted for."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from golden_cases import CASES
from golden_numbers import Golden
from safetensors.torch import save_file
from torch import Tensor

from scmil.core import limits
from scmil.errors import ModelFileError, OptionError
from scmil.models.official_weights import Choices, convert, read_checkpoint, reading

State = dict[str, Tensor]
BY_FILE = {case.file: case for case in CASES}


def state_of(file: str) -> State:
    return BY_FILE[file].checkpoint(Golden(file))


def as_parts(state: State) -> dict[str, State]:
    """The four state dicts of DTFD's `best_model.pth`."""
    parts: dict[str, State] = {}
    for name, tensor in state.items():
        part, _, rest = name.partition(".")
        parts.setdefault(part, {})[rest] = tensor
    return parts


def prefixed(prefix: str, state: State) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


LAYOUTS: dict[str, tuple[str, Callable[[State], Any]]] = {
    "a state dict": ("dsmil_1class", lambda state: state),
    "DataParallel": ("dsmil_2class", lambda state: prefixed("module.", state)),
    "a training state": (
        "ilra_rank1",
        lambda state: {"epoch": 7, "state_dict": state, "optimizer": {"lr": 1e-4}},
    ),
    "Lightning": (
        "transmil_small",
        lambda state: {"epoch": 1, "state_dict": prefixed("model.", state), "loops": None},
    ),
    "DTFD's four state dicts": ("dtfd_afs", as_parts),
    "DTFD's four, DataParallel": (
        "dtfd_afs",
        lambda state: {k: prefixed("module.", part) for k, part in as_parts(state).items()},
    ),
    "a list of four state dicts": ("dtfd_maxmins", lambda state: list(as_parts(state).values())),
}


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_checkpoints_are_read_as_their_authors_save_them(
    tmp_path: Path, layout: str, zipped: bool
) -> None:
    file, wrap = LAYOUTS[layout]
    state = state_of(file)
    torch.save(wrap(state), tmp_path / "a.pth", _use_new_zipfile_serialization=zipped)
    read = read_checkpoint(tmp_path / "a.pth")
    assert read.keys() == state.keys()
    assert all(torch.equal(read[name], state[name]) for name in state)
    convert(read, BY_FILE[file].aggregator)


def test_safetensors_are_read(tmp_path: Path) -> None:
    state = state_of("dsmil_1class")
    save_file(state, tmp_path / "a.safetensors")
    assert read_checkpoint(tmp_path / "a.safetensors").keys() == state.keys()


def test_the_eight_tensors_of_dsmil_have_these_places() -> None:
    table = convert(state_of("dsmil_1class"), "dsmil").table
    assert {name: entry.name.removeprefix("aggregate.") for name, entry in table.items()} == {
        "i_classifier.fc.0.weight": "instance_classifier.weight",
        "i_classifier.fc.0.bias": "instance_classifier.bias",
        "b_classifier.q.0.weight": "query.0.weight",
        "b_classifier.q.0.bias": "query.0.bias",
        "b_classifier.q.2.weight": "query.2.weight",
        "b_classifier.q.2.bias": "query.2.bias",
        "b_classifier.fcc.weight": "bag_classifier.weight",
        "b_classifier.fcc.bias": "bag_classifier.bias",
    }


def test_the_instance_classifier_of_dsmil_has_either_name() -> None:
    state = state_of("dsmil_2class")
    other = {name.replace("fc.0.", "fc."): tensor for name, tensor in state.items()}
    x = torch.randn(5, 24)
    first, second = (convert(each, "dsmil").model(x).logits for each in (state, other))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("file", "output"),
    [("dsmil_1class", "softmax"), ("dsmil_2class", "sigmoid"), ("transmil_small", "softmax")],
)
def test_probabilities_are_computed_as_the_authors_do(file: str, output: str) -> None:
    golden, model = Golden(file), convert(state_of(file), BY_FILE[file].aggregator).model
    assert model.output == output
    with torch.no_grad():
        actual = model.probabilities(model(golden.x(3)).logits)
    logits = golden.get("logits", 3)
    assert logits is not None
    if file.startswith("dsmil"):
        assert torch.allclose(actual[-logits.numel() :], logits[0].sigmoid(), atol=1e-6)
    else:
        assert torch.allclose(actual, logits[0].softmax(-1), atol=1e-6)


def test_dtfd_of_the_sc_mil_release_has_one_sigmoid_per_class() -> None:
    renames = {"dim_reduction.": "tier1.dimRedunction.", "att_classifier.": "tier2."}
    state = {}
    for name, tensor in state_of("dtfd_afs").items():
        prefix = next((p for p in renames if name.startswith(p)), "")
        state[renames.get(prefix, "tier1.") + name.removeprefix(prefix)] = tensor
    model = convert(state, "dtfd-afs", Choices(groups=2)).model
    x = torch.randn(9, 24)
    official = convert(state_of("dtfd_afs"), "dtfd-afs", Choices(groups=2)).model
    assert torch.equal(model(x).logits, official(x).logits)
    assert (model.output, official.output) == ("sigmoid", "softmax")
    with pytest.raises(ModelFileError, match="sorts the instances by the score of the last class"):
        convert(state, "dtfd-maxmin")


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_the_pooling_heads_of_the_sc_mil_release_are_converted(pool: str) -> None:
    state = {
        "dimReduction.fc1.weight": torch.randn(5, 7),
        "classifier.fc.weight": torch.randn(3, 5),
        "classifier.fc.bias": torch.randn(3),
    }
    x = torch.randn(4, 7)
    h = (x @ state["dimReduction.fc1.weight"].T).relu()
    pooled = h.mean(0) if pool == "mean" else h.amax(0)
    expected = pooled @ state["classifier.fc.weight"].T + state["classifier.fc.bias"]
    with torch.no_grad():
        assert torch.allclose(convert(state, pool).model(x).logits, expected, atol=1e-6)


# --------------------------------------------------------------------------------------- rejections


def without(*names: str) -> Callable[[State], None]:
    def change(state: State) -> None:
        for name in names:
            del state[name]

    return change


CHANGES: dict[str, tuple[Callable[[State], Any], str]] = {
    "missing": (
        without("b_classifier.q.2.bias", "b_classifier.fcc.bias"),
        r"Missing: b_classifier\.q\.2\.bias, b_classifier\.fcc\.bias\.",
    ),
    "extra": (
        lambda state: state.update(extra=torch.ones(1), other=torch.ones(1)),
        r"Not expected: extra, other\.",
    ),
    "shape": (
        lambda state: state.update({"b_classifier.q.2.bias": torch.ones(3)}),
        r"Other shapes: b_classifier\.q\.2\.bias \(3,\)\.",
    ),
    "nan": (
        lambda state: state["b_classifier.fcc.weight"].fill_(torch.nan),
        r"NaN, infinite or no numbers: b_classifier\.fcc\.weight\.",
    ),
    "integers": (
        lambda state: state.update({"b_classifier.fcc.bias": torch.ones(2, dtype=torch.int64)}),
        r"no numbers: b_classifier\.fcc\.bias\.",
    ),
    "scalar": (
        lambda state: state.update({"i_classifier.fc.0.weight": torch.tensor(1.0)}),
        r"Other shapes: i_classifier\.fc\.0\.weight \(\)",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_tensors_without_their_place_are_listed(change: str) -> None:
    apply, message = CHANGES[change]
    state = {name: tensor.clone() for name, tensor in state_of("dsmil_2class").items()}
    apply(state)
    with pytest.raises(ModelFileError, match=message):
        convert(state, "dsmil")


@pytest.mark.parametrize("file", ["transmil_small", "ilra_rank4", "dtfd_afs", "scmil_abmil_sc"])
def test_each_tensor_of_a_layout_is_needed(file: str) -> None:
    state = state_of(file)
    # Without these it is another layout, or the release's ABMIL on raw features.
    special = ["_fc1.0.weight", "gab_blocks.0.latent", "gab_blocks.1.latent", "attn.attention.0.w"]
    special += ["dim_reduction.fc1.weight", "dimReduction.fc1.weight"]
    for name in [name for name in state if not name.startswith(tuple(special))]:
        rest = {other: tensor for other, tensor in state.items() if other != name}
        with pytest.raises(ModelFileError, match=re.escape(name)):
            convert(rest, BY_FILE[file].aggregator)


def test_a_value_projection_of_dsmil_without_its_bias_is_listed() -> None:
    state = dict(Golden("dsmil_2class_passing_v").tensors)
    del state["b_classifier.v.1.bias"]
    with pytest.raises(ModelFileError, match=r"Missing: b_classifier\.v\.1\.bias"):
        convert(state, "dsmil")


def test_another_aggregator_is_named() -> None:
    with pytest.raises(ModelFileError, match=r"i_classifier\.fc\.0\.weight .*right --as\?"):
        convert(state_of("ilra_rank1"), "dsmil")
    with pytest.raises(OptionError, match=r"--as 'clam'.*Known: .*dsmil"):
        convert(state_of("ilra_rank1"), "clam")


def test_sizes_beyond_all_bounds_are_rejected_before_memory_is_taken() -> None:
    state = {name: tensor.clone() for name, tensor in state_of("dsmil_1class").items()}
    state["i_classifier.fc.0.weight"] = torch.ones(1).expand(1, 2**40)
    with pytest.raises(ModelFileError, match="dim = 1099511627776"):
        convert(state, "dsmil")


@pytest.mark.parametrize(("key", "value"), [("groups", 0), ("sc_layers", 10**7), ("pooling", "x")])
def test_choices_beyond_their_bounds_are_rejected(key: str, value: Any) -> None:
    with pytest.raises(OptionError, match=str(value)):
        Choices(**{key: value})


class Call:
    """An object whose pickle calls a function."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("called",)


def test_a_checkpoint_that_calls_a_function_is_rejected_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": state_of("dsmil_1class"), "callback": Call()}, "a.ckpt")
    with pytest.raises(ModelFileError, match=r"a\.ckpt: .*not run.*save its weights alone"):
        read_checkpoint("a.ckpt")
    assert not Path("called").exists()


FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "text": (lambda path: path.write_text("weights"), "not a pickle"),
    "truncated": (
        lambda path: (torch.save(state_of("dsmil_1class"), path), os.truncate(path, 900)),
        "not a pickle|opcode that arrays do not need",
    ),
    "a tensor": (lambda path: torch.save(torch.ones(3), path), "state dict of tensors is needed"),
    "numbers": (lambda path: torch.save({"a": 1, "b": "x"}, path), r"a \(int\), b \(str\)"),
    "empty": (lambda path: torch.save({}, path), "state dict of tensors is needed"),
    "a folder": (lambda path: path.mkdir(), "cannot be read"),
    "nothing": (lambda path: None, "cannot be read"),
    "a pipe": (os.mkfifo, "cannot be read"),
}


@pytest.mark.parametrize("kind", FILES)
def test_other_files_are_rejected_by_name(tmp_path: Path, kind: str) -> None:
    write, message = FILES[kind]
    write(tmp_path / "a.pth")
    with pytest.raises(ModelFileError, match=rf"a\.pth: .*({message})"):
        read_checkpoint(tmp_path / "a.pth")


def test_a_damaged_safetensors_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(ModelFileError, match="not a safetensors file"):
        read_checkpoint(tmp_path / "a.safetensors")


def test_a_file_beyond_the_limit_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(state_of("dsmil_1class"), tmp_path / "a.pth")
    monkeypatch.setattr(reading, "LARGEST_CHECKPOINT", 1000)
    with pytest.raises(ModelFileError, match=r"at most 1000\. It was not read"):
        read_checkpoint(tmp_path / "a.pth")
    assert limits.LARGEST_CHECKPOINT == 2**31


def test_a_converted_model_has_settings_that_json_holds() -> None:
    for file in ("dsmil_2class", "transmil_small", "scmil_abmil_gated_sc", "mi_net_ds_max"):
        spec = convert(state_of(file), BY_FILE[file].aggregator).model.spec
        assert json.loads(json.dumps(spec)) == spec


def test_options_that_no_tensor_shows_reach_the_model() -> None:
    options = {"heads": 4, "embed.activation": "relu"}
    model = convert(state_of("stamp_vit"), "transformer", Choices(options=options)).model
    assert model.spec is not None
    assert model.spec["aggregator"]["heads"] == 4
    assert model.spec["embed"]["activation"] == "relu"
    with pytest.raises(ModelFileError, match=r"no transformer can be built.*head"):
        convert(state_of("stamp_vit"), "transformer", Choices(options={"head": 4}))


def test_tensors_without_effect_are_accounted_for() -> None:
    converted = convert(state_of("wikg"), "wikg")
    unused = [name for name, entry in converted.table.items() if entry.form == "unused"]
    assert unused == [f"gate_{x}.{part}" for x in "UVW" for part in ("weight", "bias")]
    state = {name: value for name, value in state_of("wikg").items() if name != "gate_U.bias"}
    with pytest.raises(ModelFileError, match=r"Missing: gate_U\.bias"):
        convert(state, "wikg")


def feather(gated: bool, layers: int = 1, classes: int = 3) -> dict[str, Tensor]:
    """Random weights with the names of MIL-Lab's ABMIL, the layout of FEATHER."""
    generator = torch.Generator().manual_seed(0)

    def layer(name: str, rows: int, columns: int) -> dict[str, Tensor]:
        return {
            f"{name}.weight": torch.randn(rows, columns, generator=generator),
            f"{name}.bias": torch.randn(rows, generator=generator),
        }

    state: dict[str, Tensor] = {}
    for number in range(layers):
        state |= layer(f"patch_embed.{3 * number}", 10, 6 if number == 0 else 10)
    if gated:
        state |= layer("global_attn.attention_a.0", 4, 10)
        state |= layer("global_attn.attention_b.0", 4, 10)
        state |= layer("global_attn.attention_c", 1, 4)
    else:
        state |= layer("global_attn.module.0", 4, 10) | layer("global_attn.module.3", 1, 4)
    return state | layer("classifier", classes, 10)


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
def test_the_abmil_of_mil_lab_is_converted(gated: bool, layers: int, tmp_path: Path) -> None:
    state, x = feather(gated, layers), torch.randn(7, 6)
    name = "abmil-gated" if gated else "abmil"
    path = tmp_path / "model.safetensors"
    save_file({f"model.{key}": value for key, value in state.items()}, path)  # as on the hub
    converted = convert(read_checkpoint(path), name)
    assert converted.repository == "mahmoodlab/MIL-Lab"
    assert converted.table.keys() == state.keys()

    def linear(key: str, rows: Tensor) -> Tensor:
        return rows @ state[f"{key}.weight"].T + state[f"{key}.bias"]

    h = x
    for number in range(layers):
        h = linear(f"patch_embed.{3 * number}", h).relu()
    if gated:
        a = linear("global_attn.attention_a.0", h).tanh()
        a = a * linear("global_attn.attention_b.0", h).sigmoid()
        scores = linear("global_attn.attention_c", a)
    else:
        scores = linear("global_attn.module.3", linear("global_attn.module.0", h).tanh())
    attention = scores.softmax(0)[:, 0]
    prediction = converted.model(x)
    torch.testing.assert_close(prediction.attention, attention)
    torch.testing.assert_close(prediction.logits, linear("classifier", attention @ h))


def test_each_tensor_of_clam_is_accounted_for() -> None:
    state = state_of("clam_sb_svm") | {"instance_loss_fn.labels": torch.tensor([0, 1])}
    converted = convert(state, "clam-sb")
    assert converted.table["instance_loss_fn.labels"].form == "unused"
    assert converted.model.aggregate.instance_loss == "svm"
    with pytest.raises(ModelFileError, match=r"Not expected: another\.weight"):
        convert(state | {"another.weight": torch.ones(2)}, "clam-sb")
    # Early versions without dropout number the layers differently.
    early = {key.replace("attention_net.3.", "attention_net.2."): v for key, v in state.items()}
    x = torch.randn(9, 32)
    assert torch.equal(convert(early, "clam-sb").model(x).logits, converted.model(x).logits)
