r"""The equations of the paper, (1) to (4), and the initial dictionaries.

The symbols, used everywhere in scmil:

    n  instances of a bag          x (n, p)      embeddings, one row per instance
    p  dimension of an embedding   D (p, m)      dictionary, one column per atom
    m  atoms                       alpha (n, m)  codes
    L  layers                      lam (n, 1)    sparsity, one per instance
    c  classes                     mu ()         1 / mu is the step

What the layer approximates, for each instance separately:

    alpha = argmin  1/2 |D alpha - x|^2 + lam |alpha|_1                         Eq. (1)
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from scmil.core.shapes import Float


def unrolled_ista(
    x: Float[Tensor, "n p"],
    D: Float[Tensor, "p m"],
    mu: Float[Tensor, ""] | float,
    lam: Float[Tensor, "n 1"],
    layers: int,
    *,
    printed: bool = False,
    nonnegative: bool = False,
) -> Float[Tensor, "n m"]:
    """Eqs. (2) and (4): L proximal gradient steps on Eq. (1), from zero.

    Args:
        x: Embeddings.
        D: Dictionary.
        mu: Inverse step.
        lam: Sparsity of each instance.
        layers: Number of steps.
        printed: Use the threshold lam, as Eqs. (2) and (4) are printed. The default is lam / mu, as
            in the authors' code: each update is then the proximal step of Eq. (1), so that with
            mu >= |D|^2 and many layers alpha is the lasso of Eq. (1) at exactly `lam`. The printed
            form approaches the lasso at `lam * mu`.
        nonnegative: Minimise over alpha >= 0: the proximal map is then `max(v - threshold, 0)`.

    Returns:
        The codes.

    With an orthonormal dictionary and mu = 1 one step is enough:

    >>> D, lam = torch.eye(2), torch.tensor([[2.0]])
    >>> unrolled_ista(torch.tensor([[3.0, -1.0]]), D, mu=1.0, lam=lam, layers=1)
    tensor([[1., -0.]])
    """
    # (n, m)  W_e x, the same in every layer; under autocast only products have low precision.
    drive = (x @ D).to(lam.dtype) / mu
    threshold = lam if printed else lam / mu
    alpha = torch.zeros_like(drive)
    for _ in range(layers):
        # Eq. (4), W_t = I - D^T D / mu.
        v = alpha + drive - (alpha @ D.mT) @ D / mu
        alpha = (v - threshold).clamp(min=0) if nonnegative else soft_threshold(v, threshold)
    return alpha


def soft_threshold(v: Tensor, lam: Tensor | float) -> Tensor:
    """Eq. (3): the proximal map of `lam |.|_1`, which moves each entry towards zero by lam.

    Args:
        v: A tensor.
        lam: The threshold, a number or a tensor that broadcasts with `v`.

    Returns:
        `sign(v) max(|v| - lam, 0)`.

    >>> soft_threshold(torch.tensor([3.0, -0.5, -2.0]), 1.0)
    tensor([ 2., -0., -1.])
    """
    return v.sign() * (v.abs() - lam).clamp(min=0)


def objective(
    x: Float[Tensor, "n p"],
    D: Float[Tensor, "p m"],
    alpha: Float[Tensor, "n m"],
    lam: Float[Tensor, "n 1"],
) -> Float[Tensor, " n"]:
    """The objective of Eq. (1) for each instance.

    >>> x, alpha = torch.tensor([[3.0, -1.0]]), torch.tensor([[1.0, 0.0]])
    >>> objective(x, torch.eye(2), alpha, lam=torch.tensor([[2.0]]))
    tensor([4.5000])
    """
    return (alpha @ D.mT - x).square().sum(-1) / 2 + lam.squeeze(-1) * alpha.abs().sum(-1)


# ----------------------------------------------------------------------------------- the dictionary


def dct_dictionary(p: int, m: int) -> Float[Tensor, "p m"]:
    """An over-complete cosine dictionary with unit columns (Sec. II-C1): separable if p and m are
    squares, else 1-D.

    >>> D = dct_dictionary(484, 256)  # 22 x 22 by 16 x 16, the sizes of Table III
    >>> round(float(torch.linalg.matrix_norm(D, 2) ** 2), 3)
    2.066
    """
    if p < 2:
        raise ValueError(
            f"a cosine dictionary needs at least 2 dimensions, not {p}. Use dictionary='random'."
        )
    rows, columns = math.isqrt(p), math.isqrt(m)
    if rows * rows == p and columns * columns == m and rows > 1:
        one_axis = _cosines(rows, columns)
        D = torch.kron(one_axis, one_axis)
    else:
        D = _cosines(p, m)
    return F.normalize(D, dim=0).to(torch.get_default_dtype())


def _cosines(length: int, frequencies: int) -> Tensor:
    """Column k is cos(pi k i / frequencies), without its mean (except the constant), of unit
    length.
    """
    i, k = torch.arange(length, dtype=torch.float64), torch.arange(frequencies, dtype=torch.float64)
    waves = torch.cos(torch.pi * i[:, None] * k / frequencies)
    waves[:, 1:] -= waves[:, 1:].mean(0)
    return F.normalize(waves, dim=0)


def random_dictionary(
    p: int, m: int, generator: torch.Generator | None = None
) -> Float[Tensor, "p m"]:
    """Columns drawn uniformly from the unit sphere.

    >>> random_dictionary(3, 5, torch.Generator().manual_seed(0)).norm(dim=0)
    tensor([1., 1., 1., 1., 1.])
    """
    return F.normalize(torch.randn(p, m, generator=generator), dim=0)
