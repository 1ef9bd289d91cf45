"""Patch-GCN: graph convolutions over neighbouring tiles, Chen et al. (2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from scmil.core.shapes import Float
from scmil.models.aggregators import Embedding, Prediction, register
from scmil.models.aggregators.abmil import AttentionScore
from scmil.sparse_coding.kernel_torch import in_transform

# Larger bags recompute the messages of a layer in backward: 8 x 4 096 x 128 numbers are 16 MiB.
STORED_ROWS = 4096
# Distances that exist at a time while the nearest tiles are searched: 32 MiB.
SEARCHED = 2**22


# Tiles per cell of the search, mean of those that are not empty; on a grid of tiles 2 x 2.
MEMBERS = 4.5


class GraphConvolution(nn.Module):
    """GENConv: `W_2 relu(norm(W_1 (x_j + m_j)))`.

    `m_j` is the mean of `relu(x_i) + 1e-7` over the tiles i that send to j, weighted in each
    channel by the softmax of t times itself, with a learned temperature t; zero without senders.
    """

    def __init__(self, dim: int, bias: bool = True) -> None:
        super().__init__()
        self.t = nn.Parameter(torch.ones(1))
        self.widen = nn.Linear(dim, 2 * dim, bias=bias)
        self.norm = nn.LayerNorm(2 * dim)
        self.narrow = nn.Linear(2 * dim, dim, bias=bias)

    def forward(self, x: Float[Tensor, "n d"], nearest: Tensor) -> Float[Tensor, "n d"]:
        if len(x) <= STORED_ROWS or in_transform():  # checkpoints do not work under vmap
            received = receive(x, nearest, self.t)
        else:
            received = checkpoint(receive, x, nearest, self.t, use_reentrant=False)
        return self.narrow(torch.relu(self.norm(self.widen(x + received))))


def receive(x: Float[Tensor, "n d"], nearest: Tensor, t: Tensor) -> Float[Tensor, "n d"]:
    """The weighted mean of the messages that each tile receives, zero if none.

    >>> x, nearest = torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([[1], [0], [0]])
    >>> receive(x, nearest, torch.zeros(1)).round(decimals=3)
    tensor([[4.],
            [1.],
            [0.]])
    """
    count = nearest.shape[1]
    receiver = nearest.flatten()
    messages = (torch.relu(x) + 1e-7).repeat_interleave(count, 0)
    scores = t * messages
    # The largest score of each receiver, so that no exponential overflows.
    place = receiver[:, None].expand_as(scores)
    largest = torch.zeros_like(x).scatter_reduce(
        0, place, scores.detach(), "amax", include_self=False
    )
    weights = torch.exp(scores - largest[receiver])
    total = torch.zeros_like(x).index_add(0, receiver, weights)
    mixed = torch.zeros_like(x).index_add(0, receiver, weights * messages)
    return mixed / total.clamp(min=torch.finfo(x.dtype).tiny)


@register("patch-gcn", "a graph of neighbouring tiles")
class PatchGCN(nn.Module):
    """Passes messages between neighbouring tiles, and pools by gated attention.

    Each tile sends to its 8 nearest by position. Three graph convolutions (`GraphConvolution`): the
    first alone, the others as `x + relu(norm(conv(x)))`. Input and three outputs are joined, then a
    linear layer with ReLU, gated attention, a linear layer with ReLU, a linear layer. A tile at
    equal distance to several takes them in an order of the positions, so that the order of the bag
    is free. The authors train it for survival; here its outputs are the logits of the classes.

    The authors used torch_geometric 1.6.3, whose convolution has biases and no dropout; the norm
    of the first layer takes no part there, and is left out.

    Memory: linear in the number of tiles; the messages of one layer exist at a time. The nearest
    tiles are searched in cells, in nearly linear time.

    Args:
        dim: Width of the embeddings.
        classes: Number of classes.
        layers: Number of graph convolutions.
        neighbours: Number of tiles that each tile sends to.
        dropout: Dropout behind the linear layers and in the attention.
        bias: Whether the linear layers of the convolutions have biases; torch_geometric 2 has none.

    >>> xy = torch.tensor([[0, 0], [256, 0], [512, 0]])
    >>> PatchGCN(8, classes=2)(torch.ones(3, 8), xy).logits.shape
    torch.Size([2])
    """

    permutation_invariant = True
    uses_positions = True
    embedding = Embedding(widths=(128,), dropout=0.25)

    def __init__(
        self,
        dim: int,
        classes: int,
        layers: int = 3,
        neighbours: int = 8,
        dropout: float = 0.25,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.neighbours = neighbours
        self.convolutions = nn.ModuleList(GraphConvolution(dim, bias) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(layers - 1))
        width = dim * (layers + 1)
        self.join = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout))
        self.score = AttentionScore(width, width, gated=True, dropout=dropout)
        self.last = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout))
        self.classifier = nn.Linear(width, classes)

    def forward(self, h: Float[Tensor, "n d"], xy: Tensor) -> Prediction:
        nearest = nearest_tiles(xy, self.neighbours)
        x = self.convolutions[0](h, nearest)
        joined = [h, x]
        for norm, convolution in zip(self.norms, self.convolutions[1:], strict=True):
            x = x + torch.relu(norm(convolution(x, nearest)))
            joined.append(x)
        z = self.join(torch.cat(joined, 1))
        attention = torch.softmax(self.score(z), dim=0)
        return Prediction(self.classifier(self.last(attention @ z)), attention)


# -------------------------------------------------------------------------------- the nearest tiles


@torch.no_grad()
def nearest_tiles(xy: Tensor, count: int) -> Tensor:
    """The `count` nearest other tiles of each tile, nearest first: indices (n, k).

    Ties are resolved by the positions, independently of the order of the tiles; only tiles at the
    same position have no order of their own. There are fewer neighbours if there are fewer tiles.

    >>> nearest_tiles(torch.tensor([[0, 0], [9, 0], [2, 0]]), 1)
    tensor([[2],
            [2],
            [0]])
    """
    n = len(xy)
    count = min(count, n - 1)
    if count < 1:
        return torch.zeros((n, 0), dtype=torch.long, device=xy.device)
    points = xy.double()
    # All further steps see the tiles in an order that only depends on their positions.
    order = points[:, 1].argsort(stable=True)
    order = order[points[order, 0].argsort(stable=True)]
    points = points[order] - points.amin(0)
    found = torch.zeros((n, count), dtype=torch.long, device=xy.device)
    missing = torch.arange(n, device=xy.device)
    extent = points.amax(0).clamp(min=1)
    side = float(extent.max())
    while (cells := _Cells(points, side)).occupancy > MEMBERS and side > 1:
        side /= 2
    while len(missing):
        cells = _Cells(points, side)
        whole = side >= float(extent.max())  # then no tile is outside of the cells around another
        left = []
        for part in cells.split(missing):
            distance, place = cells.nearest(part, count)
            done = distance[:, -1] <= side**2
            done |= torch.full_like(done, whole)
            found[part[done]] = place[done]
            left.append(part[~done])
        missing, side = torch.cat(left), 2 * side
    nearest = torch.empty_like(found)
    nearest[order] = order[found]
    return nearest


class _Cells:
    """Points in square cells: all within one side of a point are in the 3 x 3 cells around it."""

    def __init__(self, points: Tensor, side: float) -> None:
        self.points = points
        cell = (points / side).long()
        # Cells of one column are consecutive, with an empty one at each end.
        self.height = int(cell[:, 1].max()) + 3
        self.key = (cell[:, 0] + 1) * self.height + cell[:, 1] + 1
        self.sorted, self.members = self.key.sort(stable=True)

    @property
    def occupancy(self) -> float:
        """The mean number of points in a cell that has any."""
        return len(self.key) / len(self.sorted.unique_consecutive())

    def ranges(self, part: Tensor) -> tuple[Tensor, Tensor]:
        """The first and the end of the members in each of three columns: (k, 3)."""
        shift = self.height * torch.arange(-1, 2, device=part.device)
        middle = self.key[part, None] + shift
        return (
            torch.searchsorted(self.sorted, middle - 1),
            torch.searchsorted(self.sorted, middle + 1, right=True),
        )

    def split(self, part: Tensor) -> tuple[Tensor, ...]:
        """Parts whose candidates fit into memory."""
        first, end = self.ranges(part)
        longest = 3 * int((end - first).max())
        return part.split(max(1, SEARCHED // longest))

    def nearest(self, part: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Squared distances and indices of the nearest candidates; infinite if there are fewer."""
        first, end = self.ranges(part)
        steps = torch.arange(int((end - first).max()), device=part.device)
        place = first[:, :, None] + steps
        outside = (place >= end[:, :, None]).flatten(1)
        members = self.members[place.clamp(max=len(self.members) - 1).flatten(1)]
        square = (self.points[members] - self.points[part, None]).square().sum(2)
        square.masked_fill_(outside | (members == part[:, None]), torch.inf)
        if square.shape[1] < count:
            square = nn.functional.pad(square, (0, count - square.shape[1]), value=torch.inf)
            members = nn.functional.pad(members, (0, count - members.shape[1]))
        # Ties: the result depends on the candidates alone, whose order is that of the positions.
        distance, at = square.topk(count, dim=1, largest=False)
        return distance, members.gather(1, at)
