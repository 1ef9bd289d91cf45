"""DTFD-MIL: pseudo-bags and a second tier on what they distil, Zhang et al. (2022)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from scmil.models.aggregators import Embedding, Prediction, register
from scmil.models.aggregators.abmil import ABMIL
from scmil.core.shapes import Float


@register("dtfd-afs", "pseudo-bags, aggregated features", distill="afs")
@register("dtfd-maxmin", "pseudo-bags, largest and smallest", distill="maxmin")
class DTFD(nn.Module):
    """Splits the bag into pseudo-bags at random, and classifies what attention distils from each.

    Tier 1, gated attention with a classifier, sees each of four pseudo-bags with the bag's label. `maxmin` hands on the
    embeddings of the instances whose class activation `softmax_c(w_c . (a_k h_k))` is largest and smallest; `afs` hands
    on the pseudo-bag's pooled embedding. Tier 2, another gated attention, classifies those. What is handed on is detached:
    in the official code tier 2's gradients to tier 1 are erased before they are used, so tier 1 learns from its own loss.
    `joint=True` lets them through, as the paper's objective reads.

    The split is drawn from `generator` (torch's global one if none is given) in training; in evaluation always the same
    one, so that a prediction repeats. With more than two classes, activation means that of the class which the pseudo-bag
    is given (ours; the original is binary). Attention: tier 2's weight of a pseudo-bag, times tier 1's within it.
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
        tier1 = [self.tier1(h[group]) for group in members]
        distilled = [self._distil(h[group], said) for group, said in zip(members, tier1, strict=True)]
        return self.conclude(members, tier1, torch.cat(distilled))

    def split(self, n: int) -> tuple[Tensor, ...]:
        """The positions of the instances of each pseudo-bag."""
        generator = self.generator if self.training else torch.Generator().manual_seed(0)
        device = self.tier1.classifier.weight.device
        order = torch.randperm(n, generator=generator)
        return torch.tensor_split(order.to(device), min(self.groups, n))

    def _distil(self, h: Float[Tensor, "k d"], said: Prediction) -> Float[Tensor, "j d"]:
        if self.distill == "afs":
            return (said.attention @ h)[None]
        return h[self.extremes(self.project(h), said)]

    def project(self, h: Float[Tensor, "k d"]) -> Float[Tensor, "k c"]:
        """`w_c . h_k`; the activation leaves the classifier's bias out, as the official code does."""
        return h @ self.tier1.classifier.weight.T

    def extremes(self, projected: Float[Tensor, "k c"], said: Prediction) -> Tensor:
        """Where in a pseudo-bag the class activation is largest, and where smallest."""
        activation = said.attention[:, None] * projected
        target = 1 if activation.shape[1] == 2 else int(said.logits.argmax())
        # softmax_t = 1 / sum_c exp(s_c - s_t). Attention in a large bag is tiny: all softmax would round to 1/c.
        against = torch.expm1(activation - activation[:, target, None]).sum(1)
        return torch.stack([against.argmin(), against.argmax()])

    def conclude(
        self, members: Sequence[Tensor], tier1: Sequence[Prediction], handed_on: Float[Tensor, "j d"]
    ) -> Prediction:
        """Tier 2 on what the pseudo-bags hand on, each equally many."""
        said = self.tier2(handed_on if self.joint else handed_on.detach())
        attention = handed_on.new_zeros(sum(map(len, members)))
        for group, pseudo_bag, part in zip(members, tier1, said.attention.chunk(len(members)), strict=True):
            attention = attention.index_add(0, group, part.sum() * pseudo_bag.attention)
        return Prediction(said.logits, attention, tuple(pseudo_bag.logits for pseudo_bag in tier1))
