from __future__ import annotations

import torch

from scmil.models.aggregators.attrimil import QUEUE, AttriMIL, grid_neighbours

GRID = 256 * torch.tensor([[x, y] for y in range(3) for x in range(4)])


def test_neighbours_are_the_tiles_around() -> None:
    found = grid_neighbours(GRID)
    assert set(found[5].tolist()) == {0, 1, 2, 4, 6, 8, 9, 10}
    assert found[0].tolist() == [1, 4, 5, 0, 0, 0, 0, 0]  # missing ones are the tile itself
    assert set(found[3].tolist()) == {2, 6, 7, 3}  # the next row does not begin beside it


def test_neighbours_do_not_depend_on_the_order_and_the_origin() -> None:
    order = torch.randperm(12)
    found, moved = grid_neighbours(GRID), grid_neighbours(GRID[order] + 77_777)
    for place, tile in enumerate(order):
        assert set(order[moved[place]].tolist()) == set(found[tile].tolist())


def test_tiles_without_neighbours_are_alone() -> None:
    far = torch.tensor([[0, 0], [7, 1000], [31, 5000]])
    assert (grid_neighbours(far) == torch.arange(3)[:, None]).all()
    assert grid_neighbours(torch.zeros(1, 2)).shape == (1, 8)


def test_the_memory_of_neighbours_is_linear() -> None:
    n = 20_000
    places = torch.arange(n)
    assert grid_neighbours(torch.stack([places % 200, places // 200], 1)).shape == (n, 8)


def test_queues_hold_the_last_instances_and_change_only_in_training() -> None:
    model, h = AttriMIL(6, 2), torch.randn(12, 6)
    model.eval()
    model.own_loss(model(h, GRID), torch.tensor(1))
    assert (model.queued == 0).all()
    model.train()
    for number in range(6):
        model.own_loss(model(h + number, GRID), torch.tensor(1))
    assert model.queued.tolist() == [[QUEUE, 0], [0, QUEUE]]
    top = model(h + 5, GRID).extras[2]
    assert torch.equal(model.queue[1, 1, -1], top[1])


def test_large_scores_stay_finite() -> None:
    model = AttriMIL(6, 2)
    with torch.no_grad():
        for score in model.scores:
            score.w.bias += 1000.0  # type: ignore[operator, union-attr]
    prediction = model(torch.randn(12, 6), GRID)
    loss = prediction.logits.sum() + model.own_loss(prediction, torch.tensor(1))
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_equal_neighbours_have_no_spatial_loss() -> None:
    model = AttriMIL(6, 3)
    assert model(torch.ones(12, 6), GRID).extras[0] == 0
    assert model(torch.randn(12, 6), GRID).extras[0] > 0
