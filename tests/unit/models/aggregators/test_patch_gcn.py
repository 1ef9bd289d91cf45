from __future__ import annotations

import pytest
import torch
from golden_numbers import Golden

from scmil import build_model
from scmil.errors import BagError
from scmil.models.aggregators import patch_gcn
from scmil.models.aggregators.patch_gcn import PatchGCN, nearest_tiles, receive

GRID = 256 * torch.cartesian_prod(torch.arange(9), torch.arange(11))


def distances(xy: torch.Tensor) -> torch.Tensor:
    return torch.cdist(xy.double(), xy.double(), compute_mode="donot_use_mm_for_euclid_dist")


@pytest.mark.parametrize(
    "xy",
    [
        GRID,
        torch.rand(300, 2, generator=torch.Generator().manual_seed(0)) * 1000,
        torch.cat([GRID, torch.tensor([[10**6, 10**6], [10**6, 0]])]),  # far from all others
        torch.cat([GRID, GRID + 10**5]),
        torch.stack([torch.arange(50), torch.zeros(50, dtype=torch.long)], 1),  # a line
        torch.zeros(20, 2),  # all at one place
        GRID[:5],
    ],
    ids=["grid", "random", "outliers", "two parts", "line", "one place", "five"],
)
def test_the_nearest_tiles_are_those_of_all_distances(xy: torch.Tensor) -> None:
    near = nearest_tiles(xy, 8)
    every = distances(xy).fill_diagonal_(torch.inf)
    count = min(8, len(xy) - 1)
    torch.testing.assert_close(every.gather(1, near), every.sort(1).values[:, :count])
    assert all(len(set(row)) == count for row in near.tolist())


def test_the_nearest_tiles_do_not_depend_on_the_order() -> None:
    near, order = nearest_tiles(GRID, 8), torch.randperm(len(GRID))
    shuffled = nearest_tiles(GRID[order], 8)
    assert torch.equal(order[shuffled], near[order])


@pytest.mark.parametrize("bag", [0, 1, 2, 3])
def test_the_edges_are_those_of_the_authors(bag: int) -> None:
    golden = Golden("patch_gcn")
    sender, receiver = torch.tensor(golden.arrays[f"edge_index_{bag}"])
    near = nearest_tiles(torch.tensor(golden.arrays[f"xy_{bag}"]), 8)
    ours = torch.arange(len(near)).repeat_interleave(near.shape[1])
    assert torch.equal(ours, sender)
    assert torch.equal(near.flatten(), receiver)


def test_tiles_that_nobody_counts_among_the_nearest_receive_nothing() -> None:
    xy = torch.tensor([[0, 0], [1, 0], [100, 0]])
    x = torch.rand(3, 4)
    received = receive(x, nearest_tiles(xy, 1), torch.ones(1))
    torch.testing.assert_close(received[0], x[1])
    torch.testing.assert_close(
        received[1], ((x[0].exp() * x[0]) + (x[2].exp() * x[2])) / (x[0].exp() + x[2].exp())
    )
    assert (received[2] == 0).all()


def test_large_messages_do_not_overflow() -> None:
    x = torch.tensor([[500.0], [400.0], [300.0]])
    near = torch.tensor([[1, 2], [0, 2], [0, 1]])
    received = receive(x, near, torch.full((1,), 3.0))
    torch.testing.assert_close(received, torch.tensor([[400.0], [500.0], [500.0]]))


def test_recomputed_messages_give_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    net, h = PatchGCN(6, 2).double().eval(), torch.randn(len(GRID), 6, dtype=torch.float64)

    def gradients() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(net(h, GRID).logits[0], tuple(net.convolutions.parameters()))

    stored = gradients()
    monkeypatch.setattr(patch_gcn, "STORED_ROWS", 10)
    torch.testing.assert_close(gradients(), stored)


def test_positions_matter_and_are_required() -> None:
    model, x = build_model(8, 2, "patch-gcn", seed=0).eval(), torch.randn(len(GRID), 8)
    moved = GRID[torch.randperm(len(GRID))]
    assert (model(x, GRID).logits - model(x, moved).logits).abs().max() > 1e-5
    with pytest.raises(BagError, match="the bag has no tile positions"):
        model(x)
