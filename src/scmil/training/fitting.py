"""Fit a model to bags, and predict: one bag per step, reproducible for a seed, with checkpoints.

Bags may be of any size (`models/streaming.py`); the next bag is read while a step runs
(`bags/loader.py`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from scmil.bags.bag import Bag
from scmil.bags.loader import Loader, ids_of, labels_of
from scmil.bags.targets import Targets
from scmil.core.memory import memory_is_kept
from scmil.core.text import first_names
from scmil.errors import DataError, OptionError
from scmil.models.model import MILModel
from scmil.models.streaming import forward_bag, predict_bag
from scmil.sparse_coding.layer import SparseCoding
from scmil.stats.metrics import accuracy, auc
from scmil.training.aggregator_hooks import announce_epoch, check_positions
from scmil.training.checkpoint import (
    DEFAULT_PRECISION,
    TrainingCheckpoint,
    TrainingState,
    identity_of,
)
from scmil.training.history import History
from scmil.training.layer_start import constrained_layers, start_layers
from scmil.training.optimisers import clip_each, make_optimiser, parameter_groups, set_rate
from scmil.training.randomness import epoch_order, own_randomness, seed_generators, step_seed
from scmil.training.recipes import Recipe
from scmil.training.regularisation import (
    RegularisedStep,
    check_regularisation,
    draw_partner,
    make_teacher,
    update_teacher,
)
from scmil.training.steps import apply_to_bag, autocast_to, modules_of
from scmil.training.target_steps import (
    check_bag_targets,
    evaluate_targets,
    train_target_epoch,
)

# Precisions of matrix products in training; "float32" means that of the model's weights.
PRECISIONS = (DEFAULT_PRECISION, "bfloat16")


def fit(
    model: MILModel,
    train: Sequence[Bag],
    valid: Sequence[Bag] | None = None,
    recipe: Recipe | None = None,
    *,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    class_weights: Sequence[float] | None = None,
    targets: Targets | None = None,
    device: str | torch.device = "cpu",
    precision: str = DEFAULT_PRECISION,
) -> History:
    """Train a model on labelled bags, in place.

    The result is reproducible: order and dropout of a step depend only on the seed, the epoch and
    the id of the bag. An interrupted training that is called again with the same `checkpoint` file
    ends with the same weights as an uninterrupted one.

    Args:
        model: The model to train.
        train: Labelled training bags.
        valid: Labelled validation bags. With them, the model ends with the weights of its best
            epoch (highest AUC, then lowest loss).
        recipe: Optimiser, epochs and schedule; the paper's by default.
        seed: Seed of the order of the bags and of dropout.
        progress: Called with the number of each finished epoch, from 1.
        checkpoint: File that is written after each epoch, and from which a training resumes.
        class_weights: Factors of the loss of training bags, one per class; the validation loss is
            not weighted.
        targets: Values of the bags for a model of another task than classes, whose `output` is an
            objective. The best epoch is then that with the highest concordance, R², kappa or macro
            AUC. A Cox model takes a step for each risk set of bags.
        device: Where to compute; afterwards the model is moved back.
        precision: `"float32"`, or `"bfloat16"` for matrix products in bfloat16 (about twice as fast
            on slides if the processor supports it); weights keep their precision.

    Returns:
        Losses and validation metrics of each epoch.

    Raises:
        DataError: If there are no training bags, or bags without a label or target.
        BagError: If the model cannot process a bag, or its aggregator uses tile positions and a
            bag has none; the message names it.
        OptionError: If weights, device or precision are invalid, or `recipe.patience` is set
            without validation bags.
        ModelFileError: If the checkpoint is damaged or belongs to another training.

    >>> from scmil import build_model
    >>> bags = [Bag(str(i), torch.full((3, 8), float(i % 2)), label=i % 2) for i in range(6)]
    >>> history = fit(build_model(8, 2, "abmil", embed=[4], seed=0), bags, recipe=Recipe(epochs=3))
    >>> len(history.train_loss), history.train_loss[-1] < history.train_loss[0]
    (3, True)
    """
    recipe = recipe or Recipe()
    for bags in (train,) if valid is None else (train, valid):
        _check_answers(model, bags, targets)
    if valid is None and recipe.patience is not None:
        raise OptionError(
            f"patience = {recipe.patience} needs validation bags, and none were given. "
            "Pass `valid`, or leave patience out."
        )
    check_precision(precision)
    check_regularisation(model, recipe.regularisation)
    if targets is not None and recipe.regularisation.is_on:
        raise OptionError(
            f"the options of regularisation need classes, and the task is {targets.task!r}. "
            "Leave them out."
        )
    weights = _weights_of(class_weights, train, targets)
    with own_randomness(), memory_is_kept(), _moved_to(model, device):
        parameters, groups = dict(model.named_parameters()), parameter_groups(model, recipe)
        optimiser = make_optimiser(
            recipe, [(parameters[name], group) for name, group in groups.items()]
        )
        # With a single epoch no bag is read twice, so none is cached.
        loader = Loader(budget=None if recipe.epochs > 1 else 0)
        check_positions(model, train, loader)
        check_positions(model, valid or [], loader)
        state = TrainingState(
            model,
            optimiser,
            History(),
            best=None,
            loader=loader,
            class_weights=weights,
            precision=precision,
            teacher=make_teacher(model, recipe.regularisation),
            targets=targets,
        )
        identity = identity_of(
            model,
            train,
            valid,
            recipe,
            seed,
            class_weights=weights,
            precision=precision,
            targets=targets,
        )
        file = None if checkpoint is None else TrainingCheckpoint(Path(checkpoint), identity)
        start = file.load_into(state) if file else 0
        state.history.first_candidate = recipe.first_candidate
        for epoch in range(start, recipe.epochs):
            if _patience_is_over(state.history, recipe):
                break
            announce_epoch(model, epoch)
            start_layers(
                model,
                epoch,
                ((bag.id, bag.features) for bag in loader.read(train)),
                len(train),
                seed,
            )
            state.history.train_loss.append(_train_epoch(state, train, recipe, seed, epoch))
            state.history.add_step(_longest_step(model))
            if valid is not None:
                _evaluate_epoch(state, valid, epoch + 1)
            if file:
                file.save(state, epoch + 1)
            if progress:
                progress(epoch + 1)
        if state.best is not None:
            model.load_state_dict(state.best)
    model.eval()
    return state.history


@torch.no_grad()
def predict(model: MILModel, bags: Sequence[Bag], device: str | torch.device = "cpu") -> Tensor:
    """Predict the class probabilities of bags, or the outputs of the objective of another task.

    Args:
        model: A trained model; its mode and device are the same afterwards.
        bags: The bags, with or without labels.
        device: Where to compute.

    Returns:
        Probabilities (bags, classes), on the CPU. Of other tasks: survival through each bin, the
        risk of a Cox model, a number, the probability of each grade or of each label.

    Raises:
        BagError: If the model cannot process a bag; the message names it.
        OptionError: If the device is not available.

    >>> from scmil import build_model
    >>> predict(build_model(8, 3, "mean", seed=0), [Bag("a", torch.ones(5, 8))]).sum(1)
    tensor([1.])
    """
    training = model.training
    model.eval()
    try:
        with _moved_to(model, device):
            return _predict_all(model, Loader(budget=0).read(bags))
    finally:
        model.train(training)


def check_labels(bags: Sequence[Bag]) -> None:
    """Raise DataError if there are no bags, or bags without a label."""
    if not len(bags):
        raise DataError("there are no bags to train on.")
    pairs = zip(ids_of(bags), labels_of(bags), strict=True)
    if unlabelled := [bag_id for bag_id, label in pairs if label is None]:
        raise DataError(
            f"bags without a label: {first_names(unlabelled, 5)}. Label them, or leave them out."
        )


def _check_answers(model: MILModel, bags: Sequence[Bag], targets: Targets | None) -> None:
    """Raise if a bag has no label, or no target for a model of another task."""
    if targets is None and model.objective is None:
        check_labels(bags)
    else:
        check_bag_targets(model, bags, targets)


def _weights_of(
    class_weights: Sequence[float] | None, train: Sequence[Bag], targets: Targets | None
) -> tuple[float, ...] | None:
    if class_weights is None:
        return None
    if targets is not None:
        raise OptionError(f"class_weights need classes, and the task is {targets.task!r}.")
    return check_class_weights(class_weights, labels_of(train))


def weigh_classes(
    weights: str | Sequence[float] | None, labels: Sequence[int | None], classes: int
) -> list[float] | None:
    """The weight of each class; `"balanced"` means bags / (classes x bags of the class).

    >>> weigh_classes("balanced", [0, 0, 0, 1], classes=2)
    [0.6666666666666666, 2.0]
    """
    if weights is None or not isinstance(weights, str):
        return None if weights is None else list(weights)
    if weights != "balanced":
        raise OptionError(
            f"class weights {weights!r}: 'balanced' or one number for each class is expected."
        )
    counts = [sum(label == number for label in labels) for number in range(classes)]
    if 0 in counts:
        raise OptionError(
            f"class weights 'balanced': no training bag is of class {counts.index(0)}. "
            "Add such bags, or give one number for each class."
        )
    return [len(labels) / (classes * count) for count in counts]


def check_class_weights(
    weights: Sequence[float], labels: Sequence[int | None]
) -> tuple[float, ...]:
    """The weights as a tuple; raises OptionError unless each class has a positive number."""
    classes = 1 + max(label or 0 for label in labels)
    if len(weights) < classes or not all(
        math.isfinite(weight) and weight > 0 for weight in weights
    ):
        raise OptionError(
            f"class_weights = {list(weights)}: "
            f"a number above 0 is needed for each of the {classes} classes."
        )
    return tuple(map(float, weights))


@contextmanager
def _moved_to(model: MILModel, device: str | torch.device) -> Iterator[None]:
    """Context manager: move the model to a device, and back at the end."""
    before = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise OptionError(
            f"device = {str(device)!r} is not available: {reason} Use 'cpu'."
        ) from None
    model.to(device)
    try:
        yield
    finally:
        model.to(before)


# ----------------------------------------------------------------------------------- training loop


def _train_epoch(
    state: TrainingState, train: Sequence[Bag], recipe: Recipe, seed: int, epoch: int
) -> float:
    """Take a step for each bag; returns the mean loss."""
    if state.targets is not None:
        return train_target_epoch(state, train, recipe, seed, epoch)
    model, optimiser, total = state.model, state.optimiser, 0.0
    constrained = constrained_layers(model).values()
    regularised = (
        RegularisedStep(
            model,
            recipe.regularisation,
            state.teacher,
            state.class_weights,
            partial(apply_to_bag, forward_bag),
        )
        if recipe.regularisation.is_on
        else None
    )
    model.train()
    order = epoch_order(ids_of(train), seed, epoch)
    for step, bag in enumerate(state.loader.read(train, order)):
        seed_generators(step_seed(seed, epoch, bag.id))
        set_rate(optimiser, recipe.rate(epoch, epoch * len(train) + step))
        optimiser.zero_grad(set_to_none=True)
        label = int(bag.label or 0)
        with autocast_to(state.precision, model):
            if regularised is not None:
                loss = regularised.loss(bag, draw_partner(train, recipe.regularisation))
            else:
                loss = model.loss(apply_to_bag(forward_bag, model, bag), label)
        if state.class_weights is not None and regularised is None:
            loss = loss * state.class_weights[label]
        loss.backward()
        if recipe.clip is not None:
            clip_each([list(part.parameters()) for part in modules_of(model)], recipe.clip)
        optimiser.step()
        for layer in constrained:
            layer.project()
        if state.teacher is not None:
            update_teacher(state.teacher, model, recipe.regularisation.teacher_momentum)
        total += loss.item()
    return total / len(train)


def check_precision(precision: str) -> None:
    """Raise OptionError for an unknown precision."""
    if precision not in PRECISIONS:
        raise OptionError(f"precision = {precision!r}: one of {', '.join(PRECISIONS)} is expected.")


def _longest_step(model: nn.Module) -> float | None:
    """The largest |D|^2 / mu of its sparse coding layers; None if there is none."""
    steps = [layer.step() for layer in model.modules() if isinstance(layer, SparseCoding)]
    return max(steps, default=None)


def _patience_is_over(history: History, recipe: Recipe) -> bool:
    """Whether the best epoch is `patience` epochs ago. Checked before each epoch, so that a resumed
    training stops at the same epoch.
    """
    best = history.best_epoch
    return (
        recipe.patience is not None
        and best is not None
        and len(history.valid_loss) - best >= recipe.patience
    )


def _evaluate_epoch(state: TrainingState, valid: Sequence[Bag], epoch: int) -> None:
    """Record the validation metrics of an epoch, and its weights if it is the best so far."""
    state.model.eval()
    with torch.no_grad():
        if state.targets is not None:
            evaluate_targets(state, valid)
        else:
            probabilities = _predict_all(state.model, state.loader.read(valid)).double()
            _evaluate_classes(state.history, valid, probabilities)
    if state.history.best_epoch == epoch:
        state.best = {name: tensor.clone() for name, tensor in state.model.state_dict().items()}


def _evaluate_classes(history: History, valid: Sequence[Bag], probabilities: Tensor) -> None:
    labels = torch.tensor([int(label or 0) for label in labels_of(valid)])
    chosen = probabilities[torch.arange(len(labels)), labels].clamp(min=1e-12)
    history.valid_loss.append(-chosen.log().mean().item())
    history.valid_accuracy.append(accuracy(labels.numpy(), probabilities.numpy()))
    history.valid_auc.append(auc(labels.numpy(), probabilities.numpy()))


def _predict_all(model: MILModel, bags: Iterable[Bag]) -> Tensor:
    """Probabilities (bags, classes)."""
    logits = (apply_to_bag(predict_bag, model, bag).logits for bag in bags)
    return torch.stack([model.probabilities(one).cpu() for one in logits])
