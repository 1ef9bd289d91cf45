"""All folds of a cross-validation at once: the parameters stacked, one shared bag a step.

A small bag keeps a processor busy for less time than torch needs to be called, so fifty models that see the same bag are
nearly as cheap as ten. A fold for which the bag is not a training bag takes no step. `fit` does the same for one model: order
and dropout of a step depend on seed, epoch and bag alone, so both give the same weights (`tests/unit/test_folds.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap
from torch.optim.adam import adam

from scmil.bags.bag import Bag, moments
from scmil.errors import OptionError, SplitError
from scmil.core.memory import memory_is_kept
from scmil.models.model import MILModel
from scmil.processes import process_pool
from scmil.training.recipes import Recipe, clip_each, make_optimiser
from scmil.bags.splits import Split
from scmil.training.stacked_loss import Parameters, stacked_losses
from scmil.training.fit import check_labels, checked_weights, epoch_order, modules_of, own_randomness, step_seed


@dataclass(frozen=True)
class FoldsHistory:
    """What the folds said: `probabilities` (epochs, folds, bags, classes) of each fold's test and validation bags.

    Everything that was not looked at is NaN: a fold's training bags, and, with `look="last"`, all epochs but the last.
    `train_loss` is (epochs, folds).
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
    """Train `models[f]` on `splits[f].train` for all folds f at once, in place; they are alike but for their weights.

    With `standardise`, the features of each fold are brought to zero mean and unit variance on its own training bags.
    `look="last"` predicts the test bags after the last epoch only. `jobs` divides the folds among that many processes.
    `class_weights` are those of `fit`, a row a fold. `progress` is called with the number of each finished epoch (of the
    first process).

    >>> from scmil import build_model
    >>> from scmil.bags.splits import stratified_folds
    >>> bags = [Bag(str(i), torch.full((3, 8), float(i % 2)), label=i % 2) for i in range(6)]
    >>> models = [build_model(8, 2, "abmil", embed=[4], seed=fold) for fold in range(3)]
    >>> history = fit_folds(models, bags, stratified_folds([0, 1] * 3, folds=3, seed=0), Recipe(epochs=2))
    >>> history.probabilities.shape, history.train_loss.shape
    ((2, 3, 6, 2), (2, 3))
    """
    recipe = recipe or Recipe()
    check_labels(bags)
    if len(models) != len(splits) or not models:
        raise SplitError(
            f"{len(models)} models for {len(splits)} splits: one model a split is needed, and at least one."
        )
    if look not in ("every", "last"):
        raise OptionError(f"look = {look!r}: 'every' epoch, or the 'last' only.")
    weights = None if class_weights is None else _weights(class_weights, bags, splits)
    task = _Task(tuple(bags), recipe, seed, standardise, look, weights)
    if jobs <= 1 or len(models) == 1:
        with memory_is_kept():
            return _fit(task, models, splits, progress)
    return _fit_in_processes(task, models, splits, min(jobs, len(models)), progress)


@dataclass(frozen=True)
class _Task:
    bags: tuple[Bag, ...]
    recipe: Recipe
    seed: int
    standardise: bool
    look: str
    class_weights: Tensor | None  # (folds, classes)


def _weights(asked: Sequence[Sequence[float]], bags: Sequence[Bag], splits: Sequence[Split]) -> Tensor:
    if len(asked) != len(splits):
        raise OptionError(f"class_weights: {len(asked)} rows for {len(splits)} splits; one a split is needed.")
    return torch.tensor([checked_weights(row, [bag.label for bag in bags]) for row in asked])


def _fit(
    task: _Task, models: Sequence[MILModel], splits: Sequence[Split], progress: Callable[[int], None] | None
) -> FoldsHistory:
    recipe, ids = task.recipe, [bag.id for bag in task.bags]
    stack = _Stack(models, recipe)
    inputs = _Inputs(task.bags, splits, task.standardise)
    trains = inputs.folds_that_train()
    watched = [(*split.test, *split.valid) for split in splits]
    losses = np.zeros((recipe.epochs, len(models)))
    probabilities: NDArray[np.float32] | None = None
    with own_randomness():
        for epoch in range(recipe.epochs):
            stack.model.train()
            for position in epoch_order(ids, task.seed, epoch):
                if not len(active := trains[position]):
                    continue
                torch.manual_seed(step_seed(task.seed, epoch, ids[position]))
                label = int(task.bags[position].label or 0)
                weights = None if task.class_weights is None else task.class_weights[:, label]
                loss = stack.step(inputs.features(position), label, active, epoch, weights)
                losses[epoch, active] += loss[active]
            if task.look == "every" or epoch == recipe.epochs - 1:
                # One by one: a small bag and nothing to keep cost a model less than a stack of few models.
                stack.unstack(models)  # after the last epoch this is also the result
                for fold, positions in enumerate(watched):
                    for position in positions:
                        said = _predict(models[fold], inputs.features(position, fold))
                        if probabilities is None:
                            shape = (recipe.epochs, len(models), len(ids), len(said))
                            probabilities = np.full(shape, np.nan, np.float32)
                        probabilities[epoch, fold, position] = said
            if progress:
                progress(epoch + 1)
    losses /= [len(split.train) for split in splits]
    return FoldsHistory(np.empty((0, 0, 0, 0), np.float32) if probabilities is None else probabilities, losses)


class _Inputs:
    """Each bag as every fold sees it: standardised on the fold's own training bags."""

    def __init__(self, bags: Sequence[Bag], splits: Sequence[Split], standardise: bool) -> None:
        self.bags, self.splits = bags, splits
        self.mean = self.deviation = None
        if standardise:
            self.mean, self.deviation = (
                torch.stack(part)[:, None] for part in zip(*_moments(bags, splits), strict=True)
            )

    def features(self, position: int, fold: int | None = None) -> Tensor:
        """(n, p) as a fold sees the bag; without a fold (folds, n, p), as all do."""
        x = self.bags[position].features
        if self.mean is None or self.deviation is None:
            return x.expand(len(self.splits), *x.shape) if fold is None else x
        mean, deviation = self.mean.to(x.dtype), self.deviation.to(x.dtype)
        return (x - mean) / deviation if fold is None else (x - mean[fold]) / deviation[fold]

    def folds_that_train(self) -> list[NDArray[np.intp]]:
        """For each bag, the folds that train on it."""
        belongs = np.zeros((len(self.bags), len(self.splits)), bool)
        for fold, split in enumerate(self.splits):
            belongs[list(split.train), fold] = True
        return [np.flatnonzero(row) for row in belongs]


@torch.no_grad()
def _predict(model: MILModel, x: Tensor) -> NDArray[np.float32]:
    return model(x).logits.softmax(-1).float().numpy()


def _moments(bags: Sequence[Bag], splits: Sequence[Split]) -> Iterator[tuple[Tensor, Tensor]]:
    for split in splits:
        yield moments([bags[position] for position in split.train])


class _Stack:
    """The parameters of all models, stacked; the optimiser meets each fold's own rows of them.

    Matrices lie transposed in memory, as their gradients come out of the stacked product: an optimiser that meets both in
    the same order is twice as fast. Small parameters lie side by side, so that it meets one row instead of many.
    """

    def __init__(self, models: Sequence[MILModel], recipe: Recipe) -> None:
        self.recipe, self.model, self.size = recipe, models[0], len(models)
        stacked, self.buffers = stack_module_state(list(models))
        self.learned = [name for name, parameter in models[0].named_parameters() if parameter.requires_grad]
        self.parameters = {name: tensor.detach() for name, tensor in stacked.items()}
        self.blocks = _blocks(self.parameters, self.learned, recipe)
        for block in self.blocks:
            self.parameters |= block.views()
        for name in self.learned:
            self.parameters[name].requires_grad_()
        simple = recipe.optimiser == "adam" and recipe.clip is None and recipe.schedule != "time-decay"
        self.optimiser = (_Adam if simple else _AnyOptimiser)(models[0], recipe, self.blocks)
        self._losses = stacked_losses(models[0]) or self._mapped_losses
        self._map = vmap(self._loss, in_dims=(0, 0, 0, None), randomness="same")

    def _mapped_losses(self, parameters: Parameters, x: Tensor, label: Tensor) -> Tensor:
        return self._map(dict(parameters), self.buffers, x, label)

    def _loss(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, label: Tensor) -> Tensor:
        return self.model.loss(functional_call(self.model, (parameters, buffers), (x,)), label)

    def step(
        self, x: Tensor, label: int, active: NDArray[np.intp], epoch: int, weights: Tensor | None = None
    ) -> NDArray[np.float64]:
        """One step of the active folds; the loss of all."""
        losses = self._losses(self.parameters, x, torch.tensor(label))
        if weights is not None:
            losses = losses * weights.to(losses.dtype)
        wanted = [self.parameters[name] for name in self.learned]
        found = torch.autograd.grad(losses.sum(), wanted, allow_unused=True)
        grads: dict[str, Tensor | None] = dict(zip(self.learned, found, strict=True))
        self.optimiser.step([block.gradient(grads) for block in self.blocks], active, epoch)
        return losses.detach().double().numpy()

    def unstack(self, models: Sequence[MILModel]) -> None:
        """Write each fold's weights into its own model."""
        with torch.no_grad():
            for fold, model in enumerate(models):
                for name, parameter in model.named_parameters():
                    parameter.copy_(self.parameters[name][fold])
                if model.training:
                    model.eval()


SMALL = 8192  # numbers a model: below, what an optimiser's call costs is more than its arithmetic


@dataclass(frozen=True)
class _Block:
    """Some parameters side by side in one contiguous tensor (folds, numbers), matrices column by column."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    is_weight: bool
    storage: Tensor

    @classmethod
    def of(cls, parameters: dict[str, Tensor], names: Sequence[str], is_weight: bool) -> _Block:
        """Copy these stacked parameters into a block."""
        shapes = tuple(tuple(parameters[name].shape[1:]) for name in names)
        return cls(tuple(names), shapes, is_weight, torch.cat([_flat(parameters[name]) for name in names], 1))

    def views(self) -> dict[str, Tensor]:
        """The parameters in their own shapes, in the block's memory."""
        views, start = {}, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            part = self.storage[:, start : start + math.prod(shape)]
            start += math.prod(shape)
            matrix = len(shape) == 2
            views[name] = (
                part.unflatten(1, shape[::-1]).mT if matrix else part.unflatten(1, shape) if shape else part[:, 0]
            )
        return views

    def gradient(self, grads: dict[str, Tensor | None]) -> Tensor | None:
        """The gradients of the parameters, side by side as they are; none if no parameter has one."""
        own = [grads[name] for name in self.names]
        if all(grad is None for grad in own):
            return None
        folds = len(self.storage)
        flat = [
            self.storage.new_zeros(folds, math.prod(shape)) if grad is None else _flat(grad)
            for grad, shape in zip(own, self.shapes, strict=True)
        ]
        return flat[0] if len(flat) == 1 else torch.cat(flat, 1)


class _AnyOptimiser:
    """Any optimiser of torch on the rows of the blocks, one row a fold: a row without a gradient takes no step."""

    def __init__(self, model: MILModel, recipe: Recipe, blocks: Sequence[_Block]) -> None:
        self.recipe, folds = recipe, range(len(blocks[0].storage))
        self.rows = [[block.storage[fold] for block in blocks] for fold in folds]
        per_fold = [[(row, block.is_weight) for row, block in zip(rows, blocks, strict=True)] for rows in self.rows]
        # With `time-decay` the rate depends on the fold's own number of steps: an optimiser a fold.
        apart = recipe.schedule == "time-decay"
        self.optimisers = [make_optimiser(recipe, part) for part in (per_fold if apart else [list(chain(*per_fold))])]
        self.steps = np.zeros(len(folds), int)
        self.parts = _blocks_of_parts(model, blocks) if recipe.clip is not None else []

    def step(self, grads: Sequence[Tensor | None], active: NDArray[np.intp], epoch: int) -> None:
        for fold in active:
            for row, grad in zip(self.rows[fold], grads, strict=True):
                row.grad = None if grad is None else grad[fold]
            if self.recipe.clip is not None:
                clip_each([[self.rows[fold][place] for place in part] for part in self.parts], self.recipe.clip)
        apart = len(self.optimisers) > 1
        for fold in active if apart else active[:1]:
            optimiser = self.optimisers[fold if apart else 0]
            for group in optimiser.param_groups:
                group["lr"] = self.recipe.rate(epoch, int(self.steps[fold]))
            optimiser.step()
        self.steps[active] += 1
        for fold in active:
            for row in self.rows[fold]:
                row.grad = None


class _Adam:
    """The function under torch's Adam, called on the rows of the active folds: the same numbers with less around them."""

    def __init__(self, model: MILModel, recipe: Recipe, blocks: Sequence[_Block]) -> None:
        self.recipe = recipe
        self.decays = [block.is_weight or not recipe.decay_weights_only for block in blocks]
        # For each block: rows, first and second moments, and steps, each a list over the folds.
        self.state = [
            (
                block.storage.unbind(),
                torch.zeros_like(block.storage).unbind(),
                torch.zeros_like(block.storage).unbind(),
                [torch.zeros(()) for _ in block.storage],
            )
            for block in blocks
        ]

    def step(self, grads: Sequence[Tensor | None], active: NDArray[np.intp], epoch: int) -> None:
        beta1, beta2 = self.recipe.betas
        for decayed in (True, False):
            met: list[list[Tensor]] = [[], [], [], [], []]  # rows, gradients, first and second moments, steps
            for decays, grad, (rows, first, second, steps) in zip(self.decays, grads, self.state, strict=True):
                if decays is decayed and grad is not None:
                    for part, whole in zip(met, (rows, grad.unbind(), first, second, steps), strict=True):
                        part.extend(whole[fold] for fold in active)
            if met[0]:
                with torch.no_grad():
                    adam(
                        params=met[0], grads=met[1], exp_avgs=met[2], exp_avg_sqs=met[3], max_exp_avg_sqs=[],
                        state_steps=met[4], fused=True, amsgrad=False, maximize=False,
                        lr=self.recipe.rate(epoch, 0), beta1=beta1, beta2=beta2, eps=1e-8,
                        weight_decay=self.recipe.weight_decay if decayed else 0.0,
                    )  # fmt: skip


def _flat(stacked: Tensor) -> Tensor:
    """(folds, numbers), a matrix column by column; no copy if it lies so already."""
    return (stacked.mT if stacked.ndim == 3 else stacked).reshape(len(stacked), -1)


def _blocks(parameters: dict[str, Tensor], learned: Sequence[str], recipe: Recipe) -> list[_Block]:
    """Large parameters alone, small ones together, those that decay apart from those that do not."""
    blocks: list[_Block] = []
    together: dict[bool, list[str]] = {True: [], False: []}
    for name in learned:
        numbers, is_weight = parameters[name][0].numel(), parameters[name].ndim > 2
        if numbers >= SMALL or recipe.clip is not None:  # what is clipped apart stays apart
            blocks.append(_Block.of(parameters, [name], is_weight))
        else:
            together[is_weight or not recipe.decay_weights_only].append(name)
    return blocks + [_Block.of(parameters, names, is_weight) for is_weight, names in together.items() if names]


def _blocks_of_parts(model: MILModel, blocks: Sequence[_Block]) -> list[list[int]]:
    """For each part of the model whose gradient is clipped apart, the places of its blocks."""
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    place_of = {block.names[0]: place for place, block in enumerate(blocks)}
    names = [[name_of[id(p)] for p in part.parameters()] for part in modules_of(model)]
    return [[place_of[name] for name in part if name in place_of] for part in names]


# ---------------------------------------------------------------------------------------------------------- processes


def _fit_in_processes(
    task: _Task, models: Sequence[MILModel], splits: Sequence[Split], jobs: int, progress: Callable[[int], None] | None
) -> FoldsHistory:
    """Deal the folds to processes of one thread each: the folds do not depend on each other."""
    parts = [list(range(len(models)))[job::jobs] for job in range(jobs)]
    with process_pool(jobs - 1) as pool:
        others = [
            pool.submit(_fit_alone, _of(task, part), [models[f] for f in part], [splits[f] for f in part])
            for part in parts[1:]
        ]
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with memory_is_kept():
                mine = _fit(_of(task, parts[0]), [models[f] for f in parts[0]], [splits[f] for f in parts[0]], progress)
        finally:
            torch.set_num_threads(threads)
        answers = [(None, mine), *(other.result() for other in others)]
    epochs, _, bags, classes = mine.probabilities.shape
    probabilities = np.empty((epochs, len(models), bags, classes), np.float32)
    losses = np.empty((len(mine.train_loss), len(models)))
    for part, (weights, history) in zip(parts, answers, strict=True):
        probabilities[:, part], losses[:, part] = history.probabilities, history.train_loss
        for fold, state in zip(part, weights or [], strict=False):
            models[fold].load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
            models[fold].eval()
    return FoldsHistory(probabilities, losses)


def _of(task: _Task, folds: Sequence[int]) -> _Task:
    """The task of some folds."""
    return task if task.class_weights is None else replace(task, class_weights=task.class_weights[list(folds)])


def _fit_alone(
    task: _Task, models: list[MILModel], splits: list[Split]
) -> tuple[list[dict[str, NDArray[Any]]], FoldsHistory]:
    torch.set_num_threads(1)
    with memory_is_kept():
        history = _fit(task, models, splits, None)
    return [{name: tensor.numpy() for name, tensor in model.state_dict().items()} for model in models], history
