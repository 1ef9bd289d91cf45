"""An encoder normalises as its network was trained, and is made fast only where its features stay
the same.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from scmil.encoding.encoders import Encoder, tile_warnings
from scmil.encoding.encoders import optimise as speed
from scmil.encoding.encoders.encoder import IMAGENET_MEAN, IMAGENET_STD, agreement
from scmil.errors import OptionError


class Block(nn.Module):
    """A convolution whose batch norm can be folded, and one whose result is used twice, so that it
    cannot.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        once = self.conv2(self.bn1(self.conv1(x)).relu())
        return (self.bn2(once) + once).mean((2, 3))


def lively(network: nn.Module) -> nn.Module:
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -1, 1)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.uniform_(module.bias, -1, 1)
    return network.eval().requires_grad_(False)


def encoder(network: nn.Module | None = None, **options: object) -> Encoder:
    return replace(Encoder("toy", 8, network or lively(Block()), "", "", foldable=True), **options)


def tiles(size: int = 32) -> Tensor:
    return torch.randint(256, (4, size, size, 3), dtype=torch.uint8)


class Seen(nn.Module):
    """Remembers what goes in."""

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        return x.mean((2, 3))


def test_pixels_are_normalised_with_the_mean_and_deviation_of_training() -> None:
    network, batch = Seen(), tiles()
    encoder(network)(batch)
    expected = (batch / 255 - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
    assert torch.allclose(network.x, expected.permute(0, 3, 1, 2), atol=1e-5)
    assert network.x.is_contiguous(memory_format=torch.channels_last)


def test_tiles_are_resized_to_what_the_network_takes() -> None:
    network, batch = Seen(), tiles(64)
    encoder(network, input_px=48, mean=(0, 0, 0), std=(1 / 255,) * 3)(batch)
    expected = interpolate(
        batch.permute(0, 3, 1, 2).float(), (48, 48), mode="bilinear", antialias=True
    )
    assert torch.allclose(network.x, expected, atol=1e-3)


def test_a_model_can_be_trained_on_the_features() -> None:
    model = nn.Linear(8, 2)
    model(encoder()(tiles())).sum().backward()
    assert model.weight.grad is not None


def test_batch_norms_are_folded_where_that_is_the_same() -> None:
    network = lively(Block())
    fast = speed.folded(network)
    x = torch.randn(2, 3, 16, 16)
    assert torch.allclose(fast(x), network(x), atol=1e-5)
    assert isinstance(fast.bn1, nn.Identity)
    assert isinstance(fast.bn2, nn.BatchNorm2d)
    assert isinstance(network.bn1, nn.BatchNorm2d)  # the original is as it was


def test_float32_stays_exact_and_the_original_is_untouched() -> None:
    original, batch = encoder(), tiles()
    before = original(batch)
    for precision in ("float32", "bfloat16"):
        assert original.to("cpu", precision).precision == precision
    assert torch.equal(original(batch), before)
    assert torch.allclose(original.to("cpu", "float32")(batch), before, atol=1e-5)
    assert original.to("cpu", "bfloat16")(batch).dtype == torch.float32


@pytest.mark.parametrize(("native", "expected"), [(True, "bfloat16"), (False, "float32")])
def test_auto_is_bfloat16_where_the_device_computes_in_it(
    native: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "computes_bfloat16", lambda device: native)
    assert encoder().to().precision == expected


class Fragile(nn.Module):
    """Takes differences of large numbers, which bfloat16 cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Parameter(torch.tensor(1000.0))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.large - self.large).mean((2, 3))


def test_auto_stays_float32_where_bfloat16_changes_the_features(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(speed, "computes_bfloat16", lambda device: True)
    fragile = encoder(Fragile(), foldable=False)
    assert agreement(fragile, fragile.to("cpu", "bfloat16")) < 0.999
    assert fragile.to().precision == "float32"


def test_bfloat16_has_no_way_back() -> None:
    fast = encoder().to("cpu", "bfloat16")
    assert fast.to().precision == "bfloat16"
    with pytest.raises(OptionError, match=r"cannot be converted back to float32\. Load it again"):
        fast.to("cpu", "float32")


def test_an_unknown_precision_is_rejected() -> None:
    with pytest.raises(OptionError, match="'float16'; expected one of auto, float32, bfloat16"):
        encoder().to("cpu", "float16")


def test_devices_other_than_these_are_not_thought_fast() -> None:
    assert not speed.computes_bfloat16(torch.device("meta"))


def test_synthetic_tiles_are_reproducible_and_show_tissue_and_glass() -> None:
    tiles = speed.synthetic_tiles(64)
    assert torch.equal(tiles, speed.synthetic_tiles(64))
    assert tiles.max() > 240
    assert tiles.min() < 100


def test_tiles_other_than_an_encoder_expects_are_warned_of() -> None:
    assert tile_warnings(encoder(), 256, 0.25) == []  # any resolution
    resized = encoder(mpp=0.5, input_px=224)
    assert tile_warnings(resized, 256, 0.5022) == []
    size, resolution = tile_warnings(resized, 512, 1.0)
    assert (
        size == "toy expects tiles of 256 px, but the tiles have 512 px and are resized to 224 px."
    )
    assert resolution.endswith(
        "0.5 µm per pixel, but the tiles have 1: objects appear 2 times as small."
    )
    assert tile_warnings(encoder(), 512, 1.0)[0].endswith("are not resized.")
