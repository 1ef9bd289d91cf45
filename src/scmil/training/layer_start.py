"""Start a sparse coding layer from its training bags, and keep its constraints between steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from scmil.errors import BagError
from scmil.models.model import MILModel, check_bag
from scmil.sparse_coding.layer import SparseCoding

SAMPLED_INSTANCES = 16_384  # for k-means of 256 centres, 64 per centre


def layers_to_start(model: nn.Module, epoch: int) -> list[SparseCoding]:
    """The sparse coding layers that start from data before this epoch, which counts from 0."""
    return [
        layer
        for layer in model.modules()
        if isinstance(layer, SparseCoding) and layer.needs_start and epoch >= layer.learning.warmup
    ]


@torch.no_grad()
def start_layers(
    model: MILModel, epoch: int, bags: Iterable[tuple[str, Tensor]], count: int, seed: int
) -> bool:
    """Start the layers that take their dictionary or gain from data; returns whether there are any.

    At most `SAMPLED_INSTANCES` instances are drawn, as many from each bag, and embedded.

    Args:
        model: The model, in training.
        epoch: The epoch that follows, from 0.
        bags: Id and features of the training bags; never of validation or test bags.
        count: The number of bags.
        seed: Seed of the draws.

    Raises:
        BagError: If a bag is empty or has features that are not finite; the message names it.
    """
    layers = layers_to_start(model, epoch)
    if not layers:
        return False
    generator = torch.Generator().manual_seed(seed)
    like, per_bag = next(model.parameters()), -(-SAMPLED_INSTANCES // max(count, 1))
    training = model.training
    model.eval()  # no dropout in the embedding
    parts = []
    for bag_id, features in bags:
        try:
            check_bag(features, model.dim)
        except BagError as error:
            raise type(error)(f"bag {bag_id!r}: {error}") from None
        rows = torch.randperm(len(features), generator=generator)[:per_bag]
        parts.append(model.embed(features[rows].to(like)))
    for layer in layers:
        layer.start_from(torch.cat(parts), generator)
    model.train(training)
    return True


def constrained_layers(model: nn.Module) -> dict[str, SparseCoding]:
    """The layers whose atoms have unit norm after each step, by the name of their dictionary."""
    modules: list[tuple[str, Any]] = list(model.named_modules())
    return {
        f"{name}.dictionary": layer
        for name, layer in modules
        if isinstance(layer, SparseCoding) and layer.learning.unit_norm
    }
