"""The loss, outputs and answers of several targets at once."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from scmil import build_model
from scmil.bags.targets import CombinedTarget, GradeTarget, NumberTarget, SurvivalTarget
from scmil.errors import OptionError
from scmil.models.answers import answer_names, answers_of, evidence_for_answers, predicted_text
from scmil.models.combined_objective import ClassObjective, CombinedObjective, part_weights
from scmil.models.evidence import TileEvidence
from scmil.models.objectives import (
    CoxObjective,
    MultilabelObjective,
    Objective,
    OrdinalObjective,
    RegressionObjective,
    SurvivalObjective,
    model_outputs,
    numbers_of,
    objective_from_json,
    objective_json,
)

NAN = math.nan
PARTS: tuple[Objective, ...] = (
    OrdinalObjective(3),
    RegressionObjective(50.0, 10.0),
    MultilabelObjective(2),
    ClassObjective(4),
    SurvivalObjective((10.0, 20.0)),
)
ALL = CombinedObjective(PARTS, (0.5, 1.0, 2.0, 1.5, 3.0))
WIDTHS = (2, 1, 2, 4, 3)
TARGETS = ((1.0,), (60.0,), (1.0, NAN), (3.0,), (15.0, 1.0))


def numbers(seed: int = 0) -> torch.Tensor:
    return torch.randn(sum(WIDTHS), generator=torch.Generator().manual_seed(seed))


def test_the_loss_is_the_weighted_sum_of_the_losses_of_the_parts() -> None:
    expected = 0.0
    for part, weight, own, value in zip(
        PARTS, ALL.weights, numbers().split(WIDTHS), TARGETS, strict=True
    ):
        expected += weight * float(part.losses(own, torch.tensor(value)))
    values = torch.tensor([number for value in TARGETS for number in value])
    assert float(ALL.losses(numbers(), values)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("missing", range(5))
def test_a_missing_part_has_no_loss_and_no_gradient(missing: int) -> None:
    own = [
        torch.full((len(value),), NAN) if place == missing else torch.tensor(value)
        for place, value in enumerate(TARGETS)
    ]
    x = numbers().requires_grad_()
    loss = ALL.losses(x, torch.cat(own))
    loss.backward()
    assert math.isfinite(float(loss.detach()))
    assert x.grad is not None
    for place, gradient in enumerate(x.grad.split(WIDTHS)):
        assert bool((gradient == 0).all()) == (place == missing)


def test_outputs_follow_each_other() -> None:
    found = ALL.outputs(numbers())
    for (part, columns), own in zip(ALL.slices(), numbers().split(WIDTHS), strict=True):
        assert torch.equal(found[columns], part.outputs(own))
    assert ALL.output_widths == (3, 1, 2, 4, 3)


def test_all_parts_are_equally_important_at_the_start() -> None:
    """Units, kinds of loss and the number of bags that have a part do not matter."""
    parts: list[Objective] = [RegressionObjective(0.0, 1.0), ClassObjective(2)]
    values = [torch.tensor([[1.0], [-1.0], [1.0], [-1.0]]), torch.tensor([[0.0], [1.0]])]
    weights = part_weights(parts, values, bags=4)
    losses = [
        weight * part.losses(torch.zeros(len(own), part.numbers), own).sum()
        for part, weight, own in zip(parts, weights, values, strict=True)
    ]
    assert float(losses[0]) == pytest.approx(float(losses[1])) == pytest.approx(4 / 2)


def test_the_weight_of_a_rare_part_is_limited() -> None:
    parts: list[Objective] = [ClassObjective(2), ClassObjective(2)]
    common, rare = torch.tensor([[0.0], [1.0]] * 50), torch.tensor([[1.0]])
    weights = part_weights(parts, [common, rare], bags=100)
    assert weights[1] == pytest.approx(10 * weights[0])


def test_the_class_part_is_the_cross_entropy_of_torch() -> None:
    start = (0.3, -0.2, 0.1)
    x, y = torch.randn(5, 3), torch.tensor([[0.0], [1.0], [2.0], [1.0], [0.0]])
    found = ClassObjective(3, start).losses(x, y)
    expected = torch.nn.functional.cross_entropy(
        x + torch.tensor(start), y[:, 0].long(), reduction="none"
    )
    torch.testing.assert_close(found, expected)


def test_an_objective_survives_json_and_builds_a_model() -> None:
    content = objective_json(ALL)
    assert objective_from_json(content) == ALL
    model = build_model(6, model_outputs(ALL), "abmil", embed=[4], output=content, seed=0)
    assert model.objective == ALL
    prediction = model(torch.ones(3, 6))
    assert model.probabilities(prediction.logits).shape == (13,)


def test_two_numbers_are_differences_of_pairs_of_outputs() -> None:
    both = CombinedObjective((RegressionObjective(0.0, 1.0),) * 2, (1.0, 1.0))
    assert model_outputs(both) == 4
    assert numbers_of(both, torch.tensor([1.0, 3.0, 0.0, 5.0])).tolist() == [2.0, 5.0]


@pytest.mark.parametrize(
    ("parts", "weights", "cause"),
    [
        ((RegressionObjective(0.0, 1.0),), (1.0,), "at least two objectives"),
        ((CoxObjective(4), OrdinalObjective(3)), (1.0, 1.0), "without Cox"),
        ((ALL, OrdinalObjective(3)), (1.0, 1.0), "other tasks than 'combined'"),
        ((OrdinalObjective(3),) * 2, (1.0,), "2 numbers above 0"),
        ((OrdinalObjective(3),) * 2, (1.0, 0.0), "2 numbers above 0"),
    ],
)
def test_invalid_combinations_are_rejected(
    parts: tuple[OrdinalObjective, ...], weights: tuple[float, ...], cause: str
) -> None:
    with pytest.raises(OptionError, match=cause):
        CombinedObjective(parts, weights)


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ({"name": "combined", "weights": [1.0]}, "a list of objectives"),
        ({"name": "combined", "parts": [1], "weights": [1.0]}, "a list of objectives"),
        ({"name": "class", "classes": 1}, "classes = 1"),
        ({"name": "class", "classes": 2, "start": [0.0]}, "2 finite numbers"),
    ],
)
def test_damaged_objectives_are_rejected(content: dict[str, object], cause: str) -> None:
    with pytest.raises(OptionError, match=cause):
        objective_from_json(content)


def test_answers_are_named_by_their_target() -> None:
    target = CombinedTarget(
        (GradeTarget("isup", ("1", "2")), NumberTarget("age"), SurvivalTarget())
    )
    objective = CombinedObjective(
        (OrdinalObjective(2), RegressionObjective(50.0, 10.0), SurvivalObjective((10.0,))),
        (1.0,) * 3,
    )
    assert answer_names(target) == ("isup=1", "isup=2", "age", "risk")
    answers = answers_of(objective, np.array([[0.2, 0.8, 61.0, 0.9, 0.8]]))
    np.testing.assert_allclose(answers, [[0.2, 0.8, 61.0, -1.7]])
    assert predicted_text(target, answers[0], -2.0) == "isup: 2; age: 61; survival: high risk"


def test_evidence_adds_up_to_the_linear_part_of_each_answer() -> None:
    """Tiles contribute to the lowest threshold of a grade, to a number, and to all hazards."""
    objective = CombinedObjective(
        (OrdinalObjective(3), RegressionObjective(0.0, 1.0), SurvivalObjective((10.0,))),
        (1.0,) * 3,
    )
    tiles = np.arange(10, dtype=np.float32).reshape(2, 5)
    found = evidence_for_answers(
        objective, TileEvidence(tiles, np.zeros(5), tiles.sum(0).astype(float))
    )
    assert found is not None
    assert found.tiles.tolist() == [[0, 0, 0, 2, 7], [5, 5, 5, 7, 17]]
    np.testing.assert_allclose(found.tiles.sum(0), found.logits)
