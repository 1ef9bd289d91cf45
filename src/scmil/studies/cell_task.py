"""One run with its bags: what is trained, and what a training gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from scmil.studies.cell_splits import splits_of
from scmil.studies.localise import Located
from scmil.studies.plan import Cell, recipe_of
from scmil.studies.protocols import Row

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet
    from scmil.bags.splits import Split
    from scmil.studies.protocols import ScoredFold
    from scmil.studies.run_bags import RunBags
    from scmil.studies.target_cell import TargetFold
    from scmil.training.fold import TrainingOptions
    from scmil.training.recipes import Recipe

DEVICE, PRECISION = "cpu", "float32"  # if the settings name none
CHECKPOINTS = "checkpoints"
AnyFold = TypeVar("AnyFold", bound="ScoredFold | TargetFold")


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

    @property
    def options(self) -> TrainingOptions:
        """How a single fold is trained, apart from the recipe."""
        from scmil.training.fold import TrainingOptions

        settings = self.cell.settings
        return TrainingOptions(
            settings.protocol.seed,
            settings.data.standardise,
            settings.training.class_weights,
            settings.training.device or DEVICE,
            settings.training.precision or PRECISION,
        )

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
class Training(Generic[AnyFold]):
    """The scores of all folds, and what the models cost."""

    scored: list[AnyFold]
    history: list[Row]
    parameters: int
    multiply_adds: int  # of one bag of median size
    density: float | None
    method: str  # all folds at once, fold by fold, or by scikit-learn
    # By protocol, repeat and fold, if lesions are annotated or instances have labels.
    located: Located = field(default_factory=dict)


class RunTables(NamedTuple):
    """The tables of a run: the summary of each protocol, each fold, and each prediction."""

    rows: list[Row]
    folds: list[Row]
    predictions: Iterable[Row]
    # Names of the metrics of another task than classes, in the order of results.csv.
    metrics: tuple[str, ...] = ()


class Stage(NamedTuple):
    """One training of a run: "full" on all training bags, "inner" without those of a validation
    split.
    """

    kind: str
    protocols: list[str]


def by_protocol(scored: list[AnyFold], protocols: Sequence[str]) -> list[AnyFold]:
    """Sort scored folds in the order of the protocols."""
    return sorted(scored, key=lambda one: protocols.index(one.protocol))


def history_without_test(kind: str, losses: Sequence[float]) -> list[Row]:
    """The curve of the training loss; the test columns are empty."""
    blank = dict.fromkeys(("test_loss", "test_accuracy", "test_auc"))
    return [
        {"training": kind, "epoch": epoch, "train_loss": f"{loss:.6g}", **blank}
        for epoch, loss in enumerate(losses, 1)
    ]


def mean_history(kind: str, losses: Sequence[Sequence[float]]) -> list[Row]:
    """The mean curve of the training loss over folds, some of which stopped early.

    >>> [row["train_loss"] for row in mean_history("inner", [[1.0, 0.5], [0.5]])]
    ['0.75', '0.5']
    """
    table = np.full((max(map(len, losses)), len(losses)), np.nan)
    for place, own in enumerate(losses):
        table[: len(own), place] = own
    means = [float(np.nanmean(row)) for row in table if not np.isnan(row).all()]
    return history_without_test(kind, means)
