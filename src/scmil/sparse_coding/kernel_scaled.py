"""The layers of a block in units of the threshold, in the Gram form: fewer operations per layer.

All entries of a row have the same threshold t. Divided by it, a layer is `shrink(u + a W_t)` with
`u = drive / t` and the threshold 1, for which torch has one operation where a threshold for each
row takes three. t occurs only at the beginning and at the end, `alpha = t f(drive / t)`, so that
its gradient needs no sum in each layer (Euler's identity for homogeneous functions):

    g_t = (sum_j g_j alpha_j - sum_j g_drive_j drive_j) / t

The difference loses digits if t is small compared with the drive. So this form is used if t is a
fraction of the largest entry with a lower bound (`is_scaled`). Without gradients,
`kernel_direct.py` computes the factored form in these units as well: its features are divided by t.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from scmil.sparse_coding.kernel_blocks import (
    Form,
    relative_fraction,
    softshrink_backward,
    threshold_of,
)
from scmil.sparse_coding.kernel_gradients import Buffers, Gradients, RowBlock, Weights
from scmil.sparse_coding.kernel_products import accumulate, add_product, multiply

# The fraction from which on at most two digits of the gradient of the threshold are lost.
LEAST_FRACTION = 0.01

softshrink: Any = torch._C._nn.softshrink  # with `out`, unlike that of torch.nn.functional


def is_scaled(form: Form) -> bool:
    """Whether the layers can be computed in units of the threshold.

    >>> is_scaled(Form(layers=5, relative=(0.1, 0.9), normalise=True))
    True
    """
    return (
        form.relative is not None
        and form.relative[0] >= LEAST_FRACTION
        and not form.nonnegative
        and form.low is None
    )


def scaled_threshold(lam: Tensor, peak: Tensor, form: Form) -> Tensor:
    """The threshold of each row."""
    assert form.relative is not None
    return threshold_of(relative_fraction(lam, form.relative), peak, scaled=True)


def scaled_layers(
    form: Form,
    drive: Tensor,
    lam: Tensor,
    W_t: Tensor,
    alpha: Tensor,
    codes: Tensor,
    buffers: Sequence[Tensor],
) -> Tensor:
    """Write the codes into `alpha` and return the peak of each row of the drive.

    If `codes` has layers, the scaled drive and the scaled codes of the layers between the first and
    the last are kept in them; otherwise the drive is overwritten.
    """
    v, other = buffers
    keep = bool(codes.numel())
    peak = torch.abs(drive, out=other).amax(-1, keepdim=True)
    t = scaled_threshold(lam, peak, form)
    u = torch.mul(drive, t.reciprocal(), out=codes[..., 0, :, :] if keep else drive)
    a = softshrink(u, 1.0, out=other)
    for layer in range(1, form.layers):
        out = alpha
        if layer < form.layers - 1:
            out = codes[..., layer, :, :] if keep else other
        a = softshrink(add_product(u, a, W_t, out=v), 1.0, out=out)
    alpha.mul_(t)
    return peak


def scaled_layers_backward(
    form: Form, g: Tensor, rows: RowBlock, weights: Weights, buffers: Buffers, totals: Gradients
) -> tuple[Tensor, Tensor]:
    """The gradient of the drive, and that of the threshold; adds to the gradient of W_t."""
    codes, a, g_drive = rows.codes, rows.alpha, buffers.g_drive
    u, t = codes[..., 0, :, :], scaled_threshold(rows.lam, rows.peak, form)
    g_t = torch.mul(g, a, out=buffers.sign).sum(-1, keepdim=True)
    g = torch.mul(g, t, out=buffers.g)
    for layer in reversed(range(1, form.layers)):
        last = layer == form.layers - 1
        g_v = softshrink_backward(g, a, 0.0, grad_input=g_drive if last else buffers.g_v)
        if not last:
            g_drive += g_v
        a = codes[..., layer - 1, :, :] if layer > 1 else softshrink(u, 1.0, out=buffers.sign)
        totals.W_t = accumulate(totals.W_t, a, g_v, totals.dtype)
        g = multiply(g_v, weights.W_t.mT, buffers.g)
    g_drive += softshrink_backward(g, u, 1.0, grad_input=buffers.g_v)
    g_t -= torch.mul(g_drive, u, out=buffers.sign).sum(-1, keepdim=True)
    return g_drive.mul_(t.reciprocal()), g_t.div_(t)
