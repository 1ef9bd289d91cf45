"""The shapes in annotations hold while the tests run."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import TypeCheckError

from scmil import SparseCoding
from scmil.models.aggregators import build
from scmil.sparse_coding.equations import unrolled_ista


def test_wrong_shapes_are_reported() -> None:
    x, D = torch.zeros(5, 3), torch.zeros(3, 4)
    assert unrolled_ista(x, D, 1.0, torch.ones(5, 1), layers=2).shape == (5, 4)
    with pytest.raises(TypeCheckError, match="'n 1'"):
        unrolled_ista(x, D, 1.0, torch.ones(5), layers=2)
    with pytest.raises(TypeCheckError, match=r"'\*n p'"):
        SparseCoding(3, atoms=4)([[0.0, 0.0, 0.0]])
    with pytest.raises(TypeCheckError, match="'n d'"):
        build("abmil", 3, 2)(torch.zeros(3))
