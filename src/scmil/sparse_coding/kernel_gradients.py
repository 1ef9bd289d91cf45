"""What the backward pass of the torch kernel works with, and the parts that all forms share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from scmil.sparse_coding.kernel_blocks import (
    Form,
    peak_signs,
    relative_fraction,
    sparsity_network_backward,
    threshold_of,
)
from scmil.sparse_coding.kernel_products import accumulate, multiply


class Weights(NamedTuple):
    """The parameters of the layer in the precision of the products; `W_t` is empty if factored."""

    D: Tensor
    W: Tensor
    W_t: Tensor
    step: Tensor
    network: Sequence[Tensor]
    # W and the first weight of the network; on long bags in the Gram form without the mean over the
    # features, if rows are normalised: the gradient of x then has no mean to subtract.
    centred: tuple[Tensor, Tensor]


class RowBlock(NamedTuple):
    """A block of rows: the normalised inputs, the codes, and what the forward pass saved."""

    x: Tensor
    scale: Tensor | None  # of the normalisation
    alpha: Tensor
    peak: Tensor
    codes: Tensor
    residuals: Tensor
    hidden: Sequence[Tensor]

    @property
    def lam(self) -> Tensor:
        """The output of the sparsity network."""
        return self.hidden[-1]


class Buffers(NamedTuple):
    """Memory for one block, used again by the next one."""

    x: Tensor
    wide: Tensor
    g: Tensor
    g_v: Tensor
    sign: Tensor
    g_drive: Tensor


@dataclass
class Gradients:
    """Sums over the blocks of a lane."""

    dtype: torch.dtype  # of the parameters; products may have a lower precision
    log_mu: Tensor
    network: list[Tensor | None]
    W: Tensor | None = None
    W_t: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor | None]:
        """The sums, None where there is none."""
        return [self.W, self.W_t, self.log_mu, *self.network]

    @staticmethod
    def sum(parts: Sequence[Gradients]) -> list[Tensor | None]:
        """The tensors of all lanes, added in the order of the lanes."""
        totals = []
        for tensors in zip(*(part.tensors for part in parts), strict=True):
            first, *others = [tensor for tensor in tensors if tensor is not None] or [None]
            for other in others:
                first += other
            totals.append(first)
        return totals


def drive_backward(
    g_drive: Tensor, rows: RowBlock, weights: Weights, totals: Gradients, out: Tensor | None
) -> Tensor | None:
    """Add to the gradient of W; with memory for it, return that of x, for which `g_drive` is
    scaled.
    """
    totals.W = accumulate(totals.W, rows.x, g_drive, totals.dtype)
    if out is None:
        return None
    if rows.scale is not None:
        g_drive.mul_(rows.scale)
    return multiply(g_drive, weights.centred[0].mT, out)


def threshold_backward(
    form: Form,
    g_t: Tensor,
    g_v: Tensor,
    first: Tensor,
    scaled: bool,
    rows: RowBlock,
    weights: Weights,
    buffers: Buffers,
    totals: Gradients,
) -> Tensor:
    """Add what the threshold contributes to `g_v`, log mu and the network; return the gradient of
    the first hidden layer.

    `first` are the codes of the first layer, or the scaled drive: where the drive has its peak, it
    has the same sign and the largest magnitude.
    """
    lam = rows.lam
    if form.printed:
        g_lam = g_t
    elif form.relative is None:
        g_lam = g_t * weights.step
        totals.log_mu -= (g_lam * lam).sum((-2, -1), dtype=totals.log_mu.dtype)
    else:
        low, high = form.relative
        g_lam = g_t * rows.peak * ((high - low) / (1 + lam).square())
        fraction = relative_fraction(lam, form.relative)
        t = threshold_of(fraction, rows.peak, scaled)
        # To the last digit what the forward pass has computed there.
        highest = rows.peak * t.reciprocal() if scaled else rows.peak - t
        signs, count = peak_signs(first, highest, buffers.sign)
        g_v.addcmul_(signs, fraction.mul_(g_t).div_(count))
    return sparsity_network_backward(
        g_lam, rows.x, rows.hidden, weights.network, totals.network, totals.dtype
    )
