from __future__ import annotations

import math

import pytest
import torch

from scmil.models.aggregators.rrt import (
    RRTMIL,
    RegionAttention,
    RRTEncoder,
    fold_regions,
    unfold_regions,
)


def test_regions_are_squares_of_the_rows_in_order() -> None:
    x = torch.arange(1.0, 251.0)[:, None]  # side 16, regions of 2 x 2
    regions = fold_regions(x)
    assert regions.shape == (64, 4, 1)
    assert regions[0].flatten().tolist() == [1, 2, 17, 18]
    assert regions[9].flatten().tolist() == [35, 36, 51, 52]
    assert regions[-1].flatten().tolist() == [239, 240, 0, 0]  # filled up with zeros
    assert torch.equal(unfold_regions(regions, 250), x)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 256, 257])
def test_every_number_of_instances_keeps_its_order(n: int) -> None:
    x = torch.randn(n, 3)
    assert torch.equal(unfold_regions(fold_regions(x), n), x)


def test_the_convolution_of_the_queries_is_that_of_the_scores() -> None:
    """EPEG as its authors write it: scores + convolution of the scores along the queries."""
    attention = RegionAttention(16, heads=4, kernel=5).double().eval()
    x = torch.randn(3, 9, 16, dtype=torch.float64)
    q, k, v = attention.to_qkv(x).view(3, 9, 3, 4, 4).permute(2, 0, 3, 1, 4)
    scores = q @ k.mT / 2
    assert attention.position is not None
    scores = scores + torch.nn.functional.conv2d(
        scores, attention.position.weight, padding=(2, 0), groups=4
    )
    expected = attention.to_out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x), expected)


def test_up_to_64_instances_each_is_alone_in_its_region() -> None:
    encoder = RRTEncoder(16).double().eval()
    x = torch.randn(64, 16, dtype=torch.float64)
    order = torch.randperm(64)
    torch.testing.assert_close(encoder(x)[order], encoder(x[order]))
    x = torch.randn(90, 16, dtype=torch.float64)
    assert (encoder(x).flip(0) - encoder(x.flip(0))).abs().max() > 1e-3


def test_a_width_that_the_heads_do_not_divide_is_accepted() -> None:
    assert RRTEncoder(10)(torch.randn(70, 10)).shape == (70, 10)


def test_it_starts_as_its_authors_do() -> None:
    net = RRTMIL(512, 2)
    phi = net.encoder.layers[1].phi.weight
    # Kaiming's bound for a tensor (512, 3) with a = sqrt(5): 1 / sqrt(fan in), which is 3.
    assert 0.9 / math.sqrt(3) < phi.abs().max() <= 1 / math.sqrt(3)
    qkv = net.encoder.layers[0].to_qkv
    assert qkv.weight.std().item() == pytest.approx(math.sqrt(2 / (512 + 1536)), rel=0.02)
    assert (qkv.bias == 0).all()


def test_bad_options_are_errors() -> None:
    with pytest.raises(ValueError, match="kernel = 4: the convolution of EPEG needs an odd length"):
        RRTEncoder(16, kernel=4)
    with pytest.raises(ValueError, match=r"activation = 'gelu'\. Known: relu, tanh"):
        RRTMIL(16, 2, activation="gelu")
