"""Metrics and predictions of a trained model of another task than classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from scmil.bags.splits import Split
from scmil.bags.targets import LabelsTarget, SurvivalTarget, Target, Targets, as_numbers
from scmil.core.shapes import Numbers
from scmil.models.answers import answer_names, answers_of, predicted_text
from scmil.models.objectives import Objective, SurvivalObjective, survival_at
from scmil.report.target_run import INTERVALS
from scmil.studies.model_folder import Page
from scmil.studies.model_metrics import estimate_json, plain_number
from scmil.training.target_folds import held_out_part, risk_groups, score_held_out

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet


def target_metrics(bags: BagSet, split: Split, objective: Objective, outputs: Numbers) -> Page:
    """Every metric of every split with its 95 % interval over patients.

    Args:
        bags: All bags, with targets.
        split: Positions of the training, validation and test bags.
        objective: The objective of the model.
        outputs: Outputs of the model for all bags (b, w).

    Returns:
        The content of `metrics.json`. Survival is scored by patient, other tasks by slide.
    """
    targets = _targets(bags)
    page: Page = {"task": targets.task, "intervals": INTERVALS[targets.task]}
    level = "slide"
    for name, members in split._asdict().items():
        if not members:
            continue
        part = held_out_part(targets, objective, outputs, bags.ids, split, members)
        patients = {bags.patients[i] or ("slide", i) for i in members}
        if targets.task == "survival" and len(patients) < len(members):
            level = "patient"
        scores = score_held_out(targets, part)
        page[name] = {
            level: {
                "n": len(patients) if level == "patient" else len(members),
                "patients": len(patients),
                **{
                    metric: estimate_json(found.value, *found.interval)
                    for metric, found in scores.items()
                },
            }
        }
        if part.high is not None and 0 < part.high.sum() < len(part.high):
            page[name][level]["log_rank_p"] = plain_number(risk_groups(targets, part).p_value)
    return page


def risk_cut_off(objective: Objective, outputs: Numbers, train: Sequence[int]) -> float | None:
    """The median risk of the training bags; None for other tasks than survival."""
    if objective.task != "survival":
        return None
    return float(np.median(answers_of(objective, outputs)[list(train), 0]))


def observed_columns(target: Target) -> list[str]:
    """The columns of the observed values in `predictions.csv`.

    >>> observed_columns(SurvivalTarget("os_months", "os_event"))
    ['y_os_months', 'y_os_event']
    """
    if isinstance(target, SurvivalTarget):
        return [f"y_{target.time}", f"y_{target.event}"]
    names = target.names if isinstance(target, LabelsTarget) else (target.name,)
    return [f"y_{name}" for name in names]


def answer_cells(
    target: Target, objective: Objective, outputs: Numbers, cut_off: float | None
) -> Page:
    """The predicted columns of one bag: `y_pred`, and `p_NAME` of each answer.

    Models of survival in bins have the probability of no event up to the end of each bin, too.
    """
    answers = answers_of(objective, outputs[None])[0]
    cells: Page = {"y_pred": predicted_text(target, answers, cut_off)}
    for name, value in zip(answer_names(target), answers, strict=True):
        cells[f"p_{name}"] = f"{value:.7g}"
    if isinstance(objective, SurvivalObjective):
        curve = survival_at(objective.edges, outputs[None], objective.edges)[0]
        for edge, value in zip(objective.edges, curve, strict=True):
            cells[f"s_{edge:.6g}"] = f"{value:.7g}"
    return cells


def target_prediction_rows(
    bags: BagSet, split: Split, objective: Objective, outputs: Numbers, cut_off: float | None
) -> list[Page]:
    """A row of `predictions.csv` for every bag, ordered by split."""
    targets = _targets(bags)
    part = {position: name for name, own in split._asdict().items() for position in own}
    return [
        {
            "slide_id": bags.ids[i],
            "case_id": bags.patients[i] or "",
            "part": part[i],
            **observed_cells(targets, bags.ids[i]),
            **answer_cells(targets.target, objective, outputs[i], cut_off),
        }
        for i in sorted(part, key=lambda i: (Split._fields.index(part[i]), i))
    ]


def observed_cells(targets: Targets, bag_id: str) -> Mapping[str, str]:
    """The columns of the observed values of one bag, see `observed_columns`."""
    target = targets.target
    values = as_numbers(targets.of(bag_id))
    texts = ["" if np.isnan(value) else f"{value:.7g}" for value in values]
    if target.task == "ordinal":
        texts = [target.grades[int(values[0])]]  # type: ignore[union-attr]
    return dict(zip(observed_columns(target), texts, strict=True))


def _targets(bags: BagSet) -> Targets:
    assert bags.targets is not None
    return bags.targets
