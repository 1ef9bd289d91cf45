"""The sparse-coding layer for small bags, in NumPy: the same numbers again, with a third of the cost of a call.

A bag of five molecules keeps a processor busy for 80 microseconds, and torch needs longer than that to call the sixty
operations: 6 us for a small matrix product where NumPy takes 3. Above `LARGEST` numbers the arithmetic counts, and
`fused.py` is faster.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy import dot
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import Function

LARGEST = 8192  # n * p at which both take the same time, measured for p = 64, 166 and 512

Array = NDArray[Any]


def is_small(x: Tensor) -> bool:
    """Say whether the bag is one that NumPy codes faster.

    >>> is_small(torch.zeros(5, 64)), is_small(torch.zeros(12_000, 512))
    (True, False)
    """
    return x.numel() <= LARGEST and x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)


def refuse_second_derivative() -> None:
    """Called in backward, where torch records operations only for a derivative of the derivative."""
    if torch.is_grad_enabled():
        raise NotImplementedError("the fused layer has no second derivative. Use SparseCoding(..., fused=False).")


class Small(Function):
    """The layer under autograd; `form` is `fused.Form`."""

    @staticmethod
    def forward(ctx: Any, form: Any, *inputs: Tensor) -> Tensor:
        arrays = [tensor.numpy() for tensor in inputs]
        codes, kept = forward(form, *arrays)
        alpha = torch.from_numpy(codes)
        ctx.kept = form, arrays, kept
        ctx.save_for_backward(*inputs, alpha)  # so that torch notices what is changed in place before backward
        return alpha

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        _ = ctx.saved_tensors
        form, arrays, kept = ctx.kept
        wanted = ctx.needs_input_grad[1]
        g_x, *others = backward(form, wanted, g.numpy(), arrays, kept)
        return None, torch.from_numpy(g_x) if wanted else None, *map(torch.from_numpy, others)


def forward(form: Any, x: Array, D: Array, log_mu: Array, *network: Array) -> tuple[Array, tuple[Any, ...]]:
    """The codes, and what backward needs."""
    p, m = D.shape
    step = np.exp(-log_mu)
    W = D * step
    scale = None
    if form.normalise:
        x = x - np.add.reduce(x, -1, keepdims=True) / p
        scale = 1 / np.sqrt(np.add.reduce(x * x, -1, keepdims=True) / p + form.tiny)
        x *= scale
    hidden = [x]
    for weight, bias in zip(network[::2], network[1::2], strict=True):
        hidden.append(np.logaddexp(dot(hidden[-1], weight.T) + bias, 0))  # Softplus
    lam, drive = hidden[-1], dot(x, W)
    if form.relative is None:
        peak = where = fraction = None
        t = lam * step
    else:
        low, high = form.relative
        magnitude = np.abs(drive)
        where = np.arange(len(x)), magnitude.argmax(-1)
        peak = magnitude[where][:, None]
        fraction = low + (high - low) * lam / (1 + lam)
        t = fraction * peak
    codes = np.empty((form.layers, len(x), m), x.dtype)
    residuals = np.empty((form.layers - 1, len(x), p), x.dtype)
    v, lowest, D_T = drive, -t, D.T
    for layer in range(form.layers):
        a = codes[layer]
        np.subtract(v, np.minimum(np.maximum(v, lowest, out=a), t, out=a), out=a)  # Eq. (3): v - clip(v, -t, t)
        if layer + 1 < form.layers:
            v = a + dot(np.subtract(x, dot(a, D_T), out=residuals[layer]), W)
    return codes[-1], (W, step, scale, hidden, where, peak, fraction, codes, residuals)


def backward(form: Any, wanted: bool, g: Array, inputs: list[Array], kept: tuple[Any, ...]) -> tuple[Array, ...]:
    """The gradients of x (only if it is wanted: stored features need none), D, log mu and the network."""
    _, D, _, *network = inputs
    W, step, scale, hidden, where, peak, fraction, codes, residuals = kept
    x, lam, W_T = hidden[0], hidden[-1], W.T
    p, m = D.shape
    signs = np.sign(codes)
    active, through, back = np.abs(signs), np.empty_like(codes), np.empty_like(residuals)
    for layer in reversed(range(form.layers)):
        g_v = np.multiply(g, active[layer], out=through[layer])
        if layer:
            g = g_v - dot(dot(g_v, W_T, out=back[layer - 1]), D)
    g_t = -(signs * through).sum((0, 2))[:, None]  # an active entry follows the threshold against its sign
    g_log_mu = np.zeros((), x.dtype)
    if form.relative is None:
        g_lam = g_t * step
        g_log_mu = -(g_lam * lam).sum()
    else:
        low, high = form.relative
        g_lam = g_t * peak * ((high - low) / np.square(1 + lam))
        through[0][where] += (g_t * fraction)[:, 0] * signs[0][where]
    g_W = dot(x.T, through[0])
    g_D = -dot(back.reshape(-1, p).T, codes[:-1].reshape(-1, m))
    if form.layers > 1:
        g_W += dot(residuals.reshape(-1, p).T, through[1:].reshape(-1, m))
    g_network: list[Array] = []
    for layer in reversed(range(len(network) // 2)):
        g_lam = g_lam * -np.expm1(-hidden[layer + 1])  # Softplus' derivative from its value: 1 - exp(-y)
        g_network = [dot(g_lam.T, hidden[layer]), g_lam.sum(0), *g_network]
        g_lam = dot(g_lam, network[2 * layer]) if layer or wanted else g_lam
    g_x = x
    if wanted:
        g_x = dot(through.sum(0), W_T) + g_lam
    if wanted and scale is not None:
        mean, along = np.add.reduce(g_x, -1, keepdims=True) / p, np.add.reduce(g_x * x, -1, keepdims=True) / p
        g_x = (g_x - mean - x * along) * scale
    return g_x, g_D + g_W * step, np.array(g_log_mu - (g_W * W).sum(), dtype=x.dtype), *g_network
