"""RRT-MIL: the re-embedded regional transformer of Tang et al. (2024)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scmil.core.shapes import Float
from scmil.models.aggregators import Embedding, Prediction, register
from scmil.models.aggregators.attention import attend
from scmil.models.aggregators.transmil import ResidualConvolution

SIDE = 8  # the square of instances is divided into 8 x 8 regions


class RegionAttention(nn.Module):
    """Self-attention within each of several sequences.

    With `kernel`, a convolution of the attention scores along the queries is added to them (EPEG).
    It acts on the queries alone, so it is applied to them before the product with the keys, which
    gives the same scores, and the n^2 scores need not be stored. Its bias adds the same number to
    all scores of a softmax, and is left out. Dropout 0.1 behind the projection.
    """

    def __init__(self, dim: int, heads: int, kernel: int = 0) -> None:
        super().__init__()
        self.heads = heads
        inner = heads * -(-dim // heads)  # dim, if the heads divide it
        self.to_qkv = nn.Linear(dim, 3 * inner)
        self.to_out = nn.Sequential(nn.Linear(inner, dim), nn.Dropout(0.1))
        self.position = ResidualConvolution(heads, kernel) if kernel else None

    def forward(self, x: Float[Tensor, "r t d"]) -> Float[Tensor, "r t d"]:
        q, k, v = self.to_qkv(x).unflatten(2, (3, self.heads, -1)).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))  # (r, heads, t, e)
        if self.position is not None:
            q = q + self.position(q)
        out = attend(q, k, v)
        return self.to_out(out.transpose(1, 2).flatten(2))


class RegionSummaries(nn.Module):
    """CR-MSA: attention between summaries of the regions, handed back to the instances.

    `l = x phi`; the `summaries` of a region are its means, weighted by the softmax of l over its
    instances; each attends to those of the other regions. An instance receives them with the
    weights `minmax(l) softmax(l)`, the first over the instances of the region, the second over the
    summaries.
    """

    def __init__(self, dim: int, heads: int, summaries: int, mlp: bool) -> None:
        super().__init__()
        self.phi: nn.Module = nn.Linear(dim, summaries, bias=False)
        if mlp:
            hidden = max(1, dim // 4)
            self.phi = nn.Sequential(
                nn.Linear(dim, hidden, bias=False),
                nn.Tanh(),
                nn.Linear(hidden, summaries, bias=False),
            )
        self.attention = RegionAttention(dim, heads)

    def forward(self, x: Float[Tensor, "r t d"]) -> Float[Tensor, "r t d"]:
        scores = self.phi(x)  # (r, t, k)
        summaries = scores.softmax(1).mT @ x  # (r, k, d)
        summaries = self.attention(summaries.transpose(0, 1)).transpose(0, 1)
        low, high = scores.amin(1, keepdim=True), scores.amax(1, keepdim=True)
        share = (scores - low) / (high - low + 1e-8)
        return (share * scores.softmax(2)) @ summaries


class RRTEncoder(nn.Module):
    """Re-embeds the instances of a bag: `x + R-MSA(norm(x))`, `x + CR-MSA(norm(x))`, norm.

    The instances are arranged row by row, in the order of the bag, in a square with a side that is
    a multiple of 8, and the square is divided into 8 x 8 regions. R-MSA is self-attention within
    each region, CR-MSA between summaries of the regions. The zeros that fill up the square take
    part in both, as in the authors' code. Up to 64 instances, each is alone in its region: R-MSA is
    a linear map of it, and CR-MSA adds nothing. The output has the width of the input.

    Memory: linear in the number of instances; the time of R-MSA grows with n^2 / 64.

    Args:
        dim: Width of the instances.
        heads: Number of heads of R-MSA.
        kernel: Odd length of the convolution of EPEG; 0 is without.
        summaries: Number of summaries of each region, `crmsa_k` in the authors' code.
        summary_heads: Number of heads of CR-MSA.
        summary_mlp: Compute the scores of CR-MSA by two layers.
        shortcut: Add the input to the output before the last norm.
        regional: Whether there is an R-MSA layer.
        cross_regional: Whether there is a CR-MSA layer.

    Raises:
        ValueError: If the kernel is even.

    >>> RRTEncoder(16)(torch.ones(5, 16)).shape
    torch.Size([5, 16])
    """

    def __init__(
        self,
        dim: int,
        heads: int = 8,
        kernel: int = 15,
        summaries: int = 3,
        summary_heads: int = 8,
        summary_mlp: bool = False,
        shortcut: bool = False,
        regional: bool = True,
        cross_regional: bool = True,
    ) -> None:
        super().__init__()
        if kernel and kernel % 2 == 0:
            raise ValueError(f"kernel = {kernel}: the convolution of EPEG needs an odd length.")
        self.shortcut = shortcut
        layers: list[nn.Module] = []
        if regional:
            layers.append(RegionAttention(dim, heads, kernel))
        if cross_regional:
            layers.append(RegionSummaries(dim, summary_heads, summaries, summary_mlp))
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in layers)
        self.norm = nn.LayerNorm(dim)
        xavier_(self)
        for layer in layers:
            if isinstance(layer, RegionSummaries) and isinstance(layer.phi, nn.Linear):
                # No linear layer in the authors' code, but a matrix (dim, summaries).
                nn.init.kaiming_uniform_(layer.phi.weight.mT, a=math.sqrt(5))

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        h = x
        for norm, layer in zip(self.norms, self.layers, strict=True):
            h = h + unfold_regions(layer(fold_regions(norm(h))), len(x))
        return self.norm(h + x if self.shortcut else h)


def xavier_(module: nn.Module) -> None:
    """Initialise linear layers and convolutions as RRT-MIL does: Xavier-normal weights and zero
    biases.
    """
    for layer in module.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            nn.init.xavier_normal_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def fold_regions(x: Float[Tensor, "n d"]) -> Float[Tensor, "r t d"]:
    """Arrange rows in a square, filled up with zeros, and divide it into 8 x 8 regions.

    >>> fold_regions(torch.ones(65, 4)).shape
    torch.Size([64, 4, 4])
    """
    part = -(-(math.isqrt(len(x) - 1) + 1) // SIDE)  # side of a region
    square = F.pad(x, (0, 0, 0, (SIDE * part) ** 2 - len(x)))
    return square.view(SIDE, part, SIDE, part, -1).transpose(1, 2).reshape(SIDE**2, part**2, -1)


def unfold_regions(x: Float[Tensor, "r t d"], n: int) -> Float[Tensor, "n d"]:
    """The first n rows of the square that was divided into regions.

    >>> x = torch.arange(10.0)[:, None]
    >>> torch.equal(unfold_regions(fold_regions(x), 10), x)
    True
    """
    part = math.isqrt(x.shape[1])
    square = x.reshape(SIDE, SIDE, part, part, -1).transpose(1, 2)
    return square.reshape((SIDE * part) ** 2, -1)[:n]


@register("rrt", "regional transformer and attention")
class RRTMIL(nn.Module):
    """Re-embeds the instances by attention in and between regions, and pools them by attention.

    `h' = encoder(h)` (`RRTEncoder`); `a = softmax_k(w^T s(V h'_k))` without biases, s a ReLU or
    tanh; `logits = W sum_k a_k h'_k + b`. Regions follow the order of the bag, which therefore
    matters; an encoder that stores tiles row by row gives regions of the slide only approximately.
    `refine="rrt"` places the encoder in front of another aggregator.

    Memory: linear in the number of instances.

    Args:
        dim: Width of the embeddings.
        classes: Number of classes.
        hidden: Width of the attention.
        activation: `"relu"`, the default of the authors' code, or `"tanh"`, as in their commands.
        heads, kernel, summaries, summary_heads, summary_mlp, shortcut: As in `RRTEncoder`.

    Raises:
        ValueError: If the activation is unknown.

    >>> RRTMIL(16, classes=2)(torch.ones(5, 16)).logits.shape
    torch.Size([2])
    """

    permutation_invariant = False
    embedding = Embedding(widths=(512,), dropout=0.25)

    def __init__(
        self,
        dim: int,
        classes: int,
        hidden: int = 128,
        activation: str = "relu",
        heads: int = 8,
        kernel: int = 15,
        summaries: int = 3,
        summary_heads: int = 8,
        summary_mlp: bool = False,
        shortcut: bool = False,
    ) -> None:
        super().__init__()
        if activation not in ("relu", "tanh"):
            raise ValueError(f"activation = {activation!r}. Known: relu, tanh.")
        self.encoder = RRTEncoder(
            dim, heads, kernel, summaries, summary_heads, summary_mlp, shortcut
        )
        self.score = nn.Sequential(
            nn.Linear(dim, hidden, bias=False),
            nn.ReLU() if activation == "relu" else nn.Tanh(),
            nn.Linear(hidden, 1, bias=False),
        )
        self.classifier = nn.Linear(dim, classes)
        xavier_(self.score)
        xavier_(self.classifier)

    def forward(self, h: Float[Tensor, "n d"]) -> Prediction:
        h = self.encoder(h)
        attention = torch.softmax(self.score(h).squeeze(-1), dim=0)
        return Prediction(self.classifier(attention @ h), attention)
