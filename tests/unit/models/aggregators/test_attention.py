from __future__ import annotations

import torch
from torch.func import vmap

from scmil.models.aggregators.attention import attend


def test_it_is_softmax_attention_alone_and_under_vmap() -> None:
    q, k, v = torch.randn(3, 4, 2, 3, 9, 5, dtype=torch.float64)  # four folds
    exact = torch.softmax(q @ k.mT / 5**0.5, -1) @ v
    torch.testing.assert_close(torch.stack([attend(*one) for one in zip(q, k, v)]), exact)
    torch.testing.assert_close(vmap(attend)(q, k, v), exact)
