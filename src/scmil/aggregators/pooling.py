"""Mean and maximum: the baselines without parameters in the pooling."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scmil.aggregators import Embedding, Prediction, register
from scmil.shapes import Float


@register("mean", pool="mean")
@register("max", pool="max")
class Pooling(nn.Module):
    """Pools the embeddings without parameters, then classifies with one linear layer.

    `z_j = mean_k h_kj` or `max_k h_kj`; `logits = W z + b`. The head of the authors' release: a bias-free linear layer of
    512 with ReLU in front. Attention: 1/n for the mean; for the maximum, the share of dimensions that an instance wins.
    """

    permutation_invariant = True
    embedding = Embedding(widths=(512,), bias=False)

    def __init__(self, dim: int, classes: int, pool: str = "mean") -> None:
        super().__init__()
        self.pool = pool
        self.classifier = nn.Linear(dim, classes)

    def forward(self, h: Float[Tensor, "n d"]) -> Prediction:
        z, attention = pool(h, self.pool)
        return Prediction(self.classifier(z), attention)


def pool(h: Float[Tensor, "n d"], how: str) -> tuple[Float[Tensor, " d"], Float[Tensor, " n"]]:
    """Pool over the instances, and say what share of the result each instance has.

    >>> z, attention = pool(torch.tensor([[1.0, 5.0], [3.0, 2.0]]), "max")
    >>> z, attention
    (tensor([3., 5.]), tensor([0.5000, 0.5000]))
    """
    n, d = h.shape
    if how == "mean":
        return h.mean(0), h.new_full((n,), 1 / n)
    if how == "max":
        z, winner = h.max(0)
        return z, h.new_zeros(n).index_add(0, winner, h.new_full((d,), 1 / d))
    if how == "lse":
        # log-mean-exp: MINNs' code calls it log-sum-exp, and divides by n.
        return torch.logsumexp(h, 0) - h.new_tensor(n).log(), torch.softmax(h, 0).mean(-1)
    raise ValueError(f"unknown pooling {how!r}. Known: mean, max, lse.")
