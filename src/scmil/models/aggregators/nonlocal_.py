"""NLMIL and ANLMIL: non-local blocks as MIL pooling, two baselines of DSMIL's authors.

They released no code of these baselines. The blocks themselves have official code, for images.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scmil.core.shapes import Float
from scmil.models.aggregators import CLASSICAL, Prediction, register
from scmil.models.aggregators.attention import attend

# The pyramid of the asymmetric block in images: 1x1, 3x3, 6x6 and 8x8 bins, 110 anchors.
PYRAMID = (1, 9, 36, 64)
ATTENTION_ROWS = 1024


@register("anlmil", "asymmetric non-local block", asymmetric=True)
@register("nlmil", "non-local block")
class NonLocal(nn.Module):
    """Lets each instance attend to all others (asymmetric: to 110 averages of them), then takes
    the mean.

    Embedded Gaussian: `A = softmax(theta(h) phi(h)^T)`, `h' = h + W (A g(h))`, `logits = W_c mean_k
    h'_k + b`, with theta, phi and g of half the width (Wang et al., 2018). Asymmetric: keys and
    values are first averaged into bins (Zhu et al., 2019).

    The asymmetric variant is our interpretation. It differs from the official block (APNB) in four
    points. There, the similarity is divided by the square root of the width of the keys; queries
    and keys are one map, a linear layer with batch normalisation and ReLU; the context is
    concatenated with the features and mapped by a further linear layer with batch normalisation,
    where here it is added to them, as in the non-local block; and W starts at zero. Also, images
    pool keys over a spatial pyramid. A bag has no coordinates, so the instances are sorted by the
    norm of their key, which does not depend on their order, and averaged in 1, 9, 36 and 64 equal
    parts of that sequence.

    Attention: the mean over the instances of their attention to each one.
    """

    permutation_invariant = True
    embedding = CLASSICAL

    def __init__(self, dim: int, classes: int, asymmetric: bool = False) -> None:
        super().__init__()
        half = max(1, dim // 2)
        self.asymmetric = asymmetric
        self.theta, self.phi, self.g = (
            nn.Linear(dim, half),
            nn.Linear(dim, half),
            nn.Linear(dim, half),
        )
        self.W = nn.Linear(half, dim)
        self.classifier = nn.Linear(dim, classes)

    def forward(self, h: Float[Tensor, "n d"]) -> Prediction:
        queries, keys, values = self.theta(h), self.phi(h), self.g(h)
        if self.asymmetric:
            order = keys.detach().norm(dim=1).argsort(stable=True)
            keys, values = _pyramid(keys[order]), _pyramid(values[order])
        scaled = queries * math.sqrt(queries.shape[1])  # the block does not divide by the root
        # With axes of batch and heads: torch would store the n^2 weights without them.
        seen = attend(*(rows[None, None] for rows in (scaled, keys, values)))[0, 0]
        attention = _mean_attention(queries.detach(), keys.detach())
        if self.asymmetric:
            attention = _spread(attention, order)
        return Prediction(self.classifier((h + self.W(seen)).mean(0)), attention)


def _mean_attention(queries: Tensor, keys: Tensor) -> Tensor:
    """The column means of the attention matrix, computed block by block."""
    total = torch.zeros_like(keys[:, 0])
    for rows in queries.split(ATTENTION_ROWS):
        total += torch.softmax(rows @ keys.T, dim=1).sum(0)
    return total / len(queries)


def _pyramid(sequence: Tensor) -> Tensor:
    """Averages of 1, 9, 36 and 64 equal parts of the sequence, concatenated."""
    n = len(sequence)
    if n > ATTENTION_ROWS:
        return torch.cat([F.adaptive_avg_pool1d(sequence.T[None], parts)[0].T for parts in PYRAMID])
    # Small bags by a product, as vmap has no rule for adaptive pooling.
    column = torch.arange(n, device=sequence.device)
    rows = []
    for parts in PYRAMID:
        start, end = _part_edges(n, parts, sequence.device)
        inside = (column >= start[:, None]) & (column < end[:, None])
        rows.append(inside.to(sequence.dtype) / (end - start)[:, None])
    return torch.cat(rows) @ sequence


def _part_edges(n: int, parts: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Start and end of equal parts, which share an instance if the length does not divide."""
    index = torch.arange(parts, device=device)
    return index * n // parts, -(-(index + 1) * n // parts)


def _spread(weights: Tensor, order: Tensor) -> Tensor:
    """Distribute the weight of each part equally to its instances: the transpose of `_pyramid`."""
    n = len(order)
    change = weights.new_zeros(n + 1)
    for parts, weight in zip(PYRAMID, weights.split(PYRAMID), strict=True):
        start, end = _part_edges(n, parts, order.device)
        share = weight / (end - start)
        change = change.index_add(0, start, share).index_add(0, end, -share)
    return change.cumsum(0)[:n].clamp(min=0)[order.argsort()]
