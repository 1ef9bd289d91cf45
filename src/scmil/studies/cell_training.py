"""Train all folds of one run, at once or fold by fold, and score them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scmil.core.run_format import TEST_TUNED
from scmil.studies.cell_splits import model_seed, splits_of
from scmil.studies.localise import froc_of_model
from scmil.studies.plan import Cell, build_from_settings, recipe_of
from scmil.studies.protocols import Row, ScoredFold, history_rows, score
from scmil.training import baseline
from scmil.training.selection import log_loss

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet
    from scmil.bags.splits import Split
    from scmil.models.model import MILModel
    from scmil.studies.run_bags import RunBags
    from scmil.training.recipes import Recipe

# Numbers of all bags times folds. Below, all folds train at once on bags in memory; above, one fold
# after the other on bags that are read when they are needed: a step on a slide is long enough to
# keep a processor busy by itself.
LARGE = 500_000_000
DEVICE, PRECISION = "cpu", "float32"  # of training all folds at once
CHECKPOINTS = "checkpoints"
Progress = Callable[[str, int, int], None]  # run, epochs done, epochs in all


class Fold(NamedTuple):
    """One fold of one repeat."""

    repeat: int
    fold: int
    split: Split


@dataclass(frozen=True)
class Task:
    """A run with its bags, and the folder of its files."""

    cell: Cell
    run_bags: RunBags
    folder: Path

    @property
    def bags(self) -> BagSet:
        """The bags to train on."""
        return self.run_bags.features

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """The class of each bag."""
        return np.array(self.bags.labels, np.int64)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return max(2, 1 + int(self.labels.max()))

    @property
    def recipe(self) -> Recipe:
        """How it is trained."""
        return recipe_of(self.cell.settings.model, self.cell.settings.training)

    def class_weights(self, split: Split) -> list[float] | None:
        """The weight of each class, for the training bags of a split."""
        from scmil.training.fitting import weigh_classes

        labels = [self.bags.labels[position] for position in split.train]
        return weigh_classes(self.cell.settings.training.class_weights, labels, self.classes)

    def folds(self, kind: str) -> list[Fold]:
        """Everything that is trained."""
        splits = splits_of(self.cell, self.bags, inner=kind == "inner")
        return [
            Fold(repeat, number, split)
            for repeat, folds in enumerate(splits)
            for number, split in enumerate(folds)
        ]


@dataclass(frozen=True)
class Training:
    """The scores of all folds, and what the models cost."""

    scored: list[ScoredFold]
    history: list[Row]
    parameters: int
    multiply_adds: int  # of one bag of median size
    density: float | None
    method: str  # all folds at once, fold by fold, or by scikit-learn
    # By repeat and fold, if lesions are annotated.
    froc: Mapping[tuple[int, int], float] = field(default_factory=dict)


class _Stage(NamedTuple):
    """One training of a run: "full" on all training bags, "inner" without those of a validation
    split.
    """

    kind: str
    protocols: list[str]


class _Batch(NamedTuple):
    """The models of all folds of a stage, not trained yet."""

    stage: _Stage
    models: list[MILModel]
    folds: list[Fold]
    recipe: Recipe


def train_folds(task: Task, progress: Progress | None) -> list[Training]:
    """Train and score all folds by all selection protocols.

    `last` and `test-tuned` use the same models; `nested` trains on fewer bags, to have a validation
    split to choose on.
    """
    cell = task.cell
    full = [name for name in cell.protocols if name != "nested"]
    stages = [_Stage("full", full)] * bool(full)
    stages += [_Stage("inner", ["nested"])] * ("nested" in cell.protocols)
    epochs = task.recipe.epochs
    trainings = []
    for done, stage in enumerate(stages):

        def report(epoch: int, done: int = done) -> None:
            if progress:
                progress(cell.name, done * epochs + epoch, len(stages) * epochs)

        if cell.settings.model.is_network:
            trainings.append(_train_networks(task, stage, report))
        else:
            trainings.append(_train_baseline(task, stage))
            report(epochs)
    return trainings


def _train_networks(task: Task, stage: _Stage, progress: Callable[[int], None]) -> Training:
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
    froc = {}
    if settings.localisation is not None:
        froc = {
            (fold.repeat, fold.fold): froc_of_model(settings, task.bags, model, fold.split)
            for model, fold in zip(models, folds, strict=True)
        }
    return Training(
        scored,
        history,
        count_parameters(models[0]),
        _multiply_adds(models[0], facts.median, facts.dim),
        _density(models, task.bags, splits, settings.data.standardise),
        "fold by fold" if one_by_one else "all folds at once",
        froc,
    )


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
    losses = np.full((recipe.epochs, len(folds)), np.nan)
    for place, result in enumerate(results):
        losses[: len(result.train_loss), place] = result.train_loss
    means = [float(np.nanmean(row)) for row in losses if not np.isnan(row).all()]
    scored = [one for result in results for one in result.scored]
    return _by_protocol(scored, stage.protocols), _history_without_test(stage.kind, means)


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
    from scmil.training.fold import TrainingOptions, train_fold

    settings, split = task.cell.settings, fold.split
    options = TrainingOptions(
        settings.protocol.seed,
        settings.data.standardise,
        settings.training.class_weights,
        settings.training.device or DEVICE,
        settings.training.precision or PRECISION,
    )
    # To select on the test bags, every epoch is needed, which no checkpoint keeps.
    every_epoch = TEST_TUNED in protocols
    trained = train_fold(
        model,
        task.bags,
        split,
        recipe,
        options,
        evaluate=[*split.test, *split.valid],
        every_epoch=every_epoch,
        checkpoint=None if every_epoch else checkpoint,
        progress=progress,
    )
    first = recipe.first_candidate
    scored = [
        score(name, *fold, trained.probabilities, task.labels, first=first) for name in protocols
    ]
    if not every_epoch:
        scored = [replace(one, epoch=trained.epoch) for one in scored]
    return _FoldResult(scored, trained.history.train_loss)


def _train_baseline(task: Task, stage: _Stage) -> Training:
    """Train a logistic regression on the same splits.

    Its regularisation is chosen on the validation split, or on one inside the training bags.
    """
    from scmil.bags.checks import patients_of
    from scmil.bags.splits import with_validation

    x, labels = baseline.mean_and_max(task.bags), task.labels
    protocol, groups = task.cell.settings.protocol, patients_of(task.bags)
    scored: list[ScoredFold] = []
    losses = []
    for repeat, fold, split in task.folds(stage.kind):
        inner = split
        if not split.valid:
            seed = model_seed(protocol.seed, repeat, fold)
            inner = with_validation(split, list(task.bags.labels), protocol.valid, seed, groups)
        strength = baseline.choose_strength(x, labels, inner.train, inner.valid, task.classes)
        train = list(split.train)
        fitted = baseline.fit_baseline(x[train], labels[train].tolist(), task.classes, strength)
        p = fitted.predict(x)
        losses.append(log_loss(p[train, labels[train]]))
        scored += [score(name, repeat, fold, split, p[None], labels) for name in stage.protocols]
    return Training(
        _by_protocol(scored, stage.protocols),
        _history_without_test(stage.kind, [float(np.mean(losses))]),
        fitted.parameters,
        fitted.multiply_adds,
        None,
        "scikit-learn",
    )


def _by_protocol(scored: list[ScoredFold], protocols: Sequence[str]) -> list[ScoredFold]:
    return sorted(scored, key=lambda one: protocols.index(one.protocol))


def _history_without_test(kind: str, losses: Sequence[float]) -> list[Row]:
    """The curve of the training loss; the test columns are empty."""
    blank = dict.fromkeys(("test_loss", "test_accuracy", "test_auc"))
    return [
        {"training": kind, "epoch": epoch, "train_loss": f"{loss:.6g}", **blank}
        for epoch, loss in enumerate(losses, 1)
    ]


def _multiply_adds(model: MILModel, instances: int, dim: int) -> int:
    """Multiply-adds of one bag, by the plain form of the layer: the counter sees no NumPy code."""
    from scmil.models.cost import count_multiply_adds

    refine = model.refine
    fused = getattr(refine, "fused", None)
    if fused:
        refine.fused = False  # type: ignore[assignment]
    try:
        return count_multiply_adds(model, instances, dim)
    finally:
        if fused:
            refine.fused = True  # type: ignore[assignment]


def _density(
    models: Sequence[MILModel], bags: BagSet, splits: Sequence[Split], standardise: bool
) -> float | None:
    """Fraction of coefficients that are not zero, over some training bags of every fold.

    None for models without a sparse code.
    """
    import torch

    from scmil.bags.scaling import streamed_moments

    densities = []
    for model, split in zip(models, splits, strict=True):
        statistics = getattr(model.refine, "statistics", None)
        if statistics is None:
            return None
        train = bags.subset(split.train)
        inputs = streamed_moments(train).apply_to_bags(train) if standardise else train
        with torch.no_grad():
            densities += [statistics(model.embed(bag.features)).density for bag in inputs[:5]]
    return round(float(np.mean(densities)), 4)
