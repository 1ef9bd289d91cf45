"""Training steps and validation of tasks other than classes.

A step sees one bag, or with Cox's likelihood a risk set of bags. The gradient of such a set is
computed in two passes, so that only one bag is in memory at a time: the first gives the outputs of
all bags and the derivative of the loss with respect to them, the second sends these derivatives
back through the model, bag by bag. Dropout is the same in both, because it depends on the bag.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from scmil.bags.bag import Bag
from scmil.bags.loader import ids_of
from scmil.bags.targets import (
    ClassTarget,
    CombinedTarget,
    GradeTarget,
    LabelsTarget,
    NumberTarget,
    Targets,
)
from scmil.core.run_format import MAIN_METRICS
from scmil.core.shapes import Numbers
from scmil.errors import DataError, OptionError
from scmil.models.aggregators import Prediction
from scmil.models.combined_objective import CombinedObjective
from scmil.models.model import MILModel
from scmil.models.objectives import Objective, numbers_of, risk_of
from scmil.models.streaming import forward_bag, predict_bag
from scmil.stats.concordance import concordance
from scmil.stats.metrics import auc
from scmil.stats.multilabel import macro_scores
from scmil.stats.ordinal import quadratic_kappa
from scmil.stats.regression import score_regression
from scmil.training.checkpoint import TrainingState
from scmil.training.layer_start import constrained_layers
from scmil.training.optimisers import clip_each, set_rate
from scmil.training.randomness import epoch_order, seed_generators, step_seed
from scmil.training.recipes import Recipe
from scmil.training.steps import apply_to_bag, autocast_to, modules_of


def check_bag_targets(model: MILModel, bags: Sequence[Bag], targets: Targets | None) -> None:
    """Raise unless the model and the targets are of one task and every bag has a value.

    Raises:
        OptionError: If the model is for another task, or one of the two is missing.
        DataError: If there are no bags, or one has no value.
    """
    task = None if model.objective is None else model.objective.task
    if targets is None:
        raise OptionError(f"the model is for the task {task!r}: pass `targets` with their values.")
    if task != targets.task:
        raise OptionError(
            f"targets of the task {targets.task!r} for a model of the task {task or 'class'!r}. "
            "Build the model with the objective of the task as `output`."
        )
    if not len(bags):
        raise DataError("there are no bags to train on.")
    targets.array(ids_of(bags))


def train_target_epoch(
    state: TrainingState, train: Sequence[Bag], recipe: Recipe, seed: int, epoch: int
) -> float:
    """Take a step for each bag or risk set; returns the mean loss."""
    model, optimiser, losses = state.model, state.optimiser, []
    targets, objective = _targets_and_objective(state)
    constrained = constrained_layers(model).values()
    model.train()
    order = epoch_order(ids_of(train), seed, epoch)
    steps = math.ceil(len(train) / objective.risk_set)
    for step, bags in enumerate(_risk_sets(state, train, order, objective.risk_set)):
        set_rate(optimiser, recipe.rate(epoch, epoch * steps + step))
        optimiser.zero_grad(set_to_none=True)
        seeds = [step_seed(seed, epoch, bag.id) for bag in bags]
        values = _as_tensor(targets.array([bag.id for bag in bags]), model)
        if len(bags) == 1 and objective.risk_set == 1:
            seed_generators(seeds[0])
            with autocast_to(state.precision, model):
                loss = model.loss(apply_to_bag(forward_bag, model, bags[0]), values[0])
            loss.backward()
            losses.append(loss.item())
        else:
            losses.append(_backward_of_set(state, bags, seeds, values))
        if recipe.clip is not None:
            clip_each([list(part.parameters()) for part in modules_of(model)], recipe.clip)
        optimiser.step()
        for layer in constrained:
            layer.project()
    return sum(losses) / len(losses)


def _risk_sets(
    state: TrainingState, train: Sequence[Bag], order: Sequence[int], size: int
) -> Iterator[list[Bag]]:
    """The bags of each step; a last set of a single bag joins the one before."""
    bags: list[Bag] = []
    left = len(order)
    for bag in state.loader.read(train, order):
        bags.append(bag)
        left -= 1
        if (len(bags) >= size and (left > 1 or size == 1)) or not left:
            yield bags
            bags = []


def _backward_of_set(
    state: TrainingState, bags: Sequence[Bag], seeds: Sequence[int], values: Tensor
) -> float:
    model = state.model
    with torch.no_grad():
        found = [
            _forward_with_seed(state, bag, seed) for bag, seed in zip(bags, seeds, strict=True)
        ]
    outputs = [torch.stack([p.logits for p in found]).requires_grad_()]
    if found[0].auxiliary:
        further = [torch.stack(p.auxiliary).mean(0) for p in found]
        outputs.append(torch.stack(further).requires_grad_())
    objective = _targets_and_objective(state)[1]
    weights = getattr(model.aggregate, "loss_weights", (1.0, 0.0))
    loss = torch.stack(
        [
            weight * objective.losses(numbers_of(objective, logits.float()), values).mean()
            for weight, logits in zip(weights, outputs, strict=False)
        ]
    ).sum()
    derivatives = torch.autograd.grad(loss, outputs)
    for position, (bag, seed) in enumerate(zip(bags, seeds, strict=True)):
        prediction = _forward_with_seed(state, bag, seed)
        total = (prediction.logits * derivatives[0][position]).sum()
        if prediction.auxiliary:
            mean = torch.stack(prediction.auxiliary).mean(0)
            total = total + (mean * derivatives[1][position]).sum()
        total.backward()
    return loss.item()


def _forward_with_seed(state: TrainingState, bag: Bag, seed: int) -> Prediction:
    seed_generators(seed)
    with autocast_to(state.precision, state.model):
        return apply_to_bag(forward_bag, state.model, bag)


def evaluate_targets(state: TrainingState, valid: Sequence[Bag]) -> None:
    """Record loss and score of the validation bags."""
    targets, objective = _targets_and_objective(state)
    model, values = state.model, targets.array(ids_of(valid))
    logits = torch.stack(
        [
            apply_to_bag(predict_bag, model, bag).logits.cpu().float()
            for bag in state.loader.read(valid)
        ]
    )
    numbers = numbers_of(objective, logits)
    loss = objective.losses(numbers, torch.as_tensor(values, dtype=torch.float32)).mean()
    state.history.valid_loss.append(loss.item())
    state.history.valid_score.append(
        score_outputs(targets, objective, values, objective.outputs(numbers).double().numpy())
    )


def score_outputs(
    targets: Targets, objective: Objective, values: Numbers, outputs: Numbers
) -> float:
    """The score that chooses an epoch: concordance, R², quadratic kappa or macro AUC; of several
    targets the mean skill, which is 0 by chance and 1 at best.

    Args:
        targets: Whose target the values are of.
        objective: The objective of the model.
        values: Observed values (b, width), as `Targets.array` returns them.
        outputs: Outputs of the model for the same bags, as `predict` returns them.

    Returns:
        The score; NaN if the values do not define it.
    """
    target = targets.target
    if isinstance(target, CombinedTarget):
        assert isinstance(objective, CombinedObjective)
        return _mean_skill(targets, target, objective, values, outputs)
    if isinstance(target, ClassTarget):
        return auc(values[:, 0].astype(int), outputs)
    if isinstance(target, NumberTarget):
        return score_regression(values[:, 0], outputs[:, 0])["r2"]
    if isinstance(target, GradeTarget):
        grades = values[:, 0].astype(int), outputs.argmax(1)
        return quadratic_kappa(*grades, len(target.grades))
    if isinstance(target, LabelsTarget):
        return macro_scores(values, outputs)["auc"]
    return concordance(values[:, 0], values[:, 1], risk_of(objective, outputs))


def _mean_skill(
    targets: Targets,
    target: CombinedTarget,
    objective: CombinedObjective,
    values: Numbers,
    outputs: Numbers,
) -> float:
    """The mean over the parts of (score - chance) / (1 - chance), where it is defined."""
    skills = []
    for number, (part, columns) in enumerate(objective.slices()):
        own = values[:, target.columns[number]]
        known = ~np.isnan(own).all(1)
        if not known.any():
            continue
        score = score_outputs(targets.part(number), part, own[known], outputs[known, columns])
        chance = MAIN_METRICS[part.task].chance
        skills.append((score - chance) / (1 - chance))
    defined = [skill for skill in skills if skill == skill]
    return sum(defined) / len(defined) if defined else math.nan


def _targets_and_objective(state: TrainingState) -> tuple[Targets, Objective]:
    assert state.targets is not None
    assert state.model.objective is not None
    return state.targets, state.model.objective


def _as_tensor(values: Numbers, model: MILModel) -> Tensor:
    parameter = next(model.parameters())
    return torch.as_tensor(values, dtype=parameter.dtype, device=parameter.device)
