"""What a model costs: parameters, and multiply-adds counted while it runs, not estimated."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def count_parameters(module: nn.Module) -> int:
    """The number of trainable numbers in a module.

    >>> from scmil import SparseCoding
    >>> count_parameters(SparseCoding(484, atoms=256))          # Table III prints 189.97K
    189971
    """
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def count_multiply_adds(module: nn.Module, n: int, dim: int) -> int:
    """The multiply-adds of all matrix products that the module makes for one bag of n instances, in inference.

    >>> count_multiply_adds(nn.Linear(64, 10), n=5, dim=64)
    3200
    """
    weight = next(module.parameters())
    training = module.training
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            module.eval()(torch.ones(n, dim, dtype=weight.dtype, device=weight.device))
    finally:
        module.train(training)
    return int(counter.get_total_flops()) // 2


def table3_multiply_adds(atoms: int, layers: int = 5, n: int = 120, p: int = 484) -> int:
    """The multiply-adds of the SC module in the accounting that gives Table III, whose "K" are millions.

    A reconstruction from the printed numbers, not confirmed by the authors: the lambda-network, two n x p x m products,
    L + 1 products with the m x m matrix, and the element-wise operations (8 + 6L) nm + 2 m^2. It counts one product of
    each kind more than the released code makes, and leaves the Gram matrix out; `count_multiply_adds` counts what is run.
    The table's labels 64, 128, 256, 512 stand for 16, 64, 256 and 1024 atoms.

    >>> [round(table3_multiply_adds(m) / 1e6, 2) for m in (16, 64, 256, 1024)]
    [10.02, 18.59, 86.13, 888.6]
    """
    network = p * (p // 4) + (p // 4) * (p // 8) + p // 8
    elementwise = (8 + 6 * layers) * n * atoms + 2 * atoms**2
    return n * network + 2 * n * p * atoms + (layers + 1) * n * atoms**2 + elementwise
