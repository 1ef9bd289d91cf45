"""What every encoder promises, with random weights: the smallest one of each family is built."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from scmil.encoding import encoders
from scmil.encoding.encoders import Encoder, load_encoder
from scmil.encoding.encoders.optimise import synthetic_tiles
from scmil.errors import ShapeError

NAMES = [*encoders.FIRST, "kaiko-vits16", "kimianet", "timm:resnet10t"]
every_name = pytest.mark.parametrize("name", NAMES)


@cache
def encoder(name: str) -> Encoder:
    return load_encoder(name, random=0, precision="float32")


@cache
def features(name: str) -> Tensor:
    return encoder(name)(tiles())


def tiles(size_px: int = 64) -> Tensor:
    return synthetic_tiles(size_px, count=2)


@pytest.mark.parametrize("entry", encoders.encoder_status(), ids=lambda entry: entry.name)
def test_inputs_and_outputs_are_known_before_it_is_built(
    entry: encoders.EncoderStatus,
) -> None:
    assert 0 < len(entry.summary) < 60
    assert bool(entry.where) == entry.ready != bool(entry.remedy)
    if entry.name in NAMES:
        built = encoder(entry.name)
        assert (built.dim, built.size_px, built.mpp) == (entry.dim, entry.size_px, entry.mpp)


@every_name
def test_features_are_float32_finite_and_of_the_declared_dimension(name: str) -> None:
    assert features(name).shape == (2, encoder(name).dim)
    assert features(name).dtype == torch.float32
    assert features(name).isfinite().all()
    assert not features(name).requires_grad


@every_name
def test_different_tiles_have_different_features(name: str) -> None:
    assert (features(name)[0] - features(name)[1]).abs().max() > 1e-3


@every_name
def test_the_same_tiles_have_the_same_features(name: str) -> None:
    assert torch.equal(encoder(name)(tiles()), features(name))


@every_name
def test_features_do_not_depend_on_the_other_tiles_of_a_batch(name: str) -> None:
    scale = features(name).abs().max()
    assert (encoder(name)(tiles()[1:2]) - features(name)[1]).abs().max() < 1e-4 * scale


@every_name
def test_no_tiles_have_no_features(name: str) -> None:
    assert encoder(name)(tiles()[:0]).shape == (0, encoder(name).dim)


@every_name
def test_tiles_of_another_size_are_encoded_too(name: str) -> None:
    assert encoder(name)(tiles(100)[:1]).shape == (1, encoder(name).dim)


@every_name
def test_an_invalid_batch_of_tiles_is_rejected(name: str) -> None:
    for wrong in (tiles().float(), tiles()[0], tiles().permute(0, 3, 1, 2)):
        with pytest.raises(ShapeError, match=r"expected uint8 of shape \(b, h, w, 3\)"):
            encoder(name)(wrong)


@every_name
def test_random_weights_warn_and_are_reproducible_by_seed(name: str) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    again = load_encoder(name, random=0, precision="float32")
    assert torch.equal(torch.get_rng_state(), before)
    assert again.name == f"{name}, random weights of seed 0"
    assert again.weights_source == "random, seed 0"
    assert again.digest == encoder(name).digest


@every_name
def test_bfloat16_has_the_digest_of_the_weights_that_were_read(name: str) -> None:
    fast = encoder(name).to("cpu", "bfloat16")
    assert (fast.precision, fast.digest) == ("bfloat16", encoder(name).digest)
    assert torch.cosine_similarity(fast(tiles()), features(name)).min() > 0.999
