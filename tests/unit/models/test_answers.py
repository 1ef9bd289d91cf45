"""The answers of models of other tasks than classes, and the evidence for them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from scmil import build_model
from scmil.bags.targets import GradeTarget, LabelsTarget, NumberTarget, SurvivalTarget
from scmil.models.answers import (
    answer_names,
    evidence_for_answers,
    predicted_text,
    slide_answers,
)
from scmil.models.evidence import TileEvidence
from scmil.models.objectives import (
    CoxObjective,
    MultilabelObjective,
    OrdinalObjective,
    SurvivalObjective,
)
from scmil.models.target_losses import cumulative_logits


def evidence_of(columns: int) -> TileEvidence:
    tiles = np.arange(3 * columns, dtype=np.float32).reshape(3, columns)
    return TileEvidence(tiles, np.ones(columns), 1 + tiles.sum(0, dtype=float))


def test_evidence_for_a_risk_is_the_sum_over_the_bins() -> None:
    found = evidence_for_answers(SurvivalObjective((1.0, 2.0)), evidence_of(3))
    assert found is not None
    assert found.tiles.tolist() == [[3.0], [12.0], [21.0]]
    assert np.abs(found.errors).max() < 1e-6


def test_evidence_for_a_log_hazard_is_the_difference_of_two_outputs() -> None:
    found = evidence_for_answers(CoxObjective(8), evidence_of(2))
    assert found is not None
    assert found.tiles.tolist() == [[1.0]] * 3


def test_evidence_for_two_labels_has_a_column_each() -> None:
    found = evidence_for_answers(MultilabelObjective(2), evidence_of(4))
    assert found is not None
    assert found.tiles.shape == (3, 2)


def test_evidence_for_a_grade_moves_all_thresholds() -> None:
    """It is the contribution to the lowest threshold, with which the others move."""
    found = evidence_for_answers(OrdinalObjective(4), evidence_of(3))
    assert found is not None
    assert found.tiles.tolist() == [[0.0] * 4, [3.0] * 4, [6.0] * 4]
    assert np.abs(found.errors).max() < 1e-6
    numbers = torch.tensor([[-1.0, 0.5, 0.2]])
    more = numbers + torch.tensor([0.7, 0.0, 0.0])
    moved = cumulative_logits(more) - cumulative_logits(numbers)
    torch.testing.assert_close(moved, torch.full((1, 3), 0.7))


def test_answers_of_a_batch_are_those_of_its_bags() -> None:
    output = {"name": "survival", "edges": [1.0, 2.0]}
    model = build_model(8, 3, "mean", output=output, seed=0)
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    together = slide_answers(model, logits)
    assert together.shape == (4, 1)
    for row, answer in zip(logits, together, strict=True):
        assert slide_answers(model, row).item() == pytest.approx(answer.item())


def test_the_risk_is_higher_for_an_earlier_event() -> None:
    model = build_model(8, 3, "mean", output={"name": "survival", "edges": [1.0, 2.0]}, seed=0)
    early, late = slide_answers(model, torch.tensor([[2.0, 2.0, 2.0], [-2.0, -2.0, -2.0]]))
    assert early > late


def test_predictions_are_written_in_words() -> None:
    assert predicted_text(GradeTarget("g", ("low", "high")), np.array([0.3, 0.7])) == "high"
    assert predicted_text(NumberTarget("age"), np.array([61.25])) == "61.25"
    assert predicted_text(SurvivalTarget(), np.array([0.2]), 0.1) == "high risk"
    assert predicted_text(SurvivalTarget(), np.array([0.1]), 0.1) == "low risk"
    assert answer_names(LabelsTarget(("a", "b"))) == ("a", "b")
