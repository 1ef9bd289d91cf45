"""The answers of a model of another task than classes: named numbers per bag, for tables and maps.

Survival has a risk, a number has its value, grades, labels and classes have a probability each.
Several targets have the answers of all parts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scmil.bags.targets import (
    ClassTarget,
    CombinedTarget,
    GradeTarget,
    LabelsTarget,
    NumberTarget,
    PartTarget,
    Target,
)
from scmil.core.shapes import Numbers
from scmil.models.combined_objective import CombinedObjective
from scmil.models.evidence import TileEvidence
from scmil.models.model import MILModel
from scmil.models.objectives import Objective, OrdinalObjective, numbers_of, risk_of

RISK = "risk"


def answer_names(target: Target | PartTarget) -> tuple[str, ...]:
    """The name of each answer; `study.json` lists them in the place of classes.

    Of several targets, grades and classes are named with their column: `isup=1`.

    >>> answer_names(NumberTarget("age")), answer_names(GradeTarget("isup", ("1", "2")))
    (('age',), ('1', '2'))
    """
    if isinstance(target, CombinedTarget):
        return tuple(name for part in target.parts for name in _part_answer_names(part))
    if isinstance(target, NumberTarget):
        return (target.name,)
    if isinstance(target, GradeTarget):
        return target.grades
    if isinstance(target, ClassTarget):
        return target.classes
    return target.names if isinstance(target, LabelsTarget) else (RISK,)


def _part_answer_names(part: PartTarget) -> tuple[str, ...]:
    names = answer_names(part)
    if isinstance(part, GradeTarget | ClassTarget):
        return tuple(f"{part.name}={name}" for name in names)
    return names


def answers_of(objective: Objective, outputs: Numbers) -> Numbers:
    """The answers (b, names) from the outputs of a model for b bags.

    >>> from scmil.models.objectives import SurvivalObjective
    >>> answers_of(SurvivalObjective((1.0,)), np.array([[0.9, 0.8]])).round(6).tolist()
    [[-1.7]]
    """
    if isinstance(objective, CombinedObjective):
        parts = [answers_of(part, outputs[:, columns]) for part, columns in objective.slices()]
        return np.concatenate(parts, axis=1)
    if objective.task == "survival":
        return risk_of(objective, outputs)[:, None]
    return np.asarray(outputs, dtype=float)


def predicted_text(
    target: Target | PartTarget, answers: Numbers, cut_off: float | None = None
) -> str:
    """The predicted value of one bag as a table shows it.

    Args:
        target: The target.
        answers: The answers of the bag (names,).
        cut_off: The risk above which it is high; None if it is not known.

    Returns:
        The grade, the class, the present labels, the number, or "high risk" and "low risk"; of
        several targets all of them, with their names.

    >>> labels = LabelsTarget(("tp53", "msi"))
    >>> predicted_text(labels, np.array([0.9, 0.2])), predicted_text(labels, np.array([0.1, 0.2]))
    ('tp53', 'none')
    """
    if isinstance(target, CombinedTarget):
        texts = predicted_texts(target, answers, cut_off)
        return "; ".join(f"{name}: {text}" for name, text in texts.items())
    if isinstance(target, GradeTarget | ClassTarget):
        return answer_names(target)[int(np.argmax(answers))]
    if isinstance(target, LabelsTarget):
        present = [name for name, p in zip(target.names, answers, strict=True) if p >= 0.5]
        return "+".join(present) or "none"
    if isinstance(target, NumberTarget):
        return f"{answers[0]:.6g}"
    return "" if cut_off is None else f"{'high' if answers[0] > cut_off else 'low'} risk"


def predicted_texts(
    target: CombinedTarget, answers: Numbers, cut_off: float | None = None
) -> dict[str, str]:
    """The predicted value of each of several targets, by name.

    >>> both = CombinedTarget((NumberTarget("age"), GradeTarget("isup", ("1", "2"))))
    >>> predicted_texts(both, np.array([61.0, 0.3, 0.7]))
    {'age': '61', 'isup': '2'}
    """
    texts, start = {}, 0
    for name, part in zip(target.names, target.parts, strict=True):
        width = len(answer_names(part))
        texts[name] = predicted_text(part, answers[start : start + width], cut_off)
        start += width
    return texts


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
    That for a grade is the contribution to the logit of the lowest threshold: all thresholds move
    with it, so a tile with positive evidence speaks for higher grades. It is the same for each
    grade, and the distances between thresholds, which are not linear in the logits, have none.

    >>> tiles = np.array([[0.5, 2.0], [0.0, -1.0]], np.float32)
    >>> found = TileEvidence(tiles, np.zeros(2), tiles.sum(0).astype(float))
    >>> from scmil.models.objectives import RegressionObjective
    >>> evidence_for_answers(RegressionObjective(0.0, 1.0), found).tiles.tolist()
    [[1.5], [-1.0]]
    """
    if objective is None or found is None:
        return found

    def convert(values: NDArray[Any]) -> NDArray[Any]:
        numbers = numbers_of(objective, torch.from_numpy(np.asarray(values))).numpy()
        return _linear_part(objective, numbers)

    return replace(
        found,
        tiles=convert(found.tiles),
        constant=convert(found.constant),
        logits=convert(found.logits),
        atoms=None if found.atoms is None else convert(found.atoms),
    )


def _linear_part(objective: Objective, numbers: NDArray[Any]) -> NDArray[Any]:
    """What the evidence for each answer is a sum of, from the numbers of the objective (..., k)."""
    if isinstance(objective, CombinedObjective):
        ends = np.cumsum([part.numbers for part in objective.parts])
        split = np.split(numbers, ends[:-1], axis=-1)
        parts = [_linear_part(part, own) for part, own in zip(objective.parts, split, strict=True)]
        return np.concatenate(parts, axis=-1)
    if objective.task == "survival":
        return numbers.sum(-1, keepdims=True)
    if isinstance(objective, OrdinalObjective):
        return np.repeat(numbers[..., :1], objective.grades, axis=-1)
    return numbers
