"""The SC module as its authors released it, reimplemented from its description, for comparison.

It differs from the paper in ten points, which `docs/decisions/0001-start-alive.md` lists. The
important one: lambda may be negative, and then no entry is zero, and all are pushed away from zero.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scmil.core.shapes import Float


class ReleasedSparseCoding(nn.Module):
    """`z = S(D^T x)`, then `layers` times `z = S(z (I - D^T D / mu) + D^T x / mu)`, all with
    threshold lambda / mu.

    The dictionary starts Kaiming-uniform with its columns scaled to unit norm, with 512 atoms by
    default; the first code is not divided by mu; lambda comes from a network with layer
    normalisation, hidden widths of 128 and 64, and no activation at its end. A vector of zeros,
    which the threshold takes the maximum with, and the identity are frozen parameters, as they are
    in the release.

    Args:
        dim: Dimension of the embeddings.
        atoms: Number of atoms.
        layers: Number of updates after the first code.
        generator: Generator of the dictionary.

    >>> ReleasedSparseCoding(64, atoms=256)(torch.randn(5, 64)).shape
    torch.Size([5, 256])
    """

    def __init__(
        self, dim: int, atoms: int = 512, layers: int = 5, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.dim, self.atoms, self.layers = dim, atoms, layers
        D = nn.init.kaiming_uniform_(torch.empty(dim, atoms), generator=generator)
        self.dictionary = nn.Parameter(F.normalize(D, dim=0))
        self.mu = nn.Parameter(torch.linalg.matrix_norm(self.dictionary.detach(), 2).square())
        self.zeros = nn.Parameter(torch.zeros(atoms), requires_grad=False)
        self.identity = nn.Parameter(torch.eye(atoms), requires_grad=False)
        self.network = nn.Sequential(
            nn.Linear(dim, 128), nn.LayerNorm(128), nn.Softplus(),
            nn.Linear(128, 64), nn.LayerNorm(64), nn.Softplus(),
            nn.Linear(64, 1),
        )  # fmt: skip

    def forward(self, x: Float[Tensor, "n p"]) -> Float[Tensor, "n m"]:
        D, mu = self.dictionary, self.mu
        threshold = self.network(x) / mu
        drive = x @ D
        transition = self.identity - D.mT @ D / mu
        z = self._shrink(drive, threshold)
        for _ in range(self.layers):
            z = self._shrink(z @ transition + drive / mu, threshold)
        return z

    def _shrink(self, v: Tensor, threshold: Tensor) -> Tensor:
        return v.sign() * torch.maximum(v.abs() - threshold, self.zeros)
