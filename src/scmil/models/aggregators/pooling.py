"""Mean and maximum: the baselines without parameters in the pooling."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scmil.core.shapes import Float
from scmil.models.aggregators import Embedding, Prediction, register


@register("max", "maximum of the embeddings", pool="max")
@register("mean", "mean of the embeddings", pool="mean")
class Pooling(nn.Module):
    """Pools the embeddings without parameters, then classifies with one linear layer.

    `z_j = mean_k h_kj` or `max_k h_kj`; `logits = W z + b`. The head of the authors' release: a
    bias-free linear layer of 512 with ReLU in front. Attention: 1/n for the mean; for the maximum,
    the fraction of dimensions that an instance wins, ties divided.
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
    """Pool over the instances; returns the result and the share of each instance in it.

    >>> z, attention = pool(torch.tensor([[1.0, 5.0], [3.0, 2.0]]), "max")
    >>> z, attention
    (tensor([3., 5.]), tensor([0.5000, 0.5000]))
    """
    n = len(h)
    if how == "mean":
        return h.mean(0), h.new_full((n,), 1 / n)
    if how == "max":
        z = h.amax(0)
        winners = (h.detach() == z).to(h.dtype)  # after ReLU many instances share a maximum of zero
        return z, (winners / winners.sum(0)).mean(1)
    if how == "lse":
        # log-mean-exp: MINNs' code calls it log-sum-exp, and divides by n.
        return torch.logsumexp(h, 0) - h.new_tensor(n).log(), torch.softmax(h, 0).mean(-1)
    raise ValueError(f"unknown pooling {how!r}. Known: mean, max, lse.")
