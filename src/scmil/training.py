"""Fit a model to bags and predict: one bag a step, by a named recipe."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from scmil.aggregators import Prediction
from scmil.bags import Bag
from scmil.errors import BagError, DataError
from scmil.model import MILModel


@dataclass(frozen=True)
class Recipe:
    """How to train. The defaults are the paper's for the classical benchmarks (Sec. III-C3).

    Adam with coupled l2 weight decay, the learning rate falling to zero along a cosine, one bag a step, bags in a new order
    every epoch.
    """

    epochs: int = 40
    learning_rate: float = 1e-4
    weight_decay: float = 5e-3
    betas: tuple[float, float] = (0.9, 0.999)


def fit(
    model: MILModel,
    bags: Sequence[Bag],
    recipe: Recipe | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> list[float]:
    """Train the model on labelled bags, in place; returns the mean loss of every epoch.

    Repeats exactly for a seed. `progress` is called with the number of each finished epoch.

    >>> from scmil import build_model
    >>> bags = [Bag(str(i), torch.full((3, 8), float(i % 2)), label=i % 2) for i in range(6)]
    >>> losses = fit(build_model(8, 2, "abmil", embed=[4], seed=0), bags, Recipe(epochs=3))
    >>> len(losses), losses[-1] < losses[0]
    (3, True)
    """
    recipe = recipe or Recipe()
    unlabelled = [bag.id for bag in bags if bag.label is None]
    if not bags or unlabelled:
        raise DataError(f"bags without a label: {', '.join(unlabelled)}." if bags else "there are no bags to train on.")
    optimiser = torch.optim.Adam(  # fused: a third of a small bag's step is the optimiser's
        model.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay, betas=recipe.betas, fused=True
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=recipe.epochs)
    order, shuffler, losses = list(bags), random.Random(seed), []
    with torch.random.fork_rng(devices=[]):  # dropout and DTFD's groups draw from the seed, and leave no trace
        torch.manual_seed(seed)
        for epoch in range(recipe.epochs):
            model.train()
            shuffler.shuffle(order)
            total = 0.0
            for bag in order:
                optimiser.zero_grad(set_to_none=True)
                loss = model.loss(_said(model, bag), int(bag.label or 0))
                loss.backward()
                optimiser.step()
                total += loss.item()
            schedule.step()
            losses.append(total / len(order))
            if progress:
                progress(epoch + 1)
    model.eval()
    return losses


@torch.no_grad()
def predict(model: MILModel, bags: Sequence[Bag]) -> torch.Tensor:
    """The probability of every class for every bag: (bags, classes).

    >>> from scmil import build_model
    >>> predict(build_model(8, 3, "mean", seed=0), [Bag("a", torch.ones(5, 8))]).sum(1)
    tensor([1.])
    """
    training = model.training
    model.eval()
    try:
        return torch.stack([_said(model, bag).logits.softmax(-1) for bag in bags])
    finally:
        model.train(training)


def _said(model: MILModel, bag: Bag) -> Prediction:
    """The model's prediction; what the model refuses is told with the bag's name."""
    try:
        return model(bag.features)
    except BagError as error:
        raise type(error)(f"bag {bag.id!r}: {error}") from None
