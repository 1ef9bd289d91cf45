"""The optimisers of the recipes, and the groups of parameters that they treat differently."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from scmil.sparse_coding.layer import SparseCoding
from scmil.training.recipes import Recipe


class Group(NamedTuple):
    """How the optimiser treats a parameter: whether weight decay acts on it, and the factor of its
    learning rate.
    """

    decayed: bool
    rate: float = 1.0


def parameter_groups(model: nn.Module, recipe: Recipe) -> dict[str, Group]:
    """The group of each parameter that is learned, by its name.

    Weight decay excludes the dictionary, log mu and the sparsity network of a `SparseCoding` layer
    unless `recipe.decay_sparse_coding`: an l2 penalty on them is no prior of small weights, but
    shortens the atoms and the step (`docs/decisions/0012-training-the-layer.md`).

    >>> from scmil.models.model import build_model
    >>> model = build_model(16, 2, "mean", sparse_coding={"atoms": 8}, embed=[16])
    >>> groups = parameter_groups(model, Recipe())
    >>> [name for name, group in groups.items() if group.decayed]
    ['embed.0.weight', 'embed.0.bias', 'aggregate.classifier.weight', 'aggregate.classifier.bias']
    """
    layers = {
        id(parameter): module
        for module in model.modules()
        if isinstance(module, SparseCoding)
        for parameter in module.parameters()
    }
    groups = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            layer = layers.get(id(parameter))
            decayed = parameter.ndim > 1 or not recipe.decay_weights_only
            groups[name] = Group(
                decayed and (layer is None or recipe.decay_sparse_coding),
                1.0 if layer is None else layer.learning.rate,
            )
    return groups


def make_optimiser(
    recipe: Recipe, parameters: Iterable[tuple[Tensor, Group]]
) -> torch.optim.Optimizer:
    """The optimiser of a recipe, for pairs of a parameter and its group."""
    parts: dict[Group, list[Tensor]] = {}
    for tensor, group in parameters:
        parts.setdefault(group, []).append(tensor)
    groups = [
        {
            "params": parts[group],
            "weight_decay": recipe.weight_decay if group.decayed else 0.0,
            "rate": group.rate,
        }
        for group in sorted(parts, reverse=True)  # the decayed ones first, as in older checkpoints
    ]
    beta1, beta2 = recipe.betas
    if recipe.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=recipe.learning_rate, momentum=beta1, nesterov=True)
    if recipe.optimiser.startswith("lookahead-radam"):
        zhang = recipe.optimiser == "lookahead-radam-zhang"
        return (Lookahead if zhang else TransMILLookahead)(
            groups, lr=recipe.learning_rate, betas=(beta1, beta2), decoupled_weight_decay=True
        )
    return torch.optim.Adam(groups, lr=recipe.learning_rate, betas=(beta1, beta2), fused=True)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all groups, each with its factor."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group["rate"]


class Lookahead(torch.optim.RAdam):
    """RAdam that moves, after every sixth step, half way back to the weights of six steps before
    (Zhang et al., 2019).
    """

    every, fraction = 6, 0.5
    slow_from_start = True

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step; steps are counted per tensor, as tensors without a gradient take none."""
        moved = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        new = [p for p in moved if self.slow_from_start and p not in self.state]
        start = {p: p.detach().clone() for p in new}
        result = super().step(closure)
        for p, slow in start.items():
            self.state[p]["slow"] = slow
        for p in moved:
            if int(self.state[p]["step"]) % self.every == 0:
                with torch.no_grad():
                    slow = self.state[p].setdefault("slow", p.detach().clone())
                    p.copy_(slow.lerp_(p, self.fraction))
        return result


class TransMILLookahead(Lookahead):
    """Lookahead as in TransMIL's code, which takes the slow weights at the first synchronisation,
    so that the first six steps are RAdam alone.
    """

    slow_from_start = False


def clip_each(modules: Sequence[Sequence[Tensor]], limit: float) -> None:
    """Clip the gradient norm of each module separately, as the authors of DTFD do."""
    for parameters in modules:
        torch.nn.utils.clip_grad_norm_(list(parameters), limit)
