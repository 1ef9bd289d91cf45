"""CLAM-SB and CLAM-MB: attention pooling with clustering of instances, Lu et al. (2021)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scmil.core.shapes import Float
from scmil.models.aggregators import Embedding, Evidence, Prediction, linear_evidence, register
from scmil.models.aggregators.abmil import AttentionScore

INSTANCE_LOSSES = ("cross-entropy", "svm")


@register("clam-mb", "attention for each class, and an instance loss", branches="classes")
@register("clam-sb", "gated attention, and an instance loss")
class CLAM(nn.Module):
    """Attention pooling; besides, the instances of highest and lowest attention train a classifier
    of instances for each class.

    SB: one attention, and one linear layer for all classes. MB: one attention for each class, whose
    pooled vector has a linear layer to the logit of the class. Instance loss, for the class of the
    bag: the `k` instances of highest attention with target 1, and the `k` of lowest with target 0.
    With `subtyping` (classes that exclude each other) also, for every other class, the `k` of
    highest attention with target 0, and the mean over the classes. Loss: `bag_weight` times the
    loss of the bag + (1 - `bag_weight`) times that of the instances.

    The dropout after the authors' embedding is applied to the refined embeddings; that within the
    attention is 0.25 whenever `dropout` is not 0. In a bag of fewer than `k` instances, where the
    authors' code fails, both ends have half of the instances; a bag of one has no instance loss,
    and neither has a task without classes.
    Attention of MB: the mean over the classes. Memory is linear in the instances: for each, its
    embedding, two hidden rows and the scores; 50 000 instances of 1 024 features take up to 140 MiB
    in prediction and 0.9 GiB in a training step.

    Args:
        dim: Width of the embeddings.
        classes: Number of classes.
        hidden: Width of the attention, 256 or 384 in the authors' sizes "small" and "big".
        gated: Gated attention.
        branches: `"one"` (SB) or `"classes"` (MB).
        k: Number of instances at either end.
        subtyping: Use the instances of the other classes too.
        instance_loss: `"cross-entropy"`, or `"svm"` for the smooth top-1 SVM loss with tau = 1.
        bag_weight: Weight of the loss of the bag, from 0 to 1.
        dropout: Probability of dropout.
    """

    permutation_invariant = True
    own_loss_without_classes = True
    embedding = Embedding(widths=(512,))

    def __init__(
        self,
        dim: int,
        classes: int,
        hidden: int = 256,
        gated: bool = True,
        branches: str = "one",
        k: int = 8,
        subtyping: bool = False,
        instance_loss: str = "cross-entropy",
        bag_weight: float = 0.7,
        dropout: float = 0.25,
    ) -> None:
        super().__init__()
        if branches not in ("one", "classes"):
            raise ValueError(f"branches = {branches!r}. Known: one, classes.")
        if instance_loss not in INSTANCE_LOSSES:
            raise ValueError(
                f"instance_loss = {instance_loss!r}. Known: {', '.join(INSTANCE_LOSSES)}."
            )
        if not 0 <= bag_weight <= 1:
            raise ValueError(f"bag_weight = {bag_weight}: a number from 0 to 1 is expected.")
        if k < 1:
            raise ValueError(f"k = {k}: at least one instance is needed at either end.")
        self.multi, self.k, self.subtyping = branches == "classes", k, subtyping
        self.instance_loss, self.loss_weights = instance_loss, (bag_weight, 0.0)
        self.drop = nn.Dropout(dropout)
        self.score = AttentionScore(
            dim, hidden, gated, classes if self.multi else 1, 0.25 if dropout else 0.0
        )
        self.classifier = (
            nn.ModuleList(nn.Linear(dim, 1) for _ in range(classes))
            if self.multi
            else nn.Linear(dim, classes)
        )
        self.instance_classifiers = nn.ModuleList(nn.Linear(dim, 2) for _ in range(classes))

    def stream(self, h: Float[Tensor, "n d"]) -> tuple[Tensor, Tensor]:
        """Scores (n, branches) and values (n, d) of instances, without dropout of the values."""
        return self.score(h).reshape(len(h), -1), h

    def conclude(self, pooled: Float[Tensor, "k d"], scores: Float[Tensor, "n k"]) -> Prediction:
        """The prediction from the pooled vectors and the scores of all instances."""
        if isinstance(self.classifier, nn.ModuleList):
            columns = zip(self.classifier, pooled, strict=True)
            logits = torch.cat([classifier(vector) for classifier, vector in columns])
        else:
            logits = self.classifier(pooled[0])
        return Prediction(logits, torch.softmax(scores, 0).mean(1))

    def forward(self, h: Float[Tensor, "n d"]) -> Prediction:
        scores, h = self.stream(self.drop(h))
        prediction = self.conclude(torch.softmax(scores, 0).T @ h, scores)
        ends = self._instances_at_the_ends(scores)  # (2 k, branches)
        # One gather for all classes: the gradient of each would be a tensor of the size of the bag.
        rows = h[ends.T.flatten()].unflatten(0, (ends.shape[1], -1))  # (branches, 2 k, d)
        instance_logits = [
            classifier(rows[number if self.multi else 0])
            for number, classifier in enumerate(self.instance_classifiers)
        ]
        return prediction._replace(extras=(torch.stack(instance_logits),))

    @property
    def evidence_by_rows(self) -> bool:
        """Whether the attention is the weight in the pooling: not if each class has its own."""
        return not self.multi

    def evidence(self, h: Float[Tensor, "n d"], attention: Float[Tensor, " n"]) -> Evidence:
        """The terms `a_k w_c . h_k`, with the attention of the class if each has its own."""
        if not isinstance(self.classifier, nn.ModuleList):
            return linear_evidence(self.classifier, h, attention)
        weights = torch.softmax(self.stream(h)[0], 0).detach()
        weight = torch.cat([classifier.weight for classifier in self.classifier])  # type: ignore[misc]
        bias = torch.cat([classifier.bias for classifier in self.classifier])  # type: ignore[misc]
        return Evidence(weights * (h @ weight.T), bias)

    def _instances_at_the_ends(self, scores: Float[Tensor, "n k"]) -> Tensor:
        """Positions of the instances of highest, then of lowest attention, for each branch."""
        n = len(scores)
        k = self.k if n >= self.k else n // 2
        scores = scores.detach()
        return torch.cat([scores.topk(k, 0).indices, (-scores).topk(k, 0).indices])

    def own_loss(self, prediction: Prediction, label: Tensor | None) -> Tensor:
        """The weighted instance loss; none without classes."""
        logits = prediction.extras[0]  # (classes, 2 k, 2), highest attention first
        classes, k = logits.shape[0], logits.shape[1] // 2
        if not k or label is None:
            return prediction.logits.new_zeros(())
        is_high = (torch.arange(2 * k, device=logits.device) < k).long().expand(classes, -1)
        losses = self._losses(logits, is_high).mean(1)
        true = torch.arange(classes, device=logits.device) == label
        if self.subtyping:
            high = logits[:, :k]
            others = self._losses(high, torch.zeros_like(is_high[:, :k])).mean(1)
            loss = torch.where(true, losses, others).mean()
        else:
            loss = (losses * true).sum()
        return (1 - self.loss_weights[0]) * loss

    def _losses(self, logits: Float[Tensor, "c k 2"], targets: Tensor) -> Tensor:
        """The loss (c, k) of each instance."""
        if self.instance_loss == "svm":
            # Smooth maximum of the margins: log sum_j exp(s_j + [j is wrong]) - s_target.
            one_hot = F.one_hot(targets, 2).to(logits.dtype)
            return torch.logsumexp(logits + 1 - one_hot, -1) - (logits * one_hot).sum(-1)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(
            targets.shape
        )
