"""A transformer over the instances with a class token, as in STAMP (El Nahhas et al., 2024)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scmil.core.shapes import Float
from scmil.errors import BagError
from scmil.models.aggregators import Embedding, Prediction, register
from scmil.models.aggregators.attention import attend
from scmil.sparse_coding.kernel_torch import in_transform

# Most instances where the n^2 weights of each head are stored: 8 heads of 8 192^2 are 2 GiB.
MOST_STORED = 8192


class TransformerLayer(nn.Module):
    """A pre-norm layer: `x + attention(norm(x))`, then `x + W_2 gelu(W_1 norm(x))`."""

    def __init__(
        self, dim: int, heads: int, feedforward: int, dropout: float, attention_dropout: float
    ) -> None:
        super().__init__()
        self.heads, self.attention_dropout = heads, attention_dropout
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.widen, self.narrow = nn.Linear(dim, feedforward), nn.Linear(feedforward, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "t d"]) -> tuple[Float[Tensor, "t d"], Float[Tensor, " t"]]:
        """Returns the output tokens, and the attention of the first token to each."""
        # Each (1, heads, t, d / heads): torch's memory-efficient kernels need four axes.
        q, k, v = self.to_qkv(self.norms[0](x)).view(1, len(x), 3, self.heads, -1).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        dropout = self.attention_dropout if self.training else 0.0
        mixed = attend(q, k, v, dropout)
        x = x + self.to_out(mixed[0].transpose(0, 1).flatten(1))
        hidden = self.dropout(F.gelu(self.widen(self.norms[1](x))))
        scores = (q[0, :, :1] @ k[0].mT).detach() / math.sqrt(q.shape[-1])
        return x + self.dropout(self.narrow(hidden)), scores.softmax(-1).mean(0)[0]


@register("transformer", "self-attention with a class token")
class Transformer(nn.Module):
    """Puts a class token in front of the bag, and applies transformer layers.

    tokens -> `layers` times self-attention and feed-forward -> norm -> class token -> linear. Every
    token attends to every other; positions are not encoded, so that the order of the bag is free. A
    bag is never padded, so no mask is needed: STAMP's zero-padded tiles take part in the attention
    in its training. STAMP trains on 512 random tiles of a slide, and predicts on all of them.

    Memory: linear in the number of instances, as torch computes the attention in blocks without
    storing its n^2 weights; the time is quadratic. Attention dropout in training, and folds that
    are trained together, store the weights, and are limited to 8 192 instances. Attention: the
    class token's row in the last layer, mean over the heads, without its weight on itself.

    Args:
        dim: Width of the embeddings, a multiple of `heads`.
        classes: Number of classes.
        layers: Number of layers.
        heads: Number of attention heads.
        feedforward: Width of the feed-forward layers; `dim` by default.
        dropout: Dropout of the feed-forward layers; 0.5 in STAMP, whatever its setting is.
        attention_dropout: Dropout of the attention weights; 0 in STAMP's code, and 0.25 in its
            configuration file.

    Raises:
        ValueError: If `dim` is not a multiple of `heads`.
        BagError: In `forward`, if the n^2 weights would be stored for too many instances.

    >>> Transformer(16, classes=2).eval()(torch.ones(4, 16)).attention
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    permutation_invariant = True
    embedding = Embedding(widths=(512,), activation="gelu")

    def __init__(
        self,
        dim: int,
        classes: int,
        layers: int = 2,
        heads: int = 8,
        feedforward: int | None = None,
        dropout: float = 0.5,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(
                f"the transformer divides its width by {heads} heads, and {dim} does not divide. "
                "Use a multiple."
            )
        self.attention_dropout = attention_dropout
        self.token = nn.Parameter(torch.randn(1, dim))
        self.layers = nn.ModuleList(
            TransformerLayer(dim, heads, feedforward or dim, dropout, attention_dropout)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(dim)
        self.classifier = nn.Linear(dim, classes)

    def forward(self, h: Float[Tensor, "n d"]) -> Prediction:
        self._check_size(len(h))
        x, seen = torch.cat([self.token, h]), h
        for layer in self.layers:
            x, seen = layer(x)
        share = seen[1:] + torch.finfo(h.dtype).tiny
        return Prediction(self.classifier(self.norm(x[0])), share / share.sum())

    def _check_size(self, n: int) -> None:
        stored = (self.training and self.attention_dropout > 0) or in_transform()
        if stored and n > MOST_STORED:
            raise BagError(
                f"the bag has {n} instances. With attention dropout, and with folds that are "
                f"trained together, the transformer stores n^2 weights, and at most {MOST_STORED} "
                "instances are supported. Set attention_dropout = 0 and train each fold alone, or "
                "use a sample of the instances."
            )
