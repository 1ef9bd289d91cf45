"""The sparsity network and the sparse coding layer, around the equations of `equations.py`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scmil.core.shapes import Float
from scmil.sparse_coding.data_dictionaries import DATA_DICTIONARIES, dictionary_from_data
from scmil.sparse_coding.equations import dct_dictionary, random_dictionary, unrolled_ista
from scmil.sparse_coding.kernel_numpy import TINY
from scmil.sparse_coding.kernel_torch import Form, fused_sparse_coding
from scmil.sparse_coding.learning import AddLoss, Learning

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
OUTPUTS_OF_LAYER = ("codes", "denoised", "joined")


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
            From data: `"instances"`, `"kmeans"` or `"online"` (`dictionary_from_data`); `fit` and
            `fit_folds` compute it from the training bags, and until then it is random. Where
            instances form tight clusters, such atoms describe them from the start.
        sparsity: How the positive output s of the sparsity network becomes the threshold.
            `"relative"`: lam = r |D^T x|_inf with r = low + (high - low) s / (1 + s) within
            `bounds`, and the threshold is lam / mu. As r < 1, at least one coefficient is not zero;
            as r > low, codes stay sparse in training. `"absolute"`: lam = s, and the threshold is
            lam / mu, the proximal step of Eq. (1). `"printed"`: lam = s is the threshold itself, as
            Eqs. (2) to (4) are printed.
        bounds: The bounds of r.
        normalise: Scale each instance to zero mean and unit variance before it is coded.
        nonnegative: Restrict codes to alpha >= 0, so that an atom is present or absent, and cannot
            be subtracted; a maximum over instances then has one meaning. With
            `sparsity="relative"`, lam = r max_j (D^T x)_j, and an instance without a positive
            correlation has the code zero.
        output: What the aggregator gets. `"codes"`: alpha (the paper's). `"denoised"`: D alpha, the
            features as the dictionary represents them, on the scale of the normalised instances;
            the width does not change. `"joined"`: the features as given and the codes, so that
            nothing is lost.
        learning: Options of `Learning`, as a mapping: `unit_norm`, `scale`, `rate`,
            `reconstruction`, `warmup`.
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
        nonnegative: bool = False,
        output: str = "codes",
        learning: Mapping[str, Any] | Learning | None = None,
        fused: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if min(dim, atoms, layers) < 1:
            raise ValueError(f"dim, atoms and layers are at least 1, not {dim}, {atoms}, {layers}.")
        if sparsity not in SPARSITIES:
            raise ValueError(f"sparsity = {sparsity!r}. Known: {', '.join(SPARSITIES)}.")
        if output not in OUTPUTS_OF_LAYER:
            raise ValueError(f"output = {output!r}. Known: {', '.join(OUTPUTS_OF_LAYER)}.")
        low, high = bounds
        if not 0 <= low < high <= 1:
            raise ValueError(f"bounds = {tuple(bounds)}: they are fractions, 0 <= low < high <= 1.")
        self.dim, self.atoms, self.layers = dim, atoms, layers
        self.relative = (float(low), float(high)) if sparsity == "relative" else None
        self.printed = sparsity == "printed"
        self.normalise, self.fused = normalise, fused
        self.nonnegative, self.output = nonnegative, output
        self.learning = Learning.of(learning)
        from_data = isinstance(dictionary, str) and dictionary in DATA_DICTIONARIES
        self.source = str(dictionary) if from_data else None
        self.scale = self._choose_scale()
        self.dictionary = nn.Parameter(_initial_dictionary(dictionary, dim, atoms, generator))
        if self.learning.unit_norm:
            self.project()
        self.log_mu = nn.Parameter(self._squared_norm().log())  # mu = |D|^2, Sec. II-C3
        self.network = SparsityNetwork(dim)
        self.log_gain = nn.Parameter(torch.zeros(())) if self.scale == "gain" else None
        if self.source or self.scale == "gain":
            # 1 after `start_from`; saved with the model, in the precision of its weights.
            self.register_buffer("started", torch.zeros(()))
        self._warned = False

    @property
    def mu(self) -> Float[Tensor, ""]:
        """The inverse step, positive by construction."""
        return self.log_mu.exp()

    @property
    def width(self) -> int:
        """The width of the output.

        >>> SparseCoding(64, atoms=256, output="joined").width
        320
        """
        return {"codes": self.atoms, "denoised": self.dim, "joined": self.dim + self.atoms}[
            self.output
        ]

    def forward(self, x: Float[Tensor, "*n p"], bag: int | None = None) -> Float[Tensor, "*n w"]:
        """Refine instances; `bag` is the size of their bag if they are only a part of it."""
        if x.ndim != 2:
            return self(x.reshape(-1, x.shape[-1]), bag).reshape(*x.shape[:-1], self.width)
        return self.finish(x, self.codes(x), self.dictionary, self.log_gain, bag)

    def codes(self, x: Float[Tensor, "*n p"]) -> Float[Tensor, "*n m"]:
        """The codes alpha of Eq. (4), whatever the output of the layer is.

        >>> SparseCoding(64, atoms=256, output="denoised").codes(torch.randn(5, 64)).shape
        torch.Size([5, 256])
        """
        if x.ndim != 2:
            return self.codes(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], self.atoms)
        if self.fused and len(x) and not torch.compiler.is_compiling():  # the same numbers, faster
            rounds = torch.is_autocast_enabled(x.device.type)
            low = torch.get_autocast_dtype(x.device.type) if rounds else None
            return fused_sparse_coding(
                x, self.dictionary, self.log_mu, self.network.weights(), self.form(low)
            )
        x = self._normalised(x)
        lam = self._lam(x)
        return unrolled_ista(
            x,
            self.dictionary,
            self.mu,
            lam,
            self.layers,
            printed=self.printed,
            nonnegative=self.nonnegative,
        )

    def finish(
        self, x: Tensor, alpha: Tensor, D: Tensor, log_gain: Tensor | None, bag: int | None = None
    ) -> Tensor:
        """The output for the codes of instances, of one layer or of a stack of layers whose
        parameters are given.
        """
        if self.learning.reconstruction and self.training and torch.is_grad_enabled():
            residual = self._normalised(x) - alpha @ D.mT
            weight = self.learning.reconstruction / (2 * self.dim * (bag or x.shape[-2]))
            alpha = AddLoss.apply(alpha, weight * residual.square().sum((-2, -1)))
        if self.output == "denoised":
            return alpha @ D.mT
        if log_gain is not None:
            alpha = alpha * log_gain.exp()[..., None, None]
        elif self.scale == "unit":
            alpha = alpha * (alpha.square().mean(-1, keepdim=True) + TINY).rsqrt()
        return torch.cat([x, alpha], -1) if self.output == "joined" else alpha

    @torch.no_grad()
    def project(self) -> None:
        """Scale the atoms to unit norm.

        >>> layer = SparseCoding(4, 6, dictionary=torch.ones(4, 6), learning={"unit_norm": True})
        >>> layer.dictionary[:, 0].tolist()
        [0.5, 0.5, 0.5, 0.5]
        """
        self.dictionary.copy_(F.normalize(self.dictionary, dim=0))

    @torch.no_grad()
    def start_from(self, x: Float[Tensor, "n p"], generator: torch.Generator) -> None:
        """Start from instances of the training bags: the dictionary, mu and the gain, as far as the
        options of the layer take them from data.

        >>> layer = SparseCoding(16, atoms=8, dictionary="kmeans")
        >>> layer.start_from(torch.randn(100, 16), torch.Generator().manual_seed(0))
        >>> round(layer(torch.randn(1000, 16)).square().mean().item()), layer.needs_start
        (1, False)
        """
        if self.source is not None:
            rows = self._normalised(x)
            D = dictionary_from_data(self.source, rows.cpu(), self.atoms, generator)
            self.dictionary.copy_(D)
            self.log_mu.copy_(self._squared_norm().log())
        if self.log_gain is not None and len(x):
            mean = self.codes(x).square().mean()
            self.log_gain.copy_(-mean.log() / 2 if float(mean) > 0 else torch.zeros_like(mean))
        self.get_buffer("started").fill_(1)

    @property
    def needs_start(self) -> bool:
        """Whether `start_from` has still to be called before or during the training."""
        return hasattr(self, "started") and not bool(self.get_buffer("started"))

    def form(self, low: torch.dtype | None = None) -> Form:
        """The options of the kernels."""
        return Form(self.layers, self.relative, self.normalise, low, self.printed, self.nonnegative)

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
        active = self.codes(x) != 0
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

    def _choose_scale(self) -> str:
        scale = self.learning.scale
        if scale in ("gain", "unit") and self.output == "denoised":
            raise ValueError(
                f"scale = {scale!r} is for codes, and output = 'denoised' returns D alpha. "
                "Leave one of them out."
            )
        if self.learning.warmup and self.source is None:
            raise ValueError(
                f"warmup = {self.learning.warmup} is for a dictionary from data: "
                f"{', '.join(DATA_DICTIONARIES)}. Choose one of them, or leave it out."
            )
        if scale == "auto":
            return "gain" if self.source is not None and self.output != "denoised" else "none"
        return scale

    def _normalised(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], eps=TINY) if self.normalise else x

    def _lam(self, x: Tensor) -> Tensor:
        lam: Tensor = (
            self.network(x).float() if torch.is_autocast_enabled(x.device.type) else self.network(x)
        )
        if self.relative is None:
            return lam
        low, high = self.relative
        drive = x @ self.dictionary
        drive = drive.clamp(min=0) if self.nonnegative else drive.abs()
        return (low + (high - low) * lam / (1 + lam)) * drive.amax(-1, keepdim=True)

    def _squared_norm(self) -> Tensor:
        return torch.linalg.matrix_norm(self.dictionary.detach(), 2).square()

    def extra_repr(self) -> str:
        sparsity = "relative" if self.relative else "printed" if self.printed else "absolute"
        text = f"dim={self.dim}, atoms={self.atoms}, layers={self.layers}, sparsity={sparsity!r}"
        return text if self.output == "codes" else f"{text}, output={self.output!r}"

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
    if dictionary == "random" or dictionary in DATA_DICTIONARIES:
        return random_dictionary(p, m, generator)
    known = ", ".join(("dct", "random", *DATA_DICTIONARIES))
    raise ValueError(f"dictionary = {dictionary!r}. Known: {known}, or a matrix ({p}, {m}).")
