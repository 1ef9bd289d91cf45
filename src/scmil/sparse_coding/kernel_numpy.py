"""The sparse-coding layer for small bags, in NumPy: the same numbers with a third of the overhead.

The arithmetic of a bag of five instances takes 80 microseconds, and torch needs longer than that to
call the sixty operations: 6 us for a small matrix product where NumPy takes 3. On larger bags the
arithmetic dominates, and `kernel_torch.py` is faster (`is_small`). Products use one thread
(`blas_threads.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy import dot
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import Function

from scmil.sparse_coding.blas_threads import OneThread
from scmil.sparse_coding.kernel_products import (
    LONG_ROWS,
    SHORT_GRAIN,
    accumulate,
    is_for_onednn,
    is_recorded,
    multiply,
    pad_rows,
)

# Avoids a division by the zero variance of a constant instance; far below the variance of any
# feature vector.
TINY = 1e-12

# n * p up to which a step with gradients takes less time than in torch, if n * m is at most four
# times as much; measured with one and two threads for p = 64, 166, 256 and 512, m = 64 and 256.
LARGEST = 18_000
# Above, up to so many multiply-adds of a step and so many instances: 3 ms on one core. With more,
# two quiet cores are faster in torch.
LARGEST_STEP = 200_000_000
MOST_INSTANCES = 1024
# Numbers in the dictionary and the first weight of the sparsity network: they stay in the cache.
LARGEST_WEIGHTS = 2**18
# Without gradients there are fewer calls to save: the larger of n * p and n * m, and the numbers of
# the dictionary, since torch's library multiplies a few rows with a large matrix faster.
LARGEST_FORWARD = 2048
LARGEST_DICTIONARY = 2**15

# Multiply-adds of a product from which on oneDNN is faster, although rows are padded for it.
LEAST_ONEDNN = 8_000_000

Matrix = NDArray[Any]


def multiply_adds(n: int, p: int, m: int, layers: int) -> int:
    """Multiply-adds of a step with gradients: the sparsity network of p / 4 and p / 8 units, the
    drive, and the layers in the cheaper form (`kernel_torch.gram_is_cheaper`).

    >>> multiply_adds(100, 512, 64, 5) / 1e6
    43.155456
    """
    once = 3 * n * (p * (p // 4) + (p // 4) * (p // 8) + p * m)
    later = layers - 1
    return once + min(3 * p * m * m + later * 3 * n * m * m, later * 6 * n * p * m)


def is_small(x: Tensor, D: Tensor, backward: bool, layers: int | None = None) -> bool:
    """Whether a bag is small enough for NumPy to be faster, with the dictionary D; with `layers`,
    compared with torch in the same precision.

    >>> D = torch.zeros(166, 256)
    >>> [is_small(torch.zeros(n, 166), D, backward=True) for n in (5, 100, 1000)]
    [True, True, False]
    >>> is_small(torch.zeros(100, 512), torch.zeros(512, 64), backward=True, layers=5)
    True
    """
    if D.ndim != 2 or x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
        return False
    if is_recorded():
        return False
    features, codes = x.numel(), len(x) * D.shape[-1]
    if backward:
        if features <= LARGEST and codes <= 4 * LARGEST:
            return True
        if layers is None or len(x) > (LONG_ROWS // 2 if is_for_onednn(x) else MOST_INSTANCES):
            return False
        p, m = D.shape
        step = multiply_adds(len(x), p, m, layers)
        return step <= LARGEST_STEP and p * (p // 4 + m) <= LARGEST_WEIGHTS
    return max(features, codes) <= LARGEST_FORWARD and D.numel() <= LARGEST_DICTIONARY


def raise_second_derivative() -> None:
    """Raise in backward if torch records operations, which it does only for a second derivative."""
    if torch.is_grad_enabled():
        raise NotImplementedError(
            "the fused layer has no second derivative. Use SparseCoding(..., fused=False)."
        )


class Small(Function):
    """The layer under autograd; `form` is `kernel_torch.Form`."""

    @staticmethod
    def forward(ctx: Any, form: Any, gram: bool, *inputs: Tensor) -> Tensor:
        arrays = [tensor.numpy() for tensor in inputs]
        with OneThread():
            alpha, kept = forward(form, gram, *arrays)
        ctx.kept = form, arrays, kept
        ctx.inputs, ctx.versions = inputs, [tensor._version for tensor in inputs]
        return torch.from_numpy(alpha)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        raise_second_derivative()
        if ctx.versions != [tensor._version for tensor in ctx.inputs]:
            raise RuntimeError(
                "a tensor that the layer needs for its gradient has been modified by an inplace "
                "operation. Modify a copy."
            )
        form, arrays, kept = ctx.kept
        with OneThread():
            g_x, *others = backward(form, g.numpy(), arrays, kept)
        return None, None, torch.from_numpy(g_x), *map(torch.from_numpy, others)


def small_codes(form: Any, gram: bool, *inputs: Tensor) -> Tensor:
    """The codes without autograd, in the Gram form or in the factored form."""
    with OneThread():
        arrays = (tensor.detach().numpy() for tensor in inputs)
        return torch.from_numpy(forward(form, gram, *arrays)[0])


def softplus(z: Matrix) -> Matrix:
    """log(1 + exp(z)); `np.logaddexp` takes ten times as long."""
    return np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))


def wide_dot(a: Matrix, b: Matrix) -> Matrix:
    """`a @ b`, by oneDNN if it is long and this processor is faster with it."""
    if a.size * b.shape[1] < LEAST_ONEDNN or not is_for_onednn(torch.from_numpy(a)):
        return dot(a, b)
    return multiply(_padded_tensor(a), torch.from_numpy(b))[: len(a)].numpy()


def wide_dot_transposed(a: Matrix, b: Matrix) -> Matrix:
    """`a^T @ b`, as `wide_dot`."""
    if a.size * b.shape[1] < LEAST_ONEDNN or not is_for_onednn(torch.from_numpy(a)):
        return dot(a.T, b)
    return accumulate(None, _padded_tensor(a), _padded_tensor(b), torch.float32).numpy()


def _padded_tensor(a: Matrix) -> Tensor:
    return pad_rows(torch.from_numpy(a), len(a) + -len(a) % SHORT_GRAIN)


def forward(
    form: Any, gram: bool, x: Matrix, D: Matrix, log_mu: Matrix, *network: Matrix
) -> tuple[Matrix, tuple[Any, ...]]:
    """The codes, and what backward needs of the forward pass."""
    layers, (n, p), m = form.layers, x.shape, D.shape[1]
    # The step multiplies narrow products: W = D step would cost as much as a product with D.
    step = np.exp(-log_mu)
    # X - D alpha before each layer; the first is x itself, and the only one in the Gram form.
    residuals = np.empty((1 if gram else layers, n, p), x.dtype)
    scale = None
    if form.normalise:
        np.subtract(x, np.add.reduce(x, -1, keepdims=True) / p, out=residuals[0])
        x = residuals[0]
        scale = 1 / np.sqrt(np.add.reduce(x * x, -1, keepdims=True) / p + TINY)
        x *= scale
    else:
        residuals[0] = x
    hidden = [x]
    for weight, bias in zip(network[::2], network[1::2], strict=True):
        hidden.append(softplus(wide_dot(hidden[-1], weight.T) + bias))
    lam, drive = hidden[-1], dot(x, D) * step
    if form.relative is None:
        peak = where = fraction = None
        t = lam if form.printed else lam * step
    else:
        low, high = form.relative
        magnitude = np.maximum(drive, 0) if form.nonnegative else np.abs(drive)
        where = np.arange(n), magnitude.argmax(-1)
        peak = magnitude[where][:, None]
        fraction = low + (high - low) * lam / (1 + lam)
        t = fraction * peak
    codes = np.empty((layers, n, m), x.dtype)
    v, lowest, D_T, W_t = drive, -t, D.T, None
    if form.nonnegative:
        lowest = np.full_like(t, -np.inf)
    if gram:
        W_t = dot(D_T, D) * -step
        W_t.flat[:: m + 1] += 1
    for layer in range(layers):
        a = codes[layer]
        # Eq. (3): v - clip(v, -t, t).
        np.subtract(v, np.minimum(np.maximum(v, lowest, out=a), t, out=a), out=a)
        if layer + 1 == layers:
            break
        if W_t is not None:
            v = dot(a, W_t)
            v += drive
        else:
            v = dot(np.subtract(x, dot(a, D_T), out=residuals[layer + 1]), D)
            v *= step
            v += a
    # A copy of the last codes is returned, so that changes of it do not affect backward.
    return a.copy(), (step, scale, hidden, where, peak, fraction, codes, residuals, W_t)


def backward(
    form: Any, g: Matrix, inputs: list[Matrix], kept: tuple[Any, ...]
) -> tuple[Matrix, ...]:
    """The gradients of x, D, log mu and the network."""
    _, D, _, *network = inputs
    step, scale, hidden, where, peak, fraction, codes, residuals, W_t = kept
    lam, signs = hidden[-1], np.sign(codes)
    layers = (
        _FactoredLayers(D, step, codes, residuals)
        if W_t is None
        else _GramLayers(D, step, codes, residuals, W_t)
    )
    through = layers.through(g, np.abs(signs))
    # An active entry follows the threshold against its sign.
    g_t = -np.einsum("lnm,lnm->n", signs, through)[:, None]
    g_threshold = 0.0  # of log mu, through the threshold
    if form.printed:
        g_lam = g_t
    elif form.relative is None:
        g_lam = g_t * step
        g_threshold = -float(np.vdot(g_lam, lam))
    else:
        low, high = form.relative
        g_lam = g_t * peak * ((high - low) / np.square(1 + lam))
        through[0][where] += (g_t * fraction)[:, 0] * signs[0][where]
    g_x, g_D, g_step = layers.finish()
    g_log_mu = np.array(g_threshold - g_step, g.dtype)
    g_network: list[Matrix] = []
    for layer in range(len(network) // 2 - 1, -1, -1):
        # Softplus' derivative from its value: 1 - exp(-y).
        g_lam = g_lam * -np.expm1(-hidden[layer + 1])
        g_network[:0] = wide_dot_transposed(g_lam, hidden[layer]), np.add.reduce(g_lam, 0)
        g_lam = wide_dot(g_lam, network[2 * layer])
    g_x += g_lam
    if scale is not None:
        x, p = hidden[0], D.shape[0]
        along = np.add.reduce(g_x * x, -1, keepdims=True) / p
        g_x = (g_x - np.add.reduce(g_x, -1, keepdims=True) / p - x * along) * scale
    return g_x, g_D, g_log_mu, *g_network


class _GramLayers:
    """The layers `drive + a W_t` in backward."""

    def __init__(
        self, D: Matrix, step: Matrix, codes: Matrix, residuals: Matrix, W_t: Matrix
    ) -> None:
        self.D, self.step, self.codes, self.x, self.W_t = D, step, codes, residuals[0], W_t

    def through(self, g: Matrix, active: Matrix) -> Matrix:
        """The gradient before the threshold of each layer."""
        self.gradients = through = np.empty_like(self.codes)
        for layer in range(len(through) - 1, 0, -1):
            g = dot(np.multiply(g, active[layer], out=through[layer]), self.W_t)  # symmetric
        np.multiply(g, active[0], out=through[0])
        return through

    def finish(self) -> tuple[Matrix, Matrix, float]:
        """The gradients of x and D, and what log mu loses through the step."""
        D, step, codes, through = self.D, self.step, self.codes, self.gradients
        m = D.shape[1]
        g_drive = np.add.reduce(through, 0)
        g_W = dot(self.x.T, g_drive)
        g_W_t = dot(codes[:-1].reshape(-1, m).T, through[1:].reshape(-1, m))
        # As in `kernel_backward.py`: D^T W is symmetric.
        product = dot(D, g_W_t + g_W_t.T)
        lost = np.vdot(g_W, D) - np.vdot(product, D) / 2
        g_W -= product
        g_W *= step
        g_drive *= step
        return dot(g_drive, D.T), g_W, float(lost * step)


class _FactoredLayers:
    """The layers `a + (x - a D^T) W` in backward.

    D occurs twice in each layer, in `r W` and in `a D^T`. All are one product of two tall matrices.
    """

    def __init__(self, D: Matrix, step: Matrix, codes: Matrix, residuals: Matrix) -> None:
        self.D, self.step, self.codes, self.residuals = D, step, codes, residuals
        layers = len(codes)
        self.left = np.empty((2 * layers - 1, *residuals.shape[1:]), codes.dtype)
        self.right = np.empty((2 * layers - 1, *codes.shape[1:]), codes.dtype)
        self.back = np.empty_like(residuals)

    def through(self, g: Matrix, active: Matrix) -> Matrix:
        """The gradient before the threshold of each layer."""
        D, layers = self.D, len(self.codes)
        through = self.right[:layers]
        for layer in range(layers - 1, 0, -1):
            g_v = np.multiply(g, active[layer], out=through[layer])
            g = g_v - dot(dot(g_v * self.step, D.T, out=self.back[layer]), D)
        np.multiply(g, active[0], out=through[0])
        return through

    def finish(self) -> tuple[Matrix, Matrix, float]:
        """The gradients of x and D, and what log mu loses through the step."""
        layers, left, right, back = len(self.codes), self.left, self.right, self.back
        dot(right[0] * self.step, self.D.T, out=back[0])
        np.multiply(self.residuals, self.step, out=left[:layers])
        np.negative(back[1:], out=left[layers:])
        right[layers:] = self.codes[:-1]
        g_D = dot(left.reshape(-1, left.shape[-1]).T, right.reshape(-1, right.shape[-1]))
        # W = D / mu occurs only in `r W`.
        return np.add.reduce(back, 0), g_D, float(np.vdot(back, self.residuals))
