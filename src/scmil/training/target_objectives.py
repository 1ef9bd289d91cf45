"""The objective of a task: its loss, with bins or a scale from the training split."""

from __future__ import annotations

import numpy as np
import torch

from scmil.bags.targets import (
    ClassTarget,
    CombinedTarget,
    GradeTarget,
    NumberTarget,
    PartTarget,
    SurvivalTarget,
    Target,
)
from scmil.core.shapes import Numbers
from scmil.errors import DataError, OptionError
from scmil.models.combined_objective import ClassObjective, CombinedObjective, part_weights
from scmil.models.objective_start import start_at_frequencies
from scmil.models.objectives import (
    CoxObjective,
    MultilabelObjective,
    Objective,
    OrdinalObjective,
    RegressionObjective,
    SurvivalObjective,
)
from scmil.models.survival_bins import survival_edges

LOSSES = {
    "survival": ("discrete", "cox"),
    "regression": ("huber", "squared"),
    "ordinal": ("cumulative",),
    "multilabel": ("masked",),
    "combined": ("sum",),  # of the first loss of each part
}


def objective_for(target: Target, values: Numbers, loss: str | None = None) -> Objective:
    """The objective of a task, with bins, scale and start from the training split.

    Args:
        target: The target.
        values: Its values in the training split, as `Targets.array` returns them.
        loss: One of `LOSSES` of the task; the first by default.

    Returns:
        The objective.

    Raises:
        OptionError: If the loss is unknown.
        DataError: If the training split has no events, or none has a value of a part.

    >>> import numpy as np
    >>> objective_for(NumberTarget(), np.array([[1.0], [3.0]]))
    RegressionObjective(mean=2.0, scale=1.0, loss='huber')
    """
    loss = check_loss(target, loss)
    if isinstance(target, CombinedTarget):
        return _combine(target, values)
    return _objective_of_part(target, values, loss)


def _combine(target: CombinedTarget, values: Numbers) -> CombinedObjective:
    """The objective of all parts, each from the bags that have it."""
    parts, known = [], []
    for name, part, columns in zip(target.names, target.parts, target.columns, strict=True):
        own = values[:, columns]
        own = own[~np.isnan(own).all(1)]
        if not len(own):
            raise DataError(
                f"no bag of the training split has a value of {name!r}. Add values, use fewer "
                "folds, or leave this target out."
            )
        loss = None if isinstance(part, ClassTarget) else LOSSES[part.task][0]
        parts.append(_objective_of_part(part, own, loss))
        known.append(torch.as_tensor(own, dtype=torch.float32))
    return CombinedObjective(tuple(parts), part_weights(parts, known, len(values)))


def _objective_of_part(target: PartTarget, values: Numbers, loss: str | None) -> Objective:
    if isinstance(target, ClassTarget):
        return start_at_frequencies(ClassObjective(len(target.classes)), values)
    if isinstance(target, SurvivalTarget):
        if loss == "cox":
            return CoxObjective(min(32, max(2, len(values))))
        edges = tuple(survival_edges(values[:, 0], values[:, 1]).tolist())
        return start_at_frequencies(SurvivalObjective(edges), values)
    if isinstance(target, NumberTarget):
        return RegressionObjective(float(values.mean()), float(values.std()) or 1.0, str(loss))
    if isinstance(target, GradeTarget):
        return start_at_frequencies(OrdinalObjective(len(target.grades)), values)
    return start_at_frequencies(MultilabelObjective(len(target.names)), values)


def check_loss(target: Target, loss: str | None) -> str:
    """The name of the loss, by default the first of the task.

    Raises:
        OptionError: If the task has no such loss.

    >>> check_loss(NumberTarget(), None)
    'huber'
    """
    known = LOSSES[target.task]
    if loss is not None and loss not in known:
        raise OptionError(
            f"loss = {loss!r} for the task {target.task!r}. Known: {', '.join(known)}."
        )
    return known[0] if loss is None else loss
