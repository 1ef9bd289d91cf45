"""The parameters of many models in one stack, and the optimisers that step it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.optim.adam import adam

from scmil.models.model import MILModel
from scmil.models.streaming import call_model
from scmil.training.layer_start import constrained_layers
from scmil.training.optimisers import Group, clip_each, make_optimiser, parameter_groups, set_rate
from scmil.training.recipes import Recipe
from scmil.training.stacked_loss import Parameters, stacked_losses
from scmil.training.steps import modules_of


class Stack:
    """The stacked parameters of all models, and their optimiser.

    Matrices are stored transposed, like their gradients from the stacked product: an optimiser is
    twice as fast if both have the same memory order. Small parameters are concatenated, so that the
    optimiser processes one row instead of many.
    """

    def __init__(self, models: Sequence[MILModel], recipe: Recipe) -> None:
        self.recipe, self.model, self.size = recipe, models[0], len(models)
        stacked, self.buffers = stack_module_state(list(models))
        groups = parameter_groups(models[0], recipe)
        self.learned = list(groups)
        self.parameters = {name: tensor.detach() for name, tensor in stacked.items()}
        self.blocks = _make_blocks(self.parameters, groups, recipe)
        for block in self.blocks:
            self.parameters |= block.views()
        for name in self.learned:
            self.parameters[name].requires_grad_()
        simple = (
            recipe.optimiser == "adam" and recipe.clip is None and recipe.schedule != "time-decay"
        )
        self.optimiser = (_Adam if simple else _AnyOptimiser)(models[0], recipe, self.blocks)
        self.constrained = list(constrained_layers(models[0]))
        self._losses = stacked_losses(models[0])
        self._bag_loss = _BagLoss(models[0])
        self._map = vmap(self._loss, in_dims=(0, 0, 0, None, None), randomness="same")

    def _loss(
        self,
        parameters: Parameters,
        buffers: Parameters,
        x: Tensor,
        label: Tensor,
        xy: Tensor | None,
    ) -> Tensor:
        tensors = {
            f"model.{name}": tensor for name, tensor in (*parameters.items(), *buffers.items())
        }
        loss: Tensor = functional_call(self._bag_loss, tensors, (x, label, xy))
        return loss

    def step(
        self,
        x: Tensor,
        label: int,
        active: NDArray[np.intp],
        epoch: int,
        weights: Tensor | None = None,
        xy: Tensor | None = None,
    ) -> NDArray[np.float64]:
        """Take a step for the active folds; returns the losses of all folds."""
        if self._losses is not None:
            losses = self._losses(self.parameters, x, torch.tensor(label))
        else:
            losses = self._map(dict(self.parameters), self.buffers, x, torch.tensor(label), xy)
        if weights is not None:
            losses = losses * weights.to(losses.dtype)
        learned = [self.parameters[name] for name in self.learned]
        gradients = torch.autograd.grad(losses.sum(), learned, allow_unused=True)
        grads: dict[str, Tensor | None] = dict(zip(self.learned, gradients, strict=True))
        self.optimiser.step([block.gradient(grads) for block in self.blocks], active, epoch)
        with torch.no_grad():
            for name in self.constrained:
                D = self.parameters[name]
                D[active] = F.normalize(D[active], dim=-2)
        return losses.detach().double().numpy()

    def unstack(self, models: Sequence[MILModel]) -> None:
        """Copy the weights of each fold into its model."""
        with torch.no_grad():
            for fold, model in enumerate(models):
                for name, parameter in model.named_parameters():
                    parameter.copy_(self.parameters[name][fold])
                if model.training:
                    model.eval()

    def restack(self, models: Sequence[MILModel]) -> None:
        """Copy the weights of the models into the stack; the state of the optimiser stays."""
        with torch.no_grad():
            for fold, model in enumerate(models):
                for name, parameter in model.named_parameters():
                    self.parameters[name][fold] = parameter


class _BagLoss(nn.Module):
    """The loss of a model on a bag as one module, because an aggregator's own loss may use its
    weights too.
    """

    def __init__(self, model: MILModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, label: Tensor, xy: Tensor | None) -> Tensor:
        return self.model.loss(call_model(self.model, x, xy), label)


# Numbers per model below which calling an optimiser costs more than its arithmetic.
SMALL_PARAMETER = 8192


@dataclass(frozen=True)
class _Block:
    """Parameters concatenated in one contiguous tensor (folds, numbers), matrices by columns."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    group: Group
    storage: Tensor

    @classmethod
    def of(cls, parameters: dict[str, Tensor], names: Sequence[str], group: Group) -> _Block:
        """Copy stacked parameters into a block."""
        shapes = tuple(tuple(parameters[name].shape[1:]) for name in names)
        return cls(
            tuple(names),
            shapes,
            group,
            torch.cat([_flatten_folds(parameters[name]) for name in names], 1),
        )

    def views(self) -> dict[str, Tensor]:
        """Views of the parameters in their own shapes."""
        views, start = {}, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            part = self.storage[:, start : start + math.prod(shape)]
            start += math.prod(shape)
            matrix = len(shape) == 2
            views[name] = (
                part.unflatten(1, shape[::-1]).mT
                if matrix
                else part.unflatten(1, shape)
                if shape
                else part[:, 0]
            )
        return views

    def gradient(self, grads: dict[str, Tensor | None]) -> Tensor | None:
        """The concatenated gradients of the parameters; None if none of them has a gradient."""
        gradients = [grads[name] for name in self.names]
        if all(grad is None for grad in gradients):
            return None
        folds = len(self.storage)
        flat = [
            self.storage.new_zeros(folds, math.prod(shape))
            if grad is None
            else _flatten_folds(grad)
            for grad, shape in zip(gradients, self.shapes, strict=True)
        ]
        return flat[0] if len(flat) == 1 else torch.cat(flat, 1)


class _AnyOptimiser:
    """Any optimiser of torch on the rows of the blocks, one row per fold; rows without a gradient
    take no step.
    """

    def __init__(self, model: MILModel, recipe: Recipe, blocks: Sequence[_Block]) -> None:
        self.recipe, folds = recipe, range(len(blocks[0].storage))
        self.rows = [[block.storage[fold] for block in blocks] for fold in folds]
        per_fold = [
            [(row, block.group) for row, block in zip(rows, blocks, strict=True)]
            for rows in self.rows
        ]
        # With `time-decay` the rate depends on the fold's number of steps: one optimiser per fold.
        separate = recipe.schedule == "time-decay"
        self.optimisers = [
            make_optimiser(recipe, part)
            for part in (per_fold if separate else [list(chain(*per_fold))])
        ]
        self.steps = np.zeros(len(folds), int)
        self.parts = _blocks_of_modules(model, blocks) if recipe.clip is not None else []

    def step(self, grads: Sequence[Tensor | None], active: NDArray[np.intp], epoch: int) -> None:
        for fold in active:
            for row, grad in zip(self.rows[fold], grads, strict=True):
                row.grad = None if grad is None else grad[fold]
            if self.recipe.clip is not None:
                clip_each(
                    [[self.rows[fold][place] for place in part] for part in self.parts],
                    self.recipe.clip,
                )
        separate = len(self.optimisers) > 1
        for fold in active if separate else active[:1]:
            optimiser = self.optimisers[fold if separate else 0]
            set_rate(optimiser, self.recipe.rate(epoch, int(self.steps[fold])))
            optimiser.step()
        self.steps[active] += 1
        for fold in active:
            for row in self.rows[fold]:
                row.grad = None


class _Adam:
    """torch's functional Adam on the rows of the active folds: the same numbers with less
    overhead than the optimiser class.
    """

    def __init__(self, model: MILModel, recipe: Recipe, blocks: Sequence[_Block]) -> None:
        self.recipe = recipe
        self.groups = [block.group for block in blocks]
        # Lists over the folds, for each block: rows, first and second moments, steps.
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
        for group in sorted(set(self.groups), reverse=True):
            # Rows, gradients, first and second moments, steps.
            arguments: list[list[Tensor]] = [[], [], [], [], []]
            for own, grad, (rows, first, second, steps) in zip(
                self.groups, grads, self.state, strict=True
            ):
                if own == group and grad is not None:
                    for part, whole in zip(
                        arguments, (rows, grad.unbind(), first, second, steps), strict=True
                    ):
                        part.extend(whole[fold] for fold in active)
            if arguments[0]:
                with torch.no_grad():
                    adam(
                        params=arguments[0],
                        grads=arguments[1],
                        exp_avgs=arguments[2],
                        exp_avg_sqs=arguments[3],
                        max_exp_avg_sqs=[],
                        state_steps=arguments[4],
                        fused=True,
                        amsgrad=False,
                        maximize=False,
                        lr=self.recipe.rate(epoch, 0) * group.rate,
                        beta1=beta1,
                        beta2=beta2,
                        eps=1e-8,
                        weight_decay=self.recipe.weight_decay if group.decayed else 0.0,
                    )


def _flatten_folds(stacked: Tensor) -> Tensor:
    """(folds, numbers), matrices by columns; not copied if the memory order allows it."""
    return (stacked.mT if stacked.ndim == 3 else stacked).reshape(len(stacked), -1)


def _make_blocks(
    parameters: dict[str, Tensor], groups: dict[str, Group], recipe: Recipe
) -> list[_Block]:
    """One block per large parameter; the small ones of each group share a block."""
    blocks: list[_Block] = []
    together: dict[Group, list[str]] = {}
    for name, group in groups.items():
        if (
            parameters[name][0].numel() >= SMALL_PARAMETER or recipe.clip is not None
        ):  # clipped separately
            blocks.append(_Block.of(parameters, [name], group))
        else:
            together.setdefault(group, []).append(name)
    return blocks + [_Block.of(parameters, names, group) for group, names in together.items()]


def _blocks_of_modules(model: MILModel, blocks: Sequence[_Block]) -> list[list[int]]:
    """For each module whose gradient is clipped separately, the positions of its blocks."""
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    place_of = {block.names[0]: place for place, block in enumerate(blocks)}
    names = [[name_of[id(p)] for p in part.parameters()] for part in modules_of(model)]
    return [[place_of[name] for name in part if name in place_of] for part in names]
