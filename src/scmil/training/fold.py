"""Train and evaluate one model on one split: scale, fit, predict, choose the threshold."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scmil.bags.bag import BagSet
from scmil.bags.scaling import Scaling, streamed_moments
from scmil.bags.splits import Split
from scmil.errors import OptionError
from scmil.models.model import MILModel
from scmil.training.fitting import fit, predict, weigh_classes
from scmil.training.history import History
from scmil.training.recipes import Recipe
from scmil.training.selection import choose_threshold


@dataclass(frozen=True)
class TrainingOptions:
    """How a model is trained, apart from the recipe.

    `standardise` scales each feature to zero mean and unit variance on the training bags.
    `class_weights` is `"balanced"`, or one number per class.
    """

    seed: int = 0
    standardise: bool = False
    class_weights: str | Sequence[float] | None = None
    device: str = "cpu"
    precision: str = "float32"


@dataclass(frozen=True)
class TrainedFold:
    """The result of `train_fold`.

    `probabilities` is (epochs, bags, classes), in double precision: with `every_epoch` one entry
    per epoch, otherwise one entry for the final model. Bags that were not evaluated are NaN.
    For another task than classes it holds what `predict` returns for that task, and `threshold` is
    NaN. `scaling` holds mean and standard deviation of the training bags, or None. `threshold` was
    chosen on the validation bags, with the final model.
    """

    history: History
    scaling: Scaling | None
    probabilities: NDArray[np.float64]
    threshold: float

    @property
    def epoch(self) -> int:
        """The epoch of the final weights, from 1."""
        return self.history.best_epoch or len(self.history.train_loss)


def train_fold(
    model: MILModel,
    bags: BagSet,
    split: Split,
    recipe: Recipe,
    options: TrainingOptions | None = None,
    *,
    evaluate: Sequence[int] | None = None,
    every_epoch: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> TrainedFold:
    """Train the model on `split.train`, in place, and predict other bags of the set.

    Scaling and class weights come from the training bags alone. If the split has validation bags,
    the model ends with the weights of its best epoch. The task is that of `bags.targets`, if they
    are not None.

    Args:
        model: The model to train.
        bags: All bags; features are read when they are needed.
        split: Positions of the training, validation and test bags.
        recipe: Optimiser, epochs and schedule.
        options: Seed, scaling, class weights, device and precision.
        evaluate: Positions of the bags to predict; all bags by default.
        every_epoch: Predict after every epoch, instead of once with the final weights.
        checkpoint: File from which an interrupted training resumes.
        progress: Called with the number of each finished epoch.

    Returns:
        History, scaling, probabilities and threshold.

    Raises:
        OptionError: If `every_epoch` is combined with `checkpoint`, which does not store the
            probabilities of earlier epochs.

    >>> import torch
    >>> from scmil import Bag, build_model
    >>> bags = BagSet([Bag(str(i), torch.full((3, 8), i % 2 + 1.0), label=i % 2) for i in range(6)])
    >>> model = build_model(8, 2, "abmil", embed=[4], seed=0)
    >>> fold = train_fold(model, bags, Split((0, 1, 2, 3), (4, 5)), Recipe(epochs=2))
    >>> fold.probabilities.shape, fold.epoch, fold.threshold
    ((1, 6, 2), 2, 0.5)
    """
    if every_epoch and checkpoint is not None:
        raise OptionError(
            "every_epoch and checkpoint were both given: a checkpoint does not store the "
            "probabilities of earlier epochs. Leave one of them out."
        )
    options = options or TrainingOptions()
    labels = np.array([-1 if label is None else label for label in bags.labels], np.int64)
    scaling = None
    if options.standardise:
        scaling = streamed_moments(bags.subset(split.train))
        bags = scaling.apply_to_bags(bags)
    positions = range(len(bags)) if evaluate is None else evaluate
    by_epoch: list[NDArray[np.float64]] = []

    def report_epoch(epoch: int) -> None:
        if every_epoch:
            by_epoch.append(_predict_positions(model, bags, positions, options.device))
        if progress:
            progress(epoch)

    history = fit(
        model,
        bags.subset(split.train),
        bags.subset(split.valid) if split.valid else None,
        recipe,
        seed=options.seed,
        progress=report_epoch,
        checkpoint=checkpoint,
        class_weights=_class_weights(options, model, bags, labels[list(split.train)].tolist()),
        device=options.device,
        precision=options.precision,
        targets=bags.targets,
    )
    if not every_epoch:
        by_epoch.append(_predict_positions(model, bags, positions, options.device))
    final = by_epoch[(history.best_epoch or 0) - 1] if every_epoch else by_epoch[0]
    valid = sorted(set(split.valid) & set(positions))
    is_class = bags.targets is None
    threshold = choose_threshold(labels[valid], final[valid]) if is_class else float("nan")
    return TrainedFold(history, scaling, np.stack(by_epoch), threshold)


def _class_weights(
    options: TrainingOptions, model: MILModel, bags: BagSet, labels: Sequence[int]
) -> Sequence[float] | None:
    """The weight of each class of the model; of a model without a specification, of the bags."""
    if bags.targets is not None:
        if options.class_weights is not None:
            raise OptionError(f"class_weights need classes, and the task is {bags.targets.task!r}.")
        return None
    classes = int(model.spec["classes"]) if model.spec else len(bags.classes)
    return weigh_classes(options.class_weights, labels, classes)


def _predict_positions(
    model: MILModel, bags: BagSet, positions: Sequence[int], device: str
) -> NDArray[np.float64]:
    """Probabilities (bags, classes) of the bags at `positions`; NaN for the others."""
    predicted = predict(model, bags.subset(positions), device).double().numpy()
    probabilities = np.full((len(bags), predicted.shape[1]), np.nan)
    probabilities[list(positions)] = predicted
    return probabilities
