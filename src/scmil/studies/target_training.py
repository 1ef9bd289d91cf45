"""Train the folds of a run of another task than classes: survival, numbers, grades, labels.

Bins, scales and the cut-off between low and high risk come from the training bags of each fold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scmil.core.run_format import COMBINED, TEST_TUNED
from scmil.core.shapes import Numbers
from scmil.studies.cell_baseline import inputs_of_features, inputs_of_layer, mean_density
from scmil.studies.cell_costs import density_of, multiply_adds_of
from scmil.studies.cell_splits import model_seed
from scmil.studies.cell_task import (
    CHECKPOINTS,
    Fold,
    Stage,
    Task,
    Training,
    by_protocol,
    history_without_test,
    mean_history,
)
from scmil.studies.ensemble import MODELS, write_fold_model
from scmil.studies.from_settings import build_for_split
from scmil.studies.target_cell import TargetFold

if TYPE_CHECKING:
    from scmil.bags.targets import PartTarget, Target, Targets
    from scmil.models.model import MILModel
    from scmil.training.fold import TrainedFold
    from scmil.training.recipes import Recipe


def train_target_networks(
    task: Task, stage: Stage, progress: Callable[[int], None]
) -> Training[TargetFold]:
    """Train a network for each fold, one after the other, and predict its test bags."""
    from scmil.models.cost import count_parameters

    settings, folds, recipe = task.cell.settings, task.folds(stage.kind), task.recipe
    if stage.kind == "full":  # without a validation split there is no early stopping
        recipe = replace(recipe, patience=None)
    facts, models, scored, losses = task.run_bags.summary, [], [], []
    for place, fold in enumerate(folds):

        def report(epoch: int, place: int = place) -> None:
            progress((place * recipe.epochs + epoch) // len(folds))

        model = build_for_split(
            settings.model,
            task.bags,
            fold.split,
            facts.dim,
            model_seed(settings.protocol.seed, fold.repeat, fold.fold),
            settings.training.loss,
        )
        checkpoint = task.folder / CHECKPOINTS / f"{stage.kind}-{place}.safetensors"
        trained = _train_one(task, stage.protocols, model, fold, recipe, checkpoint, report)
        if settings.training.keep_models:
            kept = task.folder / MODELS / checkpoint.stem
            write_fold_model(kept, model, trained, task.bags.ids, fold.split)
        scored += [_select_epoch(task, name, model, fold, trained) for name in stage.protocols]
        losses.append(trained.history.train_loss)
        models.append(model)
    return Training(
        by_protocol(scored, stage.protocols),
        mean_history(stage.kind, losses),
        count_parameters(models[0]),
        multiply_adds_of(models[0], facts.median, facts.dim),
        density_of(models, task.bags, [fold.split for fold in folds], settings.data.standardise),
        "fold by fold",
    )


def train_target_baseline(task: Task, stage: Stage) -> Training[TargetFold]:
    """Fit the linear baseline of the task to the same splits; there is nothing to select."""
    from scmil.training.target_baseline import baseline_fold

    targets, folds = targets_of(task), task.folds(stage.kind)
    of_features = None if task.cell.settings.model.has_layer else inputs_of_features(task)
    scored, densities = [], []
    for fold in folds:
        inputs = of_features or inputs_of_layer(task, fold)
        found = baseline_fold(inputs.x, targets, task.bags.ids, fold.split)
        scored += [TargetFold(name, fold.repeat, fold.fold, 1, found) for name in stage.protocols]
        densities.append(inputs.density)
    rows, intercepts = _baseline_rows(targets.target)
    return Training(
        by_protocol(scored, stage.protocols),
        [row | {"train_loss": None} for row in history_without_test(stage.kind, [0.0])],
        rows * inputs.x.shape[1] + intercepts,
        rows * inputs.x.shape[1],
        mean_density(densities),
        "linear baseline",
    )


def _baseline_rows(target: Target | PartTarget) -> tuple[int, int]:
    """The rows of coefficients and the intercepts of the linear baseline."""
    from scmil.bags.targets import ClassTarget, CombinedTarget, LabelsTarget, SurvivalTarget

    if isinstance(target, CombinedTarget):
        parts = [_baseline_rows(part) for part in target.parts]
        return sum(rows for rows, _ in parts), sum(intercepts for _, intercepts in parts)
    if isinstance(target, SurvivalTarget):
        return 1, 0
    rows = target.width if isinstance(target, LabelsTarget) else 1
    if isinstance(target, ClassTarget) and len(target.classes) > 2:
        rows = len(target.classes)
    return rows, rows


def targets_of(task: Task) -> Targets:
    """The targets of the bags, which are known to have some."""
    assert task.bags.targets is not None
    return task.bags.targets


def _train_one(
    task: Task,
    protocols: Sequence[str],
    model: MILModel,
    fold: Fold,
    recipe: Recipe,
    checkpoint: Path,
    progress: Callable[[int], None],
) -> TrainedFold:
    """Train one fold; an interrupted training continues from its checkpoint."""
    from scmil.training.fold import train_fold

    split = fold.split
    # The cut-off of the risk needs the training bags.
    survival = targets_of(task).task in ("survival", COMBINED)
    train = split.train if survival else ()
    # To select on the test bags, every epoch is needed, which no checkpoint keeps.
    every_epoch = TEST_TUNED in protocols
    return train_fold(
        model,
        task.bags,
        split,
        recipe,
        task.options,
        evaluate=[*split.test, *train],
        every_epoch=every_epoch,
        checkpoint=None if every_epoch else checkpoint,
        progress=progress,
    )


def _select_epoch(
    task: Task, protocol: str, model: MILModel, fold: Fold, trained: TrainedFold
) -> TargetFold:
    """The predictions of the epoch that the protocol selects.

    With "nested" the model has the weights of its best epoch on the validation bags; without
    validation bags it has those of the last one.
    """
    from scmil.training.target_folds import fold_predictions

    assert model.objective is not None
    targets, by_epoch = targets_of(task), trained.probabilities
    values = targets.array(task.bags.ids)
    if protocol == TEST_TUNED:
        chosen = _best_on_test(targets, model, values, by_epoch, fold.split.test)
        epoch = chosen + 1
    else:
        chosen, epoch = -1, trained.epoch
    outputs = by_epoch[chosen]
    known, new = (outputs[list(part)] for part in (fold.split.train, fold.split.test))
    found = fold_predictions((model.objective, known, new), fold.split, task.bags.ids, values)
    return TargetFold(protocol, fold.repeat, fold.fold, epoch, found)


def _best_on_test(
    targets: Targets, model: MILModel, values: Numbers, by_epoch: Numbers, test: Sequence[int]
) -> int:
    """The first epoch with the highest score on the test bags themselves."""
    from scmil.training.target_steps import score_outputs

    assert model.objective is not None
    rows = list(test)
    scores = [
        score_outputs(targets, model.objective, values[rows], outputs[rows]) for outputs in by_epoch
    ]
    return int(np.argmax(np.nan_to_num(scores, nan=-np.inf)))
