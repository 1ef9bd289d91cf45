"""AttriMIL: attribute scores of instances with spatial and ranking losses, Cai et al. (2025)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scmil.core.shapes import Float
from scmil.models.aggregators import Embedding, Evidence, Prediction, register
from scmil.models.aggregators.abmil import AttentionScore

LARGEST_EXPONENT = 30.0  # of e^A in the losses; the prediction does not depend on it
QUEUE = 4  # instances for each class, of bags of the class and of others


@register("attrimil", "class scores of tiles, spatial and rank losses")
class AttriMIL(nn.Module):
    """The logit of a class is the mean of a score of its own, weighted with an attention of its
    own: `sum_k softmax(A)_k s_k + b`; the attribute score of an instance is `s e^A`.

    A residual network `h + MLP(h)` comes first. Two own losses. Spatial: neighbouring tiles have
    similar attribute scores; for each class but the first ("normal"), the mean of
    `|tanh(score - score of the neighbour of largest magnitude)|` over up to eight neighbours on the
    grid. Rank, for each class: the highest attribute score in a bag of another class is below zero
    and, but for the first class, below that in a bag of the class; one of the two is an instance
    from a queue of earlier bags. Mean over the classes. The queues are buffers, so folds are not
    stacked.

    The authors' code normalises `e^A` after the exponential, which overflows; here the prediction
    uses the softmax, and in the losses the exponent is cut at 30. Queues hold refined embeddings,
    as they were when the bag was seen. There is no embedding network, so sparse coding is applied
    to the features. Attention: the mean over the classes. Memory is linear in the instances: for
    each, its embedding, the residual network, two hidden rows for each class, and eight neighbours;
    50 000 instances of 1 024 features and two classes take 80 MiB in prediction and 1.1 GiB in a
    training step.

    Args:
        dim: Width of the embeddings.
        classes: Number of classes.
        spatial_weight: Weight of the spatial loss.
        rank_weight: Weight of the rank loss.
    """

    permutation_invariant = True
    own_loss_without_classes = True
    embedding = Embedding()
    uses_positions = True
    stackable = False

    def __init__(
        self, dim: int, classes: int, spatial_weight: float = 1.0, rank_weight: float = 5.0
    ) -> None:
        super().__init__()
        half = max(1, dim // 2)
        self.spatial_weight, self.rank_weight = spatial_weight, rank_weight
        self.adaptor = nn.Sequential(nn.Linear(dim, half), nn.ReLU(), nn.Linear(half, dim))
        self.scores = nn.ModuleList(AttentionScore(dim, half, gated=True) for _ in range(classes))
        self.classifiers = nn.ModuleList(nn.Linear(dim, 1) for _ in range(classes))
        self.bias = nn.Parameter(torch.zeros(classes))
        # For each class: instances of bags of other classes (0) and of the class (1), oldest first.
        self.register_buffer("queue", torch.zeros(2, classes, QUEUE, dim))
        self.register_buffer("queued", torch.zeros(2, classes))  # how many there are
        self.queue: Tensor
        self.queued: Tensor

    def stream(self, h: Float[Tensor, "n d"]) -> tuple[Tensor, Tensor]:
        """Scores before the softmax (n, c), and the values (n, c) that they weight."""
        h = h + self.adaptor(h)
        values = torch.cat([classifier(h) for classifier in self.classifiers], 1)
        return torch.stack([score(h) for score in self.scores], 1), values

    def conclude(self, pooled: Float[Tensor, "c c"], scores: Float[Tensor, "n c"]) -> Prediction:
        """The prediction from the pooled values and the scores of all instances."""
        return Prediction(pooled.diagonal() + self.bias, torch.softmax(scores, 0).mean(1))

    def forward(self, h: Float[Tensor, "n d"], xy: Tensor) -> Prediction:
        scores, values = self.stream(h)
        logits = (torch.softmax(scores, 0) * values).sum(0) + self.bias
        attributes = _attributes(scores, values)
        spatial = _spatial_loss(attributes[:, 1:], grid_neighbours(xy))
        top, place = attributes.max(0)
        return Prediction(
            logits,
            torch.softmax(scores, 0).mean(1),
            extras=(spatial, top, h.detach()[place]),
        )

    def evidence(self, h: Float[Tensor, "n d"], attention: Float[Tensor, " n"]) -> Evidence:
        """The weighted values of each class without the biases, which are the constant."""
        scores, values = self.stream(h)
        bias = torch.cat([classifier.bias for classifier in self.classifiers])  # type: ignore[misc]
        weights = torch.softmax(scores, 0).detach()
        return Evidence(weights * (values - bias), self.bias + bias, linear=False)

    def own_loss(self, prediction: Prediction, label: Tensor | None) -> Tensor:
        """The weighted spatial and rank losses; in training the queues take the top instances.
        Without classes there is no rank loss.
        """
        spatial, top, rows = prediction.extras
        if label is None:
            return self.spatial_weight * spatial
        losses = [self._rank(c, c == int(label), top[c], rows[c]) for c in range(len(top))]
        return self.spatial_weight * spatial + self.rank_weight * torch.stack(losses).mean()

    def _rank(self, number: int, is_class: bool, top: Tensor, row: Tensor) -> Tensor:
        """The hinge of one class between the top instance of the bag and a queued one."""
        if self.training:
            self._put(int(is_class), number, row)
        other = int(not is_class)
        if not (length := int(self.queued[other, number])):
            return top.new_zeros(())
        queue = self.queue[other, number]
        queued = queue[:1].clone()
        if self.training:  # the first goes to the end
            queue[:length] = queue[:length].roll(-1, 0)
        scores, values = self.stream(queued.to(top.dtype))
        score = _attributes(scores, values)[0, number]
        positive, negative = (top, score) if is_class else (score, top)
        loss = torch.relu(negative)
        return loss + torch.relu(negative - positive) if number else loss

    @torch.no_grad()
    def _put(self, kind: int, number: int, row: Tensor) -> None:
        queue, length = self.queue[kind, number], int(self.queued[kind, number])
        if length == QUEUE:
            queue[:-1] = queue[1:].clone()
            length -= 1
        queue[length] = row
        self.queued[kind, number] = length + 1


def _attributes(scores: Tensor, values: Tensor) -> Tensor:
    return values * scores.clamp(max=LARGEST_EXPONENT).exp()


def _spatial_loss(attributes: Float[Tensor, "n c"], neighbours: Tensor) -> Tensor:
    """The mean |tanh| of the difference to the neighbour of largest magnitude; the sum over the
    classes.
    """
    with torch.no_grad():
        place = attributes.detach()[neighbours].abs().argmax(1)  # (n, c), of eight
        largest = neighbours.gather(1, place)
    return (attributes - attributes.gather(0, largest)).tanh().abs().mean(0).sum()


def grid_neighbours(xy: Tensor) -> Tensor:
    """Positions (n, 8) of the tiles around each tile; the tile itself where there is none.

    The step of the grid is the median distance of consecutive tiles in a row, or in a column if no
    row has two tiles. O(n log n) time and O(n) memory.

    >>> grid_neighbours(torch.tensor([[0, 0], [256, 0], [512, 0]]))[:, :2]
    tensor([[1, 0],
            [0, 2],
            [1, 2]])
    """
    n = len(xy)
    own = torch.arange(n, device=xy.device)
    if n == 1:
        return own[:, None].expand(1, 8)
    step = _grid_step(xy.double())
    column, row = torch.round((xy.double() - xy.double().amin(0)) / step).long().T
    width = int(column.max()) + 3  # a margin, so that the ends of two rows are not neighbours
    place, order = (row * width + column).sort()
    found = []
    for dy in (-1, 0, 1):
        for dx in (-1, 0, 1):
            if dx or dy:
                wanted = (row + dy) * width + column + dx
                at = torch.searchsorted(place, wanted).clamp(max=n - 1)
                found.append(torch.where(place[at] == wanted, order[at], own))
    neighbours = torch.stack(found, 1)
    # Neighbours first, in the order of the bag.
    missing = (neighbours == own[:, None]).long() * n
    return neighbours.gather(1, (neighbours + missing).argsort(1))


def _grid_step(xy: Tensor) -> float:
    """The distance between neighbouring tiles of a grid."""
    for along, across in ((0, 1), (1, 0)):
        order = xy[:, along].argsort(stable=True)
        order = order[xy[order, across].argsort(stable=True)]
        steps = xy[order].diff(dim=0)
        steps = steps[(steps[:, across] == 0) & (steps[:, along] > 0), along]
        if len(steps):
            return float(steps.median())
    return 1.0
