"""Dictionaries from data: random instances, k-means centres, online dictionary learning.

Each takes instances as rows `x (n, p)`, as the layer codes them, and returns `D (p, m)` with atoms
of unit norm.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from scmil.core.shapes import Float
from scmil.sparse_coding.equations import random_dictionary, unrolled_ista

KMEANS_ITERATIONS = 10
ONLINE_PASSES = 3
ONLINE_BATCH = 256
ONLINE_FRACTION = 0.3  # of the lambda from which on all codes are zero
ONLINE_STEPS = 25


def dictionary_from_data(
    kind: str, x: Float[Tensor, "n p"], m: int, generator: torch.Generator
) -> Float[Tensor, "p m"]:
    """A dictionary with atoms of unit norm from instances.

    Args:
        kind: `"instances"`: instances drawn at random. `"kmeans"`: the centres of k-means, started
            by k-means++. `"online"`: passes of online dictionary learning (Mairal et al., 2009),
            started by instances.
        x: Instances. Rows of zeros are left out.
        m: Number of atoms. If there are fewer distinct instances, the remaining atoms are random.
        generator: Generator of all draws.

    >>> generator = torch.Generator().manual_seed(0)
    >>> dictionary_from_data("kmeans", torch.eye(3).repeat(5, 1), 2, generator).shape
    torch.Size([3, 2])
    """
    x = x[x.square().sum(1) > 0]
    distinct = torch.unique(x, dim=0)
    # Shuffled, as `unique` sorts.
    distinct = distinct[torch.randperm(len(distinct), generator=generator)]
    found = min(m, len(distinct))
    atoms = distinct if found < m else DATA_DICTIONARIES[kind](x, distinct, m, generator)
    D = F.normalize(atoms, dim=1).mT.to(x.dtype)
    further = random_dictionary(x.shape[1], m - found, generator).to(x.dtype)
    return torch.cat([D, further], 1).contiguous()


def _instances(x: Tensor, distinct: Tensor, m: int, generator: torch.Generator) -> Tensor:
    return distinct[:m]


def _kmeans(x: Tensor, distinct: Tensor, m: int, generator: torch.Generator) -> Tensor:
    """Lloyd's iterations; a centre without instances moves to the instance that is farthest from
    its own centre.
    """
    centres = _kmeans_start(distinct, m, generator)
    square = x.square().sum(1)
    for _ in range(KMEANS_ITERATIONS):
        distance = square[:, None] - 2 * x @ centres.mT + centres.square().sum(1)
        nearest, label = distance.min(1)
        counts = torch.bincount(label, minlength=m)
        sums = torch.zeros_like(centres).index_add_(0, label, x)
        centres = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], centres)
        empty = (counts == 0).nonzero()[:, 0]
        centres[empty] = x[nearest.topk(len(empty)).indices]
    # A centre at zero has no direction.
    zero = centres.square().sum(1) == 0
    centres[zero] = distinct[: int(zero.sum())]
    return centres


def _kmeans_start(x: Tensor, m: int, generator: torch.Generator) -> Tensor:
    """k-means++: each further centre is drawn with a probability proportional to the squared
    distance to the nearest one so far.
    """
    chosen = [0]  # the instances are shuffled
    square = x.square().sum(1)
    nearest = torch.full_like(square, torch.inf)
    for _ in range(m - 1):
        centre = x[chosen[-1]]
        distance = square - 2 * x @ centre + centre @ centre
        nearest = torch.minimum(nearest, distance).clamp_(min=0)
        nearest[chosen] = 0
        # Distances of almost equal instances may round to zero: then any other one.
        weights = nearest if float(nearest.sum()) > 0 else torch.ones_like(nearest)
        chosen.append(int(torch.multinomial(weights, 1, generator=generator)))
    return x[chosen].clone()


def _online(x: Tensor, distinct: Tensor, m: int, generator: torch.Generator) -> Tensor:
    """Online dictionary learning: code a batch, add to the sufficient statistics
    `A = sum alpha alpha^T` and `B = sum x alpha^T`, and minimise atom by atom on the unit sphere.
    """
    D = F.normalize(distinct[:m], dim=1).mT.contiguous()
    A, B = x.new_zeros(m, m), x.new_zeros(x.shape[1], m)
    for _ in range(ONLINE_PASSES):
        for batch in torch.randperm(len(x), generator=generator).split(ONLINE_BATCH):
            rows = x[batch]
            mu = torch.linalg.matrix_norm(D, 2).square()
            lam = ONLINE_FRACTION * (rows @ D).abs().amax(1, keepdim=True)
            alpha = unrolled_ista(rows, D, mu, lam, ONLINE_STEPS)
            A += alpha.mT @ alpha
            B += rows.mT @ alpha
            for atom in (A.diagonal() > 0).nonzero()[:, 0].tolist():
                moved = D[:, atom] + (B[:, atom] - D @ A[:, atom]) / A[atom, atom]
                length = moved.norm()
                if float(length) > 0:
                    D[:, atom] = moved / length
    return D.mT


DATA_DICTIONARIES: dict[str, Callable[[Tensor, Tensor, int, torch.Generator], Tensor]] = {
    "instances": _instances,
    "kmeans": _kmeans,
    "online": _online,
}
