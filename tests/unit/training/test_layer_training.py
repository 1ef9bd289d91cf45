"""How the sparse coding layer is trained: weight decay, constraints, starts from data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from scmil import (
    Bag,
    MILModel,
    Recipe,
    build_model,
    fit,
    fit_folds,
    load_model,
    predict,
    save_model,
)
from scmil.bags.datasets import registry
from scmil.bags.scaling import streamed_moments
from scmil.bags.splits import Split
from scmil.errors import BagError
from scmil.models import streaming
from scmil.sparse_coding.layer import SparseCoding
from scmil.training.layer_start import start_layers


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


# ------------------------------------------------------------------------------------- constraints


def built(**options: Any) -> MILModel:
    return build_model(9, 2, "abmil", {"atoms": 16, **options}, embed=[9], seed=0)


def layer_of(model: MILModel) -> SparseCoding:
    assert isinstance(model.refine, SparseCoding)
    return model.refine


@pytest.mark.parametrize("unit_norm", [True, False])
def test_atoms_keep_unit_norm_only_if_asked(unit_norm: bool) -> None:
    recipe, splits = Recipe(epochs=2, learning_rate=0.01), [Split((0, 1, 2, 3), (4, 5))]
    alone, stacked = (built(learning={"unit_norm": unit_norm}) for _ in range(2))
    fit(alone, some_bags(), recipe=recipe)
    fit_folds([stacked], some_bags(), splits, recipe)
    for model in (alone, stacked):
        norms = layer_of(model).dictionary.detach().norm(dim=0)
        assert torch.allclose(norms, torch.ones(16), atol=1e-6) is unit_norm


def test_the_layer_has_its_own_learning_rate() -> None:
    starts, ends = [], []
    for rate in (1.0, 0.01):
        model = built(learning={"rate": rate})
        starts.append(model.state_dict()["refine.dictionary"].clone())
        fit(model, some_bags(), recipe=Recipe(epochs=1, learning_rate=0.01, schedule="constant"))
        ends.append(model.state_dict())
    moved = [
        float((end["refine.dictionary"] - start).abs().mean())
        for start, end in zip(starts, ends, strict=True)
    ]
    assert moved[1] == pytest.approx(0.01 * moved[0], rel=0.3)
    assert not torch.equal(ends[0]["embed.0.weight"], ends[1]["embed.0.weight"])


def test_the_reconstruction_term_makes_codes_represent_their_instances() -> None:
    errors = []
    for weight in (0.0, 10.0):
        model = built(learning={"reconstruction": weight}, dictionary="random")
        fit(model, some_bags(), recipe=Recipe(epochs=20, learning_rate=0.01))
        layer, residuals = layer_of(model), []
        with torch.no_grad():
            for bag in some_bags():
                x = model.embed(bag.features)
                residuals.append(layer.codes(x) @ layer.dictionary.T - layer._normalised(x))
        errors.append(float(torch.cat(residuals).square().mean()))
    assert errors[1] < 0.7 * errors[0]


@pytest.mark.parametrize("output", ["codes", "denoised", "joined"])
def test_a_large_bag_in_blocks_has_the_gradients_of_the_whole(
    output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = built(output=output, learning={"reconstruction": 0.5}).double()
    x = torch.randn(70, 9).double()
    whole = model.loss(model(x), 1)
    expected = torch.autograd.grad(whole, list(model.parameters()))
    monkeypatch.setattr(streaming, "BLOCK_ROWS", 16)
    monkeypatch.setattr(streaming, "RECOMPUTED_ROWS", 16)
    blocks = model.loss(streaming.forward_bag(model, x), 1)
    for one, other in zip(
        torch.autograd.grad(blocks, list(model.parameters())), expected, strict=True
    ):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(streaming.predict_bag(model, x).logits, model.eval()(x).logits)


# -------------------------------------------------------------------------------- starts from data


@pytest.mark.parametrize("dictionary", ["instances", "kmeans", "online"])
def test_a_start_uses_the_training_bags_of_its_fold_alone(dictionary: str) -> None:
    bags = some_bags()
    # One epoch whose rate is almost zero: what remains is the start.
    recipe = Recipe(epochs=1, learning_rate=1e-12)

    def start(bags: list[Bag], fold: Split) -> Tensor:
        model = build_model(9, 2, "abmil", {"atoms": 8, "dictionary": dictionary}, embed=[], seed=0)
        fit_folds([model], bags, [fold], recipe, standardise=False)
        return layer_of(model).dictionary.detach()

    fold = Split((0, 1, 2), (4, 5), (3,))
    before = start(bags, fold)
    for position, changes in ((1, True), (3, False), (5, False)):
        changed = list(bags)
        changed[position] = Bag(bags[position].id, bags[position].features.flip(1), label=1)
        assert torch.allclose(before, start(changed, fold), atol=1e-6) is not changes
    alone = build_model(9, 2, "abmil", {"atoms": 8, "dictionary": dictionary}, embed=[], seed=0)
    fit(alone, bags[:3], bags[3:4], recipe)
    torch.testing.assert_close(layer_of(alone).dictionary.detach(), before)


def test_a_start_waits_for_the_warm_up_of_the_embedding() -> None:
    model = built(dictionary="instances", learning={"warmup": 2})
    started = []
    fit(
        model,
        some_bags(),
        recipe=Recipe(epochs=4),
        progress=lambda epoch: started.append(not layer_of(model).needs_start),
    )
    assert started == [False, False, True, True]


def test_a_model_is_started_once(tmp_path: Path) -> None:
    model = built(dictionary="kmeans")
    fit(model, some_bags(), recipe=Recipe(epochs=1))
    save_model(model, tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert torch.equal(predict(again, some_bags()), predict(model, some_bags()))
    assert not layer_of(again).needs_start
    before = layer_of(again).dictionary.detach().clone()
    fit(again, some_bags()[:2], recipe=Recipe(epochs=1, learning_rate=1e-9))
    torch.testing.assert_close(layer_of(again).dictionary.detach(), before)


@pytest.mark.parametrize("stopped", [1, 2])  # before and after the start
def test_a_training_with_a_start_resumes_exactly(tmp_path: Path, stopped: int) -> None:
    options = {"dictionary": "kmeans", "learning": {"warmup": 1, "unit_norm": True, "rate": 0.5}}
    recipe, file = Recipe(epochs=3, learning_rate=0.01), tmp_path / "checkpoint.safetensors"

    def stop(epoch: int) -> None:
        if epoch == stopped:
            raise KeyboardInterrupt

    whole, resumed = built(**options), built(**options)
    fit(whole, some_bags(), recipe=recipe)
    with pytest.raises(KeyboardInterrupt):
        fit(built(**options), some_bags(), recipe=recipe, checkpoint=file, progress=stop)
    fit(resumed, some_bags(), recipe=recipe, checkpoint=file)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


def test_a_bad_bag_is_named_by_the_start() -> None:
    bad = torch.full((2, 9), torch.nan)
    with pytest.raises(BagError, match="bag 'torn': 2 of the bag's 2 instances"):
        start_layers(built(dictionary="kmeans"), 0, [("torn", bad)], 1, seed=0)


def test_the_scores_of_tiles_hold_codes_whatever_the_output_is() -> None:
    from scmil.models.tile_scores import score_bag

    xy = torch.arange(8).reshape(4, 2) * 10
    x = torch.randn(4, 9)
    for output in ("denoised", "joined"):
        model = built(output=output).eval()
        bag = Bag("a", x, xy=xy, provenance={"side_level0": 10})
        codes = score_bag(model, bag).codes
        assert codes is not None
        assert codes.atoms == 16
