"""Train all folds of one run, at once or fold by fold, and score them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scmil.core.run_format import TEST_TUNED
from scmil.studies.cell_baseline import train_baseline
from scmil.studies.cell_costs import density_of, multiply_adds_of
from scmil.studies.cell_splits import model_seed
from scmil.studies.cell_task import (
    CHECKPOINTS,
    DEVICE,
    PRECISION,
    Fold,
    Stage,
    Task,
    Training,
    by_protocol,
    mean_history,
)
from scmil.studies.ensemble import MODELS, write_fold_model
from scmil.studies.localise import FROC, froc_of_model, rank_by_model
from scmil.studies.plan import build_from_settings
from scmil.studies.protocols import Row, ScoredFold, history_rows, score
from scmil.studies.target_training import train_target_baseline, train_target_networks

if TYPE_CHECKING:
    from scmil.models.model import MILModel
    from scmil.training.recipes import Recipe

# Numbers of all bags times folds. Below, all folds train at once on bags in memory; above, one fold
# after the other on bags that are read when they are needed: a step on a slide is long enough to
# keep a processor busy by itself.
LARGE = 500_000_000
Progress = Callable[[str, int, int], None]  # run, epochs done, epochs in all


class _Batch(NamedTuple):
    """The models of all folds of a stage, not trained yet."""

    stage: Stage
    models: list[MILModel]
    folds: list[Fold]
    recipe: Recipe


def train_folds(task: Task, progress: Progress | None) -> list[Training[Any]]:
    """Train and score all folds by all selection protocols.

    `last` and `test-tuned` use the same models; `nested` trains on fewer bags, to have a validation
    split to choose on. Bags with targets of another task than classes have folds of that task.
    """
    cell, is_class = task.cell, task.bags.targets is None
    networks = _train_networks if is_class else train_target_networks
    baseline = train_baseline if is_class else train_target_baseline
    full = [name for name in cell.protocols if name != "nested"]
    stages = [Stage("full", full)] * bool(full)
    stages += [Stage("inner", ["nested"])] * ("nested" in cell.protocols)
    epochs = task.recipe.epochs
    trainings: list[Training[Any]] = []
    for done, stage in enumerate(stages):

        def report(epoch: int, done: int = done) -> None:
            if progress:
                progress(cell.name, done * epochs + epoch, len(stages) * epochs)

        if cell.settings.model.is_network:
            trainings.append(networks(task, stage, report))
        else:
            trainings.append(baseline(task, stage))
            report(epochs)
    return trainings


def _train_networks(
    task: Task, stage: Stage, progress: Callable[[int], None]
) -> Training[ScoredFold]:
    from scmil.models.cost import count_parameters

    settings, folds, recipe = task.cell.settings, task.folds(stage.kind), task.recipe
    facts = task.run_bags.summary
    models = [
        build_from_settings(
            settings.model,
            facts.dim,
            task.classes,
            seed=model_seed(settings.protocol.seed, fold.repeat, fold.fold),
        )
        for fold in folds
    ]
    if stage.kind == "full":  # without a validation split there is no early stopping
        recipe = replace(recipe, patience=None)
    one_by_one = _must_train_one_by_one(task, recipe, models)
    train = _train_one_by_one if one_by_one else _train_at_once
    scored, history = train(task, _Batch(stage, models, folds, recipe), progress)
    splits = [fold.split for fold in folds]
    # Models that were trained at once end as they were in the last epoch.
    protocols = [name for name in stage.protocols if one_by_one or name == "last"]
    found = _locate(task, models, folds) if protocols else []
    located = {
        (name, fold.repeat, fold.fold): row
        for name in protocols
        for fold, row in zip(folds, found, strict=True)
    }
    return Training(
        scored,
        history,
        count_parameters(models[0]),
        multiply_adds_of(models[0], facts.median, facts.dim),
        density_of(models, task.bags, splits, settings.data.standardise),
        "fold by fold" if one_by_one else "all folds at once",
        located,
    )


def _locate(task: Task, models: Sequence[MILModel], folds: Sequence[Fold]) -> list[Row]:
    """Score each model on the annotated lesions and the instance labels of its test bags."""
    settings, found = task.cell.settings, []
    for model, fold in zip(models, folds, strict=True):
        row = rank_by_model(settings, task.bags, model, fold.split)
        if settings.localisation is not None:
            row[FROC] = froc_of_model(settings, task.bags, model, fold.split)
        found.append(row)
    return found


def _must_train_one_by_one(task: Task, recipe: Recipe, models: Sequence[MILModel]) -> bool:
    """Whether the folds cannot be trained at once, or would gain nothing from it."""
    from scmil.training.aggregator_hooks import can_be_stacked

    settings = task.cell.settings
    device, precision = settings.training.device, settings.training.precision
    return (
        task.run_bags.summary.numbers * len(models) > LARGE
        or not can_be_stacked(models[0], recipe)
        or recipe.patience is not None
        # One model at a time keeps a GPU busy, and short products are for slides.
        or (device or DEVICE, precision or PRECISION) != (DEVICE, PRECISION)
        # A model has to end as it was in the epoch that was chosen.
        or settings.localisation is not None
        or bool(settings.training.keep_models)
    )


def _train_at_once(
    task: Task, batch: _Batch, progress: Callable[[int], None]
) -> tuple[list[ScoredFold], list[Row]]:
    """Train all folds together with `fit_folds`, on bags in memory."""
    from scmil.training.folds import fit_folds

    stage, models, folds, recipe = batch
    settings, splits = task.cell.settings, [fold.split for fold in folds]
    weights = [w for split in splits if (w := task.class_weights(split)) is not None]
    history = fit_folds(
        models,
        list(task.bags),
        splits,
        recipe,
        seed=settings.protocol.seed,
        standardise=settings.data.standardise,
        look="last" if stage.protocols == ["last"] else "every",
        class_weights=weights or None,
        progress=progress,
    )
    scored = [
        score(
            protocol,
            *fold,
            history.probabilities[:, place].astype(float),
            task.labels,
            first=recipe.first_candidate,
        )
        for protocol in stage.protocols
        for place, fold in enumerate(folds)
    ]
    rows = history_rows(stage.kind, history.train_loss, history.probabilities, splits, task.labels)
    return scored, rows


class _FoldResult(NamedTuple):
    """What one fold gives: scores by protocol, and the training loss of each epoch."""

    scored: list[ScoredFold]
    train_loss: Sequence[float]


def _train_one_by_one(
    task: Task, batch: _Batch, progress: Callable[[int], None]
) -> tuple[list[ScoredFold], list[Row]]:
    """Train with `fit`, which reads bags when it needs them."""
    stage, models, folds, recipe = batch
    results = []
    for place, (model, fold) in enumerate(zip(models, folds, strict=True)):

        def report(epoch: int, place: int = place) -> None:
            progress((place * recipe.epochs + epoch) // len(folds))

        checkpoint = task.folder / CHECKPOINTS / f"{stage.kind}-{place}.safetensors"
        results.append(_train_fold(task, stage.protocols, model, fold, recipe, checkpoint, report))
    scored = [one for result in results for one in result.scored]
    history = mean_history(stage.kind, [result.train_loss for result in results])
    return by_protocol(scored, stage.protocols), history


def _train_fold(
    task: Task,
    protocols: list[str],
    model: MILModel,
    fold: Fold,
    recipe: Recipe,
    checkpoint: Path,
    progress: Callable[[int], None],
) -> _FoldResult:
    """Train one fold; an interrupted training continues from its checkpoint."""
    from scmil.training.fold import train_fold

    split = fold.split
    # To select on the test bags, every epoch is needed, which no checkpoint keeps.
    every_epoch = TEST_TUNED in protocols
    trained = train_fold(
        model,
        task.bags,
        split,
        recipe,
        task.options,
        evaluate=[*split.test, *split.valid],
        every_epoch=every_epoch,
        checkpoint=None if every_epoch else checkpoint,
        progress=progress,
    )
    if task.cell.settings.training.keep_models:
        kept = task.folder / MODELS / checkpoint.stem
        write_fold_model(kept, model, trained, task.bags.ids, split)
    first = recipe.first_candidate
    scored = [
        score(name, *fold, trained.probabilities, task.labels, first=first) for name in protocols
    ]
    if not every_epoch:
        scored = [replace(one, epoch=trained.epoch) for one in scored]
    return _FoldResult(scored, trained.history.train_loss)
