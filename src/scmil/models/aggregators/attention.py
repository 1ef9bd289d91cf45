"""Softmax attention without the n^2 weights in memory."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from scmil.core.shapes import Float
from scmil.sparse_coding.kernel_torch import in_transform


def attend(
    q: Float[Tensor, "b h t e"],
    k: Float[Tensor, "b h s e"],
    v: Float[Tensor, "b h s e"],
    dropout: float = 0.0,
) -> Float[Tensor, "b h t e"]:
    """`softmax(q k^T / sqrt(e)) v` for each sequence and head, in memory linear in t and s.

    With dropout, and under `vmap`, for which torch's kernels do not exist, the weights are stored.

    >>> attend(*torch.ones(3, 1, 2, 4, 8).unbind(0)).shape
    torch.Size([1, 2, 4, 8])
    """
    if not in_transform():
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
    weights = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)
    return F.dropout(weights, dropout) @ v
