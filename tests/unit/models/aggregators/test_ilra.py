from __future__ import annotations

import math

import pytest
import torch

from scmil.models.aggregators.ilra import ILRA


def test_the_rank_is_the_number_of_latents_and_the_pooling_has_one_query() -> None:
    net = ILRA(20, 2, rank=7)
    assert [layer.latent.shape for layer in net.layers] == [(7, 256), (7, 256)]
    assert net.query.shape == (1, 256)
    assert net(torch.randn(5, 20)).logits.shape == (2,)


def test_with_rank_one_the_instances_cannot_choose_a_latent() -> None:
    net = ILRA(20, 2, rank=1)
    net(torch.randn(5, 20)).logits.sum().backward()
    assert all(layer.scatter.k.weight.grad.abs().max() < 1e-7 for layer in net.layers)


@pytest.mark.parametrize("rank", [1, 4, 256])
def test_latents_and_query_start_within_the_bounds_of_the_authors(rank: int) -> None:
    """Xavier's bound of a tensor (1, r, d), as torch computes it: fan in r d, fan out d."""
    net = ILRA(20, 2, rank=rank)
    for latent in (layer.latent for layer in net.layers):
        bound = math.sqrt(6 / (rank * 256 + 256))
        assert 0.95 * bound < latent.abs().max() <= bound
    bound = math.sqrt(6 / 512)
    assert 0.95 * bound < net.query.abs().max() <= bound
