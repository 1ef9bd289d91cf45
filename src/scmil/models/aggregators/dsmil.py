"""DSMIL, the dual-stream aggregator of Li, Li and Eliceiri (2021)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from scmil.models.aggregators import Embedding, Prediction, register
from scmil.models.aggregators.heads import as_logits, outputs
from scmil.core.shapes import Float


@register("dsmil", "similarity to the critical instance")
class DSMIL(nn.Module):
    """Finds the critical instance of each class, and pools the bag by every instance's similarity to it.

    Instance stream: `c = h W_c`, critical instance `k* = argmax_k c_k` for each class. Bag stream: queries
    `q = tanh(W_2 relu(W_1 h))`, `A = softmax_k(q_k . q_k* / sqrt(128))`, `B = A^T h`, and the scores of the bag from all
    B together (the original's convolution over the bag vectors is this linear map). Both streams are supervised, half
    and half. Orthogonal weights and zero biases, the authors' "stable initialisation".

    Reads the raw features: no embedding, and sparse coding acts on them directly. `query="linear"` is the paper's single
    query layer. Two classes share one score, as the authors train CAMELYON16; `streams=2` gives each its own, as they
    train TCGA lung. Attention: the mean over the streams.
    """

    permutation_invariant = True
    embedding = Embedding()
    loss_weights = (0.5, 0.5)

    def __init__(
        self, dim: int, classes: int, hidden: int = 128, query: str = "deep", streams: int | None = None
    ) -> None:
        super().__init__()
        streams = streams or outputs(classes)
        self.instance_classifier = nn.Linear(dim, streams)
        self.query = (
            nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.Tanh())
            if query == "deep"
            else nn.Linear(dim, hidden)
        )
        self.bag_classifier = nn.Linear(streams * dim, streams)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.orthogonal_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, h: Float[Tensor, "n d"]) -> Prediction:
        scores = self.instance_classifier(h)  # (n, streams)
        best, critical = scores.max(0)
        q = self.query(h)
        A = torch.softmax(q @ q[critical].T / math.sqrt(q.shape[1]), dim=0)  # (n, streams), over the instances
        return self.conclude(A.T @ h, A.mean(1), best)

    def conclude(
        self, bags: Float[Tensor, "streams d"], attention: Float[Tensor, " n"], best: Float[Tensor, " streams"]
    ) -> Prediction:
        """Score the bag vectors of all streams together."""
        return Prediction(as_logits(self.bag_classifier(bags.flatten())), attention, (as_logits(best),))
