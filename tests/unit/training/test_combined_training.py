"""Training of several targets at once: scales, skill, folds and baselines from known values."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from scmil import Bag, Recipe
from scmil.bags.targets import (
    ClassTarget,
    CombinedTarget,
    GradeTarget,
    LabelsTarget,
    NumberTarget,
    SurvivalTarget,
    Targets,
)
from scmil.errors import DataError, OptionError
from scmil.models.combined_objective import ClassObjective, CombinedObjective
from scmil.models.objectives import OrdinalObjective, RegressionObjective, SurvivalObjective
from scmil.training.held_out import HeldOut, known_parts, score_fold, score_held_out
from scmil.training.target_baseline import baseline_folds
from scmil.training.target_folds import cross_fit, target_folds
from scmil.training.target_objectives import objective_for
from scmil.training.target_steps import score_outputs

NAN = math.nan
BOTH = CombinedTarget((NumberTarget("age"), GradeTarget("isup", ("1", "2", "3"))))
ALL = CombinedTarget(
    (
        NumberTarget("age"),
        GradeTarget("isup", ("1", "2", "3")),
        LabelsTarget(("er", "pr")),
        ClassTarget("type", ("x", "y")),
        SurvivalTarget(),
    )
)


def cohort(n: int = 30) -> tuple[list[Bag], Targets]:
    """A share drives all values; a third of each part is missing."""
    random = np.random.default_rng(0)
    bags, values = [], []
    for i in range(n):
        share = (i * 7 % n) / n
        x = random.normal(size=(8, 4))
        x[:, 0] += 6 * share
        bags.append(Bag(f"s{i}", torch.tensor(x, dtype=torch.float32)))
        value = [60 + 20 * share, int(2.99 * share), (share > 0.5, None), int(share > 0.4)]
        value += [(10 * math.exp(-2 * share) + 0.01 * i, i % 4 > 0)]
        value[i % 5] = None  # type: ignore[call-overload]
        values.append(tuple(value))
    # One slide has no second label, and the others have.
    values = [v if v[2] is None else (*v[:2], (v[2][0], v[2][0]), *v[3:]) for v in values]
    return bags, Targets(ALL, tuple(bag.id for bag in bags), tuple(values), (None,) * n)


def test_scales_and_frequencies_are_those_of_the_slides_with_a_value() -> None:
    values = np.array([[50.0, 0], [NAN, 1], [70.0, NAN], [NAN, 2]])
    objective = objective_for(BOTH, values)
    assert isinstance(objective, CombinedObjective)
    number, grade = objective.parts
    assert number == RegressionObjective(60.0, 10.0)
    assert isinstance(grade, OrdinalObjective)
    alone = objective_for(GradeTarget("isup", ("1", "2", "3")), np.array([[0.0], [1.0], [2.0]]))
    assert grade == alone


def test_a_training_split_without_any_value_of_a_part_is_rejected() -> None:
    with pytest.raises(DataError, match="no bag of the training split has a value of 'isup'"):
        objective_for(BOTH, np.array([[50.0, NAN], [60.0, NAN]]))
    with pytest.raises(OptionError, match="loss = 'cox' for the task 'combined'"):
        objective_for(BOTH, np.array([[50.0, 1.0]]), "cox")


def test_the_score_of_an_epoch_is_the_mean_skill_of_the_parts() -> None:
    target = CombinedTarget((NumberTarget("age"), ClassTarget("type", ("x", "y"))))
    objective = CombinedObjective((RegressionObjective(0.0, 1.0), ClassObjective(2)), (1.0, 1.0))
    ids = ("a", "b", "c", "d")
    values = ((1.0, 0), (2.0, 1), (3.0, None), (None, 1))
    targets = Targets(target, ids, values, (None,) * 4)
    outputs = np.array([[1.0, 0.9, 0.1], [2.0, 0.2, 0.8], [4.0, 0.5, 0.5], [9.0, 0.95, 0.05]])
    score = score_outputs(targets, objective, targets.array(ids), outputs)
    r2, area = 0.5, 0.5  # one of the two pairs is ranked correctly: no skill
    assert score == pytest.approx((r2 + (2 * area - 1)) / 2)


def test_parts_are_scored_on_the_slides_that_have_them() -> None:
    ids = ("a", "b", "c", "d")
    values = ((1.0, None), (2.0, 0), (3.0, None), (None, 2))
    targets = Targets(BOTH, ids, values, (None,) * 4)
    parts = (
        HeldOut(ids, np.array([[1.0], [2.0], [4.0], [99.0]])),
        HeldOut(ids, np.eye(3)[[2, 0, 2, 2]]),
    )
    found = HeldOut(ids, np.zeros((4, 4)), parts=parts)
    assert [(name, part.ids) for name, _, part in known_parts(targets, found)] == [
        ("age", ("a", "b", "c")),
        ("isup", ("b", "d")),
    ]
    scores = score_held_out(targets, found, draws=50)
    assert scores["age: r2"].value == score_fold(targets, found)["age: r2"] == 0.5
    assert scores["isup: kappa"].value == 1.0


def test_one_model_and_one_baseline_learn_all_targets() -> None:
    bags, targets = cohort()
    splits = target_folds(targets, targets.ids, folds=3)
    assert sorted(i for split in splits for i in split.test) == list(range(30))
    recipe = Recipe(epochs=30, learning_rate=0.01)
    found = cross_fit(bags, targets, splits, recipe, {"aggregator": "mean", "embed": [8]})
    chance = {"age: r2": 0.0, "isup: kappa": 0.0, "labels: macro: auc": 0.5, "type: auc": 0.5}
    chance["survival: c_index"] = 0.5
    scores, linear = (
        score_held_out(targets, held_out, draws=100)
        for held_out in (found, baseline_folds(bags, targets, splits))
    )
    for name, value in chance.items():
        assert scores[name].interval.low > value, name
        assert linear[name].value > value + 0.1, name
    assert found.parts[4].times  # survival curves of the discrete likelihood


def test_holes_do_not_change_the_survival_of_others() -> None:
    """Bins come from the events that are known."""
    values = np.array([[1.0, NAN, NAN], [2.0, 5.0, 1.0], [3.0, 9.0, 1.0], [4.0, 7.0, 0.0]])
    target = CombinedTarget((NumberTarget("age"), SurvivalTarget()))
    objective = objective_for(target, values)
    assert isinstance(objective, CombinedObjective)
    assert objective.parts[1] == objective_for(SurvivalTarget(), values[1:, 1:])
    assert isinstance(objective.parts[1], SurvivalObjective)
