from __future__ import annotations

import pytest
import torch

from scmil.models.aggregators import gnn


def test_neighbours_are_within_the_mean_squared_distance_of_distinct_instances() -> None:
    h = torch.randn(30, 4, dtype=torch.float64)
    distances, distinct = torch.cdist(h, h), ~torch.eye(30, dtype=torch.bool)
    near = (distances <= distances[distinct].square().mean().sqrt()) & distinct
    expected = (near.double() @ h) / near.sum(1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(gnn.neighbour_mean(h), expected)


def test_blocks_of_rows_give_the_same(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    h = torch.randn(50, 4, requires_grad=True, dtype=torch.float64)
    (whole,) = torch.autograd.grad(gnn.neighbour_mean(h).square().sum(), h)
    monkeypatch.setattr(gnn, "EDGE_ROWS", 7)
    (blocks,) = torch.autograd.grad(gnn.neighbour_mean(h).square().sum(), h)
    torch.testing.assert_close(blocks, whole)


@pytest.mark.parametrize("offset", [0.0, 300.0])
def test_two_instances_are_neighbours(offset: float) -> None:
    h = torch.randn(2, 64) + offset
    torch.testing.assert_close(gnn.neighbour_mean(h), h.flip(0))


def test_equal_and_equidistant_instances_are_neighbours() -> None:
    same = torch.ones(5, 3)
    torch.testing.assert_close(gnn.neighbour_mean(same), same)
    corners = torch.eye(4)
    torch.testing.assert_close(gnn.neighbour_mean(corners), (1 - corners) / 3)


def test_a_single_instance_has_no_neighbour() -> None:
    assert gnn.neighbour_mean(torch.ones(1, 3)).tolist() == [[0.0, 0.0, 0.0]]
