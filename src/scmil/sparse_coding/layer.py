"""The sparsity network and the sparse coding layer, around the equations of `equations.py`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scmil.core.shapes import Float
from scmil.sparse_coding.equations import dct_dictionary, random_dictionary, unrolled_ista
from scmil.sparse_coding.kernel_numpy import TINY
from scmil.sparse_coding.kernel_torch import Form, fused_sparse_coding

# ------------------------------------------------------------------------------------------- lambda


class SparsityNetwork(nn.Sequential):
    """Fig. 2(b): three linear layers, each followed by Softplus, give each instance its own
    positive number.

    Softplus instead of ReLU, whose kink made training unstable (Sec. II-C2). Widths p, p//4, p//8,
    1: the only natural rule that gives Table III's parameter counts.

    >>> SparsityNetwork(484)(torch.randn(10, 484)).shape
    torch.Size([10, 1])
    """

    def __init__(self, p: int) -> None:
        wide, narrow = max(1, p // 4), max(1, p // 8)
        first, second, third = nn.Linear(p, wide), nn.Linear(wide, narrow), nn.Linear(narrow, 1)
        super().__init__(first, nn.Softplus(), second, nn.Softplus(), third, nn.Softplus())
        self._linear = (first, second, third)

    def weights(self) -> tuple[Tensor, ...]:
        """Weight and bias of each layer, for the fused layer."""
        first, second, third = self._linear
        return first.weight, first.bias, second.weight, second.bias, third.weight, third.bias


# ---------------------------------------------------------------------------------------- the layer


@dataclass(frozen=True)
class CodeStatistics:
    """Statistics of the codes of a bag.

    `density` is the fraction of coefficients that are not zero, `dead` the fraction of instances
    whose code is all zero, `lam` the median sparsity, `step` is |D|^2 / mu: above 1 the updates
    overshoot, above 2 they diverge with the number of layers.
    """

    density: float
    dead: float
    lam: float
    step: float


LONGEST_STEP = 1.001  # |D|^2 / mu, with room for rounding


class StepWarning(UserWarning):
    """The learned step is longer than the dictionary allows."""


SPARSITIES = ("relative", "absolute", "printed")


class SparseCoding(nn.Module):
    """Refines each instance into sparse coefficients over a learned dictionary:
    `(*n, p) -> (*n, m)`.

    L unrolled updates of Eq. (4) with tied weights; the dictionary, mu and the sparsity network are
    learned by the task.

    The defaults `normalise=True` and `sparsity="relative"` let the layer train from the first step
    on features of any scale. The paper's own form may start with codes that are all zero, which
    have no gradient and never train (`docs/decisions/0001-start-alive.md`).

    mu is learned as its logarithm, so that it cannot cross zero. Weight decay does not act on the
    parameters of the layer unless a recipe has `decay_sparse_coding`. `train()` and `eval()` warn
    once if |D|^2 has outgrown mu.

    Args:
        dim: Dimension p of the embeddings.
        atoms: Number m of atoms.
        layers: Number L of unrolled updates.
        dictionary: The initial dictionary: `"dct"` (the paper's), `"random"`, or a matrix (p, m).
        sparsity: How the positive output s of the sparsity network becomes the threshold.
            `"relative"`: lam = r |D^T x|_inf with r = low + (high - low) s / (1 + s) within
            `bounds`, and the threshold is lam / mu. As r < 1, at least one coefficient is not zero;
            as r > low, codes stay sparse in training. `"absolute"`: lam = s, and the threshold is
            lam / mu, the proximal step of Eq. (1). `"printed"`: lam = s is the threshold itself, as
            Eqs. (2) to (4) are printed.
        bounds: The bounds of r.
        normalise: Scale each instance to zero mean and unit variance before it is coded.
        fused: Use the fast kernels, which return the same numbers.
        generator: Generator of a random dictionary.

    Raises:
        ValueError: If an option is unknown or out of range.

    >>> layer = SparseCoding(484, atoms=256, layers=5)
    >>> layer(torch.randn(1000, 484)).shape
    torch.Size([1000, 256])
    >>> layer(50 * torch.ones(2, 3, 484).cumsum(-1)).shape
    torch.Size([2, 3, 256])
    """

    def __init__(
        self,
        dim: int,
        atoms: int = 256,
        layers: int = 5,
        *,
        dictionary: str | Tensor = "dct",
        sparsity: str = "relative",
        bounds: tuple[float, float] = (0.1, 0.9),
        normalise: bool = True,
        fused: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if min(dim, atoms, layers) < 1:
            raise ValueError(f"dim, atoms and layers are at least 1, not {dim}, {atoms}, {layers}.")
        if sparsity not in SPARSITIES:
            raise ValueError(f"sparsity = {sparsity!r}. Known: {', '.join(SPARSITIES)}.")
        low, high = bounds
        if not 0 <= low < high <= 1:
            raise ValueError(f"bounds = {tuple(bounds)}: they are fractions, 0 <= low < high <= 1.")
        self.dim, self.atoms, self.layers = dim, atoms, layers
        self.relative = (float(low), float(high)) if sparsity == "relative" else None
        self.printed = sparsity == "printed"
        self.normalise, self.fused = normalise, fused
        self.dictionary = nn.Parameter(_initial_dictionary(dictionary, dim, atoms, generator))
        self.log_mu = nn.Parameter(self._squared_norm().log())  # mu = |D|^2, Sec. II-C3
        self.network = SparsityNetwork(dim)
        self._warned = False

    @property
    def mu(self) -> Float[Tensor, ""]:
        """The inverse step, positive by construction."""
        return self.log_mu.exp()

    def forward(self, x: Float[Tensor, "*n p"]) -> Float[Tensor, "*n m"]:
        if x.ndim != 2:
            return self(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], self.atoms)
        if self.fused and len(x) and not torch.compiler.is_compiling():  # the same numbers, faster
            rounds = torch.is_autocast_enabled(x.device.type)
            low = torch.get_autocast_dtype(x.device.type) if rounds else None
            return fused_sparse_coding(
                x, self.dictionary, self.log_mu, self.network.weights(), self.form(low)
            )
        x = self._normalised(x)
        lam = self._lam(x)
        return unrolled_ista(x, self.dictionary, self.mu, lam, self.layers, printed=self.printed)

    def form(self, low: torch.dtype | None = None) -> Form:
        """The options of the kernels."""
        return Form(self.layers, self.relative, self.normalise, low, self.printed)

    def sparsity(self, x: Float[Tensor, "*n p"]) -> Float[Tensor, "*n 1"]:
        """The lam of each instance. Unless the form is the printed one, the codes approach the
        lasso of Eq. (1) with it, on the normalised instance.

        >>> layer = SparseCoding(16, atoms=16)
        >>> bool((layer.sparsity(torch.randn(10, 16)) > 0).all())
        True
        """
        return self._lam(self._normalised(x))

    @torch.no_grad()
    def statistics(self, x: Float[Tensor, "*n p"]) -> CodeStatistics:
        """Density, dead instances, lambda and step on a bag, for a log.

        >>> SparseCoding(64).statistics(torch.randn(100, 64)).dead
        0.0
        """
        active = self(x) != 0
        return CodeStatistics(
            density=active.float().mean().item(),
            dead=1 - active.any(-1).float().mean().item(),
            lam=self.sparsity(x).median().item(),
            step=self.step(),
        )

    @torch.no_grad()
    def step(self) -> float:
        """|D|^2 / mu: 1 at the start; up to 1 each update lowers Eq. (1).

        >>> round(SparseCoding(64).step(), 4)
        1.0
        """
        return float(self._squared_norm() / self.mu)

    def train(self, mode: bool = True) -> SparseCoding:
        """Switch the mode, and check the step, as training loops switch once per epoch."""
        if not self._warned and (step := self.step()) > LONGEST_STEP:
            self._warned = True
            warnings.warn(
                f"|D|^2 / mu = {step:.2f}: the learned step is longer than the dictionary allows. "
                "Up to 2 the updates overshoot, beyond it they diverge; a lower learning rate "
                "keeps it below 1.",
                StepWarning,
                stacklevel=2,
            )
        super().train(mode)
        return self

    def _normalised(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], eps=TINY) if self.normalise else x

    def _lam(self, x: Tensor) -> Tensor:
        lam: Tensor = (
            self.network(x).float() if torch.is_autocast_enabled(x.device.type) else self.network(x)
        )
        if self.relative is None:
            return lam
        low, high = self.relative
        return (low + (high - low) * lam / (1 + lam)) * (x @ self.dictionary).abs().amax(
            -1, keepdim=True
        )

    def _squared_norm(self) -> Tensor:
        return torch.linalg.matrix_norm(self.dictionary.detach(), 2).square()

    def extra_repr(self) -> str:
        sparsity = "relative" if self.relative else "printed" if self.printed else "absolute"
        return f"dim={self.dim}, atoms={self.atoms}, layers={self.layers}, sparsity={sparsity!r}"

    def __repr__(self) -> str:
        return f"SparseCoding({self.extra_repr()})"


def _initial_dictionary(
    dictionary: str | Tensor, p: int, m: int, generator: torch.Generator | None
) -> Tensor:
    if isinstance(dictionary, Tensor):
        if dictionary.shape != (p, m):
            raise ValueError(
                f"the dictionary is {tuple(dictionary.shape)}, and (dim, atoms) is ({p}, {m}). "
                "Pass a matrix of that shape."
            )
        return dictionary.detach().clone()
    if dictionary == "dct":
        return dct_dictionary(p, m)
    if dictionary == "random":
        return random_dictionary(p, m, generator)
    raise ValueError(f"dictionary = {dictionary!r}. Known: dct, random, or a matrix ({p}, {m}).")
