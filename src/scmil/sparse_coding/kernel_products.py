"""The matrix products of the torch kernel: by oneDNN where it is faster than `torch.matmul`.

torch computes products of float32 matrices with MKL, which uses vectors of 256 bits on processors
of AMD. oneDNN, another part of torch, uses 512 bits on all processors that have them: on one core
of an EPYC of the fifth generation 250 instead of 110 GFlop/s. On other processors, for other types,
for stacks of models and on other devices, the products are those of `torch.matmul`.

oneDNN compiles code for each shape, in 0.4 ms, and keeps it. So it gets blocks of a multiple of
`row_grain` rows, the last block of a bag with rows of zeros at its end (`pad_rows`): bags of
different sizes then share the same code. Bags of less than `LEAST_PADDED` rows are not padded.
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

GRAIN, SHORT_GRAIN = 64, 8
# Rows of a bag from which on its last block is padded, and from which on to a multiple of `GRAIN`.
LEAST_PADDED, LONG_ROWS = 32, 1024
# One or two rows are no matrix for MKL, which then takes less time.
LEAST_ROWS = 3
# Multiply-adds of a product, for each thread, below which MKL is faster: a call of oneDNN takes 10
# to 20 microseconds more. But MKL copies the second matrix, which takes as long as so many rows.
LEAST_WORK, ROWS_OF_COPY = 1_400_000, 8


@cache
def onednn_is_faster() -> bool:
    """Whether this processor is one of AMD with vectors of 512 bits, and torch has oneDNN."""
    return (
        torch.backends.cpu.get_cpu_capability() == "AVX512"
        and "AuthenticAMD" in _processor()
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def _processor() -> str:
    """The maker of the processor and other text, or nothing if the system does not name it."""
    listing = Path("/proc/cpuinfo")
    return listing.read_text(errors="replace") if listing.is_file() else platform.processor()


def is_for_onednn(a: Tensor) -> bool:
    """Whether oneDNN may compute products with this matrix on this processor."""
    return (
        a.ndim == 2
        and a.dtype == torch.float32
        and a.device.type == "cpu"
        and onednn_is_faster()
        and not is_recorded()
    )


def is_recorded() -> bool:
    """Whether a mode of torch sees each operation, such as one that counts multiply-adds: it knows
    neither NumPy's products nor those of oneDNN.
    """
    return torch._C._len_torch_dispatch_stack() > 0


def row_grain(codes: Tensor) -> int:
    """The blocks of the rows of a bag have a multiple of this number of rows."""
    rows = codes.shape[-2]
    if rows < LEAST_PADDED or not is_for_onednn(codes):
        return 1
    return GRAIN if rows >= LONG_ROWS else SHORT_GRAIN


def pad_rows(x: Tensor, rows: int) -> Tensor:
    """x with zeros after its last row, up to a number of rows; x itself if it has as many.

    >>> pad_rows(torch.ones(1, 2), 2)
    tensor([[1., 1.],
            [0., 0.]])
    """
    if rows == x.shape[-2]:
        return x
    padded = x.new_empty(rows, x.shape[-1])  # `F.pad` writes all of it twice
    padded[: len(x)] = x
    padded[len(x) :] = 0
    return padded


def onednn_linear(
    a: Tensor, weight: Tensor, bias: Tensor | None = None, other: Tensor | None = None
) -> Tensor:
    """`a @ weight.mT`, with `bias` added to each row, or with a matrix added, by oneDNN."""
    onednn = torch.ops.mkldnn._linear_pointwise
    if other is not None:
        return onednn.binary(a, other, weight, None, "add")
    return onednn.default(a, weight, bias, "none", [], "")


def multiply(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """`a @ b`, in the memory of `out` unless oneDNN computes it."""
    if _takes(a, b):
        return onednn_linear(a, b.mT)
    return torch.matmul(a, b, out=out)


def add_product(
    base: Tensor, a: Tensor, b: Tensor, alpha: int = 1, out: Tensor | None = None
) -> Tensor:
    """`base + alpha * a @ b`, for one model or a stack of them; `base` is a matrix or one row.
    In the memory of `out` unless oneDNN computes it.
    """
    if abs(alpha) == 1 and _takes(a, b):
        if alpha == -1:
            return torch.sub(base, onednn_linear(a, b.mT), out=out)
        if base.numel() == b.shape[1]:
            return onednn_linear(a, b.mT, bias=base.flatten())
        return onednn_linear(a, b.mT, other=base)
    return _add_product(base, a, b, alpha, out)


def _add_product(
    base: Tensor, a: Tensor, b: Tensor, alpha: int = 1, out: Tensor | None = None
) -> Tensor:
    return (torch.addmm if a.ndim == 2 else torch.baddbmm)(base, a, b, alpha=alpha, out=out)


def accumulate(
    total: Tensor | None, a: Tensor, b: Tensor, dtype: torch.dtype, alpha: int = 1
) -> Tensor:
    """Add `alpha * a^T @ b` to a sum over blocks, which has its own, higher precision `dtype`, and
    return it; None is the sum over no block.
    """
    if abs(alpha) == 1 and len(a) >= LEAST_PADDED and _takes(a, b) and a.is_contiguous():
        # The narrower matrix is the one that oneDNN copies.
        first, second = (a, b) if a.shape[1] <= b.shape[1] else (b, a)
        product = onednn_linear(first.mT, second.mT)
        product = product if first is a else product.mT
        if total is None:
            return product if alpha == 1 else product.neg_()
        return total.add_(product, alpha=alpha)
    a = a.mT
    if total is None:
        product = torch.matmul(a, b).to(dtype)
        return product if alpha == 1 else product.mul_(alpha)
    if dtype == a.dtype:
        return _add_product(total, a, b, alpha, out=total)
    return total.add_(a @ b, alpha=alpha)


def is_long(rows: int, numbers: int, threads: int | None = None) -> bool:
    """Whether rows times a matrix of so many numbers takes so long that oneDNN is faster, with so
    many threads; by default those of torch.
    """
    threads = threads or torch.get_num_threads()
    work = numbers * (rows + ROWS_OF_COPY * threads)
    return rows >= LEAST_ROWS and work >= LEAST_WORK * threads


def is_whole(b: Tensor) -> bool:
    """Whether a matrix is no part of a wider one, for which oneDNN has only its reference code: it
    takes a hundred times as long.
    """
    return b.is_contiguous() or b.mT.is_contiguous()


def _takes(a: Tensor, b: Tensor) -> bool:
    """Whether oneDNN computes a product of the rows of these matrices."""
    rows = a.shape[-2]
    return (
        (rows % SHORT_GRAIN == 0 or rows < LEAST_PADDED)
        and is_long(rows, a.shape[-1] * b.shape[-1])
        and is_for_onednn(a)
        and is_whole(b)
    )
