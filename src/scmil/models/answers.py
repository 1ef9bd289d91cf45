"""The answers of a model of another task than classes: named numbers per bag, for tables and maps.

Survival has a risk, a number has its value, grades and labels have a probability each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scmil.bags.targets import GradeTarget, LabelsTarget, NumberTarget, Target
from scmil.core.shapes import Numbers
from scmil.models.evidence import TileEvidence
from scmil.models.model import MILModel
from scmil.models.objectives import Objective, numbers_of, risk_of

RISK = "risk"


def answer_names(target: Target) -> tuple[str, ...]:
    """The name of each answer; `study.json` lists them in the place of classes.

    >>> answer_names(NumberTarget("age")), answer_names(GradeTarget("isup", ("1", "2")))
    (('age',), ('1', '2'))
    """
    if isinstance(target, NumberTarget):
        return (target.name,)
    if isinstance(target, GradeTarget):
        return target.grades
    return target.names if isinstance(target, LabelsTarget) else (RISK,)


def answers_of(objective: Objective, outputs: Numbers) -> Numbers:
    """The answers (b, names) from the outputs of a model for b bags.

    >>> from scmil.models.objectives import SurvivalObjective
    >>> answers_of(SurvivalObjective((1.0,)), np.array([[0.9, 0.8]])).round(6).tolist()
    [[-1.7]]
    """
    if objective.task == "survival":
        return risk_of(objective, outputs)[:, None]
    return np.asarray(outputs, dtype=float)


def predicted_text(target: Target, answers: Numbers, cut_off: float | None = None) -> str:
    """The predicted value of one bag as a table shows it.

    Args:
        target: The target.
        answers: The answers of the bag (names,).
        cut_off: The risk above which it is high; None if it is not known.

    Returns:
        The grade, the present labels, the number, or "high risk" and "low risk".

    >>> labels = LabelsTarget(("tp53", "msi"))
    >>> predicted_text(labels, np.array([0.9, 0.2])), predicted_text(labels, np.array([0.1, 0.2]))
    ('tp53', 'none')
    """
    if isinstance(target, GradeTarget):
        return target.grades[int(np.argmax(answers))]
    if isinstance(target, LabelsTarget):
        present = [name for name, p in zip(target.names, answers, strict=True) if p >= 0.5]
        return "+".join(present) or "none"
    if isinstance(target, NumberTarget):
        return f"{answers[0]:.6g}"
    return "" if cut_off is None else f"{'high' if answers[0] > cut_off else 'low'} risk"


def slide_answers(model: MILModel, logits: Tensor) -> Tensor:
    """Probabilities of classes, or the answers of another task, for logits (b, c) or (c,).

    >>> from scmil import build_model
    >>> output = {"name": "regression", "mean": 50.0, "scale": 10.0}
    >>> model = build_model(8, 2, "mean", output=output)
    >>> slide_answers(model, torch.tensor([0.0, 1.0]))
    tensor([60.], dtype=torch.float64)
    """
    outputs = model.probabilities(logits)
    if model.objective is None:
        return outputs
    answers = answers_of(model.objective, np.atleast_2d(outputs.double().cpu().numpy()))
    return torch.from_numpy(answers if logits.dim() > 1 else answers[0])


def evidence_for_answers(
    objective: Objective | None, found: TileEvidence | None
) -> TileEvidence | None:
    """The evidence of tiles for the answers of a model, from that for its logits.

    The evidence for a number is in units of the scale of the training split; that for a risk is
    the sum of the contributions to the logits of the hazards of all bins, or to Cox's log hazard.
    Grades have none, because their thresholds are not linear in the logits.

    >>> tiles = np.array([[0.5, 2.0], [0.0, -1.0]], np.float32)
    >>> found = TileEvidence(tiles, np.zeros(2), tiles.sum(0).astype(float))
    >>> from scmil.models.objectives import RegressionObjective
    >>> evidence_for_answers(RegressionObjective(0.0, 1.0), found).tiles.tolist()
    [[1.5], [-1.0]]
    """
    if objective is None or found is None:
        return found
    if objective.task == "ordinal":
        return None

    def convert(values: NDArray[Any]) -> NDArray[Any]:
        numbers = numbers_of(objective, torch.from_numpy(np.asarray(values))).numpy()
        is_risk = objective.task == "survival"
        return numbers.sum(-1, keepdims=True) if is_risk else numbers

    return replace(
        found,
        tiles=convert(found.tiles),
        constant=convert(found.constant),
        logits=convert(found.logits),
        atoms=None if found.atoms is None else convert(found.atoms),
    )
