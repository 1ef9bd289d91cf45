"""S4MIL: a structured state space model over the bag, Fillioux et al. (2023)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scmil.core.shapes import Float
from scmil.models.aggregators import Embedding, Prediction, register
from scmil.models.aggregators.pooling import pool


class S4D(nn.Module):
    """A diagonal state space layer: `y = K * u + D u` for each channel, GELU, a linear layer with
    GLU.

    `A = -exp(log_real) + i imag` (state / 2 complex numbers), step `dt = exp(log_dt)`, and the
    kernel is `K_l = 2 Re sum_s C_s (exp(dt A_s) - 1) / A_s exp(dt A_s l)`. The convolution is
    causal, and computed by FFT.

    The exponentials of all positions would be a tensor (channels, state / 2, n). With the position
    `l = a B + b` in blocks of `B = sqrt(n)`, `exp(dt A l) = exp(dt A B a) exp(dt A b)`, so that the
    sum over s is a product of two small matrices for each channel, and memory is linear.

    log_dt and A are stored as vectors, so that a recipe with `decay_weights_only` excludes them
    from weight decay, as the authors do.
    """

    def __init__(self, dim: int, state: int = 32, dropout: float = 0.0) -> None:
        super().__init__()
        if state < 2 or state % 2:
            raise ValueError(f"state = {state}: an even number of at least 2 is needed.")
        pairs = state // 2
        low, high = math.log(0.001), math.log(0.1)
        self.log_dt = nn.Parameter(low + (high - low) * torch.rand(dim))
        self.log_real = nn.Parameter(torch.full((dim * pairs,), math.log(0.5)))
        self.imag = nn.Parameter((math.pi * torch.arange(pairs)).repeat(dim))
        self.C = nn.Parameter(torch.randn(dim, pairs, 2) * math.sqrt(0.5))
        self.D = nn.Parameter(torch.randn(dim))
        self.dropout = nn.Dropout(dropout)
        self.mix = nn.Linear(dim, 2 * dim)

    def forward(self, u: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        y = convolve(u, self.kernel(len(u))) + self.D * u
        return F.glu(self.mix(self.dropout(F.gelu(y))), dim=-1)

    def kernel(self, n: int) -> Float[Tensor, "n d"]:
        """The first n numbers of the convolution kernel of each channel."""
        dim = len(self.log_dt)
        real = -self.log_real.view(dim, -1).exp()
        imag = self.imag.view(dim, -1)
        dt = self.log_dt.exp()[:, None]
        block = max(1, math.isqrt(n))
        inner = torch.arange(block, dtype=dt.dtype, device=dt.device)
        outer = block * torch.arange(-(-n // block), dtype=dt.dtype, device=dt.device)
        A = torch.complex(real, imag)
        C = torch.complex(*self.C.unbind(2)) * (torch.exp(dt * A) - 1) / A
        starts = C[:, None] * torch.exp((dt * A)[:, None] * outer[:, None])  # (d, n / B, s)
        within = torch.exp((dt * A)[:, None] * inner[:, None])  # (d, B, s)
        kernel = (
            torch.cat([starts.real, -starts.imag], 2) @ torch.cat([within.real, within.imag], 2).mT
        )
        return 2 * kernel.flatten(1)[:, :n].mT


def convolve(u: Float[Tensor, "n d"], kernel: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """The causal convolution `y_i = sum_{l <= i} kernel_l u_{i - l}` of each column.

    >>> convolve(torch.tensor([[1.0], [0.0], [2.0]]), torch.tensor([[1.0], [0.5], [0.0]])).T.round()
    tensor([[1., 0., 2.]])
    """
    n = len(u)
    length = _fast_length(2 * n - 1)
    transformed = torch.fft.rfft(u.mT, n=length) * torch.fft.rfft(kernel.mT, n=length)
    return torch.fft.irfft(transformed, n=length)[:, :n].mT


def _fast_length(least: int) -> int:
    """The smallest length of at least `least` with no prime factor above 5, and even."""
    length = least + least % 2
    while True:
        rest = length
        for factor in (2, 3, 5):
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return length
        length += 2


@register("s4mil", "a state space model and max pooling")
class S4MIL(nn.Module):
    """Passes the bag as a sequence through a state space layer, and takes the maximum.

    norm -> `S4D` -> maximum over the instances of each channel -> linear. The sequence is the order
    of the bag, which therefore matters.

    Memory: linear in the number of instances; the time grows with n log n. Attention: the fraction
    of channels of which an instance has the maximum; the model has no attention.

    Args:
        dim: Width of the embeddings.
        classes: Number of classes.
        state: Size of the state of each channel, twice the number of complex pairs.
        dropout: Dropout in the state space layer.

    Raises:
        ValueError: If the state is not an even number.

    >>> S4MIL(8, classes=2)(torch.ones(3, 8)).logits.shape
    torch.Size([2])
    """

    permutation_invariant = False
    embedding = Embedding(widths=(512,))

    def __init__(self, dim: int, classes: int, state: int = 32, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.layer = S4D(dim, state, dropout)
        self.classifier = nn.Linear(dim, classes)

    def forward(self, h: Float[Tensor, "n d"]) -> Prediction:
        z, attention = pool(self.layer(self.norm(h)), "max")
        return Prediction(self.classifier(z), attention)
