"""Tiles are resized, cropped and normalised as images are by Pillow and torchvision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from scmil.encoding import encoders
from scmil.encoding.encoders import Encoder, card_of
from scmil.encoding.encoders.builders import build_network, count_parameters
from scmil.encoding.encoders.load_card import load_card
from scmil.encoding.encoders.optimise import synthetic_tiles

FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}
# One card for each way in which tiles go in: size, crop, interpolation and colours.
CARDS = list(
    {
        (card.input.resize_px, card.input.crop_px, card.input.interpolation, card.input.mean): name
        for name, card in encoders._cards.items()
        if card.builder
    }.values()
)


def encoder_of(name: str) -> Encoder:
    """An encoder with the input of a card, which returns its normalised input."""
    shown = card_of(name).input
    return Encoder(
        name,
        3,
        nn.Identity(),
        "",
        "",
        input_px=shown.resize_px or None,
        crop_px=shown.crop_px or None,
        interpolation=shown.interpolation,
        mean=shown.mean,
        std=shown.std,
    )


def by_pillow(tile: np.ndarray, name: str) -> Tensor:
    """One tile by Pillow and plain arithmetic."""
    shown = card_of(name).input
    image = Image.fromarray(tile)
    if shown.resize_px:
        image = image.resize((shown.resize_px,) * 2, FILTERS[shown.interpolation])
    if shown.crop_px:
        edge = (shown.resize_px - shown.crop_px) // 2
        image = image.crop((edge, edge, edge + shown.crop_px, edge + shown.crop_px))
    pixels = np.asarray(image).astype(np.float64) / 255
    return torch.from_numpy((pixels - np.array(shown.mean)) / np.array(shown.std)).permute(2, 0, 1)


@pytest.mark.parametrize("name", CARDS)
@pytest.mark.parametrize("side", [224, 256, 512])
def test_the_input_of_a_card_is_that_of_pillow(name: str, side: int) -> None:
    tiles = synthetic_tiles(side, count=1)
    tiles[:, : side // 2, : side // 2] = 255  # an edge, at which bicubic weights overshoot
    tiles[:, : side // 3, : side // 3] = 0
    ours = encoder_of(name)._normalise(tiles)[0].double()
    theirs = by_pillow(tiles[0].numpy(), name)
    assert ours.shape == theirs.shape
    grey = 1.2 / 255 / min(card_of(name).input.std)  # Pillow rounds after each of two passes
    assert (ours - theirs).abs().max() < grey


def test_bicubic_and_bilinear_differ_and_a_crop_is_not_a_resize() -> None:
    tiles = synthetic_tiles(256, count=1)
    bicubic = encoder_of("h-optimus-0")._normalise(tiles)
    bilinear = encoder_of("h-optimus-0:bilinear")._normalise(tiles)
    cropped = encoder_of("gigapath")._normalise(tiles)
    whole = encoder_of("gigapath:whole-tile")._normalise(tiles)
    assert bicubic.shape == bilinear.shape == cropped.shape == whole.shape == (1, 3, 224, 224)
    assert (bicubic - bilinear).abs().max() > 0.05
    assert (cropped - whole).abs().max() > 0.5
    same = synthetic_tiles(224, count=1)
    one, other = (encoder_of(n)._normalise(same) for n in ("h-optimus-0", "h-optimus-0:bilinear"))
    assert torch.equal(one, other)  # nothing is resized


def test_colours_stay_in_the_range_of_pixels() -> None:
    tiles = torch.zeros(1, 256, 256, 3, dtype=torch.uint8)
    tiles[:, ::16] = 255
    encoder = replace(encoder_of("h-optimus-0"), mean=(0.0,) * 3, std=(1.0,) * 3)
    x = encoder._normalise(tiles)
    assert x.min() >= 0
    assert x.max() <= 1


def test_the_input_of_a_card_reaches_its_encoder() -> None:
    card = replace(
        card_of("gigapath"),
        arguments={"img_size": 224, "embed_dim": 24, "depth": 1, "num_heads": 2},
    )
    card = replace(card, parameters=count_parameters(build_network(card)))
    encoder = load_card(card, random=0)
    assert (encoder.input_px, encoder.crop_px, encoder.interpolation) == (256, 224, "bicubic")
    assert (encoder.size_px, encoder.mpp, encoder.mean) == (256, 0.5, card.input.mean)
    assert encoder(synthetic_tiles(256, count=1)).shape == (1, 24)
