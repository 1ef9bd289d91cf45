from __future__ import annotations

import torch
from torch import nn

from scmil.models.aggregators.abmil import ABMIL
from scmil.models.aggregators.additive import AdditiveMIL


def test_the_contributions_and_the_bias_sum_to_the_logits() -> None:
    net, h = AdditiveMIL(12, 3).double(), torch.randn(50, 12, dtype=torch.float64)
    nn.init.normal_(net.bias)
    contributions, attention = net.contributions(h)
    assert contributions.shape == (50, 3)
    torch.testing.assert_close(contributions.sum(0) + net.bias, net(h).logits)
    torch.testing.assert_close(attention, net(h).attention)


def test_an_instance_without_attention_contributes_nothing() -> None:
    net, h = AdditiveMIL(12, 2), torch.randn(4, 12)
    nn.init.normal_(net.first.bias)
    net.score.forward = lambda h: torch.tensor([0.0, 0.0, -torch.inf, 0.0])  # type: ignore[method-assign]
    assert (net.contributions(h)[0][2] == 0).all()


def test_a_hidden_layer_makes_it_another_model_than_abmil() -> None:
    """With the contributions of a linear psi it is ABMIL; with those of ours it is not."""
    torch.manual_seed(0)
    net, h = AdditiveMIL(12, 2, gated=False).double(), torch.randn(20, 12, dtype=torch.float64)
    abmil = ABMIL(12, 2).double()
    abmil.score.load_state_dict(net.score.state_dict())
    linear = net.second.weight @ net.first.weight  # psi without its ReLU
    with torch.no_grad():
        abmil.classifier.weight.copy_(linear)
        abmil.classifier.bias.zero_()
    attention = net(h).attention
    torch.testing.assert_close(((attention[:, None] * h) @ linear.T).sum(0), abmil(h).logits)
    assert (net(h).logits - abmil(h).logits).abs().max() > 1e-3
    # With a bias in the hidden layer the attention cannot be moved behind psi either.
    features = torch.relu(net.first(h)) - torch.relu(net.first.bias)
    behind = net.second(attention @ features)
    assert (net(h).logits - behind).abs().max() > 1e-4
