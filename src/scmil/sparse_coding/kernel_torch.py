"""The fast sparse-coding layer: the same numbers as the plain equations of `equations.py`.

Why it is faster than the same equations written with torch operations:

- **Blocks of rows.** A block of rows passes all operations before the next block starts. It stays
  in the processor's cache, so that the thresholds, which are limited by memory bandwidth, cost
  little compared with the matrix products.
- **Whole blocks on each thread.** On large bags a thread takes a block through all operations,
  where torch would divide each operation among the threads and wait for the last one
  (`kernel_lanes.py`).
- **Little overhead on small bags.** `kernel_numpy.py` and, without gradients, `kernel_direct.py`.
- **The cheaper of two equal forms.** `(x - alpha D^T) W` costs 2npm multiply-adds per layer;
  `x W + alpha W_t`, with `W_t = I - D^T W` computed once for pm^2, costs nm^2. `gram_is_cheaper`
  counts and decides.
- **Backward keeps little besides the codes.** The active set and the signs are read from the codes,
  where autograd would keep five tensors per layer.

The vmap rules let `torch.func` stack many models (all folds of a cross-validation) over the same
bag.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from scmil.sparse_coding.kernel_backward import backward_blocks
from scmil.sparse_coding.kernel_blocks import Form as Form
from scmil.sparse_coding.kernel_blocks import (
    allocate_buffers,
    first_rows,
    large_empty,
    normalise_rows,
    row_blocks,
    shrink,
    sparsity_network,
    threshold,
    transition_rows,
)
from scmil.sparse_coding.kernel_direct import direct_codes, is_direct
from scmil.sparse_coding.kernel_lanes import Lanes
from scmil.sparse_coding.kernel_numpy import (
    Small,
    is_small,
    raise_second_derivative,
    small_codes,
)
from scmil.sparse_coding.kernel_products import (
    add_product,
    multiply,
    pad_rows,
    row_grain,
)
from scmil.sparse_coding.kernel_scaled import is_scaled, scaled_layers


def gram_is_cheaper(n: int, p: int, m: int, layers: int, backward: bool) -> bool:
    """Whether the Gram form takes less time than the factored form, on request including backward.

    Times are counted in multiply-adds. What a factored layer does beside its products takes as long
    as 50 more for each code in a forward pass, and as one more product with backward.

    >>> gram_is_cheaper(n=12_000, p=512, m=256, layers=5, backward=True)  # a slide
    True
    >>> gram_is_cheaper(n=5, p=64, m=256, layers=5, backward=True)  # a molecule
    False
    """
    later = layers - 1  # the first layer starts from zero: it has no product with the codes
    once, gram, factored = (4, 3, 7 * p) if backward else (1, 1, 2 * p + 50)
    return once * p * m * m + later * gram * n * m * m < later * factored * n * m


def fused_sparse_coding(
    x: Tensor, D: Tensor, log_mu: Tensor, network: Sequence[Tensor], form: Form
) -> Tensor:
    """Normalisation, sparsity network and Eq. (4); `network` has weight and bias of each layer of
    the sparsity network.

    x is (n, p), or (models, n, p); then all other tensors have a first axis of models as well.
    """
    # `form.low` is the only reduced precision.
    if torch.is_autocast_enabled(x.device.type):
        with torch.autocast(x.device.type, enabled=False):
            return fused_sparse_coding(x, D, log_mu, network, form)
    inputs = (x, D, log_mu, *network)
    if in_transform():
        return _Mapped.apply(form, *inputs)[0]
    same = x.dtype == D.dtype
    backward = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
    n, (p, m) = x.shape[-2], D.shape[-2:]
    gram = gram_is_cheaper(n, p, m, form.layers, backward)
    small = same and is_small(x, D, backward, None if form.low else form.layers)
    if backward:
        return Small.apply(form, gram, *inputs) if small else _Fused.apply(form, *inputs)
    if small:
        return small_codes(form, gram, *inputs)
    if form.low is None and is_direct(x, D):
        return direct_codes(form, gram, x, D, log_mu, network)
    return _forward(form, False, *inputs)[0]


def in_transform() -> bool:
    """Whether a `torch.func` transformation (vmap, grad) is running, in which values are not
    available.
    """
    return torch._C._functorch.maybe_current_level() is not None


# --------------------------------------------------------------------------------------- the kernel


def _forward(form: Form, keep: bool, x: Tensor, D: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """The codes, then what backward needs: W, W_t, and what `_forward_rows` returns per block."""
    lanes = Lanes.of(x, D.shape[-1])
    with lanes.one_thread():
        return _forward_lanes(lanes, form, keep, x, D, *others)


def _forward_lanes(
    lanes: Lanes,
    form: Form,
    keep: bool,
    x: Tensor,
    D: Tensor,
    log_mu: Tensor,
    *weights: Tensor,
) -> tuple[Tensor, ...]:
    *batch, n, p = x.shape
    m, low = D.shape[-1], form.low or D.dtype
    gram = gram_is_cheaper(n, p, m, form.layers, keep)
    step = torch.exp(-log_mu)[..., None, None]
    # Row by row, also where a stack of D lies column by column.
    W = torch.mul(D, step, out=D.new_empty(D.shape))
    W_t = D.new_empty((*batch, m, m) if gram else (*batch, 0, 0))
    if gram:
        few = lanes.for_product(p * m * m)
        few.run(lambda lane: transition_rows(D, W, W_t, few.share(lane, m)))
    network: Sequence[Tensor] = weights
    if low != D.dtype:
        W, W_t, D, step, *network = (tensor.to(low) for tensor in (W, W_t, D, step, *weights))
    alpha = large_empty(x, *batch, n, m, dtype=low)
    blocks = row_blocks(alpha, lanes.number, p)
    call = Call(form, keep, keep and len(blocks) == 1, D, step, network, W, W_t, row_grain(alpha))
    largest = -(-blocks[0].stop // call.grain) * call.grain if blocks else 0
    spare: list[list[Tensor]] = []  # one for each thread

    def run_block(index: int) -> list[Tensor]:
        rows = blocks[index]
        try:
            buffers = spare.pop()
        except IndexError:
            buffers = allocate_buffers(x, D, largest, wide=1, narrow=3)
        kept = _forward_rows(call, x[..., rows, :], alpha[..., rows, :], buffers)
        spare.append(buffers)
        return kept

    return alpha, W, W_t, *chain(*lanes.run(run_block, len(blocks)))


class Call(NamedTuple):
    """What all blocks of a forward pass share: `keep` what backward needs, also the normalised rows
    if `keep_rows`, and the weights in the precision of the products.
    """

    form: Form
    keep: bool
    keep_rows: bool
    D: Tensor
    step: Tensor
    network: Sequence[Tensor]
    W: Tensor
    W_t: Tensor
    grain: int  # of the rows of a block


def _forward_rows(call: Call, x: Tensor, alpha: Tensor, buffers: Sequence[Tensor]) -> list[Tensor]:
    """Write the codes of these rows into `alpha`, and return what their backward needs."""
    missing = -x.shape[-2] % call.grain
    if not missing:
        return _forward_whole(call, x, alpha, buffers)
    x = pad_rows(x, x.shape[-2] + missing)
    padded = alpha.new_empty(x.shape[-2], alpha.shape[-1])
    kept = _forward_whole(call, x, padded, buffers)
    alpha.copy_(padded[:-missing])
    return kept


def _forward_whole(call: Call, x: Tensor, alpha: Tensor, buffers: Sequence[Tensor]) -> list[Tensor]:
    form, keep, keep_rows, D, step, network, W, W_t, _ = call
    x_buffer, drive, v_buffer, other = first_rows(buffers, x.shape[-2])
    mean = scale = none = x.new_empty((*x.shape[:-2], 0, 1))
    if form.normalise:
        x, mean, scale = normalise_rows(x, x_buffer)
    if x.dtype != W.dtype:
        x = x.to(W.dtype)
    hidden = sparsity_network(x, network)
    drive = multiply(x, W, drive)  # W_e x, the same in every layer
    gram, later = bool(W_t.numel()), form.layers - 1
    scaled = gram and is_scaled(form)
    count = later if keep else 0 if scaled else min(later, 1)
    codes = drive.new_empty(*drive.shape[:-2], count, *drive.shape[-2:])
    # Of all layers in the factored form; that of the first one, whose codes before it are zero, is
    # x. In the Gram form backward needs x, which is kept if there is one block.
    residuals = x.unsqueeze(-3) if keep_rows and form.normalise else none.unsqueeze(-3)
    if scaled:
        peak = scaled_layers(form, drive, hidden[-1], W_t, alpha, codes, (v_buffer, other))
        return [peak, mean, scale, codes, residuals, *hidden] if keep else []
    peak, t = threshold(hidden[-1], drive, step, form, other)
    if not gram:
        residuals = x.new_empty(*x.shape[:-2], count + 1, *x.shape[-2:])
        residuals[..., :1, :, :] = x.unsqueeze(-3)
    v, lowest = drive, None if form.nonnegative else -t
    for layer in range(later):
        layer = layer if keep else 0
        a = codes[..., layer, :, :]
        shrink(v, lowest, t, out=a)
        if gram:
            v = add_product(drive, a, W_t, out=v_buffer)
        else:
            # Not into `residuals` directly: torch computes a product into a strided stack model by
            # model.
            r = torch.sub(x, multiply(a, D.mT), out=residuals[..., layer + 1, :, :])
            v = add_product(a, r, W, out=v_buffer)
    shrink(v, lowest, t, out=alpha)
    return [peak, mean, scale, codes, residuals, *hidden] if keep else []


# ------------------------------------------------------------------------------ the kernel in torch


class _Fused(Function):
    """The kernel under ordinary autograd."""

    @staticmethod
    def forward(ctx: Any, form: Form, *inputs: Tensor) -> Tensor:
        outputs = _forward(form, True, *inputs)
        ctx.form, ctx.inputs = form, len(inputs)
        ctx.save_for_backward(*inputs, *outputs)
        return outputs[0]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        raise_second_derivative()
        wanted = ctx.needs_input_grad[1]
        with torch.autocast(g.device.type, enabled=False):
            g_x, *others = backward_blocks(ctx.form, ctx.inputs, wanted, g, *ctx.saved_tensors)
        return None, g_x if wanted else None, *others


class _Mapped(Function):
    """The kernel under `torch.func`, with more overhead per call: what backward needs is returned,
    and vmap has a rule.
    """

    @staticmethod
    def forward(form: Form, *inputs: Tensor) -> tuple[Tensor, ...]:
        return _forward(form, True, *inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.form, *tensors = inputs
        ctx.inputs = len(tensors)
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_MappedBackward.apply(ctx.form, ctx.inputs, grads[0], *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, ...]:
        outputs = _Mapped.apply(*_stack(info, in_dims, args))
        return outputs, (0,) * len(outputs)


class _MappedBackward(Function):
    """A separate function, so that `vmap` over gradients maps one operation."""

    @staticmethod
    def forward(form: Form, inputs: int, g: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
        return backward_blocks(form, inputs, True, g, *saved)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise NotImplementedError(
            "the fused layer has no second derivative. Use SparseCoding(..., fused=False)."
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, ...]:
        outputs = _MappedBackward.apply(*_stack(info, in_dims, args))
        return outputs, (0,) * len(outputs)


def _stack(info: Any, in_dims: tuple[int | None, ...], args: tuple[Any, ...]) -> list[Any]:
    """Move the mapped axis of each tensor to the front, and expand tensors that have none (without
    copying).
    """
    return [
        arg if not isinstance(arg, Tensor)
        else arg.movedim(dim, 0) if dim is not None
        else arg.expand(info.batch_size, *arg.shape)
        for arg, dim in zip(args, in_dims, strict=True)
    ]  # fmt: skip
