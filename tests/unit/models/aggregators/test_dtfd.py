from __future__ import annotations

import pytest
import torch

from scmil.models.aggregators.dtfd import DTFD


@pytest.mark.parametrize("distill", ["maxmin", "afs"])
def test_tier_two_sends_no_gradient_to_tier_one(distill: str) -> None:
    net, h = DTFD(6, 2, distill=distill), torch.randn(20, 6, requires_grad=True)
    net(h).logits.sum().backward()
    assert h.grad is None
    assert all(p.grad is None for p in net.tier1.parameters())
    joint = DTFD(6, 2, distill=distill, joint=True)
    joint(h).logits.sum().backward()
    assert h.grad is not None


def test_groups_are_drawn_from_the_generator_that_is_passed_in() -> None:
    h = torch.randn(50, 6)
    net = DTFD(6, 2, distill="afs", generator=torch.Generator().manual_seed(3))
    first, second = net(h).logits, net(h).logits
    assert not torch.equal(first, second)
    net.generator = torch.Generator().manual_seed(3)
    torch.manual_seed(99)
    assert torch.equal(net(h).logits, first)


def test_every_pseudo_bag_is_supervised_and_small_bags_have_fewer() -> None:
    assert len(DTFD(6, 2)(torch.randn(20, 6)).auxiliary) == 4
    assert len(DTFD(6, 2)(torch.randn(3, 6)).auxiliary) == 3


def test_max_min_hands_on_the_extremes_of_the_class_activation() -> None:
    net, h = DTFD(6, 2), torch.randn(9, 6)
    tier1 = net.tier1(h)
    activation = torch.softmax((tier1.attention[:, None] * h) @ net.tier1.classifier.weight.T, 1)[
        :, 1
    ]
    expected = h[[int(activation.argmax()), int(activation.argmin())]]
    torch.testing.assert_close(net._distil(h, tier1), expected)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_bag_smaller_than_the_groups_has_no_empty_pseudo_bag(n: int) -> None:
    """The official code keeps four groups; empty ones add zero vectors to tier 2."""
    net, h = DTFD(6, 2, distill="afs").eval(), torch.randn(n, 6)
    prediction = net(h)
    assert len(prediction.auxiliary) == n
    torch.testing.assert_close(prediction.logits, net.tier2(h).logits)  # one instance each
    official = net.tier2(torch.cat([h, torch.zeros(4 - n, 6)]))
    assert not torch.allclose(prediction.logits, official.logits)
    assert float(prediction.attention.detach().sum()) == pytest.approx(1.0)
