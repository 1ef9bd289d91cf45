"""ILRA-MIL: iterative low-rank attention, Xiang and Zhang (2023)."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scmil.core.shapes import Float
from scmil.models.aggregators import Embedding, Prediction, register


def _start_queries(rank: int, dim: int) -> Tensor:
    """Xavier-uniform with the bound of a tensor (1, rank, dim), as in the official code."""
    return nn.init.xavier_uniform_(torch.empty(1, rank, dim))[0]


class AttentionBlock(nn.Module):
    """Lets queries attend to keys, with a residual layer after it, and optionally a gate from the
    queries.

    `o = norm(q + MHA(q, k, v))`, `o = norm(o + relu(W_o o))`, gated: `o * silu(W_g Q)`. The
    projections to q, k and v come before `nn.MultiheadAttention`, which projects again, as in the
    official code.
    """

    def __init__(self, dim_query: int, dim_key: int, dim: int, heads: int, gated: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = (
            nn.Linear(dim_query, dim),
            nn.Linear(dim_key, dim),
            nn.Linear(dim_key, dim),
        )
        self.attention = nn.MultiheadAttention(dim, heads)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.o = nn.Linear(dim, dim)
        self.gate = nn.Linear(dim_query, dim) if gated else None

    def forward(
        self, Q: Tensor, K: Tensor, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        q = self.q(Q)
        mixed, weights = self.attention(q, self.k(K), self.v(K), need_weights=need_weights)
        o = self.norm1(q + mixed)
        o = self.norm2(o + torch.relu(self.o(o)))
        return o if self.gate is None else o * F.silu(self.gate(Q)), weights


class LowRankLayer(nn.Module):
    """GAB: a few learned latents attend to the instances, and the instances to the latents."""

    def __init__(self, dim_in: int, dim: int, heads: int, rank: int) -> None:
        super().__init__()
        self.latent = nn.Parameter(_start_queries(rank, dim))
        self.gather = AttentionBlock(dim, dim_in, dim, heads, gated=True)
        self.scatter = AttentionBlock(dim_in, dim, dim, heads, gated=True)

    def forward(self, x: Tensor) -> Tensor:
        latent, _ = self.gather(self.latent, x)
        out: Tensor = self.scatter(x, latent)[0]
        return out


@register("ilra", "iterative low-rank attention")
class ILRA(nn.Module):
    """Projects the bag twice to a few latent vectors and back, then pools it with one learned
    query.

    Two low-rank layers of width 256 and eight heads, then non-local pooling: a learned query
    attends to the instances, and a linear layer classifies. Xavier-normal weights. Reads the raw
    features, its first layer maps them to 256.

    `rank` is 4 here. The official values are 1 to 4, and with 1 the attention of the instances to
    the latents is constant; the paper compares with 256. The pooling has one query whatever the
    rank, as in the current official code (an older copy ties them and returns a row of logits for
    each). Attention: that of the pooling query.
    """

    permutation_invariant = True
    embedding = Embedding()

    def __init__(
        self,
        dim: int,
        classes: int,
        rank: int = 4,
        width: int = 256,
        heads: int = 8,
        layers: int = 2,
    ) -> None:
        super().__init__()
        widths = [dim] + [width] * layers
        self.layers = nn.Sequential(*(LowRankLayer(a, b, heads, rank) for a, b in pairwise(widths)))
        self.query = nn.Parameter(_start_queries(1, width))
        self.pool = AttentionBlock(width, width, width, heads, gated=False)
        self.classifier = nn.Linear(width, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_normal_(layer.weight)

    def forward(self, h: Float[Tensor, "n d"]) -> Prediction:
        z, weights = self.pool(self.query, self.layers(h), need_weights=True)
        assert weights is not None  # asked for
        return Prediction(self.classifier(z[0]), weights[0])
