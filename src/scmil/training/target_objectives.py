"""The objective of a task: its loss, with bins or a scale from the training split."""

from __future__ import annotations

from scmil.bags.targets import GradeTarget, NumberTarget, SurvivalTarget, Target
from scmil.core.shapes import Numbers
from scmil.errors import OptionError
from scmil.models.objective_start import start_at_frequencies
from scmil.models.objectives import (
    CoxObjective,
    MultilabelObjective,
    Objective,
    OrdinalObjective,
    RegressionObjective,
    SurvivalObjective,
    survival_edges,
)

LOSSES = {
    "survival": ("discrete", "cox"),
    "regression": ("huber", "squared"),
    "ordinal": ("cumulative",),
    "multilabel": ("masked",),
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
        DataError: If the training split has no events.

    >>> import numpy as np
    >>> objective_for(NumberTarget(), np.array([[1.0], [3.0]]))
    RegressionObjective(mean=2.0, scale=1.0, loss='huber')
    """
    loss = check_loss(target, loss)
    if isinstance(target, SurvivalTarget):
        if loss == "cox":
            return CoxObjective(min(32, max(2, len(values))))
        edges = tuple(survival_edges(values[:, 0], values[:, 1]).tolist())
        return start_at_frequencies(SurvivalObjective(edges), values)
    if isinstance(target, NumberTarget):
        return RegressionObjective(float(values.mean()), float(values.std()) or 1.0, loss)
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
