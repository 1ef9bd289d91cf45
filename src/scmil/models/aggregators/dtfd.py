"""DTFD-MIL: pseudo-bags, and a second tier on features distilled from them, Zhang et al. (2022)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from scmil.core.shapes import Float
from scmil.models.aggregators import Embedding, Evidence, Prediction, linear_evidence, register
from scmil.models.aggregators.abmil import ABMIL


@register("dtfd-afs", "pseudo-bags, aggregated features", distill="afs")
@register("dtfd-maxmin", "pseudo-bags, largest and smallest", distill="maxmin")
class DTFD(nn.Module):
    """Splits the bag into pseudo-bags at random, and classifies the features distilled from each.

    Tier 1, gated attention with a classifier, gets each of four pseudo-bags with the bag's label.
    `maxmin` distils the embeddings of the instances whose class activation `softmax_c(w_c . (a_k
    h_k))` is largest and smallest; `afs` distils the pooled embedding of the pseudo-bag. Tier 2,
    another gated attention, classifies those. Distilled features are detached: in the official code
    tier 2's gradients to tier 1 are erased before they are used, so that tier 1 learns from its own
    loss. `joint=True` keeps them, as in the paper's objective.

    The split is drawn from `generator` (torch's global one if none is given) in training; in
    evaluation it is always the same, so that predictions are reproducible. With more than two
    classes, the activation is that of the class which tier 1 predicts for the pseudo-bag (the
    original is binary). A bag with fewer instances than groups has one pseudo-bag per instance. The
    official code keeps all groups: with `maxmin` it fails on the empty ones, with `afs` each adds a
    zero vector to tier 2 and the bias of the classifier to the loss. Attention: tier 2's weight of
    a pseudo-bag, times tier 1's within it.
    """

    permutation_invariant = False
    embedding = Embedding(widths=(512,), bias=False)
    loss_weights = (1.0, 1.0)

    def __init__(
        self, dim: int, classes: int, distill: str = "maxmin", groups: int = 4, hidden: int = 128,
        joint: bool = False, generator: torch.Generator | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.distill, self.groups, self.joint, self.generator = distill, groups, joint, generator
        self.tier1 = ABMIL(dim, classes, hidden, gated=True)
        self.tier2 = ABMIL(dim, classes, hidden, gated=True)

    def forward(self, h: Float[Tensor, "n d"]) -> Prediction:
        members = self.split(len(h))
        parts = [h[group] for group in members]
        tier1 = [self.tier1(part) for part in parts]
        distilled = [
            self._distil(part, prediction) for part, prediction in zip(parts, tier1, strict=True)
        ]
        return self.conclude(members, tier1, torch.cat(distilled))

    @property
    def evidence_by_rows(self) -> bool:
        """Whether the attention is the weight in the pooling: not if only extremes are pooled."""
        return self.distill == "afs"

    def evidence(self, h: Float[Tensor, "n d"], attention: Float[Tensor, " n"]) -> Evidence:
        """The terms of tier 2: with `maxmin`, those of the instances that are distilled."""
        if self.distill != "afs":
            members = self.split(len(h))
            chosen = [
                group[self.extremes(self.project(h[group]), self.tier1(h[group]))]
                for group in members
            ]
            extremes = torch.cat(chosen)
            attention = h.new_zeros(len(h)).index_add(
                0, extremes, self.tier2(h[extremes]).attention
            )
        return linear_evidence(self.tier2.classifier, h, attention)

    def clip_groups(self) -> list[nn.Module]:
        """The modules whose gradients the authors clip separately, without the embedding."""
        return [self.tier1.score, self.tier1.classifier, self.tier2]

    def split(self, n: int) -> tuple[Tensor, ...]:
        """The positions of the instances of each pseudo-bag."""
        generator = self.generator if self.training else torch.Generator().manual_seed(0)
        device = self.tier1.classifier.weight.device
        order = torch.randperm(n, generator=generator)
        return torch.tensor_split(order.to(device), min(self.groups, n))

    def _distil(self, h: Float[Tensor, "k d"], tier1: Prediction) -> Float[Tensor, "j d"]:
        if self.distill == "afs":
            return (tier1.attention @ h)[None]
        return h[self.extremes(self.project(h), tier1)]

    def project(self, h: Float[Tensor, "k d"]) -> Float[Tensor, "k c"]:
        """`w_c . h_k`; the classifier's bias is left out, as in the official code."""
        return h @ self.tier1.classifier.weight.T

    def extremes(self, projected: Float[Tensor, "k c"], tier1: Prediction) -> Tensor:
        """The positions in a pseudo-bag of the largest and the smallest class activation."""
        activation = tier1.attention[:, None] * projected
        target = 1 if activation.shape[1] == 2 else int(tier1.logits.argmax())
        # softmax_t = 1 / sum_c exp(s_c - s_t). Attention in a large bag is tiny, and the softmax
        # would round to 1/c.
        against = torch.expm1(activation - activation[:, target, None]).sum(1)
        return torch.stack([against.argmin(), against.argmax()])

    def conclude(
        self,
        members: Sequence[Tensor],
        tier1: Sequence[Prediction],
        distilled: Float[Tensor, "j d"],
    ) -> Prediction:
        """Tier 2 on the distilled features, equally many of each pseudo-bag."""
        prediction = self.tier2(distilled if self.joint else distilled.detach())
        attention = distilled.new_zeros(sum(map(len, members)))
        for group, pseudo_bag, part in zip(
            members, tier1, prediction.attention.chunk(len(members)), strict=True
        ):
            attention = attention.index_add(0, group, part.sum() * pseudo_bag.attention)
        return Prediction(
            prediction.logits, attention, tuple(pseudo_bag.logits for pseudo_bag in tier1)
        )
