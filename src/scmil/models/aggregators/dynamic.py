"""DP-MINN, dynamic pooling: Yan et al. (2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scmil.core.shapes import Float
from scmil.models.aggregators import CLASSICAL, Prediction, register


@register("dp-minn", "dynamic pooling: routing by agreement")
class DynamicPooling(nn.Module):
    """Routes the instances to a bag vector by agreement; the length of that vector is the
    probability.

    `b = 0`; three times: `c = softmax_k(b)`, `s = sum_k c_k h_k`, `v = |s|^2 / (1 + |s|^2) s /
    |s|`, `b_k += h_k . v`. The probability is |v|, with no classifier. Since `|v| = |s|^2 / (1 +
    |s|^2)`, its logit is `2 log |s|`: so the logits are `(0, 2 log |s|)`, and gradients flow
    through the routing.

    No official code was found; this is our interpretation. With more than two classes, each has a
    linear map of the embeddings, and the lengths of their capsules are compared. The original's
    margin loss needs |v|, which is the softmax of our logits. Attention: the last c.
    """

    permutation_invariant = True
    embedding = CLASSICAL

    def __init__(self, dim: int, classes: int, iterations: int = 3) -> None:
        super().__init__()
        self.iterations = iterations
        self.transform = nn.Linear(dim, classes * dim, bias=False) if classes > 2 else nn.Identity()
        self.capsules = classes if classes > 2 else 1

    def forward(self, h: Float[Tensor, "n d"]) -> Prediction:
        u = self.transform(h).view(len(h), self.capsules, -1)  # (n, capsules, d)
        b = u.new_zeros(len(u), self.capsules)
        for iteration in range(self.iterations):
            # Over the instances; capsule networks take it over the outputs.
            c = torch.softmax(b, dim=0)
            s = torch.einsum("nk,nkd->kd", c, u)
            squared = s.square().sum(-1, keepdim=True)
            if iteration < self.iterations - 1:
                v = s * squared.clamp(min=1e-12).sqrt() / (1 + squared)
                b = b + torch.einsum("nkd,kd->nk", u, v)
        logits = squared.squeeze(-1).clamp(min=1e-12).log()
        if self.capsules == 1:
            logits = torch.cat([torch.zeros_like(logits), logits])
        return Prediction(logits, c.mean(1))
