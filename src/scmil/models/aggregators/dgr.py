"""DGR-MIL: diverse global vectors ask the instances, Zhu et al. (2024)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scmil.core.shapes import Float
from scmil.models.aggregators import Embedding, Prediction, register
from scmil.models.aggregators.transmil import NystromAttention

MOMENTUM = 0.4  # of the old centre


@register("dgr-mil", "diverse global vectors attend to the bag")
class DGRMIL(nn.Module):
    """Learned global vectors and a class token attend to the instances of a bag.

    Instances and global vectors pass the same network of two layers; each set then has a Nyström
    attention of its own. The vectors, with the class token in front, are the queries of an
    attention over the instances; the row of the token gives the logits. Two own losses: diversity,
    the negative log-determinant of the cosines of the vectors; and a triplet loss (cosine distance,
    margin 1) that moves the vectors towards the centre of positive bags and away from that of
    normal bags. The centres are running means of the mean embedded instance of bags of class 0
    ("normal") and of other bags; they are buffers, so folds are not stacked. Both losses start
    after `warm_up` epochs.

    The global vectors have the width of the input and share its network, so the network belongs to
    the aggregator, and sparse coding is applied to the features. The authors train with one sigmoid
    for each class (`output="sigmoid"`). The order of the bag matters, as the landmarks are means of
    segments. Attention: the row of the token, the mean over the heads. Memory is linear in the
    instances: a few rows of `width`, and heads x landmarks numbers, for each; 50 000 instances of
    1 024 features take 2.5 GiB in prediction and 3.3 GiB in a training step.

    Args:
        dim: Width of the embeddings.
        classes: Number of classes.
        vectors: Number of global vectors.
        width: Width of the network, a multiple of `heads`.
        heads: Number of heads of the attentions.
        diversity_weight: Weight of the diversity loss.
        triplet_weight: Weight of the triplet loss.
        warm_up: Number of epochs before the two losses start.
        dropout: Probability that a channel of the embedded instances is dropped.
        attention_dropout: Dropout after the Nyström attentions.
    """

    permutation_invariant = False
    own_loss_without_classes = True
    embedding = Embedding()
    stackable = False

    def __init__(
        self,
        dim: int,
        classes: int,
        vectors: int = 5,
        width: int = 512,
        heads: int = 8,
        diversity_weight: float = 0.1,
        triplet_weight: float = 0.1,
        warm_up: int = 10,
        dropout: float = 0.1,
        attention_dropout: float = 0.4,
    ) -> None:
        super().__init__()
        if vectors < 1:
            raise ValueError(f"vectors = {vectors}: at least one is needed.")
        if width < 2 or width % heads:
            raise ValueError(
                f"DGR-MIL divides its width by {heads} heads, and {width} does not divide. "
                "Use a multiple."
            )
        self.heads, self.dropout, self.warm_up = heads, dropout, warm_up
        self.own_weights = (diversity_weight, triplet_weight)
        self.epoch: int | None = None
        self.vectors = nn.Parameter(torch.randn(vectors, dim))
        self.token = nn.Parameter(torch.randn(1, width))
        self.network = nn.ModuleList([nn.Linear(dim, width), nn.Linear(width, width)])
        self.encoders = nn.ModuleDict(
            {
                name: nn.ModuleList(
                    [
                        nn.LayerNorm(width),
                        NystromAttention(width, heads, width // 2, dropout=attention_dropout),
                        nn.LayerNorm(width),
                    ]
                )
                for name in ("instances", "vectors")
            }
        )
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.ending = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width))
        self.classifier = nn.Linear(width, classes)
        self.register_buffer("centres", torch.randn(2, width))  # of normal and of positive bags
        self.centres: Tensor

    def set_epoch(self, epoch: int) -> None:
        """Training is about to begin this epoch, from 0."""
        self.epoch = epoch

    def forward(self, h: Float[Tensor, "n d"]) -> Prediction:
        embedded, vectors = self._embed(h, self.dropout), self._embed(self.vectors, 0.0)
        instances = self._encode(embedded, "instances")
        queries = self._encode(torch.cat([self.token, vectors]), "vectors")
        # Only the row of the token is used behind this attention.
        q, k, v = (
            layer(rows).view(len(rows), self.heads, -1).transpose(0, 1)
            for layer, rows in (
                (self.query, queries[:1]),
                (self.key, instances),
                (self.value, instances),
            )
        )
        weights = torch.softmax(q @ k.mT / k.shape[-1] ** 0.5, dim=-1)  # (heads, 1, n)
        z = self.ending(self.out((weights @ v).flatten()))
        extras = (embedded.mean(0).detach(), vectors)
        return Prediction(self.classifier(z), weights.mean(0)[0], extras=extras)

    def _embed(self, x: Tensor, dropout: float) -> Tensor:
        for layer in self.network:
            x = F.relu(layer(x))
            if dropout and self.training:
                x = x * F.dropout(torch.ones_like(x[0]), dropout)  # whole channels
        return x

    def _encode(self, x: Tensor, kind: str) -> Tensor:
        layers = self.encoders[kind]
        assert isinstance(layers, nn.ModuleList)
        encoded: Tensor = layers[2](x + layers[1](layers[0](x)))
        return encoded

    def own_loss(self, prediction: Prediction, label: Tensor | None) -> Tensor:
        """The weighted diversity and triplet losses; in training the centre of the bag moves.
        Without classes there is no triplet loss.
        """
        mean, vectors = prediction.extras
        if self.training and label is not None:
            with torch.no_grad():
                centre = self.centres[int(label > 0)]
                centre.copy_(MOMENTUM * centre + (1 - MOMENTUM) * mean)
        if self.epoch is not None and self.epoch < self.warm_up:
            return prediction.logits.new_zeros(())
        # In double precision: a determinant near zero is lost in less.
        with torch.autocast(vectors.device.type, enabled=False):
            unit = F.normalize(vectors.double(), dim=1)
            eye = torch.eye(len(unit), dtype=unit.dtype, device=unit.device)
            diversity = -torch.linalg.slogdet(unit @ unit.T + 1e-10 * eye).logabsdet
            loss = self.own_weights[0] * diversity
            if label is not None:
                normal, positive = (unit @ F.normalize(self.centres.double(), dim=1).T).unbind(1)
                loss = loss + self.own_weights[1] * torch.relu(normal - positive + 1).mean()
        return loss.to(prediction.logits.dtype)
