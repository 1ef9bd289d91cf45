from __future__ import annotations

import torch

from scmil.models.aggregators import gnn


def test_neighbours_are_nearer_than_the_mean_squared_distance() -> None:
    h = torch.randn(30, 4, dtype=torch.float64)
    distances = torch.cdist(h, h)
    near = (distances < distances.square().mean().sqrt()) & ~torch.eye(30, dtype=torch.bool)
    expected = (near.double() @ h) / near.sum(1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(gnn.neighbour_mean(h), expected)


def test_blocks_of_rows_give_the_same(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    h = torch.randn(50, 4, requires_grad=True, dtype=torch.float64)
    (whole,) = torch.autograd.grad(gnn.neighbour_mean(h).square().sum(), h)
    monkeypatch.setattr(gnn, "BLOCK_ROWS", 7)
    (blocks,) = torch.autograd.grad(gnn.neighbour_mean(h).square().sum(), h)
    torch.testing.assert_close(blocks, whole)
