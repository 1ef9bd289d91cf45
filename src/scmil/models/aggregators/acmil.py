"""ACMIL: several branches of attention and stochastic top-k masking, Zhang et al. (2024)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scmil.core.shapes import Float
from scmil.models.aggregators import Embedding, Evidence, Prediction, linear_evidence, register
from scmil.models.aggregators.abmil import AttentionScore

MASKED = -1e9  # the score of a masked instance


@register("acmil", "branches of attention, masking of top instances")
class ACMIL(nn.Module):
    """Several attentions that are trained to differ; the bag is pooled with their mean.

    Each branch has a gated attention and a linear layer to logits, which is trained with the label
    of the bag. The prediction is a linear layer of the bag pooled with the mean attention. The own
    loss is the mean cosine between the attentions of two branches. In training, of the `masked`
    instances of highest score in each branch a fraction of `mask_ratio`, chosen at random, has no
    attention; the mean attention is masked too. With one branch there is neither a branch loss nor
    a diversity loss.

    Memory is linear in the instances: for each, its embedding, two hidden rows and the scores;
    50 000 instances of 1 024 features take 80 MiB in prediction and 0.5 GiB in a training step.

    Args:
        dim: Width of the embeddings.
        classes: Number of classes.
        branches: Number of branches.
        hidden: Width of the attention.
        masked: Number of instances of highest score that may be masked.
        mask_ratio: Fraction of them that is masked, from 0 to 1; 0 switches masking off.
    """

    permutation_invariant = True
    own_loss_without_classes = True
    evidence_by_rows = True
    embedding = Embedding(widths=(512,), bias=False)

    def __init__(
        self,
        dim: int,
        classes: int,
        branches: int = 5,
        hidden: int = 128,
        masked: int = 10,
        mask_ratio: float = 0.6,
    ) -> None:
        super().__init__()
        if branches < 1:
            raise ValueError(f"branches = {branches}: at least one is needed.")
        if masked < 0 or not 0 <= mask_ratio <= 1:
            raise ValueError(
                f"masked = {masked}, mask_ratio = {mask_ratio}: a number of instances, and a "
                "fraction from 0 to 1 are expected."
            )
        self.masked, self.mask_ratio = masked, mask_ratio
        self.loss_weights = (1.0, 1.0)
        self.score = AttentionScore(dim, hidden, gated=True, columns=branches)
        self.classifier = nn.Linear(dim, classes)
        self.branch_classifiers = nn.ModuleList(
            nn.Linear(dim, classes) for _ in range(branches if branches > 1 else 0)
        )

    def stream(self, h: Float[Tensor, "n d"]) -> tuple[Tensor, Tensor]:
        """Scores (n, branches) and values (n, d) of instances."""
        return self.score(h).reshape(len(h), -1), h

    def conclude(self, pooled: Float[Tensor, "k d"], scores: Float[Tensor, "n k"]) -> Prediction:
        """The prediction from the pooled vectors and the scores of all instances."""
        auxiliary = tuple(
            classifier(vector)
            for classifier, vector in zip(self.branch_classifiers, pooled, strict=False)
        )
        attention = torch.softmax(scores, 0).mean(1)
        return Prediction(self.classifier(pooled.mean(0)), attention, auxiliary)

    def forward(self, h: Float[Tensor, "n d"]) -> Prediction:
        scores, h = self.stream(h)
        if self.training:
            scores = self._mask(scores)
        weights = torch.softmax(scores, 0)
        prediction = self.conclude(weights.T @ h, scores)
        return (
            prediction._replace(extras=(weights,)) if len(self.branch_classifiers) else prediction
        )

    def evidence(self, h: Float[Tensor, "n d"], attention: Float[Tensor, " n"]) -> Evidence:
        """The terms `a_k w_c . h_k` with the mean attention of the branches, and the bias."""
        return linear_evidence(self.classifier, h, attention)

    def _mask(self, scores: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """The scores with some of the highest ones masked, chosen at random in each branch."""
        k = min(self.masked, len(scores))
        count = int(k * self.mask_ratio + 1e-9)
        if not count:
            return scores
        highest = scores.detach().topk(k, 0).indices
        chosen = torch.rand(k, scores.shape[1], device=scores.device).argsort(0)[:count]
        return scores.scatter(0, highest.gather(0, chosen), MASKED)

    def own_loss(self, prediction: Prediction, label: Tensor | None) -> Tensor:
        """The mean cosine between the attentions of two branches; it needs no class."""
        if not prediction.extras:
            return prediction.logits.new_zeros(())
        unit = F.normalize(prediction.extras[0], dim=0)
        cosines = unit.T @ unit
        first, second = torch.triu_indices(len(unit.T), len(unit.T), 1)
        return cosines[first, second].mean()
