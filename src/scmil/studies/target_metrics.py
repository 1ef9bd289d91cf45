"""Metrics and predictions of a trained model of another task than classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from scmil.bags.splits import Split
from scmil.bags.target_types import ordered_names
from scmil.bags.targets import (
    CombinedTarget,
    LabelsTarget,
    PartTarget,
    SurvivalTarget,
    Target,
    Targets,
    target_json,
)
from scmil.core.shapes import Numbers
from scmil.models.answers import answer_names, answers_of, predicted_text, predicted_texts
from scmil.models.combined_objective import CombinedObjective
from scmil.models.objectives import Objective, SurvivalObjective
from scmil.models.survival_bins import survival_at
from scmil.report.combined_run import describe_intervals, main_metrics
from scmil.studies.model_folder import Page
from scmil.studies.model_metrics import estimate_json, plain_number
from scmil.training.held_out import known_parts
from scmil.training.patient_predictions import patient_targets, pool_predictions
from scmil.training.target_folds import held_out_part, risk_groups, score_held_out

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet


def target_metrics(
    bags: BagSet,
    split: Split,
    objective: Objective,
    outputs: Numbers,
    patient: str | None = None,
) -> Page:
    """Every metric of every split with its 95 % interval over patients.

    Args:
        bags: All bags, with targets.
        split: Positions of the training, validation and test bags.
        objective: The objective of the model.
        outputs: Outputs of the model for all bags (b, w).
        patient: "mean" or "max" over the slides of a patient; None scores survival by patient and
            other tasks by slide.

    Returns:
        The content of `metrics.json`.
    """
    targets = _targets(bags)
    page: Page = {
        "task": targets.task,
        "intervals": describe_intervals(target_json(targets.target)),
    }
    if isinstance(targets.target, CombinedTarget):
        page["main"] = dict(main_metrics(target_json(targets.target)))
    level = "slide"
    for name, members in split._asdict().items():
        if not members:
            continue
        part = held_out_part(targets, objective, outputs, bags.ids, split, members)
        patients = {bags.patients[i] or ("slide", i) for i in members}
        pooled = patient in ("mean", "max")
        if (pooled or targets.task == "survival") and len(patients) < len(members):
            level = "patient"
        units = patient_targets(targets) if pooled else targets
        if pooled:
            part = pool_predictions(targets, part, str(patient))
        scores = score_held_out(units, part)
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
        if isinstance(targets.target, CombinedTarget):
            page.setdefault("known", {})[name] = {
                own: len(found.ids) for own, _, found in known_parts(units, part)
            }
        if part.high is not None and 0 < part.high.sum() < len(part.high):
            page[name][level]["log_rank_p"] = plain_number(risk_groups(units, part).p_value)
    return page


def risk_cut_off(objective: Objective, outputs: Numbers, train: Sequence[int]) -> float | None:
    """The median risk of the training bags; None for other tasks than survival."""
    if isinstance(objective, CombinedObjective):
        found = (
            risk_cut_off(part, outputs[:, columns], train) for part, columns in objective.slices()
        )
        return next((cut_off for cut_off in found if cut_off is not None), None)
    if objective.task != "survival":
        return None
    return float(np.median(answers_of(objective, outputs)[list(train), 0]))


def observed_columns(target: Target | PartTarget) -> list[str]:
    """The columns of the observed values in `predictions.csv`.

    >>> observed_columns(SurvivalTarget("os_months", "os_event"))
    ['y_os_months', 'y_os_event']
    """
    if isinstance(target, CombinedTarget):
        return [column for part in target.parts for column in observed_columns(part)]
    if isinstance(target, SurvivalTarget):
        return [f"y_{target.time}", f"y_{target.event}"]
    names = target.names if isinstance(target, LabelsTarget) else (target.name,)
    return [f"y_{name}" for name in names]


def answer_cells(
    target: Target, objective: Objective, outputs: Numbers, cut_off: float | None
) -> Page:
    """The predicted columns of one bag: `y_pred`, and `p_NAME` of each answer.

    Models of survival in bins have the probability of no event up to the end of each bin, too.
    Models of several targets have `pred_TARGET` of each.
    """
    answers = answers_of(objective, outputs[None])[0]
    cells: Page = {"y_pred": predicted_text(target, answers, cut_off)}
    if isinstance(target, CombinedTarget):
        texts = predicted_texts(target, answers, cut_off)
        cells |= {f"pred_{name}": text for name, text in texts.items()}
    for name, value in zip(answer_names(target), answers, strict=True):
        cells[f"p_{name}"] = f"{value:.7g}"
    return cells | _survival_cells(objective, outputs)


def _survival_cells(objective: Objective, outputs: Numbers) -> Page:
    if isinstance(objective, CombinedObjective):
        parts = [_survival_cells(part, outputs[own]) for part, own in objective.slices()]
        return {name: cell for part in parts for name, cell in part.items()}
    if not isinstance(objective, SurvivalObjective):
        return {}
    curve = survival_at(objective.edges, outputs[None], objective.edges)[0]
    return {
        f"s_{edge:.6g}": f"{value:.7g}" for edge, value in zip(objective.edges, curve, strict=True)
    }


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
    if isinstance(target, CombinedTarget):
        parts = (
            observed_cells(targets.part(number), bag_id) for number in range(len(target.parts))
        )
        return {name: cell for part in parts for name, cell in part.items()}
    if targets.of(bag_id) is None:
        return dict.fromkeys(observed_columns(target), "")
    values = targets.array([bag_id])[0]
    texts = ["" if np.isnan(value) else f"{value:.7g}" for value in values]
    if names := ordered_names(target):
        texts = [names[int(values[0])]]
    return dict(zip(observed_columns(target), texts, strict=True))


def _targets(bags: BagSet) -> Targets:
    assert bags.targets is not None
    return bags.targets
