from __future__ import annotations

import pytest
import torch

from scmil import Bag, Recipe, build_model, fit, predict
from scmil.errors import BagError, DataError, ShapeError


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
        fit(model, bags(), Recipe(epochs=2), seed=seed)
        outcomes.append(predict(model, bags()))
    assert torch.equal(outcomes[0], outcomes[1])
    assert not torch.equal(outcomes[0], outcomes[2])


def test_training_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    fit(build_model(8, 2, "mi-net", seed=0), bags(), Recipe(epochs=1))
    assert torch.equal(torch.rand(1), expected)


def test_the_recipe_is_the_papers() -> None:
    recipe = Recipe()
    assert (recipe.epochs, recipe.learning_rate, recipe.weight_decay) == (40, 1e-4, 5e-3)


def test_progress_is_told_every_epoch() -> None:
    seen: list[int] = []
    losses = fit(build_model(8, 2, "mean", seed=0), bags(), Recipe(epochs=3), progress=seen.append)
    assert seen == [1, 2, 3]
    assert len(losses) == 3


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


def test_prediction_keeps_the_mode() -> None:
    model = build_model(8, 2, "mean").train()
    predict(model, bags())
    assert model.training
