"""Where the training of an objective starts: at the best constant prediction of the training split.

Otherwise the first steps learn the frequencies of the events, grades or labels. Their gradient has
the same sign for all bags and is larger than that of the differences between bags: attention then
follows it and collapses to single instances before it has seen a signal. A number starts at its
mean (`RegressionObjective`), and Cox's likelihood does not depend on a constant.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scmil.core.shapes import Numbers
from scmil.models.combined_objective import ClassObjective
from scmil.models.objectives import (
    MultilabelObjective,
    Objective,
    OrdinalObjective,
    SurvivalObjective,
)

LEAST_STEP = 1e-2  # between two thresholds of grades


def start_at_frequencies(objective: Objective, values: Numbers) -> Objective:
    """The objective with the frequencies of the training split as its `start`.

    Hazards of bins are events divided by bags at risk, as the likelihood counts them: a bag that is
    censored in a bin survives it. Half an event and half a survivor are added, so that no
    frequency is 0 or 1.

    Args:
        objective: The objective.
        values: Values of the training split, as `Targets.array` returns them.

    Returns:
        The objective; itself if it needs no start.

    >>> values = np.array([[1.0, 1.0], [3.0, 1.0], [3.0, 0.0]])
    >>> found = start_at_frequencies(SurvivalObjective((2.0,)), values)
    >>> [round(logit, 2) for logit in found.start]  # hazards 1.5 / 4 and 1.5 / 3
    [-0.51, 0.0]
    """
    if isinstance(objective, SurvivalObjective):
        return replace(objective, start=_hazard_logits(objective, values))
    if isinstance(objective, OrdinalObjective):
        above = (values[:, :1] > np.arange(objective.numbers)).sum(0)
        logits = _logits(above, len(values))
        steps = np.maximum(-np.diff(logits), LEAST_STEP)
        # The inverse of the softplus of `cumulative_logits`.
        return replace(objective, start=_floats([*logits[:1], *np.log(np.expm1(steps))]))
    if isinstance(objective, ClassObjective):
        counts = np.bincount(values[:, 0].astype(int), minlength=objective.classes)
        return replace(objective, start=_floats(np.log((counts + 0.5) / len(values))))
    if isinstance(objective, MultilabelObjective):
        known = (~np.isnan(values)).sum(0)
        return replace(objective, start=_floats(_logits(np.nansum(values, axis=0), known)))
    return objective


def _hazard_logits(objective: SurvivalObjective, values: Numbers) -> tuple[float, ...]:
    bins = np.searchsorted(objective.edges, values[:, 0])
    events = values[:, 1] > 0
    weights = np.where(events, 1.0, objective.censored_weight)
    number = np.arange(objective.numbers)
    happened = ((bins[:, None] == number) & events[:, None]).sum(0)
    at_risk = ((bins[:, None] >= number) * weights[:, None]).sum(0)
    return _floats(_logits(happened, at_risk))


def _logits(count: Numbers, total: Numbers | int) -> Numbers:
    """The logit of a frequency to which half a case of both kinds is added."""
    return np.log((count + 0.5) / (total - count + 0.5))


def _floats(values: Numbers | list[float]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
