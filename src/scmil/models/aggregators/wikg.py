"""WiKG: a learned graph with head and tail embeddings, Li et al. (2024)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from scmil.core.shapes import Float
from scmil.models.aggregators import Embedding, Prediction, register
from scmil.sparse_coding.kernel_torch import in_transform

# Rows whose scores and edges exist at a time: 1 024 x 50 000 scores are 200 MB.
GRAPH_ROWS = 1024


@register("wikg", "a learned graph of heads and tails")
class WiKG(nn.Module):
    """Connects each instance with those whose tails fit its head best, and pools by attention.

    `x = (h + mean(h)) / 2`; `head = W_h x`, `tail = W_t x`; the neighbours of i are the six j with
    the largest `s_ij = head_i . tail_j / sqrt(d)`, itself included. With `p = softmax_j(s_ij)`:
    `g_ij = tanh(head_i + p_ij tail_j + (1 - p_ij) head_i)`; weights
    `softmax_j(sum(tail_j) sum(g_ij))`, both sums over the channels, and `n_i` the weighted sum of
    the tails. `y = leaky(W_1 (head + n)) + leaky(W_2 (head * n))`, dropout 0.3, and attention with
    two layers; norm; linear.

    The authors' code fails for fewer than six instances; here all are neighbours. It has three
    linear layers that take no part, which are left out.

    Memory: linear in the number of instances, as scores and edges are computed for 1 024 rows at a
    time, and again in the backward pass; the time is quadratic.

    Args:
        dim: Width of the embeddings.
        classes: Number of classes.
        neighbours: Number of neighbours of each instance.
        dropout: Dropout behind the graph layer.

    >>> WiKG(8, classes=2).eval()(torch.ones(3, 8)).attention
    tensor([0.3333, 0.3333, 0.3333], grad_fn=...)
    """

    permutation_invariant = True
    embedding = Embedding(widths=(512,), activation="leaky-relu")

    def __init__(self, dim: int, classes: int, neighbours: int = 6, dropout: float = 0.3) -> None:
        super().__init__()
        self.neighbours = neighbours
        self.to_head, self.to_tail = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.of_sum, self.of_product = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        hidden = max(1, dim // 2)
        self.score = nn.Sequential(nn.Linear(dim, hidden), nn.LeakyReLU(), nn.Linear(hidden, 1))
        self.norm = nn.LayerNorm(dim)
        self.classifier = nn.Linear(dim, classes)

    def forward(self, h: Float[Tensor, "n d"]) -> Prediction:
        x = (h + h.mean(0)) / 2
        head, tail = self.to_head(x), self.to_tail(x)
        near = find_neighbours(head, tail, self.neighbours)
        mixed = neighbour_tails(head, tail, near)
        y = F.leaky_relu(self.of_sum(head + mixed)) + F.leaky_relu(self.of_product(head * mixed))
        y = self.dropout(y)
        attention = torch.softmax(self.score(y).squeeze(-1), dim=0)
        return Prediction(self.classifier(self.norm(attention @ y)), attention)


@torch.no_grad()
def find_neighbours(head: Float[Tensor, "n d"], tail: Float[Tensor, "n d"], count: int) -> Tensor:
    """The instances with the largest products `head_i . tail_j`, largest first, for each i.

    >>> x = torch.eye(3)
    >>> find_neighbours(x, x + 0.1 * torch.tensor([1.0, 2.0, 3.0]), 1).flatten()
    tensor([0, 1, 2])
    """
    count, transposed = min(count, len(tail)), tail.detach().mT
    blocks = [(rows @ transposed).topk(count).indices for rows in head.detach().split(GRAPH_ROWS)]
    return torch.cat(blocks)


def neighbour_tails(
    head: Float[Tensor, "n d"], tail: Float[Tensor, "n d"], near: Tensor
) -> Float[Tensor, "n d"]:
    """The weighted sum of the tails of each instance's neighbours."""
    if len(head) <= GRAPH_ROWS or in_transform():  # checkpoints do not work under vmap
        return _weighted_tails(head, tail, near)
    # A checkpoint recomputes the block's edges in backward.
    blocks = zip(head.split(GRAPH_ROWS), near.split(GRAPH_ROWS), strict=True)
    return torch.cat(
        [checkpoint(_weighted_tails, rows, tail, to, use_reentrant=False) for rows, to in blocks]
    )


def _weighted_tails(head: Tensor, tail: Tensor, near: Tensor) -> Tensor:
    tails = tail[near]  # (rows, k, d)
    p = torch.softmax((tails @ head[:, :, None]).squeeze(-1) / math.sqrt(head.shape[1]), dim=1)[
        :, :, None
    ]
    own = head[:, None]
    gate = torch.tanh(own + p * tails + (1 - p) * own)
    weights = torch.softmax(tails.sum(2) * gate.sum(2), dim=1)
    return (weights[:, None] @ tails).squeeze(1)
