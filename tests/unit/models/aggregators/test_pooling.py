from __future__ import annotations

import pytest
import torch

from scmil.models.aggregators.pooling import Pooling, pool


def test_log_mean_exp_lies_between_mean_and_maximum() -> None:
    h = torch.randn(9, 4)
    low, middle, high = (pool(h, how)[0] for how in ("mean", "lse", "max"))
    assert (low <= middle).all()
    assert (middle <= high).all()


def test_the_maximum_shares_attention_by_the_dimensions_won() -> None:
    _, attention = pool(torch.tensor([[9.0, 9.0, 0.0], [0.0, 0.0, 9.0], [1.0, 1.0, 1.0]]), "max")
    torch.testing.assert_close(attention, torch.tensor([2 / 3, 1 / 3, 0.0]))


def test_unknown_pooling_is_refused() -> None:
    with pytest.raises(ValueError, match="Known: mean, max, lse"):
        Pooling(3, 2, pool="median")(torch.zeros(2, 3))


def test_ties_are_divided_whatever_the_order() -> None:
    _, attention = pool(torch.zeros(4, 3), "max")
    torch.testing.assert_close(attention, torch.full((4,), 0.25))
