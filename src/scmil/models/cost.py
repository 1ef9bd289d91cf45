"""The cost of a model: parameters, and multiply-adds counted while it runs."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from scmil.models.model import MILModel
from scmil.models.streaming import call_model


def count_parameters(module: nn.Module) -> int:
    """Count the trainable parameters of a module.

    Args:
        module: Any module.

    Returns:
        The number of trainable parameters.

    >>> from scmil import SparseCoding
    >>> count_parameters(SparseCoding(484, atoms=256))          # Table III prints 189.97K
    189971
    """
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def count_multiply_adds(module: nn.Module, n: int, dim: int) -> int:
    """Count the multiply-adds of all matrix products in one inference.

    Args:
        module: A module that takes a bag (n, dim).
        n: Number of instances of the bag.
        dim: Dimension of the features.

    Returns:
        The number of multiply-adds.

    >>> count_multiply_adds(nn.Linear(64, 10), n=5, dim=64)
    3200
    """
    weight = next(module.parameters())
    training = module.training
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            x = torch.ones(n, dim, dtype=weight.dtype, device=weight.device)
            if isinstance(module, MILModel):
                place, side = torch.arange(n), max(1, round(n**0.5))  # tiles on a square grid
                call_model(module.eval(), x, torch.stack([place % side, place // side], 1))
            else:
                module.eval()(x)
    finally:
        module.train(training)
    return int(counter.get_total_flops()) // 2
