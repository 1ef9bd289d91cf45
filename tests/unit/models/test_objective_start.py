"""Training starts at the best constant prediction, so that its first steps learn differences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from target_cohort import make_bags, make_targets

from scmil.errors import OptionError
from scmil.models.objective_start import start_at_frequencies
from scmil.models.objectives import (
    CoxObjective,
    MultilabelObjective,
    Objective,
    OrdinalObjective,
    RegressionObjective,
    SurvivalObjective,
    objective_from_json,
    objective_json,
)

KINDS: dict[str, Objective] = {
    "survival": SurvivalObjective((0.2, 0.5, 1.0)),
    "ordinal": OrdinalObjective(4),
    "multilabel": MultilabelObjective(3),
}


def mean_loss(objective: Objective, values: np.ndarray, numbers: torch.Tensor) -> torch.Tensor:
    target = torch.tensor(values)
    return objective.losses(numbers.expand(len(values), -1), target).mean()


@pytest.mark.parametrize("task", KINDS)
def test_no_constant_prediction_is_better_than_the_start(task: str) -> None:
    """The mean gradient of all training bags vanishes, up to the half case that is added."""
    targets = make_targets(task, make_bags(300)[1])
    values = targets.array(targets.ids)
    gradients = []
    for objective in (KINDS[task], start_at_frequencies(KINDS[task], values)):
        numbers = torch.zeros(objective.numbers, dtype=torch.double, requires_grad=True)
        (gradient,) = torch.autograd.grad(mean_loss(objective, values, numbers), numbers)
        gradients.append(float(gradient.abs().max()))
    assert gradients[0] > 0.05
    assert gradients[1] < 0.004


def test_outputs_at_the_start_are_the_frequencies() -> None:
    grades = np.array([[0.0]] * 50 + [[1.0]] * 30 + [[2.0]] * 20)
    start = start_at_frequencies(OrdinalObjective(3), grades)
    assert start.outputs(torch.zeros(2)).tolist() == pytest.approx([0.5, 0.3, 0.2], abs=0.01)
    labels = np.array([[1.0, np.nan]] * 20 + [[0.0, 1.0]] * 60 + [[0.0, 0.0]] * 20)
    start = start_at_frequencies(MultilabelObjective(2), labels)
    assert start.outputs(torch.zeros(2)).tolist() == pytest.approx([0.2, 0.75], abs=0.01)


def test_survival_at_the_start_is_that_of_kaplan_and_meier_without_censoring() -> None:
    times = np.arange(1.0, 101.0)
    values = np.stack([times, np.ones(100)], axis=1)
    start = start_at_frequencies(SurvivalObjective((25.0, 50.0)), values)
    assert start.outputs(torch.zeros(3))[:2].tolist() == pytest.approx([0.75, 0.5], abs=0.01)
    # Censored bags count as much as their weight says.
    censored = np.concatenate([values, np.stack([times, np.zeros(100)], axis=1)])
    objective = SurvivalObjective((25.0, 50.0), censored_weight=0.0)
    assert start_at_frequencies(objective, censored).start == start.start


def test_a_grade_that_does_not_occur_keeps_a_finite_start() -> None:
    grades = np.array([[0.0], [3.0], [3.0]])
    start = start_at_frequencies(OrdinalObjective(4), grades)
    assert np.isfinite(start.start).all()
    assert start.outputs(torch.zeros(3)).sum() == pytest.approx(1)


def test_numbers_and_relative_hazards_need_no_start() -> None:
    for objective in (RegressionObjective(1.0, 2.0), CoxObjective()):
        assert start_at_frequencies(objective, np.ones((3, 2))) is objective


def test_the_start_is_saved_and_files_without_one_stay_as_they_are() -> None:
    objective = replace(KINDS["survival"], start=(0.5, 0.0, -1.0, 2.0))
    assert objective_from_json(objective_json(objective)) == objective
    old = {"name": "ordinal", "grades": 3}
    assert objective_json(objective_from_json(old)) == old
    numbers = torch.tensor([0.3, -0.2])
    assert objective_from_json(old).outputs(numbers).tolist() == pytest.approx(
        objective_from_json(old | {"start": [0.0, 0.0]}).outputs(numbers).tolist()
    )


@pytest.mark.parametrize("start", [(0.1,), (0.1, float("nan"), 0.0)])
def test_a_start_of_another_length_or_not_finite_is_rejected(start: tuple[float, ...]) -> None:
    for kind in (SurvivalObjective((1.0, 2.0)), OrdinalObjective(4), MultilabelObjective(3)):
        with pytest.raises(OptionError, match="3 finite numbers are expected"):
            replace(kind, start=start)
