"""CTransPath from a file in the layout of timm 0.5.4: every weight in its place, the stem's above
all.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from scmil.encoding.encoders import built, load_encoder
from scmil.encoding.encoders.ctranspath import IGNORES, ctranspath, to_current_timm
from scmil.encoding.encoders.optimise import synthetic_tiles
from scmil.encoding.encoders.weights import digest, load_state
from scmil.errors import WeightsError

STEM = [f"patch_embed.proj.{layer}.weight" for layer in (0, 1, 3, 4, 6)]


@pytest.fixture(scope="module")
def network() -> nn.Module:
    """With batch norms that are not the identity, so that a lost one would be seen."""
    network = built(ctranspath, seed=3)
    generator = torch.Generator().manual_seed(3)
    for value in network.state_dict().values():
        if value.is_floating_point():
            value.add_(0.05 * torch.randn(value.shape, generator=generator))
    return network


def in_the_old_layout(network: nn.Module) -> dict[str, Tensor]:
    """Patches are merged at the end of a stage, and masks and positions are kept, as the authors'
    timm did.
    """
    state = {}
    for name, value in network.state_dict().items():
        stage = name.split(".")[1]
        moved = f"layers.{int(stage) - 1}.downsample" if ".downsample." in name else ""
        state[name.replace(f"layers.{stage}.downsample", moved) if moved else name] = value
    state["layers.0.blocks.1.attn_mask"] = torch.zeros(64, 49, 49)
    state["layers.0.blocks.0.attn.relative_position_index"] = torch.zeros(49, 49, dtype=torch.int64)
    return state


def saved(state: dict[str, Tensor], folder: Path) -> Path:
    torch.save({"model": state}, folder / "own.pth")
    return folder / "own.pth"


def test_the_old_layout_is_really_another_one(network: nn.Module) -> None:
    old = in_the_old_layout(network)
    assert "layers.0.downsample.reduction.weight" in old
    assert "layers.3.downsample.reduction.weight" not in old
    assert set(STEM) <= set(old)


def test_features_are_those_of_the_network_whose_weights_went_in(
    network: nn.Module, tmp_path: Path
) -> None:
    state = in_the_old_layout(network) | {
        "head.weight": torch.ones(2, 768),
        "head.bias": torch.ones(2),
    }
    encoder = load_encoder("ctranspath", saved(state, tmp_path), precision="float32")
    tiles = synthetic_tiles(224, count=1)
    x = (tiles / 255 - torch.tensor(encoder.mean)) / torch.tensor(encoder.std)
    expected = network(x.permute(0, 3, 1, 2))
    assert torch.allclose(encoder(tiles), expected, atol=1e-4)
    assert torch.cosine_similarity(encoder(tiles), expected).min() > 0.999999
    assert encoder.dim == expected.shape[1] == 768


def test_the_current_layout_is_read_too(network: nn.Module) -> None:
    taker = built(ctranspath)
    for state in (in_the_old_layout(network), network.state_dict()):
        for value in taker.state_dict().values():
            value.zero_()
        load_state(taker, to_current_timm(state), IGNORES, "own.pth")
        assert digest(taker) == digest(network)


def test_a_stem_that_is_missing_is_reported_and_never_random(
    network: nn.Module, tmp_path: Path
) -> None:
    state = in_the_old_layout(network)
    del state["patch_embed.proj.0.weight"]
    with pytest.raises(
        WeightsError,
        match=r"own\.pth: these are not .* Missing: patch_embed\.proj\.0\.weight\. Expected",
    ):
        load_encoder("ctranspath", saved(state, tmp_path))


def test_every_weight_is_needed(network: nn.Module) -> None:
    complete = in_the_old_layout(network)
    weights = {
        name
        for name in complete
        if not re.match(IGNORES, name) and not name.endswith("num_batches_tracked")
    }
    assert len(weights) == 181  # 12 blocks of 13, 3 mergings of 3, the stem's 14, the last norm's 2
    for lost in weights:
        state = {name: value for name, value in complete.items() if name != lost}
        with pytest.raises(WeightsError, match="Missing"):
            load_state(network, to_current_timm(state), IGNORES, "own.pth")


def test_weights_of_an_ordinary_swin_are_rejected(network: nn.Module) -> None:
    state = {
        name: value
        for name, value in in_the_old_layout(network).items()
        if "patch_embed.proj." not in name
    }
    state |= {
        "patch_embed.proj.weight": torch.zeros(96, 3, 4, 4),
        "patch_embed.proj.bias": torch.zeros(96),
    }
    with pytest.raises(
        WeightsError,
        match=r"Missing: patch_embed\.proj\.0.* Not expected: patch_embed\.proj\.weight",
    ):
        load_state(network, to_current_timm(state), IGNORES, "own.pth")
