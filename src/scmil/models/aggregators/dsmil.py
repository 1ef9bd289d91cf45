"""DSMIL, the dual-stream aggregator of Li, Li and Eliceiri (2021)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scmil.core.shapes import Float
from scmil.models.aggregators import Embedding, Evidence, Prediction, register
from scmil.models.aggregators.heads import as_evidence, as_logits, outputs


@register("dsmil", "similarity to the critical instance")
class DSMIL(nn.Module):
    """Finds the critical instance of each class, and pools the bag by the similarity of all
    instances to it.

    Instance stream: `c = h W_c`, critical instance `k* = argmax_k c_k` for each class. Bag stream:
    queries `q = tanh(W_2 relu(W_1 h))`, `A = softmax_k(q_k . q_k* / sqrt(128))`, `B = A^T v`, and
    the scores of the bag from all B together (the original's convolution over the bag vectors is
    this linear map). The loss is the mean of those of the bag and of the critical instances.
    The authors train one sigmoid per class: `build_model(..., output="sigmoid")`; with one score
    for two classes it is the same as the softmax.

    Reads the raw features: there is no embedding, and sparse coding acts on them directly. Two
    classes share one score, as the authors train CAMELYON16. Attention: the mean over the streams.

    Args:
        dim: Width of the features.
        classes: Number of classes.
        hidden: Width of the queries.
        query: `"deep"` (the authors' code), or `"linear"` for the single layer of their paper.
        streams: Number of scores. With 2 for two classes each class has its own, as the authors
            train TCGA lung.
        passing_v: Pool values `v = relu(W_v dropout(h))` instead of the features, an option of the
            authors' code.
        dropout_v: Dropout of the values.
        initialisation: `"orthogonal"` weights and zero biases, as in the authors' training for
            slides; `"default"` is torch's, as in their script for the classical benchmarks.

    Raises:
        ValueError: If an option is unknown.
    """

    permutation_invariant = True
    embedding = Embedding()
    loss_weights = (0.5, 0.5)

    def __init__(
        self,
        dim: int,
        classes: int,
        hidden: int = 128,
        query: str = "deep",
        streams: int | None = None,
        passing_v: bool = False,
        dropout_v: float = 0.0,
        initialisation: str = "orthogonal",
    ) -> None:
        super().__init__()
        for name, value, known in (
            ("query", query, ("deep", "linear")),
            ("initialisation", initialisation, ("orthogonal", "default")),
        ):
            if value not in known:
                raise ValueError(f"{name} = {value!r}. Known: {', '.join(known)}.")
        streams = streams or outputs(classes)
        self.instance_classifier = nn.Linear(dim, streams)
        self.query = (
            nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.Tanh())
            if query == "deep"
            else nn.Linear(dim, hidden)
        )
        self.values = (
            nn.Sequential(nn.Dropout(dropout_v), nn.Linear(dim, dim), nn.ReLU())
            if passing_v
            else nn.Identity()
        )
        self.bag_classifier = nn.Linear(streams * dim, streams)
        if initialisation == "orthogonal":
            for layer in self.modules():
                if isinstance(layer, nn.Linear):
                    nn.init.orthogonal_(layer.weight)
                    nn.init.zeros_(layer.bias)

    def forward(self, h: Float[Tensor, "n d"]) -> Prediction:
        critical = self._critical(h)
        A = self._stream_weights(h, critical)
        classifier = self.instance_classifier
        # Its score alone has a gradient, so it is computed again from its embedding: with the
        # scores of all instances, the backward pass would read the whole bag once more.
        rows = h.index_select(0, critical)
        best = (rows * classifier.weight).sum(1) + classifier.bias  # (streams,)
        return self.conclude(A.T @ self.values(h), A.mean(1), best)

    def _critical(self, h: Float[Tensor, "n d"]) -> Tensor:
        """The position of the critical instance of each stream."""
        classifier = self.instance_classifier
        scores = F.linear(h.detach(), classifier.weight.detach(), classifier.bias.detach())
        return scores.argmax(0)

    def _stream_weights(
        self, h: Float[Tensor, "n d"], critical: Tensor
    ) -> Float[Tensor, "n streams"]:
        """The weights of the instances in each stream, given the critical instances."""
        q = self.query(h)
        # The gradient of rows of q is a further tensor of the size of q, that of queries which are
        # computed again a further tensor of the size of the weights: the smaller of the two.
        small = len(h) <= h.shape[1]
        marked = (q if small else h).index_select(0, critical)
        marked = marked if small else self.query(marked)
        return torch.softmax(q @ marked.T / math.sqrt(q.shape[1]), dim=0)

    def evidence(self, h: Float[Tensor, "n d"], attention: Float[Tensor, " n"]) -> Evidence:
        """The terms `sum_s A_ks w_cs . v_k` over the streams s, and the bias."""
        A = self._stream_weights(h, self._critical(h)).detach()
        v = self.values(h)
        weight = self.bag_classifier.weight.view(-1, A.shape[1], v.shape[1])  # (c, streams, d)
        terms = sum(A[:, s, None] * (v @ weight[:, s].T) for s in range(A.shape[1]))
        linear = isinstance(self.values, nn.Identity)
        return as_evidence(Evidence(terms, self.bag_classifier.bias, linear))

    def conclude(
        self,
        bags: Float[Tensor, "streams d"],
        attention: Float[Tensor, " n"],
        best: Float[Tensor, " streams"],
    ) -> Prediction:
        """Score the bag vectors of all streams together."""
        return Prediction(
            as_logits(self.bag_classifier(bags.flatten())), attention, (as_logits(best),)
        )
