"""Train the baseline on all folds of one run: a logistic regression on the mean and the maximum of
the features, or of the output of a layer that is not trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scmil.core.shapes import Numbers
from scmil.studies.cell_splits import model_seed
from scmil.studies.cell_task import Fold, Stage, Task, Training, by_protocol, history_without_test
from scmil.studies.plan import build_from_settings
from scmil.studies.protocols import ScoredFold, score
from scmil.training import baseline
from scmil.training.selection import log_loss

if TYPE_CHECKING:
    from scmil.bags.splits import Split


def train_baseline(task: Task, stage: Stage) -> Training[ScoredFold]:
    """Train a logistic regression on the same splits.

    Its regularisation is chosen on the validation split, or on one inside the training bags.
    """
    labels, protocol = task.labels, task.cell.settings.protocol
    scored: list[ScoredFold] = []
    losses: list[float] = []
    densities: list[float | None] = []
    of_features = None if task.cell.settings.model.has_layer else inputs_of_features(task)
    for place in task.folds(stage.kind):
        repeat, fold, split = place
        inputs = of_features or inputs_of_layer(task, place)
        inner = _with_validation(task, split, model_seed(protocol.seed, repeat, fold))
        x, train = inputs.x, list(split.train)
        strength = baseline.choose_strength(x, labels, inner.train, inner.valid, task.classes)
        fitted = baseline.fit_baseline(x[train], labels[train].tolist(), task.classes, strength)
        p = fitted.predict(x)
        losses.append(log_loss(p[train, labels[train]]))
        scored += [score(name, repeat, fold, split, p[None], labels) for name in stage.protocols]
        densities.append(inputs.density)
    return Training(
        by_protocol(scored, stage.protocols),
        history_without_test(stage.kind, [float(np.mean(losses))]),
        fitted.parameters,
        fitted.multiply_adds,
        mean_density(densities),
        "scikit-learn",
    )


def mean_density(densities: Sequence[float | None]) -> float | None:
    """The mean density of the codes over folds; None without codes."""
    known = [density for density in densities if density is not None]
    return round(float(np.mean(known)), 4) if len(known) == len(densities) else None


def _with_validation(task: Task, split: Split, seed: int) -> Split:
    """The split with a validation part, taken from the training bags if it has none."""
    from scmil.bags.checks import patients_of
    from scmil.bags.splits import with_validation

    if split.valid:
        return split
    valid = task.cell.settings.protocol.valid
    return with_validation(split, list(task.bags.labels), valid, seed, patients_of(task.bags))


class BaselineInputs(NamedTuple):
    """Mean and maximum (bags, 2m) of all bags, and the density of the codes if there are any."""

    x: Numbers
    density: float | None


def inputs_of_features(task: Task) -> BaselineInputs:
    """Mean and maximum of the features."""
    return BaselineInputs(baseline.mean_and_max(task.bags), None)


def inputs_of_layer(task: Task, place: Fold) -> BaselineInputs:
    """Mean and maximum of the output of the layer that networks would train.

    It has its initial weights: random ones, or a dictionary from the training bags of the fold.
    """
    import torch

    from scmil.bags.scaling import streamed_moments
    from scmil.training.layer_start import start_layers

    settings = task.cell.settings
    model = build_from_settings(
        replace(settings.model, aggregator="mean", embed=[]),
        task.run_bags.summary.dim,
        task.classes,
        seed=model_seed(settings.protocol.seed, place.repeat, place.fold),
    )
    bags, train = task.bags, place.split.train
    if settings.data.standardise:
        bags = streamed_moments(bags.subset(train)).apply_to_bags(bags)
    features = ((bags.ids[position], bags[position].features) for position in train)
    start_layers(model, 0, features, len(train), settings.protocol.seed)
    statistics = getattr(model.refine, "statistics", None)
    with torch.no_grad():
        x = baseline.mean_and_max(replace(bag, features=model.refine(bag.features)) for bag in bags)
        sampled = [statistics(bags[i].features).density for i in train[:5]] if statistics else []
    return BaselineInputs(x, float(np.mean(sampled)) if sampled else None)
