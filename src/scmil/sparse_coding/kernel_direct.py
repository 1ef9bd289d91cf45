"""The sparse-coding layer without gradients, for bags of up to a few thousand instances.

100 instances take less than a millisecond, of which the blocks, buffers and lanes of
`kernel_torch.py` would take a third. Here the whole bag is one block, and torch divides its
operations among the threads, unless the pass is so short that it has one (`is_for_one_thread`). The
step is a factor of the products, so that W = D / mu is never written. Where the threshold permits
it, the layers of both forms are computed in its units (`kernel_scaled.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from scmil.sparse_coding.kernel_blocks import Form, normalise_rows, shrink, threshold
from scmil.sparse_coding.kernel_lanes import SHORTEST_DIVIDED, Lanes
from scmil.sparse_coding.kernel_numpy import LARGEST_WEIGHTS, TINY
from scmil.sparse_coding.kernel_products import (
    LEAST_PADDED,
    add_product,
    is_for_onednn,
    is_long,
    is_whole,
    multiply,
    onednn_linear,
    pad_rows,
    row_grain,
)
from scmil.sparse_coding.kernel_scaled import is_scaled, scaled_threshold, softshrink

# The larger of n * p and n * m: above, blocks of rows are faster and save memory.
LARGEST_DIRECT = 2**19
# Multiply-adds up to which a few instances use one thread; more instances up to `SHORTEST_DIVIDED`.
LARGEST_FEW = 8_000_000
# Multiply-adds up to which oneDNN may compute more instances on one thread, and codes from which on
# its gain over MKL is as large as that of a second thread.
LARGEST_ONEDNN, LEAST_CODES = 50_000_000, 24_000
# Numbers of a bag up to which `F.layer_norm` is faster than `normalise_rows`; it takes 3 instead of
# 15 microseconds for five instances, and twice as long for a thousand.
LARGEST_LAYER_NORM = 2**15


def is_direct(x: Tensor, D: Tensor) -> bool:
    """Whether the bag is small enough, on the processor, and in the precision of the dictionary.

    >>> is_direct(torch.zeros(1000, 512), torch.zeros(512, 256))
    True
    """
    return (
        D.ndim == 2
        and len(x) * max(D.shape) <= LARGEST_DIRECT
        and x.device.type == "cpu"
        and x.dtype == D.dtype
        and x.dtype in (torch.float32, torch.float64)
    )


def uses_onednn(gram: bool, x: Tensor, D: Tensor, threads: int | None = None) -> bool:
    """Whether oneDNN computes the products: if most of them take longer than what is done for it,
    such as padding the rows, or a single one of many rows. `threads` is torch's number by default.
    """
    p, m = D.shape
    longest = m * (max(p, m) if gram else p) // 2
    if len(x) >= LEAST_PADDED:
        longest = max(longest, p * (p // 4) // 4)
    return is_for_onednn(x) and is_long(len(x), longest, threads) and is_whole(D)


def is_for_one_thread(gram: bool, x: Tensor, D: Tensor, layers: int) -> bool:
    """Whether a pass is so short that two threads gain little, and lose much beside another
    process: each of its ten products then waits for the thread that shares a core.
    """
    (n, p), m = x.shape, D.shape[1]
    weights = p * (p // 4 + m)
    later = (layers - 1) * (n * m * m if gram else 2 * n * p * m)
    work = n * weights + later + (p * m * m if gram else 0)
    if n < LEAST_PADDED and uses_onednn(gram, x, D):
        return True  # oneDNN takes no longer on one thread than MKL on two
    if weights <= LARGEST_WEIGHTS and work <= (
        LARGEST_FEW if n < LEAST_PADDED else SHORTEST_DIVIDED
    ):
        return True
    return (
        work <= LARGEST_ONEDNN
        and m >= p
        and n * m >= LEAST_CODES
        and uses_onednn(gram, x, D, threads=1)
    )


def direct_codes(
    form: Form, gram: bool, x: Tensor, D: Tensor, log_mu: Tensor, network: Sequence[Tensor]
) -> Tensor:
    """The codes of a bag, in the Gram form or in the factored form."""
    # Operations on tensors that require gradients take longer, also without gradients.
    x, D, log_mu, *network = (tensor.detach() for tensor in (x, D, log_mu, *network))
    alone = is_for_one_thread(gram, x, D, form.layers)
    with Lanes(1, torch.get_num_threads() if alone else 1).one_thread():
        if not uses_onednn(gram, x, D):
            return _compute_codes(False, form, gram, x, D, log_mu, network)
        padded = pad_rows(x, len(x) + -len(x) % row_grain(x))
        return _compute_codes(True, form, gram, padded, D, log_mu, network)[: len(x)]


def _compute_codes(
    onednn: bool,
    form: Form,
    gram: bool,
    x: Tensor,
    D: Tensor,
    log_mu: Tensor,
    network: Sequence[Tensor],
) -> Tensor:
    step = torch.exp(-log_mu).item()
    if form.normalise:
        x = _normalise(x)
    long = onednn and is_long(len(x), network[0].numel())
    add = add_product if long else torch.addmm
    lam = x
    for weight, bias in zip(network[::2], network[1::2], strict=True):
        lam = F.softplus(add(bias, lam, weight.mT))
    long = onednn and is_long(len(x), D.numel())
    drive = onednn_linear(x, D.mT) if long else torch.mm(x, D)
    drive.mul_(step)  # W_e x, the same in every layer
    a, scaled = torch.empty_like(drive), is_scaled(form)
    if scaled:  # all but the threshold in its units, as in `kernel_scaled.py`
        t = scaled_threshold(lam, torch.abs(drive, out=a).amax(-1, keepdim=True), form)
        unit = t.reciprocal()
        drive, x = drive.mul_(unit), x if gram else x * unit
    else:
        _, t = threshold(lam, drive, step, form, a)
        lowest = None if form.nonnegative else -t
    update = _gram_update if gram else _factored_update
    next_drive = update(onednn, x, drive, D, step)
    for layer in range(form.layers):
        v = next_drive(a) if layer else drive
        if scaled:
            softshrink(v, 1.0, out=a)
        else:
            shrink(v, lowest, t, out=a)
    return a.mul_(t) if scaled else a


def _gram_update(
    onednn: bool, _: Tensor, drive: Tensor, D: Tensor, step: float
) -> Callable[[Tensor], Tensor]:
    """The function that gives `drive + a W_t` for the codes a of a layer."""
    W_t, v = multiply(D.mT, D).mul_(-step), torch.empty_like(drive)
    W_t.diagonal().add_(1)
    if onednn and is_long(len(drive), W_t.numel()):
        # W_t is symmetric: its transpose takes less time.
        return lambda a: onednn_linear(a, W_t.mT, other=drive)
    return lambda a: torch.addmm(drive, a, W_t, out=v)


def _factored_update(
    onednn: bool, x: Tensor, drive: Tensor, D: Tensor, step: float
) -> Callable[[Tensor], Tensor]:
    """The function that gives `a + (x - a D^T) W` for the codes a of a layer, perhaps in the memory
    of the drive.
    """
    r, D_T = torch.empty_like(x), D.mT
    if onednn:  # has no factors
        return lambda a: onednn_linear(
            torch.sub(x, onednn_linear(a, D), out=r).mul_(step), D_T, other=a
        )

    def update(a: Tensor) -> Tensor:
        torch.addmm(x, a, D_T, alpha=-1, out=r)
        return torch.addmm(a, r, D, alpha=step, out=drive)

    return update


def _normalise(x: Tensor) -> Tensor:
    if x.numel() <= LARGEST_LAYER_NORM:
        return F.layer_norm(x, x.shape[-1:], eps=TINY)
    return normalise_rows(x, torch.empty_like(x))[0]
