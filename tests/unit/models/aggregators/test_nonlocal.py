from __future__ import annotations

import pytest
import torch

from scmil.models.aggregators import nonlocal_
from scmil.models.aggregators.nonlocal_ import NonLocal


def test_the_block_is_the_formula() -> None:
    net, h = NonLocal(6, 2), torch.randn(7, 6)
    A = torch.softmax(net.theta(h) @ net.phi(h).T, 1)
    expected = net.classifier((h + net.W(A @ net.g(h))).mean(0))
    prediction = net(h)
    torch.testing.assert_close(prediction.logits, expected)
    torch.testing.assert_close(prediction.attention, A.mean(0))


def test_the_share_of_a_part_goes_back_to_its_instances() -> None:
    n = 50
    # Row s: how part s averages the instances.
    pooled = nonlocal_._pyramid(torch.eye(n, dtype=torch.float64))
    weights = torch.rand(110, dtype=torch.float64)
    weights /= weights.sum()
    order = torch.randperm(n)
    expected = (weights @ pooled)[order.argsort()]
    torch.testing.assert_close(nonlocal_._spread(weights, order), expected)


@pytest.mark.parametrize("n", [1, 5, 64, 200])
def test_small_and_large_bags_have_the_same_pyramid(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence = torch.randn(n, 3, dtype=torch.float64)
    small = nonlocal_._pyramid(sequence)
    monkeypatch.setattr(nonlocal_, "ATTENTION_ROWS", 0)
    torch.testing.assert_close(small, nonlocal_._pyramid(sequence))


def test_the_weights_of_all_pairs_are_not_stored_for_the_gradient() -> None:
    n = 300
    sizes: list[int] = []

    def record(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel())
        return tensor

    net, h = NonLocal(8, 2), torch.randn(n, 8)
    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        net(h).logits.sum().backward()
    assert sizes
    assert max(sizes) < n * n
