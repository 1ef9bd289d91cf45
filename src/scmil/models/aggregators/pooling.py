"""Mean and maximum: the baselines without parameters in the pooling."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scmil.core.shapes import Float
from scmil.models.aggregators import Embedding, Evidence, Prediction, linear_evidence, register


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

    def evidence(self, h: Float[Tensor, "n d"], attention: Float[Tensor, " n"]) -> Evidence | None:
        """The terms of the mean, or of the dimensions whose maximum an instance has."""
        weights = attention if self.evidence_by_rows else pooling_weights(h, self.pool)
        return None if weights is None else linear_evidence(self.classifier, h, weights)

    @property
    def evidence_by_rows(self) -> bool:
        """Whether the attention is the weight in the pooling."""
        return self.pool == "mean"


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
        return z, _winner_shares(h, z).mean(1)
    if how == "lse":
        # log-mean-exp: MINNs' code calls it log-sum-exp, and divides by n.
        return torch.logsumexp(h, 0) - h.new_tensor(n).log(), torch.softmax(h, 0).mean(-1)
    raise ValueError(f"unknown pooling {how!r}. Known: mean, max, lse.")


def pooling_weights(h: Float[Tensor, "n d"], how: str) -> Float[Tensor, "n d"] | None:
    """The weight of each instance in each dimension of the pooled vector, without gradient; None
    if the pooling is not a weighted sum.

    >>> pooling_weights(torch.tensor([[1.0, 5.0], [3.0, 5.0]]), "max")
    tensor([[0.0000, 0.5000],
            [1.0000, 0.5000]])
    """
    if how == "mean":
        return torch.full_like(h, 1 / len(h), requires_grad=False)
    return _winner_shares(h, h.amax(0)) if how == "max" else None


def _winner_shares(h: Float[Tensor, "n d"], z: Float[Tensor, " d"]) -> Float[Tensor, "n d"]:
    """1 for the instance that has the maximum z of a dimension, divided if several have it."""
    winners = (h.detach() == z).to(h.dtype)  # after ReLU many instances share a maximum of zero
    return winners / winners.sum(0)
