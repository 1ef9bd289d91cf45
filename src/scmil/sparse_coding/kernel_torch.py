"""The sparse-coding layer, fast: the same numbers as the plain equations of `sparse_coding.py`, which say what it does.

Why it is faster than the same equations written with torch operations:

- **Rows go through everything before the next rows start.** A block of rows stays in the processor's cache, so that the
  thresholds, which move bytes and compute nothing, cost little beside the matrix products.
- **The cheaper of two equal forms.** `(x - alpha D^T) W` costs 2npm multiply-adds a layer; `x W + alpha W_t`, with
  `W_t = I - D^T W` made once for pm^2, costs nm^2. `gram_is_cheaper` counts and decides.
- **Backward keeps the codes, and little else.** The active set and the signs are read off the codes themselves, where
  autograd would keep five tensors a layer.

The vmap rules let `torch.func` stack many models (all folds of a cross-validation) over the same bag.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from scmil.sparse_coding.kernel_numpy import TINY, Small, forward, is_small, refuse_second_derivative

# Of one matrix of codes. Measured on two cores, a training step on 12 000 x 512 with 256 atoms: in float32 441 ms with 1 MiB,
# 411 with 2 or 4; in bfloat16 308 ms with half a MiB, 261 with one, 232 with two, 226 with four.
BLOCK_BYTES = 2**21


class Form(NamedTuple):
    """The choices that are not learned. `relative` bounds lambda within fractions of `max_j |(D^T x)_j|`.

    With `low`, such as bfloat16, products and codes are in that precision; rows are normalised, and the gradients of all
    parameters added up, in that of the parameters.
    """

    layers: int
    relative: tuple[float, float] | None
    normalise: bool
    low: torch.dtype | None = None


def gram_is_cheaper(n: int, p: int, m: int, layers: int, backward: bool) -> bool:
    """Say whether the Gram form takes fewer multiply-adds than the factored form, backward included if asked.

    >>> gram_is_cheaper(n=12_000, p=512, m=256, layers=5, backward=True)      # a slide
    True
    >>> gram_is_cheaper(n=5, p=64, m=256, layers=5, backward=True)            # a molecule
    False
    """
    later = layers - 1  # the first layer starts from zero: it has no product with the codes
    once, gram, factored = (4, 3, 6) if backward else (1, 1, 2)
    return once * p * m * m + later * gram * n * m * m < later * factored * n * p * m


def fused_sparse_coding(x: Tensor, D: Tensor, log_mu: Tensor, network: Sequence[Tensor], form: Form) -> Tensor:
    """Eq. (4) with everything around it: `network` is weight and bias of each layer of the lambda-network.

    x is (n, p), or (models, n, p) with a first axis of models in all the others too.
    """
    if torch.is_autocast_enabled(x.device.type):  # `form` says what is rounded; nothing else is to be
        with torch.autocast(x.device.type, enabled=False):
            return fused_sparse_coding(x, D, log_mu, network, form)
    inputs = (x, D, log_mu, *network)
    if in_transform():
        return _Mapped.apply(form, *inputs)[0]
    small = D.ndim == 2 and is_small(x) and x.dtype == D.dtype
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        return (Small if small else _Fused).apply(form, *inputs)
    if small:
        return torch.from_numpy(forward(form, *(tensor.detach().numpy() for tensor in inputs))[0])
    return _forward(form, False, *inputs)[0]


def in_transform() -> bool:
    """Say whether a `torch.func` transformation (vmap, grad) is running, in which values cannot be looked at."""
    return torch._C._functorch.maybe_current_level() is not None


# ---------------------------------------------------------------------------------------------------------- the kernel


def _forward(form: Form, keep: bool, x: Tensor, D: Tensor, log_mu: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    """The codes, then what backward needs: W, W_t, and for each block what `_forward_rows` keeps."""
    *batch, n, p = x.shape
    m = D.shape[-1]
    low, step = form.low or D.dtype, torch.exp(-log_mu)[..., None, None]
    W = torch.mul(D, step, out=D.new_empty(D.shape))  # row by row, also where a stack of D lies column by column
    W_t = _transition(D, W) if gram_is_cheaper(n, p, m, form.layers, keep) else D.new_empty((*batch, 0, 0))
    W, W_t, D, *network = (tensor.to(low) for tensor in (W, W_t, D, *weights))
    alpha, kept, room = x.new_empty(*batch, n, m, dtype=low), [], _room(x, D, wide=1, narrow=3)
    for rows in _blocks(alpha):
        kept += _forward_rows(form, keep, x[..., rows, :], alpha[..., rows, :], D, step, network, W, W_t, room)
    return alpha, W, W_t, *kept


def _forward_rows(
    form: Form, keep: bool, x: Tensor, alpha: Tensor, D: Tensor, step: Tensor, network: Sequence[Tensor],
    W: Tensor, W_t: Tensor, room: Sequence[Tensor],
) -> list[Tensor]:  # fmt: skip
    """Write the codes of these rows into `alpha`, and return what their backward needs."""
    x_room, drive, v_room, other = _first_rows(room, x.shape[-2])
    if form.normalise:
        x, _ = _normalised(x, x_room)
    x, step = x.to(W.dtype), step.to(W.dtype)
    hidden = _lambda_network(x, network)
    torch.matmul(x, W, out=drive)  # W_e x, the same in every layer
    peak, where, t = _threshold(hidden[-1], drive, step, form, other)
    gram, later = bool(W_t.numel()), form.layers - 1
    codes = drive.new_empty(*drive.shape[:-2], later if keep else min(later, 1), *drive.shape[-2:])
    residuals = x.new_empty(*x.shape[:-2], 0 if gram else codes.shape[-3] + 1, *x.shape[-2:])
    residuals[..., :1, :, :] = x.unsqueeze(-3)  # that of the first layer, whose codes before it are zero
    v, lowest = drive, -t
    for layer in range(later):
        layer = layer if keep else 0
        a = codes[..., layer, :, :]
        _shrink(v, lowest, t, out=a)
        if gram:
            v = _add_product(drive, a, W_t, out=v_room)
        else:
            # Not into `residuals` directly: a product that writes into a stack with gaps is done model by model.
            r = torch.sub(x, a @ D.mT, out=residuals[..., layer + 1, :, :])
            v = _add_product(a, r, W, out=v_room)
    _shrink(v, lowest, t, out=alpha)
    return [peak, where, codes, residuals, *hidden] if keep else []


def _backward(form: Form, inputs: int, wanted: bool, g: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
    """The gradients of x (of no rows unless it is wanted: stored features need none), D, log mu and the network."""
    x, D, log_mu, *network = saved[:inputs]
    alpha, W, W_t, *kept = saved[inputs:]
    step = torch.exp(-log_mu)[..., None, None]
    g_x = torch.empty_like(x) if wanted else x.new_empty(*x.shape[:-2], 0, x.shape[-1])
    g_W, g_W_t, g_log_mu = (torch.zeros_like(part, dtype=D.dtype) for part in (D, W_t, log_mu))
    g_network = [torch.zeros_like(part) for part in network]
    D_low, *network = (tensor.to(W.dtype) for tensor in (D, *network))
    per_block, room = 4 + len(network) // 2, _room(x, D_low, wide=2, narrow=4)
    for index, rows in enumerate(_blocks(alpha)):
        part = kept[index * per_block : (index + 1) * per_block]
        g_rows, x_rows, alpha_rows, out = (tensor[..., rows, :] for tensor in (g, x, alpha, g_x))
        _backward_rows(
            form,
            g_rows,
            x_rows,
            alpha_rows,
            out,
            D_low,
            step,
            network,
            W,
            W_t,
            part,
            room,
            g_W,
            g_W_t,
            g_log_mu,
            g_network,
        )
    if not W_t.numel():
        return g_x, g_W.mul_(step), g_log_mu, *g_network
    W = D * step if W.dtype != D.dtype else W
    _add_product(g_W, D, g_W_t, alpha=-1, out=g_W)
    g_log_mu -= (g_W * W).sum((-2, -1))
    g_D = _add_product(g_W * step, W, g_W_t.mT, alpha=-1)
    return g_x, g_D, g_log_mu, *g_network


def _backward_rows(
    form: Form, g: Tensor, x: Tensor, alpha: Tensor, g_x: Tensor, D: Tensor, step: Tensor, network: Sequence[Tensor],
    W: Tensor, W_t: Tensor, kept: Sequence[Tensor], room: Sequence[Tensor],
    g_W: Tensor, g_W_t: Tensor, g_log_mu: Tensor, g_network: Sequence[Tensor],
) -> None:  # fmt: skip
    """Write the gradient of these rows into `g_x`, if it has any, and add their part to all others.

    Factored, with `g_r = g_v D^T` for the residual r of each layer and without the step, `W = D step` gives all of D's
    gradient at once: `step (r^T g_v - g_r^T a)`. So the layers are one product, that of the step needs no D, and `g_W` is the
    bracket.
    """
    peak, where, codes, residuals, *hidden = kept
    x_room, wide, g_room, g_v, sign, g_drive = _first_rows(room, x.shape[-2])
    gram, lam = bool(W_t.numel()), hidden[-1]
    if form.normalise:
        x, scale = _normalised(x, x_room)
    x, g, step = (tensor.to(W.dtype) for tensor in (x, g, step))
    g_vs, g_rs = g.new_empty(*residuals.shape[:-1], g.shape[-1]), torch.empty_like(residuals)
    a, g_t = alpha, torch.zeros_like(lam)
    g_drive.zero_()
    for layer in reversed(range(codes.shape[-3])):
        g_v = g_v if gram else g_vs[..., layer + 1, :, :]
        _through_shrinkage(g, a, g_t, g_v, sign)
        a = codes[..., layer, :, :]
        if gram:
            g_drive += g_v
            _accumulate(g_W_t, a.mT, g_v)
            g = torch.matmul(g_v, W_t.mT, out=g_room)
        else:
            g_rs[..., layer + 1, :, :] = g_r = torch.matmul(g_v, D.mT, out=wide)
            g = _add_product(g_v, g_r, W, alpha=-1, out=g_room)
    g_v = g_v if gram else g_vs[..., 0, :, :]
    _through_shrinkage(g, a, g_t, g_v, sign)
    if form.relative is None:
        g_lam = g_t * step
        g_log_mu -= (g_lam * lam).sum((-2, -1), dtype=g_log_mu.dtype)
    else:
        # t = fraction * peak. The first codes are the drive with all magnitudes lowered alike: at the peak, the same sign.
        low, high = form.relative
        g_lam = g_t * peak * ((high - low) / (1 + lam).square())
        g_v.scatter_add_(-1, where, g_t * _fraction(lam, form.relative) * a.gather(-1, where).sign())
    g_hidden = _lambda_network_backward(g_lam, x, hidden, network, g_network)
    if gram:
        g_drive += g_v
        _accumulate(g_W, x.mT, g_drive)
    else:
        g_rs[..., 0, :, :] = torch.matmul(g_v, D.mT, out=wide)
        g_log_mu -= (residuals * g_rs).sum((-3, -2, -1), dtype=g_log_mu.dtype) * step[..., 0, 0]
        _accumulate(g_W.mT, _rows_of_all(g_vs).mT, _rows_of_all(residuals))
        _accumulate(g_W.mT, _rows_of_all(codes).mT, _rows_of_all(g_rs[..., 1:, :, :]), alpha=-1)
    if not g_x.numel():
        return
    rows_of_x = g_x
    g_x = g_x if g_x.dtype == x.dtype else torch.empty_like(x)
    if form.normalise:  # the scale goes into the narrow factors, so that the wide gradient is passed over less often
        step, g_drive, g_hidden = step * scale, g_drive.mul_(scale), g_hidden.mul_(scale)
    if gram:
        torch.matmul(g_drive, W.mT, out=g_x)
    else:
        torch.mul(g_rs.sum(-3), step, out=g_x)
    _add_product(g_x, g_hidden, network[0], out=g_x)
    if form.normalise:
        along = torch.mul(g_x, x, out=wide).mean(-1, keepdim=True)
        g_x.sub_(g_x.mean(-1, keepdim=True)).addcmul_(x, along, value=-1)
    if rows_of_x is not g_x:
        rows_of_x.copy_(g_x)


def _rows_of_all(layers: Tensor) -> Tensor:
    """(..., layers, n, width) as (..., layers n, width)"""
    return layers.flatten(-3, -2)


def _shrink(v: Tensor, lowest: Tensor, t: Tensor, out: Tensor) -> None:
    """Eq. (3) as `v - clip(v, -t, t)`; two comparisons take a quarter of the time of torch's clamp."""
    torch.minimum(torch.maximum(v, lowest, out=out), t, out=out)
    torch.sub(v, out, out=out)


def _through_shrinkage(g: Tensor, a: Tensor, g_t: Tensor, g_v: Tensor, sign: Tensor) -> None:
    """Write into `g_v` the gradient where the code is not zero; such an entry follows the threshold against its sign."""
    torch.mul(g, torch.sign(a, out=sign), out=g_v)
    g_t -= g_v.sum(-1, keepdim=True)
    g_v *= sign


def _normalised(x: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
    """Zero mean and unit variance for each row, and what it was multiplied by; written into the room that is given."""
    if x.dtype != room.dtype:
        x = room.copy_(x)
    x = torch.sub(x, x.mean(-1, keepdim=True), out=room)
    scale = torch.rsqrt(torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(TINY))
    return x.mul_(scale), scale


def _room(x: Tensor, D: Tensor, wide: int, narrow: int) -> list[Tensor]:
    """Memory for a block of `wide` matrices like x and `narrow` ones like the codes, used again by the next block.

    Fresh memory costs more than the arithmetic in it: the system hands it out page by page. The first is for normalised
    rows, which are not of less than single precision.
    """
    m = D.shape[-1]
    rows = min(x.shape[-2], _block_rows(m, D.dtype))
    shapes = [(*x.shape[:-2], rows, width) for width, count in ((x.shape[-1], wide), (m, narrow)) for _ in range(count)]
    first = torch.promote_types(D.dtype, torch.float32) if D.dtype != x.dtype or D.dtype.itemsize < 4 else D.dtype
    return [D.new_empty(shape, dtype=first if place == 0 else D.dtype) for place, shape in enumerate(shapes)]


def _first_rows(room: Sequence[Tensor], rows: int) -> list[Tensor]:
    return [tensor[..., :rows, :] for tensor in room]


def _fraction(lam: Tensor, bounds: tuple[float, float]) -> Tensor:
    low, high = bounds
    return low + (high - low) * lam / (1 + lam)


def _threshold(lam: Tensor, drive: Tensor, step: Tensor, form: Form, room: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Peak of each row of the drive, where it is (both empty if lam is absolute), and the threshold lam / mu."""
    if form.relative is None:
        empty = lam.new_empty((*lam.shape[:-2], 0, 1))
        return empty, empty, lam * step
    peak, where = torch.abs(drive, out=room).max(-1, keepdim=True)
    return peak, where, _fraction(lam, form.relative) * peak


def _transition(D: Tensor, W: Tensor) -> Tensor:
    W_t = (D.mT @ W).neg_()
    W_t.diagonal(dim1=-2, dim2=-1).add_(1)
    return W_t


def _lambda_network(x: Tensor, network: Sequence[Tensor]) -> list[Tensor]:
    """The output of each layer: linear, then Softplus. The last is what lambda is made of."""
    hidden: list[Tensor] = []
    for weight, bias in zip(network[::2], network[1::2], strict=True):
        x = F.softplus(_add_product(bias.unsqueeze(-2), x, weight.mT))
        hidden.append(x)
    return hidden


def _lambda_network_backward(
    g: Tensor, x: Tensor, hidden: Sequence[Tensor], network: Sequence[Tensor], g_network: Sequence[Tensor]
) -> Tensor:
    """Add to the gradients of weights and biases; return that before the first Softplus."""
    for layer in reversed(range(len(hidden))):
        g = g * torch.expm1(-hidden[layer]).neg_()  # Softplus' derivative from its value: 1 - exp(-y)
        _accumulate(g_network[2 * layer], g.mT, hidden[layer - 1] if layer else x)
        g_network[2 * layer + 1] += g.sum(-2)
        if layer:
            g = g @ network[2 * layer]
    return g


def _block_rows(m: int, dtype: torch.dtype) -> int:
    return max(64, BLOCK_BYTES // (m * dtype.itemsize))


def _blocks(codes: Tensor) -> list[slice]:
    n, m = codes.shape[-2:]
    rows = _block_rows(m, codes.dtype)
    return [slice(start, min(start + rows, n)) for start in range(0, n, rows)]


def _add_product(base: Tensor, a: Tensor, b: Tensor, alpha: int = 1, out: Tensor | None = None) -> Tensor:
    """`base + alpha * a @ b`, for one model or a stack of them."""
    return (torch.addmm if a.ndim == 2 else torch.baddbmm)(base, a, b, alpha=alpha, out=out)


def _accumulate(total: Tensor, a: Tensor, b: Tensor, alpha: int = 1) -> None:
    """Add `alpha * a @ b` to a sum over blocks, which is not rounded to the precision of the factors."""
    if total.dtype == a.dtype:
        _add_product(total, a, b, alpha, out=total)
    else:
        total.add_(a @ b, alpha=alpha)


# ------------------------------------------------------------------------------------------------- the kernel in torch


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
        refuse_second_derivative()
        wanted = ctx.needs_input_grad[1]
        with torch.autocast(g.device.type, enabled=False):
            g_x, *others = _backward(ctx.form, ctx.inputs, wanted, g, *ctx.saved_tensors)
        return None, g_x if wanted else None, *others


class _Mapped(Function):
    """The kernel under `torch.func`, which costs more a call: what backward needs is returned, and vmap has a rule."""

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
    """A function of its own, so that `vmap` over gradients meets one operation and not its inside."""

    @staticmethod
    def forward(form: Form, inputs: int, g: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
        return _backward(form, inputs, True, g, *saved)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise NotImplementedError("the fused layer has no second derivative. Use SparseCoding(..., fused=False).")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, ...]:
        outputs = _MappedBackward.apply(*_stack(info, in_dims, args))
        return outputs, (0,) * len(outputs)


def _stack(info: Any, in_dims: tuple[int | None, ...], args: tuple[Any, ...]) -> list[Any]:
    """Bring the mapped axis of each tensor to the front, and give one (without copying) to those that have none."""
    return [
        arg if not isinstance(arg, Tensor)
        else arg.movedim(dim, 0) if dim is not None
        else arg.expand(info.batch_size, *arg.shape)
        for arg, dim in zip(args, in_dims, strict=True)
    ]  # fmt: skip
