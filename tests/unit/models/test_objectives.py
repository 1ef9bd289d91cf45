"""Losses of survival, numbers, grades and several labels agree with independent numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from survival_golden import EVENT, RISK, TIME, column, read_rows, values_of
from torch import nn

import scmil
from scmil.errors import OptionError
from scmil.models import aggregators
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
    risk_of,
)
from scmil.models.target_losses import (
    cox_loss,
    cumulative_logits,
    discrete_survival_loss,
    grade_log_probabilities,
)

HAZARDS = torch.tensor(np.stack([column(f"hazard{k}") for k in range(4)], axis=1))
BINS, EVENTS = torch.tensor(column("bin")).long(), torch.tensor(EVENT).bool()
OBJECTIVES: list[tuple[Objective, list[float]]] = [
    (SurvivalObjective((1.0, 2.0, 3.0)), [2.5, 1.0]),
    (SurvivalObjective((1.0,)), [0.5, 0.0]),
    (CoxObjective(), [2.5, 1.0]),
    (RegressionObjective(1.0, 2.0), [3.0]),
    (RegressionObjective(1.0, 2.0, "squared"), [3.0]),
    (OrdinalObjective(2), [1.0]),
    (OrdinalObjective(3), [2.0]),
    (OrdinalObjective(5), [2.0]),
    (MultilabelObjective(1), [1.0]),
    (MultilabelObjective(2), [1.0, math.nan]),
    (MultilabelObjective(4), [1.0, 0.0, math.nan, 1.0]),
]


@pytest.mark.parametrize("alpha", [0.0, 0.15, 0.4])
def test_the_discrete_likelihood_is_that_of_patch_gcn_with_its_gradient(alpha: float) -> None:
    hazards = HAZARDS.clone().requires_grad_()
    losses = discrete_survival_loss(hazards.logit(), BINS, EVENTS, 1 - alpha)
    losses.mean().backward()
    setting = f"alpha={alpha}"
    mean = values_of("discrete_nll_mean", f"all rows; {setting}")[0]
    assert losses.mean().item() == pytest.approx(mean, abs=1e-6)
    assert hazards.grad is not None
    norm = values_of("discrete_nll_gradient_norm", setting)[0]
    assert float(hazards.grad.norm()) == pytest.approx(norm, abs=1e-5)
    for row in (0, 1, 2, 5):
        expected = values_of("discrete_nll_row", f"row {row} alone; {setting}")[0]
        assert losses[row].item() == pytest.approx(expected, abs=1e-6)


def test_bins_of_an_objective_are_those_of_the_table() -> None:
    objective = SurvivalObjective((4.0, 10.0, 20.0))
    target = torch.tensor(np.stack([TIME, EVENT], axis=1))
    expected = discrete_survival_loss(HAZARDS.logit(), BINS, EVENTS)
    assert torch.equal(objective.losses(HAZARDS.logit(), target), expected)
    survival = objective.outputs(HAZARDS.logit())
    assert torch.allclose(survival, (1 - HAZARDS).cumprod(1))


def test_cox_with_efron_ties_is_that_of_statsmodels_with_its_gradient() -> None:
    risk = torch.tensor(RISK).requires_grad_()
    loss = cox_loss(risk, torch.tensor(TIME), EVENTS)
    loss.backward()
    expected = values_of("cox_partial_log_likelihood", "column risk, sum over events; ties=efron")
    assert -loss.item() * EVENT.sum() == pytest.approx(expected[0], abs=1e-6)
    scores = [float(row["score_efron"]) for row in read_rows("cox_gradient")]
    assert risk.grad is not None
    assert (-risk.grad * EVENT.sum()).tolist() == pytest.approx(scores, abs=1e-6)
    equal = cox_loss(torch.zeros(40, dtype=torch.float64), torch.tensor(TIME), EVENTS)
    expected = values_of("cox_partial_log_likelihood", "all risks equal; ties=efron")
    assert -equal.item() * EVENT.sum() == pytest.approx(expected[0], abs=1e-6)


def test_cox_is_stable_for_large_risks_and_zero_without_events() -> None:
    times, events = torch.tensor([1.0, 1.0, 2.0]), torch.tensor([True, True, False])
    risk = torch.tensor([800.0, -800.0, 0.0], requires_grad=True)
    loss = cox_loss(risk, times, events)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(risk.grad).all()
    assert cox_loss(torch.ones(3), times, torch.zeros(3).bool()).item() == 0.0


def test_grades_are_the_differences_of_cumulative_probabilities() -> None:
    numbers = torch.randn(50, 4, dtype=torch.float64, generator=torch.manual_seed(0))
    logits = cumulative_logits(numbers)
    assert (logits.diff(dim=1) < 0).all()
    above = torch.cat([torch.ones(50, 1), logits.sigmoid(), torch.zeros(50, 1)], dim=1)
    expected = -above.diff(dim=1)
    assert torch.allclose(grade_log_probabilities(logits).exp(), expected, atol=1e-10)
    far = grade_log_probabilities(torch.tensor([90.0, -90.0], requires_grad=True))
    assert torch.isfinite(far).all()


def test_missing_labels_have_no_gradient() -> None:
    numbers = torch.zeros(1, 3, requires_grad=True)
    target = torch.tensor([[1.0, math.nan, 0.0]])
    loss = MultilabelObjective(3).losses(numbers, target)
    loss.sum().backward()
    assert loss.item() == pytest.approx(math.log(2))
    assert numbers.grad.tolist() == [[-0.25, 0.0, 0.25]]


def test_regression_is_scaled_to_the_training_split() -> None:
    objective = RegressionObjective(10.0, 2.0, "squared")
    assert objective.losses(torch.tensor([[1.0]]), torch.tensor([[14.0]])).item() == 1.0
    assert objective.outputs(torch.tensor([[1.0]])).item() == 12.0
    huber = RegressionObjective(0.0, 1.0).losses(torch.tensor([[0.0]]), torch.tensor([[5.0]]))
    assert huber.item() == pytest.approx(4.5)


@pytest.mark.parametrize(("objective", "target"), OBJECTIVES, ids=lambda o: str(o)[:40])
def test_every_aggregator_is_trained_for_every_objective(
    objective: Objective, target: list[float]
) -> None:
    x = torch.randn(6, 16, generator=torch.manual_seed(0))
    xy = torch.tensor([[i * 256, 0] for i in range(6)])
    for name in aggregators.names():
        options: dict[str, Any] = {"output": objective_json(objective), "seed": 0}
        # Its own width takes a second.
        aggregator = {"name": name, "width": 32} if name == "dgr-mil" else name
        model = scmil.build_model(16, model_outputs(objective), aggregator, embed=[16], **options)
        prediction = model(x, xy)
        outputs = model.probabilities(prediction.logits)
        assert outputs.shape[-1] == _width(objective), name
        loss = model.loss(prediction, torch.tensor(target))
        loss.backward()
        assert torch.isfinite(loss), name
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        assert all(torch.isfinite(gradient).all() for gradient in gradients), name
        if not isinstance(objective, CoxObjective):  # one bag has no one to be compared with
            assert any(gradient.abs().sum() > 0 for gradient in gradients), name


OUTPUT = objective_json(RegressionObjective(0.0, 1.0))


@pytest.mark.parametrize(
    ("name", "terms"),
    [
        ("clam-sb", {}),
        ("clam-mb", {}),
        ("acmil", {}),
        ("attrimil", {"rank_weight": 0.0}),
        ({"name": "dgr-mil", "warm_up": 0, "width": 32}, {"triplet_weight": 0.0}),
    ],
    ids=str,
)
def test_terms_of_an_own_loss_that_need_a_class_are_left_out(
    name: str | dict[str, Any], terms: dict[str, Any]
) -> None:
    """The loss is that of the bag, and that of the model whose class terms have no weight."""
    aggregator = {"name": name} if isinstance(name, str) else name
    x = torch.randn(12, 16, generator=torch.manual_seed(0))
    xy = torch.tensor([[i % 4 * 256, i // 4 * 256] for i in range(12)])
    target = torch.tensor([0.5])
    model = scmil.build_model(16, 2, aggregator, output=OUTPUT, seed=0).eval()
    prediction = model(x, xy)
    own = model.aggregate.own_loss(prediction, None)
    without = scmil.build_model(16, 2, {**aggregator, **terms}, seed=0).eval()
    expected = without.aggregate.own_loss(without(x, xy), torch.tensor(1))
    if "clam" in aggregator["name"]:  # the instance loss is all that it has
        assert own == 0 < expected
    else:
        assert own == expected != 0
    bag, auxiliary = getattr(model.aggregate, "loss_weights", (1.0, 0.0))
    loss = bag * model._cross_entropy(prediction.logits, target)
    if prediction.auxiliary:
        rows = torch.stack(prediction.auxiliary)
        loss = loss + auxiliary * model._cross_entropy(rows, target.expand(len(rows), 1))
    assert torch.isclose(model.loss(prediction, target), loss + own)


def test_an_own_loss_that_needs_classes_is_rejected_for_another_task() -> None:
    class NeedsClasses(nn.Module):
        """Its own loss is that of a class."""

        permutation_invariant = True
        embedding = aggregators.Embedding()

        def __init__(self, dim: int, classes: int) -> None:
            super().__init__()
            self.classifier = nn.Linear(dim, classes)

        def forward(self, h: torch.Tensor) -> aggregators.Prediction:
            weights = torch.full((len(h),), 1 / len(h))
            return aggregators.Prediction(self.classifier(h.mean(0)), weights)

        def own_loss(self, prediction: aggregators.Prediction, label: torch.Tensor) -> torch.Tensor:
            return prediction.logits[int(label)]

    aggregators.register("needs-classes", "for this test")(NeedsClasses)
    try:
        scmil.build_model(16, 2, "needs-classes")
        with pytest.raises(OptionError, match="'needs-classes' has a loss of its own that needs"):
            scmil.build_model(16, 2, "needs-classes", output=OUTPUT)
    finally:
        del aggregators.registry._entries["needs-classes"]


def _width(objective: Objective) -> int:
    return objective.grades if isinstance(objective, OrdinalObjective) else objective.numbers


@pytest.mark.parametrize("objective", [o for o, _ in OBJECTIVES], ids=lambda o: str(o)[:40])
def test_objectives_survive_json_and_model_files(objective: Objective, tmp_path: Any) -> None:
    assert objective_from_json(objective_json(objective)) == objective
    model = scmil.build_model(
        8, model_outputs(objective), "abmil", output=objective_json(objective), seed=0
    )
    scmil.save_model(model, tmp_path / "model.safetensors")
    loaded = scmil.load_model(tmp_path / "model.safetensors")
    assert loaded.objective == objective
    x = torch.ones(3, 8)
    assert torch.equal(
        loaded.probabilities(loaded(x).logits), model.eval().probabilities(model(x).logits)
    )


def test_one_or_two_numbers_are_differences_of_outputs() -> None:
    logits = torch.tensor([1.0, 4.0, 2.0, 0.0])
    assert numbers_of(MultilabelObjective(2), logits).tolist() == [3.0, -2.0]
    assert numbers_of(MultilabelObjective(4), logits) is logits


def test_the_risk_of_cox_is_its_number() -> None:
    assert risk_of(CoxObjective(), [[0.3], [0.1]]).tolist() == [0.3, 0.1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"name": "survivall"}, "Known: survival, cox"),
        ({"name": "survival", "edges": []}, "ascending times above 0"),
        ({"name": "survival", "edges": [2.0, 1.0]}, "ascending times above 0"),
        ({"name": "survival", "edges": ["1"]}, "is invalid"),
        ({"name": "survival", "edges": [1.0], "censored_weight": 2}, "from 0 to 1"),
        ({"name": "cox", "risk_set": 1}, "from 2 to 100000"),
        ({"name": "regression", "mean": 0, "scale": 0}, "scale above 0"),
        ({"name": "regression", "mean": 0, "scale": 1, "loss": "l3"}, "Known: huber, squared"),
        ({"name": "ordinal", "grades": 1}, "2 to 1000"),
        ({"name": "multilabel", "labels": 0}, "1 to 1000"),
        ({"name": "multilabel", "label": 3}, "multilabel"),
    ],
)
def test_invalid_objectives_are_rejected(content: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        objective_from_json(content)


def test_the_number_of_outputs_must_fit_the_objective() -> None:
    with pytest.raises(OptionError, match="'ordinal' needs 4 outputs"):
        scmil.build_model(8, 2, output={"name": "ordinal", "grades": 5})
