"""What the models of a run cost: multiply-adds, and the density of their codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet
    from scmil.bags.splits import Split
    from scmil.models.model import MILModel


def multiply_adds_of(model: MILModel, instances: int, dim: int) -> int:
    """Multiply-adds of one bag, by the plain form of the layer: the counter sees no NumPy code."""
    from scmil.models.cost import count_multiply_adds

    refine = model.refine
    fused = getattr(refine, "fused", None)
    if fused:
        refine.fused = False  # type: ignore[assignment]
    try:
        return count_multiply_adds(model, instances, dim)
    finally:
        if fused:
            refine.fused = True  # type: ignore[assignment]


def density_of(
    models: Sequence[MILModel], bags: BagSet, splits: Sequence[Split], standardise: bool
) -> float | None:
    """Fraction of coefficients that are not zero, over some training bags of every fold.

    None for models without a sparse code.
    """
    import torch

    from scmil.bags.scaling import streamed_moments

    densities = []
    for model, split in zip(models, splits, strict=True):
        statistics = getattr(model.refine, "statistics", None)
        if statistics is None:
            return None
        train = bags.subset(split.train)
        inputs = streamed_moments(train).apply_to_bags(train) if standardise else train
        with torch.no_grad():
            densities += [statistics(model.embed(bag.features)).density for bag in inputs[:5]]
    return round(float(np.mean(densities)), 4)
