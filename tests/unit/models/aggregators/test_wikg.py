from __future__ import annotations

import pytest
import torch
from golden_numbers import Golden

from scmil.models.aggregators import wikg
from scmil.models.aggregators.wikg import WiKG, find_neighbours, neighbour_tails
from scmil.models.official_weights import convert


def test_blocks_give_the_same_numbers_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    net, h = WiKG(8, 2).double().eval(), torch.randn(29, 8, dtype=torch.float64)

    def result() -> list[torch.Tensor]:
        prediction = net(h)
        return [prediction.logits, *torch.autograd.grad(prediction.logits[0], net.to_head.weight)]

    whole = result()
    monkeypatch.setattr(wikg, "GRAPH_ROWS", 4)
    torch.testing.assert_close(result(), whole)


def test_the_neighbours_are_those_of_the_authors() -> None:
    golden = Golden("wikg")
    model = convert(golden.tensors, "wikg").model
    for bag in golden.bags:
        with torch.no_grad():
            h = model.embed(golden.x(bag))
            x = (h + h.mean(0)) / 2
            near = find_neighbours(model.aggregate.to_head(x), model.aggregate.to_tail(x), 6)
        expected = golden.get("neighbours", bag)
        assert expected is not None
        assert torch.equal(near, expected.view_as(near))


def test_fewer_instances_than_neighbours_are_all_neighbours() -> None:
    head, tail = torch.randn(2, 3, 8)
    near = find_neighbours(head, tail, 6)
    assert near.sort(1).values.tolist() == [[0, 1, 2]] * 3


def test_the_sums_over_channels_are_separate() -> None:
    """The weight of an edge is a product of two sums, and no sum of products."""
    head, tail = torch.randn(2, 5, 4, dtype=torch.float64)
    near = torch.arange(5).expand(5, 5)
    p = torch.softmax(head @ tail.T / 2, 1)[:, :, None]
    gate = torch.tanh(head[:, None] + p * tail + (1 - p) * head[:, None])
    weights = torch.softmax(tail.sum(1) * gate.sum(2), 1)
    torch.testing.assert_close(neighbour_tails(head, tail, near), weights @ tail)
