from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scmil import Bag, BagSet, MILModel, Recipe, build_model, fit, predict
from scmil.errors import BagError, DataError, ModelFileError, OptionError, ShapeError
from scmil.training.fit import History, epoch_order, step_seed


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


def lazy(reads: list[str], part: list[Bag]) -> BagSet:
    """A set that notes what is read."""
    of = {bag.id: bag for bag in part}

    def load(id: str) -> Bag:
        reads.append(id)
        return of[id]

    return BagSet.lazy(of, load, [bag.label for bag in part])


def test_bags_from_files_train_the_same_model_as_bags_in_memory(tmp_path: Path) -> None:
    reads: list[str] = []
    outcomes = []
    for train, valid in ((bags()[:8], bags()[8:]), (lazy(reads, bags()[:8]), lazy(reads, bags()[8:]))):
        model = build_model(8, 2, "mi-net", embed=[9], seed=0)
        history = fit(model, train, valid, Recipe(epochs=3), seed=2, checkpoint=tmp_path / "one for both")
        outcomes.append((history, predict(model, train)))
        (tmp_path / "one for both").unlink()
    assert outcomes[0][0] == outcomes[1][0]
    assert torch.equal(outcomes[0][1], outcomes[1][1])
    assert len(reads) == 12 + 8, "each once to train and to choose, and once more to predict"


def test_no_bag_is_read_before_it_is_needed() -> None:
    reads: list[str] = []
    train = lazy(reads, bags())
    order = [train.ids[i] for i in epoch_order(train.ids, seed=0, epoch=0)]

    class First(MILModel):
        def forward(self, x: torch.Tensor) -> None:  # type: ignore[override]
            raise Stopped

    plain = build_model(8, 2, "mean", seed=0)
    with pytest.raises(Stopped):
        fit(First(plain.embed, plain.refine, plain.aggregate, 8), train)
    assert reads in (order[:1], order[:2]), "the one that is worked on, and the one after it"


# ------------------------------------------------------------------------------------------- weights, device, patience


def test_short_products_train_a_model_that_says_nearly_the_same() -> None:
    part = [Bag(str(i), torch.randn(300, 32) + 0.3 * (i % 2), label=i % 2) for i in range(8)]
    said = []
    for precision in ("float32", "bfloat16"):
        model = build_model(32, 2, "abmil-gated", sparse_coding={"atoms": 40}, embed=[36], seed=0)
        losses = fit(model, part, recipe=Recipe(epochs=3, learning_rate=1e-3), precision=precision).train_loss
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        assert losses[-1] < losses[0]
        said.append(predict(model, part))
    assert not torch.equal(*said)
    torch.testing.assert_close(*said, atol=0.03, rtol=0)


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(OptionError, match="precision = 'float8': one of float32, bfloat16"):
        fit(build_model(8, 2, "mean"), bags(), precision="float8")


def test_class_weights_multiply_the_loss_of_a_class() -> None:
    recipe = Recipe(epochs=1, learning_rate=1e-12)

    def loss(part: list[Bag], weights: tuple[float, float] | None = None) -> float:
        model = build_model(8, 2, "dsmil", seed=0)
        return fit(model, part, recipe=recipe, class_weights=weights).train_loss[0]

    zeros, ones = bags()[::2], bags()[1::2]
    assert loss(zeros, (3.0, 0.5)) == pytest.approx(3 * loss(zeros))
    assert loss(bags(), (3.0, 0.5)) == pytest.approx((3 * loss(zeros) + 0.5 * loss(ones)) / 2)


def test_a_heavy_class_is_predicted_more_often() -> None:
    def predicted(weights: tuple[float, float]) -> float:
        model = build_model(8, 2, "mean", embed=[], seed=0)
        fit(model, bags(), recipe=Recipe(epochs=5, learning_rate=1e-2, optimiser="sgd"), class_weights=weights)
        return float(predict(model, bags())[:, 1].mean())

    assert predicted((1.0, 9.0)) > predicted((1.0, 1.0)) + 0.05 > predicted((9.0, 1.0)) + 0.1


@pytest.mark.parametrize("weights", [(1.0,), (1.0, 0.0), (1.0, -2.0), (1.0, float("nan"))])
def test_class_weights_that_make_no_sense_are_refused(weights: tuple[float, ...]) -> None:
    with pytest.raises(OptionError, match=r"class_weights = .*above 0 is needed for each of the 2 classes"):
        fit(build_model(8, 2, "mean"), bags(), class_weights=weights)


def test_a_device_that_is_not_there_is_refused() -> None:
    for device in ("abacus", "cuda:99"):
        with pytest.raises(OptionError, match=rf"device = '{device}' cannot be used here: .*Use 'cpu'"):
            fit(build_model(8, 2, "mean"), bags(), device=device)
        with pytest.raises(OptionError, match="cannot be used here"):
            predict(build_model(8, 2, "mean"), bags(), device)


def test_with_patience_training_ends_when_the_best_epoch_is_so_far_back() -> None:
    train, wrong = bags()[:8], [replace(bag, label=1 - (bag.label or 0)) for bag in bags()[8:]]
    settings = {"epochs": 12, "learning_rate": 1e-2, "schedule": "constant"}
    ends = []
    for patience in (None, 3):
        model = build_model(8, 2, "abmil", embed=[9], seed=0)
        history = fit(model, train, wrong, Recipe(**settings, patience=patience))  # type: ignore[arg-type]
        ends.append((history, predict(model, train)))
    (whole, expected), (short, met) = ends
    assert short.best_epoch == whole.best_epoch
    assert len(short.train_loss) == (whole.best_epoch or 0) + 3 < 12
    assert short.train_loss == whole.train_loss[: len(short.train_loss)]
    assert torch.equal(met, expected)


def test_patience_needs_a_validation_part() -> None:
    with pytest.raises(OptionError, match="patience = 2: without a validation part"):
        fit(build_model(8, 2, "mean"), bags(), recipe=Recipe(patience=2))


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


@pytest.mark.parametrize("stop_after", [1, 3])
def test_a_training_with_patience_and_weights_that_was_stopped_ends_as_an_unbroken_one(
    tmp_path: Path, stop_after: int
) -> None:
    file, wrong = tmp_path / "training.safetensors", [replace(bag, label=1 - (bag.label or 0)) for bag in bags()[8:]]

    def run(checkpoint: Path | None = None, stop: int | None = None) -> tuple[MILModel, History, list[int]]:
        model, seen = build_model(8, 2, "mi-net", embed=[9], seed=0), list[int]()

        def progress(epoch: int) -> None:
            seen.append(epoch)
            if epoch == stop:
                raise Stopped

        recipe = Recipe(epochs=30, learning_rate=1e-2, schedule="constant", patience=3)
        return (
            model,
            fit(
                model,
                lazy([], bags()[:8]),
                wrong,
                recipe,
                progress=progress,
                checkpoint=checkpoint,
                class_weights=(1, 2),
            ),
            seen,
        )

    unbroken, expected, epochs = run()
    assert stop_after < len(epochs) < 30
    with pytest.raises(Stopped):
        run(file, stop_after)
    resumed, history, rest = run(file)
    assert (history, rest) == (expected, epochs[stop_after:])
    assert all(torch.equal(a, b) for a, b in zip(resumed.parameters(), unbroken.parameters(), strict=True))
    assert run(file)[2] == [], "a training whose patience is over stays over"


def test_what_is_done_already_is_not_done_again(tmp_path: Path) -> None:
    recipe, file = Recipe(epochs=4), tmp_path / "training.safetensors"
    with pytest.raises(Stopped):
        trained(recipe, file, stop_after=3)
    epochs: list[int] = []
    model = build_model(8, 2, "mi-net", sparse_coding={"atoms": 16}, embed=[9], seed=0)
    fit(model, bags()[:8], bags()[8:], recipe, seed=3, progress=epochs.append, checkpoint=file)
    assert epochs == [4]
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize("other", ["recipe", "seed", "bags", "model", "weights"])
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
            class_weights=(1.0, 2.0) if other == "weights" else None,
            checkpoint=file,
        )
    assert file.read_bytes() == before


@pytest.mark.parametrize("damage", ["cut off", "another file", "empty", "a folder", "a pipe"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "training.safetensors"
    if damage == "a folder":
        file.mkdir()
    elif damage == "a pipe":
        os.mkfifo(file)
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
