"""Order and seeds of the steps of a training."""

from __future__ import annotations

import torch

from scmil import Bag, Recipe, build_model, fit
from scmil.training.randomness import epoch_order, own_randomness, seed_generators, step_seed


def test_the_order_of_an_epoch_does_not_depend_on_other_bags() -> None:
    ids = [f"bag {i}" for i in range(20)]
    some = ids[3:15:2]
    for epoch in range(5):
        whole = [ids[i] for i in epoch_order(ids, seed=1, epoch=epoch)]
        assert [bag for bag in whole if bag in some] == [
            some[i] for i in epoch_order(some, seed=1, epoch=epoch)
        ]


def test_every_epoch_and_every_seed_has_a_different_order() -> None:
    ids = [f"bag {i}" for i in range(20)]
    orders = {tuple(epoch_order(ids, seed, epoch)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16
    assert all(sorted(order) == list(range(20)) for order in orders)


def test_the_seed_of_a_step_depends_on_seed_epoch_and_bag() -> None:
    seeds = {
        step_seed(seed, epoch, bag) for seed in (0, 1) for epoch in (0, 1) for bag in ("a", "b")
    }
    assert len(seeds) == 8
    assert all(0 <= number < 2**63 for number in seeds)
    assert step_seed(1, 2, "a") == step_seed(1, 2, "a")
    assert step_seed(1, 11, "a") != step_seed(11, 1, "a")


def test_dropout_depends_on_seed_epoch_and_bag_only() -> None:
    def dropout_masks(ids: tuple[str, ...], seed: int = 0) -> torch.Tensor:
        """The dropout masks of bag `a`, one per epoch."""
        model = build_model(8, 2, "mi-net", embed=[9], seed=0)
        seen: list[torch.Tensor] = []
        model.aggregate.dropout.register_forward_hook(
            lambda _, given, out: seen.append((out != 0) | (given[0] == 0))
        )
        part = [Bag(name, torch.ones(3, 8), label=0) for name in ids]
        fit(model, part, recipe=Recipe(epochs=2, learning_rate=1e-9), seed=seed)
        places = [
            epoch * len(ids) + epoch_order(ids, seed, epoch).index(ids.index("a"))
            for epoch in range(2)
        ]
        return torch.stack([seen[place] for place in places])

    alone, beside, otherwise = (
        dropout_masks(("a",)),
        dropout_masks(("b", "a", "c")),
        dropout_masks(("a",), seed=1),
    )
    assert torch.equal(alone, beside)
    assert not torch.equal(alone[0], alone[1])
    assert not torch.equal(alone, otherwise)


def test_seeded_generators_give_the_numbers_of_manual_seed() -> None:
    with own_randomness():
        torch.manual_seed(123)
        expected = torch.rand(5)
        torch.rand(3)
        seed_generators(123)
        assert torch.equal(torch.rand(5), expected)
