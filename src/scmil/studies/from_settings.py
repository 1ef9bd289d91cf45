"""Models, recipes and rules from the settings of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from scmil.studies.settings import (
    LocalisationSettings,
    ModelSettings,
    TrainingSettings,
    aggregator_of,
)

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet
    from scmil.bags.splits import Split
    from scmil.models.model import MILModel
    from scmil.models.objectives import Objective
    from scmil.stats.localisation import Rule
    from scmil.training.recipes import Recipe


def build_from_settings(
    model: ModelSettings,
    dim: int,
    classes: int,
    seed: int | None,
    objective: Objective | None = None,
) -> MILModel:
    """Build the model that the settings describe, for classes or for an objective."""
    from scmil.models.model import build_model
    from scmil.models.objectives import model_outputs, objective_json

    return build_model(
        dim,
        classes if objective is None else model_outputs(objective),
        model.aggregator,
        model.sparse_coding or None,
        refine=model.refine,
        embed=model.embed,
        seed=seed,
        output="softmax" if objective is None else objective_json(objective),
    )


def build_for_split(
    model: ModelSettings, bags: BagSet, split: Split, dim: int, seed: int, loss: str | None = None
) -> MILModel:
    """Build the model for the classes of the bags, or for the objective of their targets.

    Bins and scales of the objective come from the training bags of the split.
    """
    from scmil.training.target_objectives import objective_for

    if bags.targets is None:
        return build_from_settings(model, dim, max(2, len(bags.classes)), seed)
    train = bags.targets.array([bags.ids[position] for position in split.train])
    return build_from_settings(model, dim, 0, seed, objective_for(bags.targets.target, train, loss))


def check_model(model: ModelSettings) -> None:
    """Raise an error if no model can be built from the settings; no memory is allocated."""
    import torch

    with torch.device("meta"):
        build_from_settings(model, dim=64, classes=2, seed=None)


def recipe_of(model: ModelSettings, training: TrainingSettings) -> Recipe:
    """The recipe by its name; "official" is the one that the authors of the aggregator published.

    >>> settings = TrainingSettings("official", {"epochs": 3})
    >>> recipe_of(ModelSettings("dsmil"), settings).betas
    (0.5, 0.9)
    """
    from scmil.training import recipes

    if training.recipe != "official":
        return recipes.recipe(str(training.recipe), **training.changes)
    if not model.is_network:
        return recipes.Recipe(epochs=1)  # the baseline uses nothing of it
    return replace(recipes.official(aggregator_of(model)), **training.changes)


def rule_of(localisation: LocalisationSettings) -> Rule:
    """The rule by which tile scores become detections.

    >>> rule_of(LocalisationSettings(score="ratio")).score
    'ratio'
    """
    from scmil.stats.localisation import Rule

    own = localisation
    return Rule(own.score, own.rule, own.radius_um, own.smooth_um, own.least)


def without_partly_annotated(exclude: Iterable[str]) -> list[str]:
    """Slides to exclude; `camelyon16` stands for its slides that are not completely annotated.

    >>> without_partly_annotated(["mine", "camelyon16"])[::21]
    ['mine', 'test_114']
    """
    from scmil.bags.datasets.camelyon16 import not_exhaustively_annotated

    return [
        slide_id
        for name in exclude
        for slide_id in (not_exhaustively_annotated() if name == "camelyon16" else [name])
    ]
