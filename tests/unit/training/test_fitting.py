from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scmil import Bag, BagSet, MILModel, Recipe, build_model, fit, predict
from scmil.errors import BagError, DataError, OptionError, ShapeError
from scmil.training.history import History
from scmil.training.randomness import epoch_order


def bags(n: int = 12) -> list[Bag]:
    generator = torch.Generator().manual_seed(0)
    return [
        Bag(f"bag {i}", torch.randn(5, 8, generator=generator) + i % 2, label=i % 2)
        for i in range(n)
    ]


@pytest.mark.parametrize(
    "name", ["abmil-gated", "mi-net", "dtfd-maxmin"]
)  # without and with dropout, with random groups
def test_training_is_reproducible_for_a_seed(name: str) -> None:
    outcomes = []
    for seed in (1, 1, 2):
        torch.rand(3)  # earlier draws do not matter
        model = build_model(8, 2, name, sparse_coding={"atoms": 16}, embed=[9], seed=0)
        fit(model, bags(), recipe=Recipe(epochs=2), seed=seed)
        outcomes.append(predict(model, bags()))
    assert torch.equal(outcomes[0], outcomes[1])
    assert not torch.equal(outcomes[0], outcomes[2])


def test_training_restores_the_global_generator() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    fit(build_model(8, 2, "mi-net", seed=0), bags(), recipe=Recipe(epochs=1))
    assert torch.equal(torch.rand(1), expected)


def test_the_default_recipe_is_that_of_the_paper() -> None:
    recipe = Recipe()
    assert (recipe.epochs, recipe.learning_rate, recipe.weight_decay) == (40, 1e-4, 5e-3)


def test_progress_is_called_after_every_epoch() -> None:
    seen: list[int] = []
    history = fit(
        build_model(8, 2, "mean", seed=0), bags(), recipe=Recipe(epochs=3), progress=seen.append
    )
    assert seen == [1, 2, 3]
    assert len(history.train_loss) == 3
    assert (history.valid_loss, history.best_epoch) == ([], None)


def test_errors_name_the_bag() -> None:
    model = build_model(8, 2, "mean")
    with pytest.raises(BagError, match="bag 'broken': 1 of the bag's 2 instances"):
        predict(model, [Bag("broken", torch.tensor([[0.0] * 8, [float("nan")] * 8]))])
    with pytest.raises(ShapeError, match="bag 'wide': the bag has 9-dimensional features"):
        fit(model, [Bag("wide", torch.zeros(2, 9), label=0)])


def test_bags_without_labels_raise_before_training() -> None:
    with pytest.raises(DataError, match=r"bags without a label: x\."):
        fit(build_model(8, 2, "mean"), [*bags(), Bag("x", torch.zeros(2, 8))])
    with pytest.raises(DataError, match="no bags to train on"):
        fit(build_model(8, 2, "mean"), [])
    with pytest.raises(DataError, match=r"bags without a label: x\."):
        fit(build_model(8, 2, "mean"), bags(), [Bag("x", torch.zeros(2, 8))])


def test_prediction_restores_the_training_mode() -> None:
    model = build_model(8, 2, "mean").train()
    predict(model, bags())
    assert model.training


def lazy(reads: list[str], bags: list[Bag]) -> BagSet:
    """A set that records the ids of the bags that are read."""
    by_id = {bag.id: bag for bag in bags}

    def load(bag_id: str) -> Bag:
        reads.append(bag_id)
        return by_id[bag_id]

    return BagSet.lazy(by_id, load, [bag.label for bag in bags])


def test_bags_from_files_train_the_same_model_as_bags_in_memory(tmp_path: Path) -> None:
    reads: list[str] = []
    outcomes = []
    for train, valid in (
        (bags()[:8], bags()[8:]),
        (lazy(reads, bags()[:8]), lazy(reads, bags()[8:])),
    ):
        model = build_model(8, 2, "mi-net", embed=[9], seed=0)
        history = fit(
            model, train, valid, Recipe(epochs=3), seed=2, checkpoint=tmp_path / "one for both"
        )
        outcomes.append((history, predict(model, train)))
        (tmp_path / "one for both").unlink()
    assert outcomes[0][0] == outcomes[1][0]
    assert torch.equal(outcomes[0][1], outcomes[1][1])
    assert len(reads) == 12 + 8, "each bag once in fit, and the training bags once more in predict"


class Stopped(Exception):
    """Stands for an interruption by the user."""


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
    assert reads in (order[:1], order[:2]), "the current bag, and the next one"


# ------------------------------------------------------------------------ weights, device, patience


def test_bfloat16_products_give_nearly_the_same_model() -> None:
    part = [Bag(str(i), torch.randn(300, 32) + 0.3 * (i % 2), label=i % 2) for i in range(8)]
    predictions = []
    for precision in ("float32", "bfloat16"):
        model = build_model(32, 2, "abmil-gated", sparse_coding={"atoms": 40}, embed=[36], seed=0)
        losses = fit(
            model, part, recipe=Recipe(epochs=3, learning_rate=1e-3), precision=precision
        ).train_loss
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        assert losses[-1] < losses[0]
        predictions.append(predict(model, part))
    assert not torch.equal(*predictions)
    torch.testing.assert_close(*predictions, atol=0.03, rtol=0)


def test_an_unknown_precision_raises() -> None:
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


def test_a_class_with_a_larger_weight_gets_larger_probabilities() -> None:
    def predicted(weights: tuple[float, float]) -> float:
        model = build_model(8, 2, "mean", embed=[], seed=0)
        fit(
            model,
            bags(),
            recipe=Recipe(epochs=5, learning_rate=1e-2, optimiser="sgd"),
            class_weights=weights,
        )
        return float(predict(model, bags())[:, 1].mean())

    assert predicted((1.0, 9.0)) > predicted((1.0, 1.0)) + 0.05 > predicted((9.0, 1.0)) + 0.1


@pytest.mark.parametrize("weights", [(1.0,), (1.0, 0.0), (1.0, -2.0), (1.0, float("nan"))])
def test_invalid_class_weights_raise(weights: tuple[float, ...]) -> None:
    with pytest.raises(
        OptionError, match=r"class_weights = .*above 0 is needed for each of the 2 classes"
    ):
        fit(build_model(8, 2, "mean"), bags(), class_weights=weights)


def test_an_unavailable_device_raises() -> None:
    for device in ("abacus", "cuda:99"):
        with pytest.raises(
            OptionError, match=rf"device = '{device}' is not available: .*Use 'cpu'"
        ):
            fit(build_model(8, 2, "mean"), bags(), device=device)
        with pytest.raises(OptionError, match="is not available"):
            predict(build_model(8, 2, "mean"), bags(), device)


def test_training_stops_when_the_best_epoch_is_patience_epochs_ago() -> None:
    train, wrong = bags()[:8], [replace(bag, label=1 - (bag.label or 0)) for bag in bags()[8:]]
    settings = {"epochs": 12, "learning_rate": 1e-2, "schedule": "constant"}
    ends = []
    for patience in (None, 3):
        model = build_model(8, 2, "abmil", embed=[9], seed=0)
        history = fit(model, train, wrong, Recipe(**settings, patience=patience))  # type: ignore[arg-type]
        ends.append((history, predict(model, train)))
    (whole, expected), (short, actual) = ends
    assert short.best_epoch == whole.best_epoch
    assert len(short.train_loss) == (whole.best_epoch or 0) + 3 < 12
    assert short.train_loss == whole.train_loss[: len(short.train_loss)]
    assert torch.equal(actual, expected)


def test_patience_needs_validation_bags() -> None:
    with pytest.raises(OptionError, match="patience = 2 needs validation bags"):
        fit(build_model(8, 2, "mean"), bags(), recipe=Recipe(patience=2))


# --------------------------------------------------------------------------------------- validation


def test_the_best_epoch_has_the_highest_auc_then_the_lowest_loss() -> None:
    history = History(valid_auc=[0.5, 0.9, 0.9, 0.9], valid_loss=[0.1, 0.4, 0.3, 0.3])
    assert history.best_epoch == 3
    nan = float("nan")  # validation bags of one class: selected by the loss
    assert History(valid_auc=[nan, nan], valid_loss=[0.2, 0.1]).best_epoch == 2


def test_the_model_ends_with_the_weights_of_its_best_epoch() -> None:
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
    assert best < 6, "otherwise the last epoch is the best one"
    assert all(
        torch.equal(tensor, states[best - 1][name]) for name, tensor in model.state_dict().items()
    )
    assert any(
        not torch.equal(tensor, states[-1][name]) for name, tensor in model.state_dict().items()
    )
    assert len(history.valid_loss) == len(history.valid_auc) == len(history.valid_accuracy) == 6


def test_evaluation_on_validation_bags_does_not_change_training() -> None:
    recipe = Recipe(epochs=3)
    with_it, without = (build_model(8, 2, "mi-net", seed=0) for _ in range(2))
    assert (
        fit(with_it, bags()[:8], bags()[8:], recipe).train_loss
        == fit(without, bags()[:8], recipe=recipe).train_loss
    )
