"""What every step of a training needs: a bag through the model, in a precision."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from scmil.bags.bag import Bag
from scmil.errors import BagError
from scmil.models.aggregators import Prediction
from scmil.models.model import MILModel
from scmil.training.checkpoint import DEFAULT_PRECISION


def autocast_to(precision: str, model: MILModel) -> AbstractContextManager[Any]:
    """Context manager: matrix products in the given precision."""
    if precision == DEFAULT_PRECISION:
        return nullcontext()
    return torch.autocast(next(model.parameters()).device.type, torch.bfloat16)


def apply_to_bag(function: Callable[..., Prediction], model: MILModel, bag: Bag) -> Prediction:
    """Apply a function to the features and positions of a bag; errors name the bag."""
    try:
        return function(model, bag.features, xy=bag.xy)
    except BagError as error:
        raise type(error)(f"bag {bag.id!r}: {error}") from None


def modules_of(model: MILModel) -> list[nn.Module]:
    """The modules whose gradients are clipped separately: embedding, refinement, and the
    aggregator's `clip_groups()`, by default its children.
    """
    if groups := getattr(model.aggregate, "clip_groups", None):
        return [model.embed, model.refine, *groups()]
    children = [
        child for child in model.aggregate.children() if any(True for _ in child.parameters())
    ]
    return [model.embed, model.refine, *(children or [model.aggregate])]
