from __future__ import annotations

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
