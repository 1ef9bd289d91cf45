"""Options of a training step: what they do to a bag and its loss, in `fit` and in `fit_folds`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from scmil import Bag, MILModel, Recipe, build_model, fit, fit_folds, plug_into
from scmil.bags.splits import Split
from scmil.errors import OptionError
from scmil.models import aggregators
from scmil.models.aggregators import Prediction
from scmil.models.streaming import forward_bag, predict_bag
from scmil.training.recipes import recipe
from scmil.training.regularisation import (
    Regularisation,
    RegularisedStep,
    make_teacher,
    update_teacher,
)

OPTIONS: dict[str, dict[str, Any]] = {
    "tile_sample": {"tile_sample": 3},
    "tile_dropout": {"tile_dropout": 0.5},
    "feature_noise": {"feature_noise": 0.5},
    "mixup": {"mixup": 1.0},
    "attention_entropy": {"attention_entropy": 0.5},
    "mask_top": {"mask_top": 4},
    "teacher_mask": {"teacher_mask": 0.3, "teacher_momentum": 0.5},
}
SHORT = Recipe(epochs=3, learning_rate=1e-2)
every_option = pytest.mark.parametrize("option", OPTIONS)


def some_bags(count: int = 6) -> list[Bag]:
    generator = torch.Generator().manual_seed(0)
    return [
        Bag(
            f"slide {i}",
            torch.randn(8 + i, 6, generator=generator) + i % 2,
            label=i % 2,
            xy=256 * torch.stack([torch.arange(8 + i), torch.zeros(8 + i).long()], 1),
        )
        for i in range(count)
    ]


def build(seed: int = 0, name: str = "abmil-gated", **options: Any) -> MILModel:
    return build_model(6, 2, name, embed=[5], seed=seed, **options)


def weights(model: MILModel) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


class Recorder:
    """Records the bags that a step passes to the model."""

    def __init__(self) -> None:
        self.bags: list[Bag] = []

    def __call__(self, model: MILModel, bag: Bag) -> Prediction:
        self.bags.append(bag)
        return forward_bag(model, bag.features, bag.xy)


def left_out(bag: Bag, rest: Bag) -> list[int]:
    """Positions of the tiles that a step did not use."""
    same = (bag.features[:, None] == rest.features).all(2).any(1)
    missing: list[int] = (~same).nonzero().flatten().tolist()
    return missing


def step(model: MILModel, **options: Any) -> tuple[RegularisedStep, Recorder]:
    recorder, settings = Recorder(), Regularisation(**options)
    return (
        RegularisedStep(model, settings, make_teacher(model, settings), None, recorder),
        recorder,
    )


# ------------------------------------------------------------------------------------- every option


def test_all_are_off_by_default() -> None:
    assert not Recipe().regularisation.is_on
    assert "regularisation" not in Recipe().to_json()
    plain, explicit = build(), build()
    fit(plain, some_bags(), recipe=SHORT)
    fit(explicit, some_bags(), recipe=replace(SHORT, regularisation=Regularisation()))
    assert all(torch.equal(weights(explicit)[k], v) for k, v in weights(plain).items())


@every_option
def test_each_option_changes_the_training_and_repeats(option: str) -> None:
    chosen = replace(SHORT, regularisation=Regularisation(**OPTIONS[option]))
    models = [build() for _ in range(4)]
    for model, one, seed in zip(models, (SHORT, chosen, chosen, chosen), (0, 0, 0, 1), strict=True):
        fit(model, some_bags(), recipe=one, seed=seed)
    plain, first, again, other = map(weights, models)
    assert any(not torch.equal(first[key], value) for key, value in plain.items())
    assert all(torch.equal(again[key], value) for key, value in first.items())
    assert any(not torch.equal(other[key], value) for key, value in first.items())


@every_option
def test_a_resumed_training_ends_with_the_same_weights(option: str, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(epoch: int) -> None:
        if epoch == 2:
            raise Stop

    chosen = replace(SHORT, regularisation=Regularisation(**OPTIONS[option]))
    straight, stopped, resumed = build(), build(), build()
    fit(straight, some_bags(), recipe=chosen)
    with pytest.raises(Stop):
        fit(stopped, some_bags(), recipe=chosen, checkpoint=tmp_path / "state", progress=stop)
    fit(resumed, some_bags(), recipe=chosen, checkpoint=tmp_path / "state")
    assert all(torch.equal(weights(resumed)[k], v) for k, v in weights(straight).items())


@every_option
def test_folds_train_as_single_models(option: str) -> None:
    chosen = replace(SHORT, regularisation=Regularisation(**OPTIONS[option]))
    splits = [Split((0, 1, 2, 3), (4, 5)), Split((2, 3, 4, 5), (0, 1))]
    folds = [build(seed) for seed in range(2)]
    history = fit_folds(folds, some_bags(), splits, chosen, standardise=False)
    assert history.probabilities.shape == (3, 2, 6, 2)
    for fold, split in enumerate(splits):
        single = build(fold)
        losses = fit(single, [some_bags()[i] for i in split.train], recipe=chosen).train_loss
        np.testing.assert_array_equal(history.train_loss[:, fold], losses)
        assert all(torch.equal(weights(folds[fold])[k], v) for k, v in weights(single).items())


# Aggregators whose attention is a share that is computed without a gradient.
WITHOUT_ENTROPY = [
    *("mean", "max", "mi-net-instance", "mi-net", "mi-net-ds", "mi-net-rc", "gnn-mil"),
    *("nlmil", "anlmil", "transmil", "transformer", "s4mil"),
]
WITH_STATE = ["attrimil", "dgr-mil"]  # of the bags of each class: no mixup


@pytest.mark.parametrize("name", aggregators.names())
def test_every_aggregator_trains_with_everything_together(name: str) -> None:
    together = Regularisation(
        tile_sample=6,
        tile_dropout=0.2,
        feature_noise=0.1,
        mixup=0.0 if name in WITH_STATE else 1.0,
        attention_entropy=0.0 if name in WITHOUT_ENTROPY else 0.1,
        mask_top=3,
        teacher_mask=0.2,
    )
    aggregator = {"name": name, **({"width": 32} if name == "dgr-mil" else {})}
    model = build_model(6, 2, aggregator, embed=[16], seed=0)
    losses = fit(model, some_bags(), recipe=replace(SHORT, regularisation=together)).train_loss
    assert np.isfinite(losses).all()
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())


@pytest.mark.parametrize("name", WITHOUT_ENTROPY)
def test_the_entropy_of_a_share_without_gradient_is_rejected(name: str) -> None:
    chosen = replace(SHORT, regularisation=Regularisation(attention_entropy=0.1))
    model = build_model(6, 2, name, embed=[16], seed=0)
    with pytest.raises(OptionError, match="has no gradient, so its entropy cannot be trained"):
        fit(model, some_bags(), recipe=chosen)


def test_tiles_without_attention_have_a_finite_gradient_of_the_entropy() -> None:
    """ACMIL masks tiles in training: their attention is exactly 0."""
    masking = {"name": "acmil", "branches": 1, "mask_ratio": 1.0, "masked": 4}
    model = build_model(6, 2, masking, seed=0)
    chosen = replace(SHORT, regularisation=Regularisation(attention_entropy=0.1))
    assert (model.train()(some_bags()[0].features).attention == 0).any()
    fit(model, some_bags(), recipe=chosen)
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())


# --------------------------------------------------------------------------------------- one by one


def test_a_sample_has_so_many_different_tiles_with_their_positions() -> None:
    network, recorder = step(build(), tile_sample=3)
    bag = some_bags()[2]
    network.loss(bag)
    [sample] = recorder.bags
    assert sample.xy is not None
    rows = (sample.xy[:, 0] // 256).tolist()
    assert len(set(rows)) == 3
    assert torch.equal(sample.features, bag.features[rows])
    network.loss(replace(bag, features=bag.features[:2], xy=None))
    assert len(recorder.bags[1].features) == 2


def test_dropout_leaves_at_least_one_tile() -> None:
    network, recorder = step(build(), tile_dropout=0.95)
    for _ in range(40):
        network.loss(some_bags()[0])
    lengths = [len(bag.features) for bag in recorder.bags]
    assert min(lengths) == 1
    assert max(lengths) < 8


def test_noise_has_the_given_deviation() -> None:
    network, recorder = step(build(), feature_noise=0.5)
    bag = Bag("one", torch.zeros(2000, 6), label=1)
    network.loss(bag)
    assert recorder.bags[0].features.std().item() == pytest.approx(0.5, abs=0.02)


def test_mixup_weights_the_losses_by_the_share_of_the_tiles() -> None:
    network, recorder = step(build(), mixup=1.0)
    bag = Bag("a", torch.zeros(1000, 6), label=0, xy=torch.zeros(1000, 2).long())
    partner = Bag("b", torch.ones(1000, 6), label=1, xy=torch.zeros(1000, 2).long())
    torch.manual_seed(0)
    loss = network.loss(bag, partner)
    [mixed] = recorder.bags
    share = (mixed.features[:, 0] == 0).sum().item() / 1000
    assert len(mixed.features) in (1000, 1001)
    assert 0 < share < 1
    prediction = forward_bag(network.model, mixed.features)
    expected = share * network.model.loss(prediction, 0)
    expected = expected + (1 - share) * network.model.loss(prediction, 1)
    assert loss.item() == pytest.approx(expected.item(), abs=2e-3)
    assert mixed.xy is not None
    assert len(mixed.xy.unique(dim=0)) == 2  # the two slides do not overlap


def test_the_entropy_of_the_attention_is_added() -> None:
    model, bag = build(), some_bags()[0]
    plain, _ = step(model, tile_sample=100)
    entropy, _ = step(model, attention_entropy=0.5)
    attention = model(bag.features).attention
    expected = 0.5 * (attention * attention.log()).sum()
    torch.testing.assert_close(entropy.loss(bag) - plain.loss(bag), expected)


def test_entropy_spreads_the_attention() -> None:
    spread = []
    for weight in (0.0, 5.0):
        model = build()
        chosen = Recipe(
            epochs=30, learning_rate=1e-2, regularisation=Regularisation(attention_entropy=weight)
        )
        fit(model, some_bags(), recipe=chosen)
        attention = predict_bag(model, some_bags()[0].features).attention
        spread.append(float(torch.special.entr(attention).sum()))
    assert spread[1] > spread[0]


def test_masked_tiles_are_those_of_highest_attention() -> None:
    model, bag = build().train(), some_bags()[2]
    network, recorder = step(model, mask_top=4, mask_top_ratio=1.0)
    highest = predict_bag(model, bag.features).attention.topk(4).indices.tolist()
    network.loss(bag)
    assert left_out(bag, recorder.bags[0]) == sorted(highest)
    assert model.training
    half, recorder = step(model, mask_top=4, mask_top_ratio=0.5)
    half.loss(bag)
    assert len(recorder.bags[0].features) == 8
    half.loss(replace(bag, features=bag.features[:1], xy=None))
    assert len(recorder.bags[1].features) == 1


def test_the_teacher_chooses_the_masked_tiles_and_follows_slowly() -> None:
    model, bag = build(), some_bags()[2]
    network, recorder = step(model, teacher_mask=0.3, teacher_weight=0.0)
    teacher = network.teacher
    assert teacher is not None
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-1)
    highest = predict_bag(teacher, bag.features).attention.topk(3).indices.tolist()
    network.loss(bag)
    assert left_out(bag, recorder.bags[0]) == sorted(highest)
    before = weights(teacher)
    update_teacher(teacher, model, 0.75)
    for key, value in weights(teacher).items():
        torch.testing.assert_close(value, 0.75 * before[key] + 0.25 * weights(model)[key])


def test_the_teacher_is_part_of_the_loss() -> None:
    model, bag = build(), some_bags()[2]
    without, _ = step(model, teacher_mask=0.01, teacher_weight=0.0)
    with_teacher, _ = step(model, teacher_mask=0.01, teacher_weight=2.0)
    logits = model(bag.features).logits
    expected = 2 * nn.functional.cross_entropy(logits, logits.softmax(0))
    torch.testing.assert_close(with_teacher.loss(bag) - without.loss(bag), expected)


def test_class_weights_apply_to_both_labels() -> None:
    model = build()
    bags = some_bags()
    plain = fit(build(), bags, recipe=replace(SHORT, regularisation={"tile_sample": 100}))  # type: ignore[arg-type]
    chosen = replace(SHORT, regularisation=Regularisation(tile_sample=100))
    doubled = fit(model, bags, recipe=chosen, class_weights=[2.0, 2.0])
    assert doubled.train_loss[0] > 1.5 * plain.train_loss[0]


# ------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tile_sample": 0}, r"regularisation\.tile_sample = 0: 1 or more tiles"),
        ({"tile_dropout": 1.0}, r"regularisation\.tile_dropout = 1\.0: a number from 0 to below 1"),
        ({"mixup": -1}, r"regularisation\.mixup = -1: a number, 0 or more"),
        ({"mask_top": 2.5}, r"regularisation\.mask_top = 2\.5: a number of tiles"),
        ({"teacher_momentum": 2}, r"regularisation\.teacher_momentum = 2: a number from 0 to 1"),
        ({"feature_noise": float("nan")}, r"regularisation\.feature_noise = nan: a number"),
        ({"dropout": 0.5}, "regularisation: unknown dropout. It takes: tile_sample"),
    ],
)
def test_wrong_settings_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        recipe("paper", regularisation=settings)


def test_a_recipe_is_read_back_from_its_json() -> None:
    chosen = recipe("clam", regularisation={"tile_sample": 512, "mixup": 0.4})
    assert chosen.to_json()["regularisation"] == {"tile_sample": 512, "mixup": 0.4}
    assert Recipe(**chosen.to_json()) == chosen


def test_mixup_of_an_aggregator_with_state_is_rejected() -> None:
    model = build(name="dgr-mil")
    with pytest.raises(OptionError, match="DGRMIL keeps state of the bags of each class"):
        fit(model, some_bags(), recipe=replace(SHORT, regularisation=Regularisation(mixup=1.0)))


def test_attention_without_a_gradient_is_rejected() -> None:
    chosen = replace(SHORT, regularisation=Regularisation(attention_entropy=1.0))
    with pytest.raises(OptionError, match="the attention of Pooling has no gradient"):
        fit(build(name="mean"), some_bags(), recipe=chosen)


class WithoutAttention(nn.Module):
    """A module of another package that returns logits alone."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 2)

    def forward(self, bags: Tensor) -> Tensor:
        pooled: Tensor = self.head(bags.mean(1))
        return pooled


@pytest.mark.parametrize("option", ["attention_entropy", "mask_top", "teacher_mask"])
def test_a_module_without_attention_is_rejected(option: str) -> None:
    model = plug_into(WithoutAttention(), 6, 16, dictionary="random")
    chosen = replace(SHORT, regularisation=Regularisation(**OPTIONS[option]))
    with pytest.raises(OptionError, match=f"{option} needs the attention of the tiles, and Ext"):
        fit(model, some_bags(), recipe=chosen)
