"""Train all folds of a cross-validation together, with stacked parameters and one bag per step.

For a small bag, calling a torch operation takes longer than its arithmetic, so fifty models on the
same bag cost little more than ten. Folds for which the bag is not a training bag take no step.
`fit` computes the same for one model: order and dropout of a step depend only on seed, epoch and
bag, so both give the same weights (`tests/unit/training/test_folds.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scmil.bags.bag import Bag
from scmil.bags.scaling import Scaling, moments
from scmil.bags.splits import Split
from scmil.core.jobs.processes import process_pool
from scmil.core.memory import memory_is_kept
from scmil.errors import OptionError, SplitError
from scmil.models.model import MILModel
from scmil.models.streaming import call_model
from scmil.training.aggregator_hooks import announce_epoch, can_be_stacked, check_positions
from scmil.training.fitting import check_class_weights, check_labels, fit
from scmil.training.layer_start import layers_to_start, start_layers
from scmil.training.randomness import epoch_order, own_randomness, seed_generators, step_seed
from scmil.training.recipes import Recipe
from scmil.training.stack import Stack


@dataclass(frozen=True)
class FoldsHistory:
    """The results of `fit_folds`.

    `probabilities` is (epochs, folds, bags, classes), for the test and validation bags of each
    fold. What was not evaluated is NaN: the training bags of a fold, and, with `look="last"`, all
    epochs but the last. `train_loss` is (epochs, folds).
    """

    probabilities: NDArray[np.float32]
    train_loss: NDArray[np.float64]


def fit_folds(
    models: Sequence[MILModel],
    bags: Sequence[Bag],
    splits: Sequence[Split],
    recipe: Recipe | None = None,
    *,
    seed: int = 0,
    standardise: bool = True,
    look: str = "every",
    jobs: int = 1,
    class_weights: Sequence[Sequence[float]] | None = None,
    progress: Callable[[int], None] | None = None,
) -> FoldsHistory:
    """Train one model per split, all at the same time, in place; one after the other if the
    aggregator declares `stackable = False`, or the recipe has a regularisation.

    Args:
        models: One model for each split; they may differ only in their weights.
        bags: All labelled bags, in memory.
        splits: Positions of the training, test and validation bags of each fold.
        recipe: Optimiser, epochs and schedule; the paper's by default.
        seed: Seed of the order of the bags and of dropout.
        standardise: Scale each feature to zero mean and unit variance on the training bags of the
            fold.
        look: When test and validation bags are evaluated: after `"every"` epoch, or after the
            `"last"` one.
        jobs: Number of processes among which the folds are divided.
        class_weights: Weights as in `fit`, one row per fold.
        progress: Called with the number of each finished epoch (of the first process).

    Returns:
        Probabilities and training losses of all epochs and folds.

    Raises:
        DataError: If there are no bags, or bags without a label.
        BagError: If the aggregator uses tile positions and a bag has none; the message names it.
        SplitError: If the numbers of models and splits differ, or are zero.
        OptionError: If `look` or `class_weights` are invalid, or the models are not classifiers.

    >>> from scmil import build_model
    >>> from scmil.bags.splits import stratified_folds
    >>> bags = [Bag(str(i), torch.full((3, 8), float(i % 2)), label=i % 2) for i in range(6)]
    >>> models = [build_model(8, 2, "abmil", embed=[4], seed=fold) for fold in range(3)]
    >>> splits = stratified_folds([0, 1] * 3, folds=3, seed=0)
    >>> history = fit_folds(models, bags, splits, Recipe(epochs=2))
    >>> history.probabilities.shape, history.train_loss.shape
    ((2, 3, 6, 2), (2, 3))
    """
    recipe = recipe or Recipe()
    if len(models) != len(splits) or not models:
        raise SplitError(
            f"{len(models)} models for {len(splits)} splits: "
            "one model per split is needed, and at least one split."
        )
    if look not in ("every", "last"):
        raise OptionError(f"look = {look!r}: 'every' or 'last' is expected.")
    if models[0].objective is not None:
        raise OptionError(
            f"fit_folds trains classifiers, and these models are for the task "
            f"{models[0].objective.task!r}. Train each fold with fit."
        )
    check_labels(bags)
    check_positions(models[0], bags)
    weights = None if class_weights is None else _stack_class_weights(class_weights, bags, splits)
    task = _FoldsTask(tuple(bags), recipe, seed, standardise, look, weights)
    if jobs <= 1 or len(models) == 1:
        with memory_is_kept():
            return _fit_models(task, models, splits, progress)
    return _fit_in_processes(task, models, splits, min(jobs, len(models)), progress)


@dataclass(frozen=True)
class _FoldsTask:
    """The arguments of `fit_folds` that all folds share."""

    bags: tuple[Bag, ...]
    recipe: Recipe
    seed: int
    standardise: bool
    look: str
    class_weights: Tensor | None  # (folds, classes)


def _stack_class_weights(
    rows: Sequence[Sequence[float]], bags: Sequence[Bag], splits: Sequence[Split]
) -> Tensor:
    """The class weights of all folds (folds, classes)."""
    if len(rows) != len(splits):
        raise OptionError(
            f"class_weights: {len(rows)} rows for {len(splits)} splits; one per split is needed."
        )
    labels = [bag.label for bag in bags]
    return torch.tensor([check_class_weights(row, labels) for row in rows])


def _fit_models(
    task: _FoldsTask,
    models: Sequence[MILModel],
    splits: Sequence[Split],
    progress: Callable[[int], None] | None,
) -> FoldsHistory:
    """Train models in this process: stacked, or one after the other."""
    if can_be_stacked(models[0], task.recipe):
        return _fit_stack(task, models, splits, progress)
    return _fit_one_by_one(task, models, splits, progress)


def _fit_one_by_one(
    task: _FoldsTask,
    models: Sequence[MILModel],
    splits: Sequence[Split],
    progress: Callable[[int], None] | None,
) -> FoldsHistory:
    """Train each model with `fit`; `progress` follows the first one."""
    inputs = _ScaledBags(task.bags, splits, task.standardise)
    recipe = replace(task.recipe, patience=None)  # as in a stack, which has no early stopping
    losses = np.zeros((recipe.epochs, len(models)))
    evaluations: dict[int, list[NDArray[np.float32]]] = {}

    def evaluate(fold: int, epoch: int) -> None:
        if task.look == "every" or epoch == recipe.epochs:
            evaluated = _evaluate_fold(models[fold].eval(), inputs, fold)
            evaluations.setdefault(epoch - 1, []).append(evaluated)
        if progress and fold == 0:
            progress(epoch)

    for fold, (model, split) in enumerate(zip(models, splits, strict=True)):
        train = [
            replace(task.bags[position], features=inputs.features(position, fold))
            for position in split.train
        ]
        weights = None if task.class_weights is None else task.class_weights[fold].tolist()
        losses[:, fold] = fit(
            model,
            train,
            None,
            recipe,
            seed=task.seed,
            progress=partial(evaluate, fold),
            class_weights=weights,
        ).train_loss
    return FoldsHistory(_fill_epochs(recipe.epochs, evaluations), losses)


def _fill_epochs(
    epochs: int, evaluations: Mapping[int, Sequence[NDArray[np.float32]]]
) -> NDArray[np.float32]:
    """Probabilities (epochs, folds, bags, classes); NaN in epochs and folds without evaluation."""
    parts = list(chain(*evaluations.values()))
    folds = len(next(iter(evaluations.values())))
    probabilities = np.full((epochs, folds, *max(part.shape for part in parts)), np.nan, np.float32)
    for epoch, by_fold in evaluations.items():
        for fold, part in enumerate(by_fold):
            if len(part):
                probabilities[epoch, fold] = part
    return probabilities


def _fit_stack(
    task: _FoldsTask,
    models: Sequence[MILModel],
    splits: Sequence[Split],
    progress: Callable[[int], None] | None,
) -> FoldsHistory:
    """Train a stack of models in this process."""
    recipe, ids = task.recipe, [bag.id for bag in task.bags]
    stack = Stack(models, recipe)
    inputs = _ScaledBags(task.bags, splits, task.standardise)
    training_folds = inputs.training_folds()
    losses = np.zeros((recipe.epochs, len(models)))
    evaluations: dict[int, list[NDArray[np.float32]]] = {}
    with own_randomness():
        for epoch in range(recipe.epochs):
            _start_folds(stack, models, inputs, epoch, task.seed)
            stack.model.train()
            announce_epoch(stack.model, epoch)
            for position in epoch_order(ids, task.seed, epoch):
                if not len(active := training_folds[position]):
                    continue
                seed_generators(step_seed(task.seed, epoch, ids[position]))
                bag = task.bags[position]
                label = int(bag.label or 0)
                weights = None if task.class_weights is None else task.class_weights[:, label]
                x = inputs.features(position)
                loss = stack.step(x, label, active, epoch, weights, bag.xy)
                losses[epoch, active] += loss[active]
            if task.look == "every" or epoch == recipe.epochs - 1:
                stack.unstack(models)  # after the last epoch this is also the result
                # The models run one by one: for a small bag this is faster than a stack.
                evaluations[epoch] = [
                    _evaluate_fold(model, inputs, fold) for fold, model in enumerate(models)
                ]
            if progress:
                progress(epoch + 1)
    losses /= [len(split.train) for split in splits]
    return FoldsHistory(_fill_epochs(recipe.epochs, evaluations), losses)


def _start_folds(
    stack: Stack, models: Sequence[MILModel], inputs: _ScaledBags, epoch: int, seed: int
) -> None:
    """Start the sparse coding layer of each fold from the training bags of the fold."""
    if not layers_to_start(models[0], epoch):
        return
    stack.unstack(models)
    for fold, (model, split) in enumerate(zip(models, inputs.splits, strict=True)):
        bags = (
            (inputs.bags[position].id, inputs.features(position, fold)) for position in split.train
        )
        start_layers(model, epoch, bags, len(split.train), seed)
    stack.restack(models)


@torch.no_grad()
def _evaluate_fold(model: MILModel, inputs: _ScaledBags, fold: int) -> NDArray[np.float32]:
    """Probabilities (bags, classes) of the test and validation bags of a fold; (0, 0) if it has
    none.
    """
    probabilities = np.empty((0, 0), np.float32)
    split = inputs.splits[fold]
    for position in (*split.test, *split.valid):
        logits = call_model(model, inputs.features(position, fold), inputs.bags[position].xy).logits
        predicted = model.probabilities(logits).float().numpy()
        if not len(probabilities):
            probabilities = np.full((len(inputs.bags), len(predicted)), np.nan, np.float32)
        probabilities[position] = predicted
    return probabilities


class _ScaledBags:
    """The bags as each fold uses them: scaled on the training bags of the fold."""

    def __init__(self, bags: Sequence[Bag], splits: Sequence[Split], standardise: bool) -> None:
        self.bags, self.splits = bags, splits
        self.by_fold = [
            moments([bags[position] for position in split.train]) for split in splits if standardise
        ]
        self.stacked = (
            Scaling(*(torch.stack(values)[:, None] for values in zip(*self.by_fold, strict=True)))
            if standardise
            else None
        )

    def features(self, position: int, fold: int | None = None) -> Tensor:
        """Features (n, p) of a bag for one fold, or (folds, n, p) for all folds."""
        x = self.bags[position].features
        if self.stacked is None:
            return x.expand(len(self.splits), *x.shape) if fold is None else x
        return self.stacked.apply(x) if fold is None else self.by_fold[fold].apply(x)

    def training_folds(self) -> list[NDArray[np.intp]]:
        """For each bag, the folds that train on it."""
        is_training = np.zeros((len(self.bags), len(self.splits)), bool)
        for fold, split in enumerate(self.splits):
            is_training[list(split.train), fold] = True
        return [np.flatnonzero(row) for row in is_training]


# ---------------------------------------------------------------------------------------- processes


def _fit_in_processes(
    task: _FoldsTask,
    models: Sequence[MILModel],
    splits: Sequence[Split],
    jobs: int,
    progress: Callable[[int], None] | None,
) -> FoldsHistory:
    """Divide the folds among processes of one thread each."""
    parts = [list(range(len(models)))[job::jobs] for job in range(jobs)]
    with process_pool(jobs - 1) as pool:
        others = [
            pool.submit(
                _fit_and_return_weights,
                _select_folds(task, part),
                [models[f] for f in part],
                [splits[f] for f in part],
            )
            for part in parts[1:]
        ]
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with memory_is_kept():
                first = _fit_models(
                    _select_folds(task, parts[0]),
                    [models[f] for f in parts[0]],
                    [splits[f] for f in parts[0]],
                    progress,
                )
        finally:
            torch.set_num_threads(threads)
        results = [(None, first), *(other.result() for other in others)]
    epochs, _, bags, classes = first.probabilities.shape
    probabilities = np.empty((epochs, len(models), bags, classes), np.float32)
    losses = np.empty((len(first.train_loss), len(models)))
    for part, (weights, history) in zip(parts, results, strict=True):
        probabilities[:, part], losses[:, part] = history.probabilities, history.train_loss
        for fold, state in zip(part, weights or [], strict=False):
            models[fold].load_state_dict(
                {name: torch.from_numpy(array) for name, array in state.items()}
            )
            models[fold].eval()
    return FoldsHistory(probabilities, losses)


def _select_folds(task: _FoldsTask, folds: Sequence[int]) -> _FoldsTask:
    """The task with the class weights of these folds."""
    return (
        task
        if task.class_weights is None
        else replace(task, class_weights=task.class_weights[list(folds)])
    )


def _fit_and_return_weights(
    task: _FoldsTask, models: list[MILModel], splits: list[Split]
) -> tuple[list[dict[str, NDArray[Any]]], FoldsHistory]:
    """Train in another process; returns the weights of each model, and the history."""
    torch.set_num_threads(1)
    with memory_is_kept():
        history = _fit_models(task, models, splits, None)
    return [
        {name: tensor.numpy() for name, tensor in model.state_dict().items()} for model in models
    ], history
