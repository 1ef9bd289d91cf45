"""Temperature scaling of survival in bins, grades and several labels, on the validation split.

What a model adds to the frequencies of its training split is divided by the temperature: above 1
hazards and probabilities move towards these frequencies. The temperature becomes a part of the
objective of the model, so that every prediction and every map uses it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from scmil.core.limits import BOUNDS
from scmil.core.shapes import Numbers
from scmil.models.combined_objective import ClassObjective, CombinedObjective
from scmil.models.objectives import (
    CoxObjective,
    MultilabelObjective,
    Objective,
    RegressionObjective,
    objective_json,
)
from scmil.studies.temperature import DETERMINED, describe_temperature
from scmil.training.fitting import predict

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet
    from scmil.models.model import MILModel
    from scmil.training.fold import TrainedFold

WITHOUT_TEMPERATURE = (CoxObjective, RegressionObjective, ClassObjective, CombinedObjective)
GRID = 401  # temperatures of each of the rounds of the search
ROUNDS = 3


@dataclass(frozen=True)
class _Unchanged(MultilabelObjective):
    """The numbers of a model as they are."""

    def outputs(self, numbers: Tensor) -> Tensor:
        return numbers


def fit_target_temperature(objective: Objective, numbers: Numbers, values: Numbers) -> float:
    """The temperature with the smallest loss of an objective.

    Args:
        objective: The objective, with a temperature of 1.
        numbers: The numbers of the model for bags (b, k).
        values: Their values, as `Targets.array` returns them.

    Returns:
        The temperature, from 0.01 to 100; a limit is returned if the loss falls up to it.

    >>> numbers = np.array([[2.0], [2.0], [2.0], [2.0]])
    >>> found = fit_target_temperature(MultilabelObjective(1), numbers, np.eye(4)[:, 1:2] == 0)
    >>> round(found, 2)  # 3 of 4: the logit is log 3
    1.82
    """
    assert not isinstance(objective, WITHOUT_TEMPERATURE)
    given, target = torch.tensor(numbers), torch.tensor(np.asarray(values, dtype=float))

    def loss(log_temperature: float) -> float:
        own = replace(objective, temperature=_clip_temperature(np.exp(log_temperature)))
        return float(own.losses(given, target).mean())

    limits = BOUNDS["temperature"]
    low, high = np.log(limits.low), np.log(limits.high)
    for _ in range(ROUNDS):
        grid = np.linspace(low, high, GRID)
        best = int(np.argmin([loss(point) for point in grid]))
        low, high = grid[max(0, best - 1)], grid[min(GRID - 1, best + 1)]
    return _clip_temperature(np.exp((low + high) / 2))


def _clip_temperature(temperature: float) -> float:
    limits = BOUNDS["temperature"]
    return float(np.clip(temperature, limits.low, limits.high))


def calibrate_target(
    model: MILModel, fold: TrainedFold, bags: BagSet, valid: Sequence[int], device: str = "cpu"
) -> tuple[TrainedFold, str]:
    """Fit a temperature to the validation bags, and change the objective of the model, in place.

    Only the validation bags are used for it. If the loss has no minimum, because the validation
    split is predicted too well or too badly, nothing changes.

    Args:
        model: The trained model.
        fold: Its predictions, and the scaling of its features.
        bags: All bags, with targets.
        valid: Positions of the validation bags.
        device: Where the model runs.

    Returns:
        The predictions of all bags, and a sentence for the report.
    """
    objective = model.objective
    assert bags.targets is not None
    assert objective is not None
    assert not isinstance(objective, WITHOUT_TEMPERATURE)
    plain = copy.copy(model)  # the same weights
    plain.objective = _Unchanged(objective.numbers)
    scaled = bags if fold.scaling is None else fold.scaling.apply_to_bags(bags)
    numbers = predict(plain, scaled, device).double().numpy()
    positions = list(valid)
    values = bags.targets.array([bags.ids[i] for i in positions])
    temperature = fit_target_temperature(objective, numbers[positions], values)
    known = DETERMINED.holds(temperature)
    note = describe_temperature(temperature if known else None, len(positions))
    if not known:
        return fold, note
    changed = replace(objective, temperature=temperature)
    model.objective = changed
    assert model.spec is not None
    model.spec["output"] = objective_json(changed)
    outputs = changed.outputs(torch.tensor(numbers)).numpy()
    return replace(fold, probabilities=outputs[None]), note
