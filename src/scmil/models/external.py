"""Plug and play: sparse coding in front of an aggregator that somebody else wrote."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from scmil.models.aggregators import Embedding, Prediction
from scmil.models.aggregators.heads import as_logits
from scmil.errors import OptionError
from scmil.models.model import MILModel
from scmil.core.shapes import Float
from scmil.sparse_coding.layer import SparseCoding


def plug_into(
    module: nn.Module,
    dim: int,
    atoms: int = 256,
    *,
    call: Mapping[str, Any] | None = None,
    attention: str = "softmax",
    **sparse_coding: Any,
) -> MILModel:
    """Put sparse coding in front of somebody else's aggregator, built for embeddings of `atoms` dimensions.

    The module maps `(n, d)` or `(1, n, d)` to logits, or to logits and attention; which of the two is found out with two
    small bags. `call` holds further arguments for its forward, such as `{"return_att": True}`. One logit stands for two
    classes. The attention that it returns may be scores before the softmax (`attention="softmax"`) or weights that already
    sum to one (`attention="weights"`).

    >>> class Mean(nn.Module):
    ...     def __init__(self): super().__init__(); self.head = nn.Linear(256, 3)
    ...     def forward(self, bags): return self.head(bags.mean(1))
    >>> plug_into(Mean(), dim=512)(torch.randn(9, 512)).logits.shape
    torch.Size([3])
    """
    if attention not in ("softmax", "weights"):
        raise OptionError(f"attention = {attention!r}. Known: softmax, weights.")
    outside = Outside(module, atoms, attention, dict(call or {}))
    return MILModel(nn.Identity(), SparseCoding(dim, atoms, **sparse_coding), outside, dim)


class Outside(nn.Module):
    """Speaks our contract for a module that was written for another one."""

    permutation_invariant = False  # not known
    embedding = Embedding()

    def __init__(self, module: nn.Module, dim: int, attention: str, call: dict[str, Any]) -> None:
        super().__init__()
        self.module, self.attention, self.call = module, attention, call
        self.batched = self._takes_a_batch(dim)

    def _takes_a_batch(self, dim: int) -> bool:
        """Try both forms on bags of two and three instances: the logits are one row, whatever the size of the bag."""
        weight = next(self.module.parameters(), torch.empty(0))
        training, refusals = self.module.training, []
        self.module.eval()
        try:
            for batched in (True, False):
                bags = [torch.ones(n, dim, dtype=weight.dtype, device=weight.device) for n in (2, 3)]
                shape = f"({'1, ' if batched else ''}n, {dim})"
                try:
                    with torch.no_grad():
                        two, three = (
                            _logits_of(self.module(bag[None] if batched else bag, **self.call)).shape for bag in bags
                        )
                except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
                    refusals.append(f"{shape} raised {type(error).__name__}: {str(error).splitlines()[0]}")
                    continue
                if two == three and (len(two) <= 1 or (len(two) == 2 and two[0] == 1)):
                    return batched
                refusals.append(f"{shape} gave logits {tuple(two)} for two instances and {tuple(three)} for three")
        finally:
            self.module.train(training)
        raise OptionError(
            f"{type(self.module).__name__} gives no logits for a bag. {'; '.join(refusals)}. "
            f"Build it for {dim}-dimensional embeddings, the number of atoms, and let it pool the instances."
        )

    def forward(self, h: Float[Tensor, "n d"]) -> Prediction:
        """Call the module in the form that it takes, and read logits and attention off what it says."""
        said = self.module(h[None] if self.batched else h, **self.call)
        logits = as_logits(_logits_of(said).reshape(-1))
        scores = said[1] if isinstance(said, tuple | list) and len(said) > 1 else None
        if not isinstance(scores, Tensor) or scores.numel() % len(h):
            return Prediction(logits, h.new_full((len(h),), math.nan))  # not told; NaN cannot be mistaken for an answer
        axis = max(i for i, size in enumerate(scores.shape) if size == len(h))
        scores = scores.movedim(axis, -1).reshape(-1, len(h))  # one row a head
        weights = torch.softmax(scores, dim=1) if self.attention == "softmax" else scores
        return Prediction(logits, weights.mean(0))


def _logits_of(said: Any) -> Tensor:
    logits = said[0] if isinstance(said, tuple | list) else said
    if not isinstance(logits, Tensor):
        raise TypeError(f"returned {type(logits).__name__}, not a tensor of logits")
    return logits
