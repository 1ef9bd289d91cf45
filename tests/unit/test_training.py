from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scmil import Bag, MILModel, Recipe, build_model, fit, predict
from scmil.errors import BagError, DataError, ModelFileError, ShapeError
from scmil.training import History, epoch_order, step_seed


def bags(n: int = 12) -> list[Bag]:
    generator = torch.Generator().manual_seed(0)
    return [Bag(f"bag {i}", torch.randn(5, 8, generator=generator) + i % 2, label=i % 2) for i in range(n)]


@pytest.mark.parametrize(
    "name", ["abmil-gated", "mi-net", "dtfd-maxmin"]
)  # without and with dropout, with random groups
def test_training_repeats_for_a_seed(name: str) -> None:
    outcomes = []
    for seed in (1, 1, 2):
        torch.rand(3)  # what was drawn before does not matter
        model = build_model(8, 2, name, sparse_coding={"atoms": 16}, embed=[9], seed=0)
        fit(model, bags(), recipe=Recipe(epochs=2), seed=seed)
        outcomes.append(predict(model, bags()))
    assert torch.equal(outcomes[0], outcomes[1])
    assert not torch.equal(outcomes[0], outcomes[2])


def test_training_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    fit(build_model(8, 2, "mi-net", seed=0), bags(), recipe=Recipe(epochs=1))
    assert torch.equal(torch.rand(1), expected)


def test_the_recipe_is_the_papers() -> None:
    recipe = Recipe()
    assert (recipe.epochs, recipe.learning_rate, recipe.weight_decay) == (40, 1e-4, 5e-3)


def test_progress_is_told_every_epoch() -> None:
    seen: list[int] = []
    history = fit(build_model(8, 2, "mean", seed=0), bags(), recipe=Recipe(epochs=3), progress=seen.append)
    assert seen == [1, 2, 3]
    assert len(history.train_loss) == 3
    assert (history.valid_loss, history.best_epoch) == ([], None)


def test_the_bag_that_is_refused_is_named() -> None:
    model = build_model(8, 2, "mean")
    with pytest.raises(BagError, match="bag 'broken': 1 of the bag's 2 instances"):
        predict(model, [Bag("broken", torch.tensor([[0.0] * 8, [float("nan")] * 8]))])
    with pytest.raises(ShapeError, match="bag 'wide': the bag has 9-dimensional features"):
        fit(model, [Bag("wide", torch.zeros(2, 9), label=0)])


def test_bags_without_labels_are_refused_before_training() -> None:
    with pytest.raises(DataError, match=r"bags without a label: x\."):
        fit(build_model(8, 2, "mean"), [*bags(), Bag("x", torch.zeros(2, 8))])
    with pytest.raises(DataError, match="no bags to train on"):
        fit(build_model(8, 2, "mean"), [])
    with pytest.raises(DataError, match=r"bags without a label: x\."):
        fit(build_model(8, 2, "mean"), bags(), [Bag("x", torch.zeros(2, 8))])


def test_prediction_keeps_the_mode() -> None:
    model = build_model(8, 2, "mean").train()
    predict(model, bags())
    assert model.training


# --------------------------------------------------------------------------------------------------------- randomness


def test_the_order_of_an_epoch_does_not_depend_on_other_bags() -> None:
    ids = [f"bag {i}" for i in range(20)]
    some = ids[3:15:2]
    for epoch in range(5):
        everyone = [ids[i] for i in epoch_order(ids, seed=1, epoch=epoch)]
        assert [bag for bag in everyone if bag in some] == [some[i] for i in epoch_order(some, seed=1, epoch=epoch)]


def test_every_epoch_and_every_seed_has_an_order_of_its_own() -> None:
    ids = [f"bag {i}" for i in range(20)]
    orders = {tuple(epoch_order(ids, seed, epoch)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16
    assert all(sorted(order) == list(range(20)) for order in orders)


def test_a_step_draws_from_seed_epoch_and_bag_and_from_nothing_else() -> None:
    drawn = {step_seed(seed, epoch, bag) for seed in (0, 1) for epoch in (0, 1) for bag in ("a", "b")}
    assert len(drawn) == 8
    assert all(0 <= number < 2**63 for number in drawn)
    assert step_seed(1, 2, "a") == step_seed(1, 2, "a")
    assert step_seed(1, 11, "a") != step_seed(11, 1, "a")


def test_dropout_depends_on_seed_epoch_and_bag_only() -> None:
    def kept(ids: tuple[str, ...], seed: int = 0) -> torch.Tensor:
        """Which numbers dropout let through for bag `a`, the epochs one after another."""
        model = build_model(8, 2, "mi-net", embed=[9], seed=0)
        seen: list[torch.Tensor] = []
        model.aggregate.dropout.register_forward_hook(lambda _, given, out: seen.append((out != 0) | (given[0] == 0)))
        part = [Bag(name, torch.ones(3, 8), label=0) for name in ids]
        fit(model, part, recipe=Recipe(epochs=2, learning_rate=1e-9), seed=seed)
        places = [epoch * len(ids) + epoch_order(ids, seed, epoch).index(ids.index("a")) for epoch in range(2)]
        return torch.stack([seen[place] for place in places])

    alone, beside, otherwise = kept(("a",)), kept(("b", "a", "c")), kept(("a",), seed=1)
    assert torch.equal(alone, beside)
    assert not torch.equal(alone[0], alone[1])
    assert not torch.equal(alone, otherwise)


# --------------------------------------------------------------------------------------------------------- validation


def test_the_best_epoch_has_the_highest_auc_then_the_lowest_loss_then_is_the_first() -> None:
    history = History(valid_auc=[0.5, 0.9, 0.9, 0.9], valid_loss=[0.1, 0.4, 0.3, 0.3])
    assert history.best_epoch == 3
    nan = float("nan")  # validation bags of one class: the loss decides
    assert History(valid_auc=[nan, nan], valid_loss=[0.2, 0.1]).best_epoch == 2


def test_with_a_validation_part_the_model_ends_as_it_was_in_its_best_epoch() -> None:
    train, wrong = bags()[:8], [replace(bag, label=1 - (bag.label or 0)) for bag in bags()[8:]]
    recipe = Recipe(epochs=6, learning_rate=1e-2, schedule="constant")
    model = build_model(8, 2, "abmil", embed=[9], seed=0)
    states: list[dict[str, torch.Tensor]] = []
    history = fit(
        model,
        train,
        wrong,
        recipe,
        progress=lambda _: states.append({k: v.clone() for k, v in model.state_dict().items()}),
    )
    best = history.best_epoch
    assert best is not None
    assert best < 6, "the last epoch would be kept without choosing"
    assert all(torch.equal(tensor, states[best - 1][name]) for name, tensor in model.state_dict().items())
    assert any(not torch.equal(tensor, states[-1][name]) for name, tensor in model.state_dict().items())
    assert len(history.valid_loss) == len(history.valid_auc) == len(history.valid_accuracy) == 6


def test_looking_at_a_validation_part_changes_nothing_of_the_training() -> None:
    recipe = Recipe(epochs=3)
    with_it, without = (build_model(8, 2, "mi-net", seed=0) for _ in range(2))
    assert fit(with_it, bags()[:8], bags()[8:], recipe).train_loss == fit(without, bags()[:8], recipe=recipe).train_loss


# -------------------------------------------------------------------------------------------------------- checkpoints


class Stopped(Exception):
    """What a user's Ctrl-C is to a training."""


def trained(recipe: Recipe, checkpoint: Path | None = None, stop_after: int | None = None) -> tuple[MILModel, History]:
    model = build_model(8, 2, "mi-net", sparse_coding={"atoms": 16}, embed=[9], seed=0)

    def stop(epoch: int) -> None:
        if epoch == stop_after:
            raise Stopped

    return model, fit(model, bags()[:8], bags()[8:], recipe, seed=3, progress=stop, checkpoint=checkpoint)


@pytest.mark.parametrize("optimiser", ["adam", "sgd", "lookahead-radam"])
def test_a_training_that_was_stopped_ends_as_an_unbroken_one(tmp_path: Path, optimiser: str) -> None:
    recipe = Recipe(epochs=5, optimiser=optimiser, learning_rate=1e-2)
    file = tmp_path / "training.safetensors"
    unbroken, expected = trained(recipe)
    with pytest.raises(Stopped):
        trained(recipe, file, stop_after=2)
    resumed, history = trained(recipe, file)
    assert history == expected
    assert all(torch.equal(a, b) for a, b in zip(resumed.parameters(), unbroken.parameters(), strict=True))


def test_what_is_done_already_is_not_done_again(tmp_path: Path) -> None:
    recipe, file = Recipe(epochs=4), tmp_path / "training.safetensors"
    with pytest.raises(Stopped):
        trained(recipe, file, stop_after=3)
    epochs: list[int] = []
    model = build_model(8, 2, "mi-net", sparse_coding={"atoms": 16}, embed=[9], seed=0)
    fit(model, bags()[:8], bags()[8:], recipe, seed=3, progress=epochs.append, checkpoint=file)
    assert epochs == [4]
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize("other", ["recipe", "seed", "bags", "model"])
def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path, other: str) -> None:
    file = tmp_path / "training.safetensors"
    fit(build_model(8, 2, "mean", seed=0), bags(), recipe=Recipe(epochs=1), checkpoint=file)
    before = file.read_bytes()
    with pytest.raises(ModelFileError, match=r"a checkpoint of another training.*Give this training another file"):
        fit(
            build_model(8, 2, "abmil" if other == "model" else "mean", seed=0),
            bags(11 if other == "bags" else 12),
            recipe=Recipe(epochs=2 if other == "recipe" else 1),
            seed=1 if other == "seed" else 0,
            checkpoint=file,
        )
    assert file.read_bytes() == before


@pytest.mark.parametrize("damage", ["cut off", "another file", "empty", "a folder"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "training.safetensors"
    if damage == "a folder":
        file.mkdir()
    else:
        fit(build_model(8, 2, "mean", seed=0), bags(), recipe=Recipe(epochs=1), checkpoint=file)
        file.write_bytes({"cut off": file.read_bytes()[:-20], "another file": b"hello" * 99, "empty": b""}[damage])
    with pytest.raises(ModelFileError, match=r"not a checkpoint of scmil \(.*Delete it to start anew"):
        fit(build_model(8, 2, "mean", seed=0), bags(), recipe=Recipe(epochs=1), checkpoint=file)


def test_a_safetensors_file_of_something_else_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    file = tmp_path / "weights.safetensors"
    save_file({"weight": torch.ones(2)}, file)
    with pytest.raises(ModelFileError, match="not a checkpoint of scmil"):
        fit(build_model(8, 2, "mean", seed=0), bags(), recipe=Recipe(epochs=1), checkpoint=file)
