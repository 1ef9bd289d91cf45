"""From the tokens of a vision transformer to one vector per tile."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, softmax


def pool_tokens(tokens: Tensor, pool: str, prefix_tokens: int) -> Tensor:
    """Pool tokens (b, n, d): the class token, the mean of the patch tokens, or both joined.

    The first token is the class token; it and the registers are the prefix, which the mean
    leaves out.

    >>> tokens = torch.tensor([[[5.0], [100.0], [1.0], [3.0]]])
    >>> pool_tokens(tokens, "cls+mean", prefix_tokens=2).tolist()
    [[5.0, 2.0]]
    """
    if pool == "cls":
        return tokens[:, 0]
    mean = tokens[:, prefix_tokens:].mean(1)
    return mean if pool == "mean" else torch.cat([tokens[:, 0], mean], 1)


class PooledTokens(nn.Module):
    """A transformer that returns tokens, followed by pooling."""

    def __init__(self, trunk: nn.Module, pool: str, prefix_tokens: int) -> None:
        super().__init__()
        self.trunk, self.pool, self.prefix_tokens = trunk, pool, prefix_tokens

    def forward(self, x: Tensor) -> Tensor:
        """Features (b, d), or (b, 2 d) for `cls+mean`."""
        return pool_tokens(self.trunk(x), self.pool, self.prefix_tokens)


class ProjectedToken(nn.Module):
    """The class token of a transformer after a projection, on request of length one."""

    def __init__(self, trunk: nn.Module, projection: nn.Module, unit_length: bool) -> None:
        super().__init__()
        self.trunk, self.projection, self.unit_length = trunk, projection, unit_length

    def forward(self, x: Tensor) -> Tensor:
        """Features (b, d)."""
        features = self.projection(self.trunk(x)[:, 0])
        return normalize(features, dim=-1) if self.unit_length else features


class AttentionPool(nn.Module):
    """Multi-head cross-attention of learned queries to tokens, as in CoCa.

    The queries and the tokens are normalised, then attended with `nn.MultiheadAttention`.
    """

    def __init__(self, width: int, token_width: int, heads: int = 8, queries: int = 1) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(queries, width))
        self.attn = nn.MultiheadAttention(
            width, heads, kdim=token_width, vdim=token_width, batch_first=True
        )
        self.ln_q, self.ln_k = nn.LayerNorm(width), nn.LayerNorm(token_width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (b, n, d) to (b, width), those of the first query."""
        keys = self.ln_k(tokens)
        queries = self.ln_q(self.query).expand(len(tokens), -1, -1)
        return self.attn(queries, keys, keys, need_weights=False)[0][:, 0]


class LinearAttentionPool(nn.Module):
    """The same with separate linear maps without biases, as CONCHv1.5 has them."""

    def __init__(self, width: int, token_width: int, heads: int = 8, queries: int = 1) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Parameter(torch.randn(queries, width))
        self.ln_q, self.ln_k = nn.LayerNorm(width), nn.LayerNorm(token_width)
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_kv = nn.Linear(token_width, 2 * width, bias=False)
        self.to_out = nn.Linear(width, width, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (b, n, d) to (b, width), those of the first query."""
        q = self.to_q(self.ln_q(self.query[:1])).expand(len(tokens), -1, -1)
        k, v = self.to_kv(self.ln_k(tokens)).chunk(2, dim=-1)
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (q, k, v))
        weights = softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1)
        return self.to_out((weights @ v).transpose(1, 2).flatten(2))[:, 0]


class AttentionPooled(nn.Module):
    """A transformer, an attentional pooler, a norm, and on request the contrastive projection."""

    def __init__(
        self, trunk: nn.Module, pool: nn.Module, width: int, project: bool = False
    ) -> None:
        super().__init__()
        self.trunk, self.attn_pool_contrast = trunk, pool
        self.ln_contrast = nn.LayerNorm(width)
        self.proj_contrast = nn.Parameter(torch.eye(width)) if project else None

    def forward(self, x: Tensor) -> Tensor:
        """Features (b, width)."""
        pooled = self.ln_contrast(self.attn_pool_contrast(self.trunk(x)))
        return pooled if self.proj_contrast is None else pooled @ self.proj_contrast
