"""The sparse-coding layer without gradients, for bags of up to a few thousand instances.

100 instances take less than a millisecond, of which the blocks, buffers and lanes of
`kernel_torch.py` would take a third. Here the whole bag is one block, and torch divides its
operations among the threads. The step is a factor of the products, so that W = D / mu is never
written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from scmil.sparse_coding.kernel_blocks import Form, normalise_rows, shrink, threshold
from scmil.sparse_coding.kernel_products import (
    LEAST_PADDED,
    add_product,
    is_for_onednn,
    is_long,
    multiply,
    pad_rows,
    row_grain,
)
from scmil.sparse_coding.kernel_scaled import is_scaled, scaled_layers

# The larger of n * p and n * m: above, blocks of rows are faster and save memory.
LARGEST_DIRECT = 2**19


def is_direct(x: Tensor, D: Tensor) -> bool:
    """Whether the bag is small enough, on the processor, and in the precision of the dictionary.

    >>> is_direct(torch.zeros(1000, 512), torch.zeros(512, 256))
    True
    """
    return (
        D.ndim == 2
        and len(x) * max(D.shape) <= LARGEST_DIRECT
        and x.device.type == "cpu"
        and x.dtype == D.dtype
        and x.dtype in (torch.float32, torch.float64)
    )


def uses_onednn(gram: bool, x: Tensor, D: Tensor) -> bool:
    """Whether oneDNN computes the products: if most of them take longer than what is done for it,
    such as padding the rows, or a single one of many rows.
    """
    p, m = D.shape
    longest = m * (max(p, m) if gram else p) // 2
    if len(x) >= LEAST_PADDED:
        longest = max(longest, p * (p // 4) // 4)
    return is_for_onednn(x) and is_long(len(x), longest)


def direct_codes(
    form: Form, gram: bool, x: Tensor, D: Tensor, log_mu: Tensor, network: Sequence[Tensor]
) -> Tensor:
    """The codes of a bag, in the Gram form or in the factored form."""
    if not uses_onednn(gram, x, D):
        return _compute_codes(torch.mm, torch.addmm, form, gram, x, D, log_mu, network)
    padded = pad_rows(x, len(x) + -len(x) % row_grain(x))
    return _compute_codes(multiply, add_product, form, gram, padded, D, log_mu, network)[: len(x)]


def _compute_codes(
    product: Callable[..., Tensor],
    product_and_sum: Callable[..., Tensor],
    form: Form,
    gram: bool,
    x: Tensor,
    D: Tensor,
    log_mu: Tensor,
    network: Sequence[Tensor],
) -> Tensor:
    step = torch.exp(-log_mu).item()
    if form.normalise:  # `F.layer_norm` takes twice as long
        x, _, _ = normalise_rows(x, torch.empty_like(x))
    lam = x
    for weight, bias in zip(network[::2], network[1::2], strict=True):
        lam = F.softplus(product_and_sum(bias, lam, weight.mT))
    drive = product(x, D).mul_(step)  # W_e x, the same in every layer
    a, D_T = torch.empty_like(drive), D.mT
    if gram:
        W_t, v = multiply(D_T, D).mul_(-step), torch.empty_like(drive)
        W_t.diagonal().add_(1)
    if gram and is_scaled(form):
        alpha = torch.empty_like(drive)
        scaled_layers(form, drive, lam, W_t, alpha, drive.new_empty(0), (v, a))
        return alpha
    _, t = threshold(lam, drive, step, form, a)
    lowest = None if form.nonnegative else -t
    shrink(drive, lowest, t, out=a)
    if form.layers == 1:
        return a
    if gram:
        for _ in range(form.layers - 1):
            shrink(product_and_sum(drive, a, W_t, out=v), lowest, t, out=a)
    else:
        onednn = product is multiply  # has no factors
        r = torch.empty_like(x)
        for _ in range(form.layers - 1):
            r = product_and_sum(x, a, D_T, alpha=-1, out=r)
            factor = 1 if onednn else step
            shrink(
                product_and_sum(a, r.mul_(step) if onednn else r, D, alpha=factor, out=drive),
                lowest,
                t,
                out=a,
            )
    return a
