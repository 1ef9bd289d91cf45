"""EfficientNet-Lite0 sees what is on photographs: the weights are in their places and the pixels in
their range.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_sample_images
from torch.nn.functional import interpolate

from scmil.encoding.encoders import Encoder, encoder_status, load_encoder
from scmil.encoding.encoders import optimise as speed
from scmil.encoding.encoders.efficientnet_lite import to_timm
from scmil.encoding.encoders.weights import read_state

PALACE, BELL_COTE, DAISY = 698, 442, 985  # classes of ImageNet


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return load_encoder("efficientnet-lite0", precision="float32")


def test_it_is_ready_without_a_download() -> None:
    entry = next(entry for entry in encoder_status() if entry.name == "efficientnet-lite0")
    assert entry.ready
    assert entry.where.endswith("efficientnet-lite0-57934424.pth")


def test_photographs_are_recognised(encoder: Encoder) -> None:
    entry = next(entry for entry in encoder_status() if entry.name == "efficientnet-lite0")
    state = read_state(Path(entry.where))
    photographs = torch.stack(
        [torch.from_numpy(image[:, 106:533].copy()) for image in load_sample_images().images]
    )
    small = interpolate(
        photographs.permute(0, 3, 1, 2).float(), (224, 224), mode="bilinear", antialias=True
    )
    features = encoder(small.permute(0, 2, 3, 1).round().to(torch.uint8))
    china, flower = (features @ state["_fc.weight"].T + state["_fc.bias"]).topk(2).indices.tolist()
    assert set(china) == {PALACE, BELL_COTE}
    assert flower[0] == DAISY


def test_pixels_go_in_as_the_network_was_trained(encoder: Encoder) -> None:
    white = encoder._normalise(torch.full((1, 8, 8, 3), 255, dtype=torch.uint8))
    assert torch.allclose(white, torch.tensor((255 - 127) / 128))


def test_bfloat16_would_change_these_features_and_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(speed, "computes_bfloat16", lambda device: True)
    assert load_encoder("efficientnet-lite0").precision == "float32"


def test_a_name_that_is_not_known_is_not_renamed() -> None:
    names = ["_blocks.16._bn0.bias", "_blocks.0._bn0.bias", "_blocks.1._se.bias", "_fc.bias"]
    assert list(to_timm({name: torch.ones(1) for name in names})) == names
