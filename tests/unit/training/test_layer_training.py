"""How the sparse coding layer is trained: what weight decay does not reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from scmil import Bag, MILModel, Recipe, build_model, fit, fit_folds
from scmil.bags.datasets import registry
from scmil.bags.scaling import streamed_moments
from scmil.bags.splits import Split


def some_bags() -> list[Bag]:
    generator = torch.Generator().manual_seed(0)
    return [
        Bag(f"bag {i}", torch.randn(4, 9, generator=generator) + i % 2, label=i % 2)
        for i in range(6)
    ]


def only_the_layer_learns(seed: int = 0) -> MILModel:
    """A model of which all other parameters are fixed: its gradients depend on the layer alone."""
    model = build_model(9, 2, "abmil", {"atoms": 16}, embed=[9], seed=seed)
    for part in (model.embed, model.aggregate):
        part.requires_grad_(False)
    return model


def trained(recipe: Recipe, **options: Any) -> dict[str, Tensor]:
    model = only_the_layer_learns()
    fit(model, some_bags(), recipe=recipe, **options)
    return dict(model.refine.state_dict())


RECIPES: list[dict[str, Any]] = [
    {"optimiser": "adam"},
    {"optimiser": "adam", "clip": 1.0},
    {"optimiser": "sgd", "schedule": "time-decay"},
    {"optimiser": "lookahead-radam"},
]


@pytest.mark.parametrize("settings", RECIPES, ids=str)
def test_weight_decay_does_not_reach_the_layer(settings: dict[str, Any]) -> None:
    def end(weight_decay: float, **further: Any) -> dict[str, Tensor]:
        recipe = Recipe(epochs=2, learning_rate=0.01, weight_decay=weight_decay, **settings)
        return trained(recipe if not further else Recipe(**{**vars(recipe), **further}))

    free, decayed = end(0.0), end(0.5)
    for name, tensor in free.items():
        assert torch.equal(tensor, decayed[name]), name
    on_request = end(0.5, decay_sparse_coding=True)
    for name, tensor in free.items():
        assert not torch.equal(tensor, on_request[name]), name


@pytest.mark.parametrize("settings", RECIPES, ids=str)
def test_weight_decay_does_not_reach_the_layer_of_stacked_folds(settings: dict[str, Any]) -> None:
    splits = [Split((0, 1, 2, 3), (4, 5)), Split((2, 3, 4, 5), (0, 1))]

    def end(weight_decay: float, **further: Any) -> list[MILModel]:
        models = [only_the_layer_learns(seed) for seed in range(2)]
        recipe = Recipe(
            epochs=2, learning_rate=0.01, weight_decay=weight_decay, **settings, **further
        )
        fit_folds(models, some_bags(), splits, recipe, look="last")
        return models

    for free, decayed, on_request in zip(
        end(0.0), end(0.5), end(0.5, decay_sparse_coding=True), strict=True
    ):
        for name, tensor in free.refine.state_dict().items():
            assert torch.equal(tensor, decayed.refine.state_dict()[name]), name
            assert not torch.equal(tensor, on_request.refine.state_dict()[name]), name


@pytest.mark.parametrize("decayed", [False, True])
def test_a_resumed_training_treats_the_layer_alike(tmp_path: Path, decayed: bool) -> None:
    recipe = Recipe(epochs=3, learning_rate=0.01, weight_decay=0.5, decay_sparse_coding=decayed)

    def stop(epoch: int) -> None:
        if epoch == 2:
            raise KeyboardInterrupt

    file = tmp_path / "checkpoint.safetensors"
    with pytest.raises(KeyboardInterrupt):
        trained(recipe, checkpoint=file, progress=stop)
    resumed, whole = trained(recipe, checkpoint=file), trained(recipe)
    for name, tensor in whole.items():
        assert torch.equal(tensor, resumed[name]), name


def test_the_other_parameters_are_still_decayed() -> None:
    ends = []
    for weight_decay in (0.0, 0.5):
        model = build_model(9, 2, "abmil", {"atoms": 16}, embed=[9], seed=0)
        fit(model, some_bags(), recipe=Recipe(epochs=2, weight_decay=weight_decay))
        ends.append(model)
    free, decayed = (dict(model.named_parameters()) for model in ends)
    for name in ("embed.0.weight", "embed.0.bias", "aggregate.classifier.weight"):
        assert not torch.equal(free[name], decayed[name]), name


@pytest.mark.filterwarnings("ignore::scmil.sparse_coding.layer.StepWarning")
def test_no_atom_dies_on_elephant() -> None:
    every = registry.build("elephant")
    bags = every.subset([*range(10), *range(len(every) - 10, len(every))])
    bags = streamed_moments(bags).apply_to_bags(bags)
    model = build_model(230, 2, "abmil-gated", {"atoms": 64}, embed=[], seed=0)
    fit(model, bags, recipe=Recipe(epochs=5, learning_rate=1e-3))
    # With decay on the layer, the shortest atom ends at 0.25, and one atom codes no instance.
    assert float(model.refine.dictionary.detach().norm(dim=0).min()) > 0.9
    with torch.no_grad():
        used = torch.stack([(model.refine(bag.features) != 0).any(0) for bag in bags]).any(0)
    assert bool(used.all())
