"""Additive MIL: a logit that is a sum over the instances, Javed et al. (2022)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scmil.core.shapes import Float
from scmil.models.aggregators import Embedding, Evidence, Prediction, register
from scmil.models.aggregators.abmil import AttentionScore


@register("additive", "a sum of the instances' contributions")
class AdditiveMIL(nn.Module):
    """Classifies each instance, scaled by its attention, and adds the results.

    `a = softmax_k(score(h_k))`, `logits = b + sum_k (psi(a_k h_k) - psi(0))`, with
    `psi(z) = W_2 relu(W_1 z + b_1)`. The contribution of an instance to the logit of a class is
    exact and signed, and the contributions and b sum to the logits.

    No official code was found. Two choices are ours. psi(0) is subtracted, so that an instance
    without attention contributes nothing; otherwise the biases would be counted n times. psi has a
    hidden layer with a bias: with a linear psi, and with a ReLU layer without bias, the attention
    can be moved behind psi, which is ABMIL on other features.

    Args:
        dim: Width of the embeddings.
        classes: Number of classes.
        hidden: Width of the attention.
        psi: Width of the hidden layer of psi.
        gated: Gated attention, as in `abmil-gated`.

    >>> net, h = AdditiveMIL(4, classes=2), torch.ones(3, 4)
    >>> contributions, _ = net.contributions(h)
    >>> torch.allclose(contributions.sum(0) + net.bias, net(h).logits)
    True
    """

    permutation_invariant = True
    evidence_by_rows = True
    embedding = Embedding(widths=(512,), bias=False)

    def __init__(
        self, dim: int, classes: int, hidden: int = 128, psi: int = 128, gated: bool = True
    ) -> None:
        super().__init__()
        self.score = AttentionScore(dim, hidden, gated)
        self.first = nn.Linear(dim, psi)
        self.second = nn.Linear(psi, classes, bias=False)
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, h: Float[Tensor, "n d"]) -> Prediction:
        contributions, attention = self.contributions(h)
        return Prediction(contributions.sum(0) + self.bias, attention)

    def contributions(
        self, h: Float[Tensor, "n d"]
    ) -> tuple[Float[Tensor, "n c"], Float[Tensor, " n"]]:
        """The contribution of each instance to each logit, and the attention.

        The logits are the sum of the contributions and `bias`.
        """
        attention = torch.softmax(self.score(h), dim=0)
        return self._contributions(h, attention), attention

    def _contributions(
        self, h: Float[Tensor, "n d"], attention: Float[Tensor, " n"]
    ) -> Float[Tensor, "n c"]:
        hidden = torch.relu(self.first(attention[:, None] * h))
        return self.second(hidden - torch.relu(self.first.bias))

    def evidence(self, h: Float[Tensor, "n d"], attention: Float[Tensor, " n"]) -> Evidence:
        """The contributions with the attention as given, and the bias."""
        return Evidence(self._contributions(h, attention.detach()), self.bias, linear=False)
