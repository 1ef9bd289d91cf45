"""Training and evaluation of one model on one split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from scmil.bags.bag import Bag, BagSet
from scmil.bags.scaling import moments
from scmil.bags.splits import Split
from scmil.errors import OptionError
from scmil.models.model import MILModel, build_model
from scmil.training.fitting import fit, predict, weigh_classes
from scmil.training.fold import TrainingOptions, train_fold
from scmil.training.recipes import Recipe
from scmil.training.selection import choose_threshold

SPLIT = Split(train=(0, 1, 2, 3, 4), test=(5, 6), valid=(7, 8, 9))
RECIPE = Recipe(epochs=3, learning_rate=1e-2)


def make_bags(outlier: float = 0.0) -> BagSet:
    """Ten bags of two classes; `outlier` is added to the features of test and validation bags."""
    generator = torch.Generator().manual_seed(0)
    features = [torch.randn(4, 6, generator=generator) + i % 2 for i in range(10)]
    for position in (*SPLIT.test, *SPLIT.valid):
        features[position] = features[position] + outlier
    return BagSet([Bag(str(i), x, label=i % 2) for i, x in enumerate(features)])


def make_model() -> MILModel:
    return build_model(6, 2, "abmil", embed=[4], seed=0)


def state_of(model: MILModel) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in model.state_dict().values()])


def test_a_fold_is_what_scaling_fit_predict_and_threshold_give_one_after_another() -> None:
    bags, model, expected = make_bags(), make_model(), make_model()
    options = TrainingOptions(seed=3, standardise=True, class_weights="balanced")
    fold = train_fold(model, bags, SPLIT, RECIPE, options)

    mean, deviation = moments([bags[i] for i in SPLIT.train])
    scaled = BagSet(
        [Bag(bag.id, (bag.features - mean.float()) / deviation.float(), bag.label) for bag in bags]
    )
    labels = np.array(bags.labels)
    history = fit(
        expected, scaled.subset(SPLIT.train), scaled.subset(SPLIT.valid), RECIPE, seed=3,
        class_weights=weigh_classes("balanced", labels[list(SPLIT.train)].tolist(), 2),
    )  # fmt: skip
    p = predict(expected, scaled).double().numpy()
    assert torch.allclose(state_of(model), state_of(expected), atol=1e-6)
    np.testing.assert_allclose(fold.history.train_loss, history.train_loss, atol=1e-6)
    np.testing.assert_allclose(fold.probabilities, p[None], atol=1e-6)
    inner = list(SPLIT.valid)
    assert fold.threshold == pytest.approx(choose_threshold(labels[inner], p[inner]))
    assert fold.epoch == history.best_epoch
    assert fold.scaling is not None
    torch.testing.assert_close(fold.scaling[0], mean)


def test_scaling_and_weights_do_not_depend_on_test_and_validation_bags() -> None:
    split = Split(SPLIT.train, SPLIT.test + SPLIT.valid)  # nothing is selected on
    models = [make_model(), make_model()]
    options = TrainingOptions(standardise=True, class_weights="balanced")
    folds = [
        train_fold(model, make_bags(outlier), split, RECIPE, options)
        for model, outlier in zip(models, (0.0, 1000.0), strict=True)
    ]
    assert torch.equal(state_of(models[0]), state_of(models[1]))
    assert folds[0].scaling is not None
    assert folds[1].scaling is not None
    assert torch.equal(folds[0].scaling[0], folds[1].scaling[0])


def test_the_threshold_is_chosen_on_the_validation_bags() -> None:
    bags = make_bags()
    fold = train_fold(make_model(), bags, SPLIT, RECIPE)
    swapped = BagSet(
        [
            Bag(bag.id, bag.features, 1 - int(bag.label or 0) if i in SPLIT.test else bag.label)
            for i, bag in enumerate(bags)
        ]
    )
    assert train_fold(make_model(), swapped, SPLIT, RECIPE).threshold == fold.threshold
    unselected = train_fold(make_model(), bags, Split(SPLIT.train, SPLIT.test), RECIPE)
    assert unselected.threshold == 0.5


def test_only_the_requested_bags_are_predicted() -> None:
    fold = train_fold(make_model(), make_bags(), SPLIT, RECIPE, evaluate=[*SPLIT.test])
    predicted = np.isfinite(fold.probabilities[0]).all(1)
    assert np.flatnonzero(predicted).tolist() == [5, 6]


def test_every_epoch_gives_the_probabilities_after_each_epoch() -> None:
    split = Split(SPLIT.train, SPLIT.test)
    epochs: list[int] = []
    fold = train_fold(
        make_model(), make_bags(), split, RECIPE, every_epoch=True, progress=epochs.append
    )
    last = train_fold(make_model(), make_bags(), split, RECIPE)
    assert epochs == [1, 2, 3]
    assert fold.probabilities.shape == (3, 10, 2)
    np.testing.assert_array_equal(fold.probabilities[-1], last.probabilities[0])
    assert not np.array_equal(fold.probabilities[0], fold.probabilities[1])


def test_an_interrupted_fold_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    class Interrupted(Exception):
        pass

    def stop_after_two(epoch: int) -> None:
        if epoch == 2:
            raise Interrupted

    path = tmp_path / "fold.safetensors"
    with pytest.raises(Interrupted):
        train_fold(
            make_model(), make_bags(), SPLIT, RECIPE, checkpoint=path, progress=stop_after_two
        )
    epochs: list[int] = []
    resumed = train_fold(
        make_model(), make_bags(), SPLIT, RECIPE, checkpoint=path, progress=epochs.append
    )
    whole = train_fold(make_model(), make_bags(), SPLIT, RECIPE)
    assert epochs == [3]
    np.testing.assert_array_equal(resumed.probabilities, whole.probabilities)


def test_every_epoch_cannot_be_combined_with_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="does not store the probabilities of earlier epochs"):
        train_fold(
            make_model(), make_bags(), SPLIT, RECIPE, every_epoch=True, checkpoint=tmp_path / "c"
        )
