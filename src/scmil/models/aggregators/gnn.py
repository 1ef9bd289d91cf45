"""GNN-MIL: a bag as a graph, Tu et al. (2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from scmil.core.shapes import Float
from scmil.models.aggregators import CLASSICAL, Prediction, register
from scmil.sparse_coding.kernel_torch import in_transform

# Rows of the adjacency matrix that exist at a time: 1 024 x 10 000 distances are 40 MB.
EDGE_ROWS = 1024
# Relative; two instances, and equidistant ones, are at exactly eta.
TOLERANCE = 1e-5
# A cluster with a smaller share of the bag fades, instead of being divided by next to nothing.
EMPTY = 0.01


@register("gnn-mil", "a graph of similar instances")
class GNNMIL(nn.Module):
    """Connects similar instances by edges, averages the neighbours of each, and pools the graph
    into a few soft clusters.

    `A_ij = 1` if `|h_i - h_j| <= eta`; `z_i = relu(W_1 h_i + W_2 mean_{j in N(i)} h_j)`
    (GraphSAGE); `S = softmax(W_3 [h_i, mean_j h_j])`, `X' = S^T z` (DiffPool), and an MLP on the
    concatenated pooled nodes.

    No official code was found; this is our interpretation. eta^2 is the mean squared distance of
    two different instances of the bag, which follows from the first two moments, so that it costs
    O(n) and scales with the features. There are four clusters. Each pooled node is divided by the
    weight of its cluster, so that it does not depend on the size of the bag (divided by n, it did
    not train with the paper's recipe). DiffPool's link and entropy penalties, which no label
    supervises, are left out. The adjacency is a function of the embeddings without gradient, and is
    computed block by block. Attention: the norm of an instance's contribution to the pooled nodes,
    `|S_i| |z_i|`.
    """

    permutation_invariant = True
    embedding = CLASSICAL

    def __init__(self, dim: int, classes: int, hidden: int = 64, clusters: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(2 * dim, hidden)
        self.assign = nn.Linear(2 * dim, clusters)
        self.classifier = nn.Sequential(
            nn.Linear(clusters * hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes)
        )

    def forward(self, h: Float[Tensor, "n d"]) -> Prediction:
        both = torch.cat([h, neighbour_mean(h)], dim=1)
        z = torch.relu(self.embed(both))
        S = torch.softmax(self.assign(both), dim=1)
        share = (S.norm(dim=1) * z.norm(dim=1)).detach()
        nodes = S.T @ z / (S.mean(0).clamp(min=EMPTY) * len(h))[:, None]
        return Prediction(self.classifier(nodes.flatten()), (share + 1e-12) / (share + 1e-12).sum())


def neighbour_mean(h: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """The mean of each instance's neighbours, zero where there are none.

    >>> neighbour_mean(torch.tensor([[0.0], [1.0], [9.0]]))
    tensor([[1.], [0.], [0.]])
    """
    # Centred, so that rounding does not depend on the mean. Over the n^2 pairs, the mean squared
    # distance is twice the mean squared norm; n of the pairs are an instance with itself.
    where = h.detach() - h.detach().mean(0)
    eta = (2 * where.square().sum() / max(len(h) - 1, 1)).sqrt() * (1 + TOLERANCE)
    if len(h) <= EDGE_ROWS:
        return _block_mean(h, where, eta, 0)
    starts = range(0, len(h), EDGE_ROWS)
    if in_transform():  # checkpoints do not work under vmap
        return torch.cat([_block_mean(h, where, eta, start) for start in starts])
    # A checkpoint recomputes the block's edges in backward.
    return torch.cat(
        [checkpoint(_block_mean, h, where, eta, start, use_reentrant=False) for start in starts]
    )


def _block_mean(h: Tensor, where: Tensor, eta: Tensor, start: int) -> Tensor:
    rows = where[start : start + EDGE_ROWS]
    index = torch.arange(len(where), device=h.device)
    itself = index[start : start + len(rows), None] == index  # an instance is not its own neighbour
    near = ((torch.cdist(rows, where) <= eta) & ~itself).to(h.dtype)
    return near @ h / near.sum(1, keepdim=True).clamp(min=1)
