"""Any model of timm, by its name: its own input, weights from a file, from the hub when that is
allowed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from scmil.encoding.encoders import load_encoder
from scmil.encoding.encoders.timm_any import timm
from scmil.errors import UnknownNameError, WeightsError

MODEL = "resnet10t"


def test_a_file_gives_the_weights_and_its_classifier_is_left_out(tmp_path: Path) -> None:
    torch.manual_seed(3)
    whole = timm().create_model(MODEL, num_classes=10)
    save_file(whole.state_dict(), tmp_path / "own.safetensors")
    encoder = load_encoder(
        f"timm:{MODEL}", tmp_path / "own.safetensors", offline=True, precision="float32"
    )
    x = torch.zeros(1, 176, 176, 3, dtype=torch.uint8)
    normalised = ((x / 255 - torch.tensor(encoder.mean)) / torch.tensor(encoder.std)).permute(
        0, 3, 1, 2
    )
    expected = whole.eval().forward_head(whole.forward_features(normalised), pre_logits=True)
    assert torch.allclose(encoder(x), expected, atol=1e-4)
    assert encoder.weights_source.startswith("own.safetensors, sha256 ")


def test_weights_of_another_model_are_rejected(tmp_path: Path) -> None:
    save_file(
        timm().create_model("resnet14t", num_classes=10).state_dict(), tmp_path / "own.safetensors"
    )
    with pytest.raises(
        WeightsError, match=r"not the weights of this network\. Not expected: .* Other shapes"
    ):
        load_encoder(f"timm:{MODEL}", tmp_path / "own.safetensors")


def test_the_input_is_timms_own() -> None:
    encoder = load_encoder("timm:mobilenetv3_small_050", random=0, precision="float32")
    config = timm().get_pretrained_cfg("mobilenetv3_small_050")
    assert (encoder.input_px, encoder.mean, encoder.std) == (
        config.input_size[-1],
        config.mean,
        config.std,
    )
    # A layer behind the pool.
    assert encoder(torch.zeros(1, 64, 64, 3, dtype=torch.uint8)).shape == (1, encoder.dim)


def test_an_unknown_model_is_rejected() -> None:
    with pytest.raises(
        UnknownNameError, match=r"timm has no model 'resnet19'\. Did you mean 'timm:resnet1"
    ):
        load_encoder("timm:resnet19", random=0)


def test_offline_nothing_is_asked_of_the_hub() -> None:
    with pytest.raises(
        WeightsError, match=r"its weights have to be downloaded, but scmil is offline\. Give a file"
    ):
        load_encoder(f"timm:{MODEL}", offline=True)
    with pytest.raises(
        WeightsError, match="its architecture has to be read from the hub, but scmil is offline"
    ):
        load_encoder("timm:hf-hub:owner/model", "own.pth", offline=True)


def test_the_hub_is_asked_when_it_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    create = timm().create_model
    monkeypatch.setattr(
        timm(), "create_model", lambda name, pretrained=False, **more: create(name, **more)
    )
    encoder = load_encoder(f"timm:{MODEL}", offline=False, precision="float32")
    assert encoder.weights_source == "timm's hub, timm/resnet10t.c3_in1k"

    def unreachable(name: str, pretrained: bool = False, **more: Any) -> Any:
        if pretrained:
            raise ConnectionError("no route")
        return create(name, **more)

    monkeypatch.setattr(timm(), "create_model", unreachable)
    with pytest.raises(
        WeightsError, match=r"cannot download its weights \(no route\)\. Give a file"
    ):
        load_encoder(f"timm:{MODEL}", offline=False)
