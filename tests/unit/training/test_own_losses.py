"""Tile positions, own losses and state across bags: from the bag to the trained, saved model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from scmil import Bag, BagSet, MILModel, Recipe, build_model, fit, fit_folds, plug_into, predict
from scmil.bags.splits import Split
from scmil.errors import BagError, OptionError
from scmil.models import aggregators
from scmil.models.aggregators import Embedding, Prediction
from scmil.models.files import load_model, save_model
from scmil.models.tile_scores import score_bag
from scmil.training.estimator import SCMILClassifier

DIM = 6
SHORT = Recipe(epochs=3, learning_rate=1e-2)


class Spatial(nn.Module):
    """Pools by the distance to the centre; its own loss is a penalty of a weight and of a tensor
    that depends on the positions.
    """

    permutation_invariant = True
    embedding = Embedding(widths=(5,))
    uses_positions = True

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(dim, classes)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, h: Tensor, xy: Tensor) -> Prediction:
        place = xy.to(h) / 256
        distance = (place - place.mean(0)).norm(dim=1)
        attention = torch.softmax(-self.scale * distance, 0)
        return Prediction(self.classifier(attention @ h), attention, extras=(attention @ distance,))

    def own_loss(self, prediction: Prediction, label: Tensor) -> Tensor:
        return 0.1 * prediction.extras[0] * (1 + label) + 0.01 * self.scale**2


class Remembering(nn.Module):
    """Its own loss pulls logits towards their running mean, which is a buffer; it starts in the
    second epoch.
    """

    permutation_invariant = True
    embedding = Embedding(widths=(5,))
    stackable = False

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(dim, classes)
        self.register_buffer("mean", torch.zeros(classes))
        self.mean: Tensor
        self.epoch: int | None = None

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def forward(self, h: Tensor) -> Prediction:
        return Prediction(self.classifier(h.mean(0)), h.new_full((len(h),), 1 / len(h)))

    def own_loss(self, prediction: Prediction, label: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(prediction.logits, 0.5)
        started = self.epoch is None or self.epoch >= 1
        return float(started) * (prediction.logits - self.mean).square().sum()


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    for name, factory in (("spatial", Spatial), ("remembering", Remembering)):
        aggregators.register(name, "for the tests of the contract")(factory)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
    for name in ("spatial", "remembering"):
        del aggregators.registry._entries[name]


def bags(positions: bool = True) -> list[Bag]:
    generator = torch.Generator().manual_seed(0)
    return [
        Bag(
            f"slide {i}",
            torch.randn(4 + i, DIM, generator=generator) + i % 2,
            label=i % 2,
            xy=256 * torch.randint(9, (4 + i, 2), generator=generator) if positions else None,
        )
        for i in range(6)
    ]


def model(name: str, seed: int = 0, **options: Any) -> MILModel:
    return build_model(DIM, 2, name, seed=seed, **options)


SPLITS = [Split((0, 1, 2, 3), (4, 5)), Split((2, 3, 4, 5), (0, 1)), Split((0, 1, 4, 5), (2, 3))]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "jobs"), [("spatial", 1), ("remembering", 1), ("remembering", 2)])
def test_folds_train_as_single_models(name: str, jobs: int) -> None:
    together = [model(name, fold) for fold in range(3)]
    history = fit_folds(together, bags(), SPLITS, SHORT, standardise=False, jobs=jobs)
    for fold, split in enumerate(SPLITS):
        single = model(name, fold)
        losses = fit(single, [bags()[i] for i in split.train], recipe=SHORT).train_loss
        np.testing.assert_allclose(history.train_loss[:, fold], losses, atol=1e-10)
        for key, tensor in single.state_dict().items():
            assert torch.allclose(together[fold].state_dict()[key], tensor, atol=1e-10), key
        test = predict(single, [bags()[i] for i in split.test])
        np.testing.assert_allclose(
            history.probabilities[-1, fold][list(split.test)], test, atol=1e-6
        )
        assert np.isnan(history.probabilities[-1, fold][list(split.train)]).all()


def test_look_last_evaluates_once_without_a_stack() -> None:
    models = [model("remembering", fold) for fold in range(3)]
    calls: list[int] = []
    history = fit_folds(models, bags(), SPLITS, SHORT, look="last", progress=calls.append)
    assert calls == [1, 2, 3]
    assert np.isnan(history.probabilities[:2]).all()
    assert np.isfinite(history.probabilities[2, 0, [4, 5]]).all()


def test_the_own_loss_is_part_of_the_loss() -> None:
    network, bag = model("spatial"), bags()[1]
    prediction = network(bag.features, bag.xy)
    alone = nn.functional.cross_entropy(prediction.logits, torch.tensor(1))
    own = network.aggregate.own_loss(prediction, torch.tensor(1))  # type: ignore[operator]
    assert own > 0.01
    assert network.loss(prediction, 1) == alone + own
    network.loss(prediction, 1).backward()
    assert network.aggregate.scale.grad != 0  # type: ignore[union-attr]


def test_a_loss_may_start_in_a_later_epoch() -> None:
    network, never = model("remembering"), model("remembering")
    never.aggregate.own_loss = lambda prediction, label: torch.zeros(())  # type: ignore[assignment]
    with_own = fit(network, bags(), recipe=SHORT).train_loss
    without = fit(never, bags(), recipe=SHORT).train_loss
    assert with_own[0] == without[0]
    assert with_own[1] > without[1]


def test_state_across_bags_is_in_the_checkpoint(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(epoch: int) -> None:
        if epoch == 2:
            raise Stop

    straight, resumed = model("remembering"), model("remembering")
    fit(straight, bags(), recipe=SHORT)
    with pytest.raises(Stop):
        fit(resumed, bags(), recipe=SHORT, progress=stop, checkpoint=tmp_path / "state")
    again = model("remembering")
    fit(again, bags(), recipe=SHORT, checkpoint=tmp_path / "state")
    assert (straight.aggregate.mean != 0).all()  # type: ignore[union-attr, operator]
    for key, tensor in straight.state_dict().items():
        assert torch.equal(again.state_dict()[key], tensor), key


def test_models_are_saved_with_their_state(tmp_path: Path) -> None:
    network = model("remembering")
    fit(network, bags(), recipe=SHORT)
    again = load_model(save_model(network, tmp_path))
    assert torch.equal(again.aggregate.mean, network.aggregate.mean)  # type: ignore[arg-type]


NAMED = re.escape("bags without tile positions: slide 1")


@pytest.mark.parametrize("lazy", [False, True])
def test_bags_without_positions_are_rejected_before_training(lazy: bool) -> None:
    mixed = bags()
    mixed[1] = bags(positions=False)[1]
    given = BagSet(mixed) if lazy else mixed
    network = model("spatial")
    before = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    called: list[int] = []
    with pytest.raises(BagError, match=NAMED):
        fit(network, given, recipe=SHORT, progress=called.append)
    with pytest.raises(BagError, match=NAMED):
        fit(network, bags(), given, recipe=SHORT, progress=called.append)
    with pytest.raises(BagError, match=NAMED):
        fit_folds([network], given, SPLITS[:1], SHORT, progress=called.append)
    assert not called
    assert all(torch.equal(before[key], tensor) for key, tensor in network.state_dict().items())
    with pytest.raises(BagError, match="bag 'slide 1': the bag has no tile positions"):
        predict(network, given)


def test_the_estimator_takes_bags_with_positions() -> None:
    torch.set_default_dtype(torch.float32)
    classifier = SCMILClassifier("spatial", sparse_coding=False, epochs=2)
    given, labels = [Bag(b.id, b.features.float(), xy=b.xy) for b in bags()], [0, 1] * 3
    classifier.fit(given, labels)
    assert classifier.predict_proba(given).shape == (6, 2)
    assert [len(a) for a in classifier.attention(given)] == [4, 5, 6, 7, 8, 9]
    with pytest.raises(BagError, match="bags without tile positions: 0, 1, 2"):
        classifier.fit([bag.features for bag in given], labels)


def test_tile_scores_use_the_positions() -> None:
    network, bag = model("spatial").eval(), bags()[3]
    scores = score_bag(network, bag)
    np.testing.assert_allclose(
        scores.attention, network(bag.features, bag.xy).attention.detach(), atol=1e-6
    )
    assert bag.xy is not None
    one = network(bag.features[2:3], bag.xy[2:3]).logits.softmax(0).detach()
    np.testing.assert_allclose(scores.instance[2], one, atol=1e-6)


class Elsewhere(nn.Module):
    """A module as another package may write it, with a batch axis."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.head = nn.Linear(dim, 2)

    def forward(self, bags: Tensor, coords: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        assert coords.shape == (1, bags.shape[1], 2)
        score = -(coords.to(bags) / 256).norm(dim=-1)
        weights = score.softmax(1)
        pooled = torch.einsum("bn,bnd->bd", weights, bags)
        return self.head(pooled), score, {"instance_loss": pooled.square().mean()}


def test_plug_into_knows_both() -> None:
    network = plug_into(
        Elsewhere(16),
        DIM,
        16,
        dictionary="random",
        positions="coords",
        own_loss=lambda prediction, label: prediction.extras[1],
    )
    bag = bags()[0]
    prediction = network(bag.features, bag.xy)
    assert prediction.extras[0].shape == (1, 4)
    alone = nn.functional.cross_entropy(prediction.logits, torch.tensor(0))
    assert network.loss(prediction, 0) == alone + prediction.extras[1]
    with pytest.raises(BagError, match="no tile positions"):
        network(bag.features)
    assert len(fit(network, bags(), recipe=SHORT).train_loss) == 3


def test_plug_into_uses_an_aggregator_as_it_is() -> None:
    spatial = Spatial(16, 2)
    network = plug_into(spatial, DIM, 16, dictionary="random")
    assert network.aggregate is spatial
    bag = bags()[0]
    assert network(bag.features, bag.xy).extras
    with pytest.raises(OptionError, match="Spatial is an aggregator of scmil, so call, positions"):
        plug_into(spatial, DIM, 16, positions="xy", dictionary="random")
