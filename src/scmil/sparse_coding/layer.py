r"""The paper: Eqs. (1)-(4), the dictionary, the sparsity network, the layer. Nothing else.

The alphabet, used everywhere in scmil:

    n  instances of a bag          x (n, p)      embeddings, one row an instance
    p  dimension of an embedding   D (p, m)      dictionary, one column an atom
    m  atoms                       alpha (n, m)  codes
    L  layers                      lam (n, 1)    sparsity, one an instance
    c  classes                     mu ()         1 / mu is the step

What the layer approximates, for every instance on its own:

    alpha = argmin  1/2 |D alpha - x|^2 + lam |alpha|_1                         Eq. (1)
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scmil.sparse_coding.kernel_torch import Form, fused_sparse_coding
from scmil.sparse_coding.kernel_numpy import TINY
from scmil.core.shapes import Float


def unrolled_ista(
    x: Float[Tensor, "n p"], D: Float[Tensor, "p m"], mu: Float[Tensor, ""] | float, lam: Float[Tensor, "n 1"], layers: int
) -> Float[Tensor, "n m"]:  # fmt: skip
    """Eqs. (2) and (4): L proximal gradient steps on Eq. (1), from zero.

    The threshold is lam / mu, which makes each update the proximal step of Eq. (1); the paper prints S_lam and the
    authors' code has lam / mu. So with mu >= |D|^2 and many layers, alpha is the lasso of Eq. (1) at exactly `lam`.
    With an orthonormal dictionary one step is enough:

    >>> D, lam = torch.eye(2), torch.tensor([[2.0]])
    >>> unrolled_ista(torch.tensor([[3.0, -1.0]]), D, mu=1.0, lam=lam, layers=1)
    tensor([[1., -0.]])
    """
    drive = (x @ D).to(lam.dtype) / mu  # (n, m)  W_e x, the same in every layer; under autocast only products are short
    alpha = torch.zeros_like(drive)
    for _ in range(layers):
        alpha = soft_threshold(alpha + drive - (alpha @ D.mT) @ D / mu, lam / mu)  # Eq. (4), W_t = I - D^T D / mu
    return alpha


def soft_threshold(v: Tensor, lam: Tensor | float) -> Tensor:
    """Eq. (3): the proximal map of `lam |.|_1`, which brings every entry closer to zero by lam.

    >>> soft_threshold(torch.tensor([3.0, -0.5, -2.0]), 1.0)
    tensor([ 2., -0., -1.])
    """
    return v.sign() * (v.abs() - lam).clamp(min=0)


def objective(
    x: Float[Tensor, "n p"], D: Float[Tensor, "p m"], alpha: Float[Tensor, "n m"], lam: Float[Tensor, "n 1"]
) -> Float[Tensor, " n"]:
    """Eq. (1) before the argmin: what each instance's code costs.

    >>> objective(torch.tensor([[3.0, -1.0]]), torch.eye(2), torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0]]))
    tensor([4.5000])
    """
    return (alpha @ D.mT - x).square().sum(-1) / 2 + lam.squeeze(-1) * alpha.abs().sum(-1)


# ---------------------------------------------------------------------------------------------------- the dictionary


def dct_dictionary(p: int, m: int) -> Float[Tensor, "p m"]:
    """An over-complete cosine dictionary with unit columns (Sec. II-C1): separable if p and m are squares, else 1-D.

    >>> D = dct_dictionary(484, 256)                                       # 22 x 22 by 16 x 16: Table III's sizes
    >>> round(float(torch.linalg.matrix_norm(D, 2) ** 2), 3)
    2.066
    """
    if p < 2:
        raise ValueError(f"a cosine dictionary needs at least 2 dimensions, not {p}. Use dictionary='random'.")
    rows, columns = math.isqrt(p), math.isqrt(m)
    if rows * rows == p and columns * columns == m and rows > 1:
        one_way = _cosines(rows, columns)
        D = torch.kron(one_way, one_way)
    else:
        D = _cosines(p, m)
    return F.normalize(D, dim=0).to(torch.get_default_dtype())


def _cosines(length: int, frequencies: int) -> Tensor:
    """Column k is cos(pi k i / frequencies), without its mean (except the constant), of unit length."""
    i, k = torch.arange(length, dtype=torch.float64), torch.arange(frequencies, dtype=torch.float64)
    waves = torch.cos(torch.pi * i[:, None] * k / frequencies)
    waves[:, 1:] -= waves[:, 1:].mean(0)
    return F.normalize(waves, dim=0)


def random_dictionary(p: int, m: int, generator: torch.Generator | None = None) -> Float[Tensor, "p m"]:
    """Columns drawn uniformly from the unit sphere.

    >>> random_dictionary(3, 5, torch.Generator().manual_seed(0)).norm(dim=0)
    tensor([1., 1., 1., 1., 1.])
    """
    return F.normalize(torch.randn(p, m, generator=generator), dim=0)


# ------------------------------------------------------------------------------------------------------------ lambda


class SparsityNetwork(nn.Sequential):
    """Fig. 2(b): three linear layers, each followed by Softplus, give each instance its own positive number.

    Softplus, not ReLU: ReLU's kink made training unstable (Sec. II-C2). Widths p, p//4, p//8, 1: the only natural rule
    that gives Table III's parameter counts.

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


# --------------------------------------------------------------------------------------------------------- the layer


@dataclass(frozen=True)
class CodeStatistics:
    """What to watch while the layer trains.

    `density` is the share of coefficients that are not zero, `dead` the share of instances whose code is all zero, `lam`
    the median sparsity, `step` is |D|^2 / mu: above 1 the updates overshoot, above 2 they diverge with the layers.
    """

    density: float
    dead: float
    lam: float
    step: float


class StepWarning(UserWarning):
    """The learned step has become longer than the dictionary allows."""


class SparseCoding(nn.Module):
    """Refines each instance into sparse coefficients over a learned dictionary: `(*n, p) -> (*n, m)`.

    L unrolled updates of Eq. (4) with tied weights; the dictionary, mu and the sparsity network are learned by the task.

    It starts alive whatever the scale of the features, where the paper taken literally gives all-zero codes, which have no
    gradient and never train (`docs/decisions/0001-start-alive.md`):

    - `normalise`: each instance is brought to zero mean and unit variance before it is coded;
    - `sparsity="relative"`: lam = r |D^T x|_inf, where the network's output s > 0 becomes r = low + (high - low) s / (1 + s)
      within `bounds`. As r < 1, at least one coefficient survives; as r > low, codes stay sparse while they train.
      `sparsity="absolute"` takes the network's output as lam, as the paper prints it.

    `dictionary` is `"dct"` (the paper's start), `"random"`, or a matrix (p, m). mu is learned as its logarithm, so that it
    cannot cross zero; `train()` and `eval()` warn once if |D|^2 has outgrown it.

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
        if sparsity not in ("relative", "absolute"):
            raise ValueError(f"sparsity = {sparsity!r}. Known: relative, absolute.")
        low, high = bounds
        if not 0 <= low < high <= 1:
            raise ValueError(f"bounds = {tuple(bounds)}: they are fractions, 0 <= low < high <= 1.")
        self.dim, self.atoms, self.layers = dim, atoms, layers
        self.relative = (float(low), float(high)) if sparsity == "relative" else None
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
            form = Form(self.layers, self.relative, self.normalise, low)
            return fused_sparse_coding(x, self.dictionary, self.log_mu, self.network.weights(), form)
        x = self._normalised(x)
        return unrolled_ista(x, self.dictionary, self.mu, self._lam(x), self.layers)

    def sparsity(self, x: Float[Tensor, "*n p"]) -> Float[Tensor, "*n 1"]:
        """The lam of each instance: with it, the codes approach the lasso of Eq. (1) on the normalised instance.

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
        """|D|^2 / mu: at most 1 while every update lowers Eq. (1), which it is at the start.

        >>> round(SparseCoding(64).step(), 4)
        1.0
        """
        return float(self._squared_norm() / self.mu)

    def train(self, mode: bool = True) -> SparseCoding:
        """Switch the mode; every training loop does so once an epoch, so here the step is looked at."""
        if not self._warned and (step := self.step()) > 1.001:
            self._warned = True
            warnings.warn(
                f"|D|^2 / mu = {step:.2f}: the learned step is longer than the dictionary allows. "
                "Up to 2 the updates overshoot, beyond it they diverge; a lower learning rate keeps it below 1.",
                StepWarning,
                stacklevel=2,
            )
        super().train(mode)
        return self

    def _normalised(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], eps=TINY) if self.normalise else x

    def _lam(self, x: Tensor) -> Tensor:
        lam: Tensor = self.network(x).float() if torch.is_autocast_enabled(x.device.type) else self.network(x)
        if self.relative is None:
            return lam
        low, high = self.relative
        return (low + (high - low) * lam / (1 + lam)) * (x @ self.dictionary).abs().amax(-1, keepdim=True)

    def _squared_norm(self) -> Tensor:
        return torch.linalg.matrix_norm(self.dictionary.detach(), 2).square()

    def extra_repr(self) -> str:
        sparsity = "relative" if self.relative else "absolute"
        return f"dim={self.dim}, atoms={self.atoms}, layers={self.layers}, sparsity={sparsity!r}"

    def __repr__(self) -> str:
        return f"SparseCoding({self.extra_repr()})"


def _initial_dictionary(dictionary: str | Tensor, p: int, m: int, generator: torch.Generator | None) -> Tensor:
    if isinstance(dictionary, Tensor):
        if dictionary.shape != (p, m):
            raise ValueError(f"the dictionary is {tuple(dictionary.shape)}, and (dim, atoms) is ({p}, {m}).")
        return dictionary.detach().clone()
    if dictionary == "dct":
        return dct_dictionary(p, m)
    if dictionary == "random":
        return random_dictionary(p, m, generator)
    raise ValueError(f"dictionary = {dictionary!r}. Known: dct, random, or a matrix ({p}, {m}).")
