"""The backward pass of the torch kernel, in the Gram form and in the factored form."""

from __future__ import annotations

from itertools import accumulate as add_up

import torch
from torch import Tensor

from scmil.sparse_coding.kernel_blocks import (
    Form,
    allocate_buffers,
    first_rows,
    flatten_layers,
    large_empty,
    normalise_again,
    shrink_backward,
)
from scmil.sparse_coding.kernel_gradients import (
    Buffers,
    Gradients,
    RowBlock,
    Weights,
    drive_backward,
    threshold_backward,
)
from scmil.sparse_coding.kernel_lanes import Lanes
from scmil.sparse_coding.kernel_products import accumulate, add_product, multiply, pad_rows
from scmil.sparse_coding.kernel_scaled import is_scaled, scaled_layers_backward


def backward_blocks(
    form: Form, inputs: int, wanted: bool, g: Tensor, *saved: Tensor
) -> tuple[Tensor, ...]:
    """Compute the gradients of x, D, log mu and the network.

    The gradient of x has no rows unless it is wanted: stored features need none.
    """
    lanes = Lanes.of(saved[0], saved[1].shape[-1])
    with lanes.one_thread():
        return _backward_lanes(lanes, form, inputs, wanted, g, *saved)


def _backward_lanes(
    lanes: Lanes, form: Form, inputs: int, wanted: bool, g: Tensor, *saved: Tensor
) -> tuple[Tensor, ...]:
    x, D, log_mu, *network = saved[:inputs]
    alpha, W, W_t, *kept = saved[inputs:]
    step = torch.exp(-log_mu)[..., None, None]
    g_x = large_empty(x, *x.shape[:-2], x.shape[-2] if wanted else 0, x.shape[-1])
    weights = Weights(D, W, W_t, step, network, (W, network[0]))
    if W.dtype != D.dtype:
        D_low, step_low, *low_network = (tensor.to(W.dtype) for tensor in (D, step, *network))
        weights = Weights(D_low, W, W_t, step_low, low_network, (W, low_network[0]))
    W_x, w_x = weights.centred
    # Centring passes over the weights, and saves passes over the rows.
    longer = x.shape[-2] >= 2 * (W_x.shape[-1] + w_x.shape[-2])
    if wanted and form.normalise and W_t.numel() and longer:
        centred = W_x - W_x.mean(-2, keepdim=True), w_x - w_x.mean(-1, keepdim=True)
        weights = weights._replace(centred=centred)
    per_block = 5 + len(network) // 2
    # The blocks of the forward pass, also if the number of threads has changed since. The last one
    # may have been padded.
    ends = list(add_up(part.shape[-2] for part in kept[5::per_block]))
    blocks = [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    def run_lane(lane: int) -> Gradients:
        totals = Gradients(D.dtype, torch.zeros_like(log_mu, dtype=D.dtype), [None] * len(network))
        memory = allocate_buffers(x, weights.D, blocks[0].stop, wide=2, narrow=4)
        for index in range(lane, len(blocks), lanes.number):
            block, first = blocks[index], index * per_block
            peak, mean, scale, codes, residuals, *hidden = kept[first : first + per_block]
            padded = block.stop - block.start
            g_rows, x_rows, alpha_rows = (
                pad_rows(part[..., block, :], padded) for part in (g, x, alpha)
            )
            out = g_x[..., block, :]
            buffers = Buffers(*first_rows(memory, padded))
            if residuals.numel():
                x_rows = residuals[..., 0, :, :]
            elif form.normalise:
                x_rows = normalise_again(x_rows, buffers.x, mean, scale)
            x_rows, g_rows = x_rows.to(W.dtype), g_rows.to(W.dtype)
            known = scale if form.normalise else None
            rows = RowBlock(x_rows, known, alpha_rows, peak, codes, residuals, hidden)
            _backward_rows(form, g_rows, rows, weights, buffers, totals, out)
        return totals

    g_W, g_W_t, g_log_mu, *g_network = (
        like.new_zeros(like.shape) if total is None else total  # a bag without instances
        for total, like in zip(
            Gradients.sum(lanes.run(run_lane)),
            (D, D.new_empty(W_t.shape), log_mu, *network),
            strict=True,
        )
    )
    if W_t.numel():
        g_log_mu -= _finish_dictionary(
            D, step, g_W, g_W_t, lanes.for_product(D.shape[-2] * D.shape[-1] ** 2)
        )
    else:
        g_W.mul_(step)
    return g_x, g_W, g_log_mu, *g_network


def _finish_dictionary(D: Tensor, step: Tensor, g_W: Tensor, g_W_t: Tensor, lanes: Lanes) -> Tensor:
    """Turn the gradient of W into that of D, and return what log mu loses.

    With W = D step and W_t = I - D^T W, and G the gradient of W_t, that of D is
    `step (g_W - D (G + G^T))`. As D^T W is symmetric, that of log mu needs no other product.
    """
    both = g_W_t + g_W_t.mT

    def run_lane(lane: int) -> Tensor:
        own = lanes.share(lane, D.shape[-2])
        g_rows, D_rows = g_W[..., own, :], D[..., own, :]
        product = multiply(D_rows, both)
        lost = torch.sub(g_rows, product, alpha=0.5).mul_(D_rows).sum((-2, -1))
        g_rows.sub_(product).mul_(step)
        return lost

    first, *others = lanes.run(run_lane)
    return sum(others, first) * step[..., 0, 0]


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
    same = g_x.dtype == rows.x.dtype and g_x.shape == rows.x.shape
    out = g_x if same else torch.empty_like(rows.x)
    g_drive, g_hidden = _backward_layers(form, g, rows, weights, buffers, totals, out)
    assert g_drive is not None
    # The scale multiplies the narrow factors, so that the wide gradient is read less often.
    if rows.scale is not None:
        g_hidden = g_hidden.mul_(rows.scale)
    both = add_product(g_drive, g_hidden, weights.centred[1], out=out)
    if rows.scale is not None:
        along = torch.mul(both, rows.x, out=buffers.wide).mean(-1, keepdim=True)
        if weights.centred[0] is weights.W:
            both.sub_(both.mean(-1, keepdim=True))
        both = torch.addcmul(both, rows.x, along, value=-1, out=out)
    if both is not g_x:
        g_x.copy_(both[..., : g_x.shape[-2], :])


def _backward_layers(
    form: Form,
    g: Tensor,
    rows: RowBlock,
    weights: Weights,
    buffers: Buffers,
    totals: Gradients,
    out: Tensor | None,
) -> tuple[Tensor | None, Tensor]:
    """The layers' gradient of x, if there is memory for it in `out`, and that of the first hidden
    layer of the sparsity network.
    """
    gram = bool(weights.W_t.numel())
    if gram and is_scaled(form):
        g_v, g_t = scaled_layers_backward(form, g, rows, weights, buffers, totals)
        scaled_drive = rows.codes[..., 0, :, :]
        g_hidden = threshold_backward(
            form, g_t, g_v, scaled_drive, True, rows, weights, buffers, totals
        )
        return drive_backward(g_v, rows, weights, totals, out), g_hidden
    kind = _GramProducts if gram else _FactoredProducts
    products = kind(rows, weights, buffers, totals)
    a, g_t = rows.alpha, torch.zeros_like(rows.lam)
    for layer in reversed(range(1, rows.codes.shape[-3] + 1)):
        g_v = products.gradient(layer)
        shrink_backward(g, a, g_t, g_v, buffers.sign)
        a = rows.codes[..., layer - 1, :, :]
        g = products.step_back(layer, g_v, a)
    g_v = products.gradient(0)
    shrink_backward(g, a, g_t, g_v, buffers.sign)
    g_hidden = threshold_backward(form, g_t, g_v, a, False, rows, weights, buffers, totals)
    return products.finish(g_v, out), g_hidden


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
        totals = self.totals
        totals.W_t = accumulate(totals.W_t, a, g_v, totals.dtype)
        return multiply(g_v, self.weights.W_t.mT, self.buffers.g)

    def finish(self, g_v: Tensor, out: Tensor | None) -> Tensor | None:
        """The first layer, whose codes before it are zero, and the gradient of x."""
        g_drive = self.buffers.g_drive
        g_drive += g_v
        return drive_backward(g_drive, self.rows, self.weights, self.totals, out)


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

    def finish(self, g_v: Tensor, out: Tensor | None) -> Tensor | None:
        """The first layer, the sums over all layers, and the gradient of x."""
        self._through_residual(0, g_v)
        totals, step, scale = self.totals, self.weights.step, self.rows.scale
        residuals, g_r = self.rows.residuals, self.g_r
        per_model = (residuals * g_r).sum((-3, -2, -1), dtype=totals.log_mu.dtype)
        totals.log_mu -= per_model * step[..., 0, 0]
        g_v, codes = flatten_layers(self.g_v), flatten_layers(self.rows.codes)
        D = self.weights.D
        if totals.W is None:  # row by row, as D is
            totals.W = D.new_zeros(D.shape, dtype=totals.dtype)
        sums, g_r_later = totals.W.mT, flatten_layers(g_r[..., 1:, :, :])
        accumulate(sums, g_v, flatten_layers(residuals), totals.dtype)
        accumulate(sums, codes, g_r_later, totals.dtype, alpha=-1)
        if out is None:
            return None
        return torch.mul(g_r.sum(-3), step if scale is None else step * scale, out=out)

    def _through_residual(self, layer: int, g_v: Tensor) -> Tensor:
        g_r = multiply(g_v, self.weights.D.mT, self.buffers.wide)
        self.g_r[..., layer, :, :] = g_r
        return g_r
