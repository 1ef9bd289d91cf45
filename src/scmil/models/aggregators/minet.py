"""mi-Net and MI-Net, plain, with deep supervision and with residual connections (Wang et al.)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scmil.core.shapes import Float
from scmil.models.aggregators import (
    Embedding,
    Evidence,
    Prediction,
    glorot_,
    linear_evidence,
    register,
)
from scmil.models.aggregators.heads import as_evidence, as_logits, outputs
from scmil.models.aggregators.pooling import pool, pooling_weights

# Keras' dense layers: Glorot-uniform weights, zero biases.
KERAS_CLASSICAL = Embedding(widths=(256, 128, 64), glorot=True)


@register("mi-net-instance", "maximum of instance scores (mi-Net)")
class InstanceMINet(nn.Module):
    """Scores every instance, and pools the scores (the paper's mi-Net).

    `s_k = W dropout(h_k) + b`, `logits = max_k s_k`. The sigmoid is monotone, so the maximum of
    scores is the maximum of probabilities; `mean` pools probabilities, as the original does, and
    `lse` is its log-mean-exp of them. With more than two classes each has a score of its own (ours;
    the original is binary). Attention: the pooling's shares.
    """

    permutation_invariant = True
    embedding = KERAS_CLASSICAL

    def __init__(self, dim: int, classes: int, pooling: str = "max", dropout: float = 0.5) -> None:
        super().__init__()
        self.pooling = pooling
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(dim, outputs(classes))
        glorot_(self)

    def forward(self, h: Float[Tensor, "n d"]) -> Prediction:
        scores = self.classifier(self.dropout(h))
        if self.pooling == "max":
            pooled, attention = pool(scores, "max")
            return Prediction(as_logits(pooled), attention)
        pooled, attention = pool(torch.sigmoid(scores), self.pooling)
        return Prediction(as_logits(torch.logit(pooled, eps=1e-6)), attention)

    def evidence(self, h: Float[Tensor, "n d"], attention: Float[Tensor, " n"]) -> Evidence | None:
        """The score, without the bias, of the instance that has the maximum; none for the means of
        probabilities.
        """
        if self.pooling != "max":
            return None
        weights = pooling_weights(self.classifier(h), "max")
        assert weights is not None  # of the maximum
        terms = weights * (h @ self.classifier.weight.T)
        return as_evidence(Evidence(terms, self.classifier.bias))


@register("mi-net", "maximum after three layers and dropout")
class MINet(nn.Module):
    """Pools the embeddings after dropout, and scores the bag.

    `z = max_k dropout(h_k)`, `logits = W z + b`, behind the 256-128-64 embedding.
    """

    permutation_invariant = True
    embedding = KERAS_CLASSICAL

    def __init__(self, dim: int, classes: int, pooling: str = "max", dropout: float = 0.5) -> None:
        super().__init__()
        self.pooling = pooling
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(dim, outputs(classes))
        glorot_(self)

    def forward(self, h: Float[Tensor, "n d"]) -> Prediction:
        z, attention = pool(self.dropout(h), self.pooling)
        return Prediction(as_logits(self.classifier(z)), attention)

    def evidence(self, h: Float[Tensor, "n d"], attention: Float[Tensor, " n"]) -> Evidence | None:
        """The terms of the dimensions whose maximum an instance has; none for `lse`."""
        weights = pooling_weights(h, self.pooling)
        return (
            None if weights is None else as_evidence(linear_evidence(self.classifier, h, weights))
        )


class _Tapped(nn.Module):
    """Three layers, with dropout and pooling after each; the next layer is fed what was not
    dropped.
    """

    def __init__(
        self, dim: int, widths: tuple[int, int, int], pooling: str, dropout: float
    ) -> None:
        super().__init__()
        self.pooling = pooling
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            nn.Linear(a, b) for a, b in zip((dim, *widths[:2]), widths, strict=True)
        )

    def forward(self, h: Float[Tensor, "n d"]) -> tuple[list[Tensor], Tensor]:
        bags, shares = [], []
        for layer in self.layers:
            h = torch.relu(layer(h))
            z, share = pool(self.dropout(h), self.pooling)
            bags.append(z)
            shares.append(share)
        return bags, torch.stack(shares).mean(0)

    def weighted(self, h: Float[Tensor, "n d"]) -> Float[Tensor, "n w"] | None:
        """The share of each instance in the sum of the pooled bags; None for `lse`."""
        total: Tensor | None = None
        for layer in self.layers:
            h = torch.relu(layer(h))
            weights = pooling_weights(h, self.pooling)
            if weights is None:
                return None
            total = weights * h if total is None else total + weights * h
        return total


@register("mi-net-ds", "MI-Net with deep supervision")
class DeeplySupervisedMINet(nn.Module):
    """Scores the bag after each of three layers (256, 128, 64), each score supervised; predicts
    their mean probability.

    The layers belong to the aggregator because it taps all of them, so sparse coding stands before
    the first. The mean of the three probabilities is not itself supervised: `loss_weights` are 0
    for it and 3 for the mean of the three losses.
    """

    permutation_invariant = True
    embedding = Embedding()
    loss_weights = (0.0, 3.0)

    def __init__(self, dim: int, classes: int, pooling: str = "max", dropout: float = 0.5) -> None:
        super().__init__()
        self.tapped = _Tapped(dim, (256, 128, 64), pooling, dropout)
        self.classifiers = nn.ModuleList(
            nn.Linear(width, outputs(classes)) for width in (256, 128, 64)
        )
        glorot_(self)

    def forward(self, h: Float[Tensor, "n d"]) -> Prediction:
        bags, attention = self.tapped(h)
        logits = [as_logits(score(z)) for score, z in zip(self.classifiers, bags, strict=True)]
        log_probabilities = torch.stack(logits).log_softmax(-1)
        mean = torch.logsumexp(log_probabilities, 0) - log_probabilities.new_tensor(3.0).log()
        return Prediction(mean, attention, tuple(logits))


@register("mi-net-rc", "MI-Net with residual connections")
class ResidualMINet(nn.Module):
    """Adds up the pooled bags of three layers of 128, and scores the sum.

    `z = z_1 + z_2 + z_3`, `logits = W z + b`: each layer learns what the bag embedding so far still
    lacks.
    """

    permutation_invariant = True
    embedding = Embedding()

    def __init__(self, dim: int, classes: int, pooling: str = "max", dropout: float = 0.5) -> None:
        super().__init__()
        self.tapped = _Tapped(dim, (128, 128, 128), pooling, dropout)
        self.classifier = nn.Linear(128, outputs(classes))
        glorot_(self)

    def forward(self, h: Float[Tensor, "n d"]) -> Prediction:
        bags, attention = self.tapped(h)
        return Prediction(as_logits(self.classifier(torch.stack(bags).sum(0))), attention)

    def evidence(self, h: Float[Tensor, "n d"], attention: Float[Tensor, " n"]) -> Evidence | None:
        """The terms of the dimensions, over the three layers, whose maximum an instance has."""
        shares = self.tapped.weighted(h)
        if shares is None:
            return None
        terms = shares @ self.classifier.weight.T
        return as_evidence(Evidence(terms, self.classifier.bias, linear=False))
