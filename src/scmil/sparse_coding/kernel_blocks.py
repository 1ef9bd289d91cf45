"""Operations on blocks of rows, and the buffers that they write into, for the torch kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from scmil.core.memory import advise_huge_pages
from scmil.sparse_coding.kernel_numpy import TINY
from scmil.sparse_coding.kernel_products import accumulate, add_product, multiply, row_grain

# Bytes of one matrix of codes. A training step on 12 000 x 512 with 256 atoms, on two cores: in
# float32 441 ms with 1 MiB, 411 with 2 or 4; in bfloat16 308 ms with half a MiB, 261 with one, 232
# with two, 226 with four.
BLOCK_BYTES = 2**21
# Bytes of one matrix of features, which are wider than the codes if there are few atoms. A training
# step on 12 000 x 1 280 with 64 atoms, on one core: 413 ms with 3 or 5 MB, 434 with 20.
WIDE_BYTES = 2**22
# Rows above which a block is no faster, also if features and codes are narrow, and below which the
# products of wide features are slower.
LARGEST_BLOCK, SMALLEST_BLOCK = 4096, 1024
LOG2_E = math.log2(math.e)

# The gradient where the magnitude of a second matrix is above a number, elsewhere zero.
softshrink_backward: Any = torch.ops.aten.softshrink_backward.grad_input


class Form(NamedTuple):
    """The options of the layer that are not learned.

    `relative` bounds lambda within fractions of `max_j |(D^T x)_j|`; with `printed`, lambda itself
    is the threshold. With `nonnegative`, codes are not negative, and `relative` refers to
    `max_j (D^T x)_j`. With `low`, such as bfloat16, products and codes have that precision; rows
    are normalised and gradients of parameters are summed in the precision of the parameters.
    """

    layers: int
    relative: tuple[float, float] | None
    normalise: bool
    low: torch.dtype | None = None
    printed: bool = False
    nonnegative: bool = False


def flatten_layers(layers: Tensor) -> Tensor:
    """Reshape (..., layers, n, width) to (..., layers n, width)."""
    return layers.flatten(-3, -2)


def shrink(v: Tensor, lowest: Tensor | None, t: Tensor, out: Tensor) -> None:
    """Eq. (3) as `v - clip(v, -t, t)`: two comparisons take a quarter of the time of clamp.

    Without `lowest`, the map of non-negative codes: `v - min(v, t)`.
    """
    torch.minimum(v if lowest is None else torch.maximum(v, lowest, out=out), t, out=out)
    torch.sub(v, out, out=out)


def shrink_backward(g: Tensor, a: Tensor, g_t: Tensor, g_v: Tensor, sign: Tensor) -> None:
    """Write the gradient of the active entries into `g_v`, and subtract that of the threshold.

    An active entry moves against its sign when the threshold rises.
    """
    torch.mul(g, torch.sign(a, out=sign), out=g_v)
    g_t -= g_v.sum(-1, keepdim=True)
    g_v *= sign


def normalise_rows(x: Tensor, buffer: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scale each row to zero mean and unit variance in `buffer`; return rows, means and scales."""
    if x.dtype != buffer.dtype:
        x = buffer.copy_(x)
    mean = x.mean(-1, keepdim=True)
    x = torch.sub(x, mean, out=buffer)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale = norm.square_().div_(x.shape[-1]).add_(TINY).rsqrt_()
    return x.mul_(scale), mean, scale


def normalise_again(x: Tensor, buffer: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """The rows of `normalise_rows`, to the last digit, from their means and scales."""
    if x.dtype != buffer.dtype:
        x = buffer.copy_(x)
    return torch.sub(x, mean, out=buffer).mul_(scale)


def allocate_buffers(x: Tensor, D: Tensor, rows: int, wide: int, narrow: int) -> list[Tensor]:
    """Allocate a block of `wide` matrices like x and `narrow` ones like the codes, for all blocks.

    Fresh memory costs more than the arithmetic in it, because the operating system maps it page by
    page. The first buffer is for normalised rows, which have at least single precision.
    """
    m = D.shape[-1]
    shapes = [
        (*x.shape[:-2], rows, width)
        for width, count in ((x.shape[-1], wide), (m, narrow))
        for _ in range(count)
    ]
    first = (
        torch.promote_types(D.dtype, torch.float32)
        if D.dtype != x.dtype or D.dtype.itemsize < 4
        else D.dtype
    )
    return [
        D.new_empty(shape, dtype=first if place == 0 else D.dtype)
        for place, shape in enumerate(shapes)
    ]


def large_empty(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """A new tensor for a result, in huge pages if it is large."""
    made = like.new_empty(shape, dtype=dtype)
    if made.device.type == "cpu":
        advise_huge_pages(made.data_ptr(), made.numel() * made.itemsize)
    return made


def first_rows(buffers: Sequence[Tensor], rows: int) -> Sequence[Tensor]:
    """Views of the first rows of each buffer, for a last block that is shorter."""
    if rows == buffers[0].shape[-2]:
        return buffers
    return [tensor[..., :rows, :] for tensor in buffers]


def relative_fraction(lam: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Map the positive output of the sparsity network into the bounds."""
    low, high = bounds
    return low + (high - low) * lam / (1 + lam)


def threshold(
    lam: Tensor, drive: Tensor, step: Tensor | float, form: Form, buffer: Tensor
) -> tuple[Tensor, Tensor]:
    """The peak of each row of the drive (empty unless lam is relative), and the threshold."""
    if form.relative is None:
        return lam.new_empty((*lam.shape[:-2], 0, 1)), lam if form.printed else lam * step
    if form.nonnegative:
        # Without a positive correlation the code is zero.
        peak = drive.amax(-1, keepdim=True).clamp_(min=0)
    else:
        peak = torch.abs(drive, out=buffer).amax(-1, keepdim=True)
    return peak, threshold_of(relative_fraction(lam, form.relative), peak, scaled=False)


def threshold_of(fraction: Tensor, peak: Tensor, scaled: bool) -> Tensor:
    """The threshold as a fraction of the peak; `scaled`, if it is a divisor and has to be positive
    also for a row of zeros.
    """
    t = fraction * peak
    return t.clamp_(min=torch.finfo(t.dtype).tiny) if scaled else t


def peak_signs(first_codes: Tensor, highest: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """The sign of the first codes where they are `highest` in magnitude, elsewhere zero, and how
    many such entries a row has.

    Dividing, so that they are 1 or -1 and the others less, and setting the others to zero takes a
    third of the time of a maximum with its index.
    """
    kind = torch.finfo(highest.dtype)
    ratios = torch.div(
        first_codes, highest.clamp(min=kind.tiny), out=out
    )  # a row of zeros has none
    signs = softshrink_backward(ratios, ratios, 1 - kind.eps / 2, grad_input=ratios)
    count = torch.linalg.vector_norm(signs, dim=-1, keepdim=True).square_()
    return signs, count.clamp_(min=1)


def transition_rows(D: Tensor, W: Tensor, W_t: Tensor, rows: slice) -> None:
    """Write rows of W_t = I - D^T W of Eq. (4)."""
    part = W_t[..., rows, :]
    torch.neg(multiply(D[..., rows].mT, W, out=part), out=part)
    part.diagonal(rows.start, dim1=-2, dim2=-1).add_(1)


def sparsity_network(x: Tensor, network: Sequence[Tensor]) -> list[Tensor]:
    """The output of each layer of the sparsity network: linear, then Softplus."""
    hidden: list[Tensor] = []
    for weight, bias in zip(network[::2], network[1::2], strict=True):
        x = F.softplus(add_product(bias.unsqueeze(-2), x, weight.mT))
        hidden.append(x)
    return hidden


def sparsity_network_backward(
    g: Tensor,
    x: Tensor,
    hidden: Sequence[Tensor],
    network: Sequence[Tensor],
    g_network: list[Tensor | None],
    dtype: torch.dtype,
) -> Tensor:
    """Add to the gradients of weights and biases, of type `dtype`; return the one before the first
    Softplus.
    """
    for layer in reversed(range(len(hidden))):
        # Softplus' derivative from its value: 1 - exp(-y). Powers of 2 take a fourth of the time.
        g = torch.addcmul(g, g, torch.mul(hidden[layer], -LOG2_E).exp2_(), value=-1)
        weight, bias = g_network[2 * layer], g_network[2 * layer + 1]
        g_network[2 * layer] = accumulate(weight, g, hidden[layer - 1] if layer else x, dtype)
        total = g.sum(-2, dtype=dtype)
        g_network[2 * layer + 1] = total if bias is None else bias.add_(total)
        if layer:
            g = multiply(g, network[2 * layer])
    return g


def row_blocks(codes: Tensor, lanes: int = 1, p: int = 1) -> list[slice]:
    """Slices of rows of which the codes take at most about `BLOCK_BYTES`, and the p features
    `WIDE_BYTES`; with several lanes, of equal size, and as many for each lane. All but the last one
    have a multiple of `row_grain` rows.
    """
    n, m = codes.shape[-2:]
    size = codes.dtype.itemsize
    wide = max(WIDE_BYTES // (p * size), SMALLEST_BLOCK)
    rows = max(64, min(BLOCK_BYTES // (m * size), wide, LARGEST_BLOCK))
    if lanes > 1:
        each = -(-n // (lanes * rows))  # blocks of a lane
        rows = -(-n // (lanes * each))
    rows += -rows % row_grain(codes)
    return [slice(start, min(start + rows, n)) for start in range(0, n, rows)]
