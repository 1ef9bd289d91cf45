"""What a trained model answers, by its task: metrics, predictions, and its part of `study.json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from scmil.bags.splits import Split
from scmil.bags.targets import target_json
from scmil.errors import OptionError
from scmil.models.answers import answer_names
from scmil.models.objectives import Objective, objective_json
from scmil.stats.metrics import decide
from scmil.studies.model_folder import Page
from scmil.studies.model_metrics import Numbers, metrics_of_splits
from scmil.studies.settings import TrainSettings
from scmil.studies.target_metrics import risk_cut_off, target_metrics, target_prediction_rows
from scmil.studies.temperature import check_calibration

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet
    from scmil.models.model import MILModel
    from scmil.training.fold import TrainedFold


class Answers(Protocol):
    """The answers of one model for all bags of its study."""

    def study(self) -> Page:
        """The part of `study.json` that depends on the task."""

    def metrics(self) -> Page:
        """The content of `metrics.json`."""

    def prediction_rows(self) -> list[Page]:
        """The rows of `predictions.csv`."""

    def composition(self) -> str:
        """How the bags are distributed, for the model card."""


def answers_in(
    bags: BagSet, split: Split, model: MILModel, fold: TrainedFold, patient: str | None = None
) -> Answers:
    """The answers of the final model of a fold; `patient` is how slides of a patient are used."""
    outputs = fold.probabilities[-1]
    if model.objective is None:
        labels = np.array(bags.labels, np.int64)
        pooling = "max" if patient == "max" else "mean"
        return ClassAnswers(bags, split, labels, outputs, float(fold.threshold), pooling)
    return TargetAnswers(bags, split, model.objective, outputs, patient)


@dataclass(frozen=True)
class ClassAnswers:
    """Probabilities of classes, and the threshold that was chosen on the validation split."""

    bags: BagSet
    split: Split
    labels: NDArray[np.int64]
    p: Numbers
    threshold: float
    pooling: str = "mean"

    def study(self) -> Page:
        """The classes and the threshold."""
        return {"classes": list(self.bags.classes), "threshold": self.threshold}

    def metrics(self) -> Page:
        """Every metric of every split."""
        return metrics_of_splits(
            self.bags, self.split, self.labels, self.p, self.threshold, self.pooling
        )

    def prediction_rows(self) -> list[Page]:
        """Label, predicted class and probabilities of every bag, ordered by split."""
        bags, part = self.bags, {i: name for name, own in self.split._asdict().items() for i in own}
        predicted = decide(self.p, self.threshold)
        return [
            {
                "slide_id": bags.ids[i],
                "case_id": bags.patients[i] or "",
                "part": part[i],
                "y_true": bags.classes[self.labels[i]],
                "y_pred": bags.classes[predicted[i]],
                **{
                    f"p_{name}": f"{value:.7g}"
                    for name, value in zip(bags.classes, self.p[i], strict=True)
                },
            }
            for i in sorted(part, key=lambda i: (Split._fields.index(part[i]), i))
        ]

    def composition(self) -> str:
        """The number of bags of each class."""
        return _count_labels(self.bags.classes, self.labels)


@dataclass(frozen=True)
class TargetAnswers:
    """Outputs of a model of another task than classes."""

    bags: BagSet
    split: Split
    objective: Objective
    outputs: Numbers
    patient: str | None = None

    @property
    def cut_off(self) -> float | None:
        """The median risk of the training split; None for other tasks than survival."""
        return risk_cut_off(self.objective, self.outputs, self.split.train)

    def study(self) -> Page:
        """Task, target, objective, names of the answers and the cut-off of the risk."""
        assert self.bags.targets is not None
        target = self.bags.targets.target
        return {
            "classes": list(answer_names(target)),
            "threshold": None,
            "task": target.task,
            "target": target_json(target),
            "objective": objective_json(self.objective),
            "cut_off": self.cut_off,
        }

    def metrics(self) -> Page:
        """Every metric of the task of every split."""
        return target_metrics(self.bags, self.split, self.objective, self.outputs, self.patient)

    def prediction_rows(self) -> list[Page]:
        """Observed values and answers of every bag, ordered by split."""
        return target_prediction_rows(
            self.bags, self.split, self.objective, self.outputs, self.cut_off
        )

    def composition(self) -> str:
        """The number of bags of each stratum of the splits."""
        return _count_labels(self.bags.classes, np.array(self.bags.labels, np.int64))


def check_task(bags: BagSet, settings: TrainSettings) -> None:
    """Raise an error if class weights or a loss do not belong to the task of the bags.

    Raises:
        OptionError: There are class weights or a loss that the task does not have.
    """
    from scmil.training.fitting import weigh_classes
    from scmil.training.target_objectives import check_loss

    if bags.targets is None:
        if settings.loss is not None:
            raise OptionError(
                f"loss = {settings.loss!r}: classes have one loss, the cross-entropy. State the "
                "task, or omit the option."
            )
        weigh_classes(settings.weights, bags.labels, len(bags.classes))
        return
    if settings.calibrate:
        check_calibration(bags.targets.task, settings.loss)
    if settings.weights is not None:
        raise OptionError(f"class_weights need classes, and the task is {bags.targets.task!r}.")
    check_loss(bags.targets.target, settings.loss)


def _count_labels(names: tuple[str, ...], labels: NDArray[np.int64]) -> str:
    from scmil.studies.model_card import escape_markdown

    return ", ".join(
        f"{escape_markdown(name)} {int((labels == i).sum())}" for i, name in enumerate(names)
    )
