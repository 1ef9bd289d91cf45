from __future__ import annotations

import torch

from scmil.models.aggregators.abmil import ABMIL


def test_gated_attention_is_the_formula() -> None:
    net, h = ABMIL(6, 2, hidden=4, gated=True), torch.randn(5, 6)
    score = net.score
    assert score.U is not None
    scores = torch.stack(
        [score.w(torch.tanh(score.V(row)) * torch.sigmoid(score.U(row))) for row in h]
    )[:, 0]
    a = scores.exp() / scores.exp().sum()
    prediction = net(h)
    torch.testing.assert_close(prediction.attention, a)
    torch.testing.assert_close(
        prediction.logits, net.classifier(sum(w * row for w, row in zip(a, h, strict=True)))
    )


def test_plain_attention_is_the_formula_without_the_gate() -> None:
    net, h = ABMIL(6, 2, hidden=4), torch.randn(5, 6)
    scores = torch.stack([net.score.w(torch.tanh(net.score.V(row))) for row in h])[:, 0]
    torch.testing.assert_close(net(h).attention, scores.exp() / scores.exp().sum())
