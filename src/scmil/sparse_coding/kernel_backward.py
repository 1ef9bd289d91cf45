"""The backward pass of the torch kernel, in the Gram form and in the factored form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate as add_up
from typing import NamedTuple

import torch
from torch import Tensor

from scmil.sparse_coding.kernel_blocks import (
    Form,
    accumulate,
    add_product,
    allocate_buffers,
    first_rows,
    flatten_layers,
    normalise_rows,
    relative_fraction,
    shrink_backward,
    sparsity_network_backward,
)
from scmil.sparse_coding.kernel_lanes import Lanes


class Weights(NamedTuple):
    """The parameters of the layer in the precision of the products; `W_t` is empty if factored."""

    D: Tensor
    W: Tensor
    W_t: Tensor
    step: Tensor
    network: Sequence[Tensor]


class RowBlock(NamedTuple):
    """A block of rows: the normalised inputs, the codes, and what the forward pass saved."""

    x: Tensor
    scale: Tensor | None  # of the normalisation
    alpha: Tensor
    peak: Tensor
    where: Tensor
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

    W: Tensor
    W_t: Tensor
    log_mu: Tensor
    network: Sequence[Tensor]

    @classmethod
    def zeros(cls, D: Tensor, W_t: Tensor, log_mu: Tensor, network: Sequence[Tensor]) -> Gradients:
        """Sums over no block, in the precision of the parameters."""
        return cls(
            W=torch.zeros_like(D),
            W_t=torch.zeros_like(W_t, dtype=D.dtype),
            log_mu=torch.zeros_like(log_mu, dtype=D.dtype),
            network=[torch.zeros_like(part) for part in network],
        )

    @classmethod
    def sum(cls, parts: Sequence[Gradients], lanes: Lanes) -> Gradients:
        """The sums over all lanes, in their order; each lane adds some rows."""
        first = parts[0]

        def run_lane(lane: int) -> None:
            for other in parts[1:]:
                for total, part in ((first.W, other.W), (first.W_t, other.W_t)):
                    own = lanes.share(lane, total.shape[-2])
                    total[..., own, :] += part[..., own, :]

            if lane == 0:
                for other in parts[1:]:
                    first.log_mu += other.log_mu
                    for total, part in zip(first.network, other.network, strict=True):
                        total += part

        if len(parts) > 1:
            lanes.run(run_lane)
        return first


def backward_blocks(
    form: Form, inputs: int, wanted: bool, g: Tensor, *saved: Tensor
) -> tuple[Tensor, ...]:
    """Compute the gradients of x, D, log mu and the network.

    The gradient of x has no rows unless it is wanted: stored features need none.
    """
    x, D, log_mu, *network = saved[:inputs]
    alpha, W, W_t, *kept = saved[inputs:]
    step = torch.exp(-log_mu)[..., None, None]
    g_x = torch.empty_like(x) if wanted else x.new_empty(*x.shape[:-2], 0, x.shape[-1])
    D_low, *low_network = (tensor.to(W.dtype) for tensor in (D, *network))
    weights = Weights(D_low, W, W_t, step.to(W.dtype), low_network)
    lanes, per_block = Lanes.of(x, D.shape[-1]), 4 + len(network) // 2
    # The blocks of the forward pass, also if the number of threads has changed since.
    ends = list(add_up(part.shape[-2] for part in kept[4::per_block]))
    blocks = [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    def run_lane(lane: int) -> Gradients:
        totals = Gradients.zeros(D, W_t, log_mu, network)
        memory = allocate_buffers(x, D_low, blocks[0].stop, wide=2, narrow=4)
        for index in range(lane, len(blocks), lanes.number):
            block, first = blocks[index], index * per_block
            peak, where, codes, residuals, *hidden = kept[first : first + per_block]
            g_rows, x_rows, alpha_rows, out = (part[..., block, :] for part in (g, x, alpha, g_x))
            buffers = Buffers(*first_rows(memory, x_rows.shape[-2]))
            scale = None
            if form.normalise:
                x_rows, scale = normalise_rows(x_rows, buffers.x)
            x_rows = x_rows.to(W.dtype)
            rows = RowBlock(x_rows, scale, alpha_rows, peak, where, codes, residuals, hidden)
            _backward_rows(form, g_rows.to(W.dtype), rows, weights, buffers, totals, out)
        return totals

    totals = Gradients.sum(lanes.run(run_lane), lanes)
    _finish_dictionary(D, step, W, totals, lanes)
    return g_x, totals.W, totals.log_mu, *totals.network


def _finish_dictionary(D: Tensor, step: Tensor, W: Tensor, totals: Gradients, lanes: Lanes) -> None:
    """Turn the sums of W and W_t into the gradient of D, in `totals.W`, and add that of log mu."""

    def run_lane(lane: int) -> Tensor | None:
        own = lanes.share(lane, D.shape[-2])
        g_W, D_rows = totals.W[..., own, :], D[..., own, :]
        if not totals.W_t.numel():
            g_W.mul_(step)
            return None
        W_rows = D_rows * step if W.dtype != D.dtype else W[..., own, :]
        add_product(g_W, D_rows, totals.W_t, alpha=-1, out=g_W)
        through_step = (g_W * W_rows).sum((-2, -1))
        add_product(g_W.mul_(step), W_rows, totals.W_t.mT, alpha=-1, out=g_W)
        return through_step

    for through_step in lanes.run(run_lane):
        if through_step is not None:
            totals.log_mu -= through_step


def _backward_rows(
    form: Form,
    g: Tensor,
    rows: RowBlock,
    weights: Weights,
    buffers: Buffers,
    totals: Gradients,
    g_x: Tensor,
) -> None:
    """Write the gradient of these rows into `g_x`, if it has any, and add theirs to the totals."""
    if not g_x.numel():
        _backward_layers(form, g, rows, weights, buffers, totals, None)
        return
    out = g_x if g_x.dtype == rows.x.dtype else torch.empty_like(rows.x)
    g_hidden = _backward_layers(form, g, rows, weights, buffers, totals, out)
    # The scale multiplies the narrow factors, so that the wide gradient is read less often.
    if rows.scale is not None:
        g_hidden = g_hidden.mul_(rows.scale)
    add_product(out, g_hidden, weights.network[0], out=out)
    if rows.scale is not None:
        along = torch.mul(out, rows.x, out=buffers.wide).mean(-1, keepdim=True)
        out.sub_(out.mean(-1, keepdim=True)).addcmul_(rows.x, along, value=-1)
    if out is not g_x:
        g_x.copy_(out)


def _backward_layers(
    form: Form,
    g: Tensor,
    rows: RowBlock,
    weights: Weights,
    buffers: Buffers,
    totals: Gradients,
    out: Tensor | None,
) -> Tensor:
    """Write the layers' gradient of x into `out`, return that of the first hidden layer of the
    sparsity network.
    """
    kind = _GramProducts if weights.W_t.numel() else _FactoredProducts
    products = kind(rows, weights, buffers, totals)
    a, g_t = rows.alpha, torch.zeros_like(rows.lam)
    for layer in reversed(range(1, rows.codes.shape[-3] + 1)):
        g_v = products.gradient(layer)
        shrink_backward(g, a, g_t, g_v, buffers.sign)
        a = rows.codes[..., layer - 1, :, :]
        g = products.step_back(layer, g_v, a)
    g_v = products.gradient(0)
    shrink_backward(g, a, g_t, g_v, buffers.sign)
    g_hidden = _backward_threshold(form, g_t, g_v, a, rows, weights, totals)
    products.finish(g_v, out)
    return g_hidden


class _GramProducts:
    """The matrix products of layers `drive + a W_t`."""

    def __init__(
        self, rows: RowBlock, weights: Weights, buffers: Buffers, totals: Gradients
    ) -> None:
        self.rows, self.weights, self.buffers, self.totals = rows, weights, buffers, totals
        buffers.g_drive.zero_()

    def gradient(self, layer: int) -> Tensor:
        """The memory for the gradient before the threshold of a layer."""
        return self.buffers.g_v

    def step_back(self, layer: int, g_v: Tensor, a: Tensor) -> Tensor:
        """The gradient of the codes `a` before the layer."""
        g_drive = self.buffers.g_drive
        g_drive += g_v
        accumulate(self.totals.W_t, a.mT, g_v)
        return torch.matmul(g_v, self.weights.W_t.mT, out=self.buffers.g)

    def finish(self, g_v: Tensor, out: Tensor | None) -> None:
        """The first layer, whose codes before it are zero, and the gradient of x."""
        g_drive, scale = self.buffers.g_drive, self.rows.scale
        g_drive += g_v
        accumulate(self.totals.W, self.rows.x.mT, g_drive)
        if out is not None:
            if scale is not None:
                g_drive.mul_(scale)
            torch.matmul(g_drive, self.weights.W.mT, out=out)


class _FactoredProducts:
    """The matrix products of layers `a + (x - a D^T) W`.

    With `g_r = g_v D^T` for the residual r of each layer and without the step, `W = D step` gives
    the whole gradient of D: `step (r^T g_v - g_r^T a)`. So the layers are one product, that of the
    step needs no D, and `totals.W` is the bracket.
    """

    def __init__(
        self, rows: RowBlock, weights: Weights, buffers: Buffers, totals: Gradients
    ) -> None:
        self.rows, self.weights, self.buffers, self.totals = rows, weights, buffers, totals
        residuals, m = rows.residuals, rows.alpha.shape[-1]
        self.g_v, self.g_r = (
            residuals.new_empty(*residuals.shape[:-1], m),
            torch.empty_like(residuals),
        )

    def gradient(self, layer: int) -> Tensor:
        """The memory for the gradient before the threshold of a layer."""
        return self.g_v[..., layer, :, :]

    def step_back(self, layer: int, g_v: Tensor, a: Tensor) -> Tensor:
        """The gradient of the codes before the layer."""
        g_r = self._through_residual(layer, g_v)
        return add_product(g_v, g_r, self.weights.W, alpha=-1, out=self.buffers.g)

    def finish(self, g_v: Tensor, out: Tensor | None) -> None:
        """The first layer, the sums over all layers, and the gradient of x."""
        self._through_residual(0, g_v)
        totals, step, scale = self.totals, self.weights.step, self.rows.scale
        residuals, g_r = self.rows.residuals, self.g_r
        per_model = (residuals * g_r).sum((-3, -2, -1), dtype=totals.log_mu.dtype)
        totals.log_mu -= per_model * step[..., 0, 0]
        g_v, codes = flatten_layers(self.g_v), flatten_layers(self.rows.codes)
        accumulate(totals.W.mT, g_v.mT, flatten_layers(residuals))
        accumulate(totals.W.mT, codes.mT, flatten_layers(g_r[..., 1:, :, :]), alpha=-1)
        if out is not None:
            torch.mul(g_r.sum(-3), step if scale is None else step * scale, out=out)

    def _through_residual(self, layer: int, g_v: Tensor) -> Tensor:
        g_r = torch.matmul(g_v, self.weights.D.mT, out=self.buffers.wide)
        self.g_r[..., layer, :, :] = g_r
        return g_r


def _backward_threshold(
    form: Form,
    g_t: Tensor,
    g_v: Tensor,
    first_codes: Tensor,
    rows: RowBlock,
    weights: Weights,
    totals: Gradients,
) -> Tensor:
    """Add what the threshold contributes to `g_v`, log mu and the network; return the gradient of
    the first hidden layer.
    """
    lam = rows.lam
    if form.printed:
        g_lam = g_t
    elif form.relative is None:
        g_lam = g_t * weights.step
        totals.log_mu -= (g_lam * lam).sum((-2, -1), dtype=totals.log_mu.dtype)
    else:
        # t = fraction * peak. The first codes are the drive with all magnitudes lowered alike: at
        # the peak, the same sign.
        low, high = form.relative
        g_lam = g_t * rows.peak * ((high - low) / (1 + lam).square())
        sign = first_codes.gather(-1, rows.where).sign()
        g_v.scatter_add_(-1, rows.where, g_t * relative_fraction(lam, form.relative) * sign)
    return sparsity_network_backward(g_lam, rows.x, rows.hidden, weights.network, totals.network)
