"""ABMIL and ABMIL-Gated: the attention pooling of Ilse, Tomczak and Welling (2018)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scmil.core.shapes import Float
from scmil.models.aggregators import Embedding, Prediction, register


class AttentionScore(nn.Module):
    """The score of each instance before the softmax: `w^T tanh(V h)`, gated `w^T (tanh(V h) *
    sigmoid(U h))`.

    V, U and w have biases, as in the released code; the paper's formula has none. With several
    `columns` there are as many scores for each instance: (n, columns). `dropout` applies to tanh
    and sigmoid.
    """

    def __init__(
        self, dim: int, hidden: int, gated: bool, columns: int = 1, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.V = nn.Linear(dim, hidden)
        self.U = nn.Linear(dim, hidden) if gated else None
        self.w = nn.Linear(hidden, columns)
        self.dropout = dropout

    def forward(self, h: Float[Tensor, "n d"]) -> Tensor:
        a = self._drop(torch.tanh(self.V(h)))
        if self.U is not None:
            a = a * torch.sigmoid(self.U(h))
            a = self._drop(a)  # as dropout of the second factor
        return self.w(a).squeeze(-1)

    def _drop(self, a: Tensor) -> Tensor:
        return F.dropout(a, self.dropout, self.training) if self.dropout else a


@register("abmil-gated", "gated attention", gated=True)
@register("abmil", "attention")
class ABMIL(nn.Module):
    """Weights the instances by learned attention, and classifies their weighted mean.

    `a = softmax_k(score(h_k))`, `z = sum_k a_k h_k`, `logits = W z + b`. Width of the attention:
    128, as in the authors' release for slides; on the classical benchmarks it is 64 behind the
    256-128-64 embedding.
    """

    permutation_invariant = True
    embedding = Embedding(widths=(512,), bias=False)

    def __init__(self, dim: int, classes: int, hidden: int = 128, gated: bool = False) -> None:
        super().__init__()
        self.score = AttentionScore(dim, hidden, gated)
        self.classifier = nn.Linear(dim, classes)

    def forward(self, h: Float[Tensor, "n d"]) -> Prediction:
        attention = torch.softmax(self.score(h), dim=0)
        return Prediction(self.classifier(attention @ h), attention)
