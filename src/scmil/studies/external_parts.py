"""The metrics of a model of several targets on another cohort: each is scored as its own task,
on the slides that have its value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scmil.bags.audit_targets import find_target_problems
from scmil.bags.targets import ClassTarget, CombinedTarget, PartTarget, SurvivalTarget, Targets
from scmil.core.shapes import Numbers
from scmil.errors import DataError
from scmil.models.combined_objective import CombinedObjective
from scmil.models.objectives import Objective
from scmil.models.predictions_file import PREDICTIONS
from scmil.report.run_files import ResultTable
from scmil.stats.bootstrap import number_groups
from scmil.studies.external_scores import ClassPredictions, change_of, score_classes
from scmil.studies.external_targets import score_targets
from scmil.studies.model_folder import Page
from scmil.studies.target_metrics import observed_columns
from scmil.training.held_out import patients_of_targets

TEST = "test"  # the part of `predictions.csv`


class ScoredParts(NamedTuple):
    """What `metrics.json` has of each target by its name, and which targets cannot be scored."""

    metrics: dict[str, Page]
    internal: dict[str, Page | None]
    change: dict[str, Page]
    notes: tuple[str, ...]


def score_parts(
    objective: CombinedObjective,
    targets: Targets,
    ids: Sequence[str],
    outputs: Numbers,
    cut_off: float | None = None,
    internal: Mapping[str, Page | None] | None = None,
) -> ScoredParts:
    """Score each of several targets by the functions of its own task.

    Args:
        objective: The objective of the model.
        targets: The values of the cohort.
        ids: The bags.
        outputs: The outputs of the model for them (b, w).
        cut_off: The risk above which it is high, from the training.
        internal: The internal estimate of each target, see `internal_parts`.

    Returns:
        By target, the pages of `score_targets` and `score_classes`, the internal estimate and the
        change against it. A target without values, or of survival without events, is left out and
        noted.

    Raises:
        DataError: No target can be scored.
    """
    problems = find_unscored(targets, ids)
    metrics: dict[str, Page] = {}
    assert isinstance(targets.target, CombinedTarget)
    inside = {name: (internal or {}).get(name) for name in targets.target.names}
    for number, (name, (part, columns)) in enumerate(
        zip(targets.target.names, objective.slices(), strict=True)
    ):
        if name not in problems:
            own = targets.part(number)
            rows = [place for place, bag_id in enumerate(ids) if own.of(bag_id) is not None]
            known = [ids[place] for place in rows]
            metrics[name] = _score_part(
                part, own, known, outputs[rows, columns], cut_off, inside[name]
            )
    return ScoredParts(
        metrics,
        {name: inside[name] for name in metrics},
        {name: change_of(page, inside[name]) for name, page in metrics.items()},
        tuple(problems.values()),
    )


def find_unscored(targets: Targets, ids: Sequence[str]) -> dict[str, str]:
    """The targets that have no metrics on these bags, with the reason as a note.

    Raises:
        DataError: No target has metrics.

    >>> from scmil.bags.targets import NumberTarget
    >>> both = CombinedTarget((NumberTarget("age"), NumberTarget("size")))
    >>> find_unscored(Targets(both, ("s1",), ((61.0, None),), (None,)), ["s1"])
    {'size': 'size: no slide of this cohort has a value, so this target is not tested.'}
    """
    assert isinstance(targets.target, CombinedTarget)
    problems: dict[str, str] = {}
    for number, name in enumerate(targets.target.names):
        own = targets.part(number)
        known = [bag_id for bag_id in ids if own.of(bag_id) is not None]
        if not known:
            problems[name] = (
                f"{name}: no slide of this cohort has a value, so this target is not tested."
            )
        elif own.task == SurvivalTarget.task:
            found = find_target_problems(_restricted(own, known))
            if errors := [str(each) for each in found if each.severity == "error"]:
                problems[name] = f"{name}: not tested. {' '.join(errors)}"
    if len(problems) == len(targets.target.names):
        raise DataError(f"no target can be tested. {' '.join(problems.values())}")
    return problems


def _restricted(targets: Targets, ids: Sequence[str]) -> Targets:
    values = tuple(targets.of(bag_id) for bag_id in ids)
    return Targets(targets.target, tuple(ids), values, tuple(patients_of_targets(targets, ids)))


def _score_part(
    objective: Objective,
    targets: Targets,
    ids: Sequence[str],
    outputs: Numbers,
    cut_off: float | None,
    internal: Page | None,
) -> Page:
    target: PartTarget = targets.target  # type: ignore[assignment]
    if not isinstance(target, ClassTarget):
        own_cut_off = cut_off if isinstance(target, SurvivalTarget) else None
        return score_targets(objective, targets, ids, outputs, own_cut_off, internal)
    # The likeliest class is predicted, as in the model folder.
    return score_classes(
        ClassPredictions(
            target.classes,
            targets.array(ids)[:, 0].astype(np.int64),
            outputs,
            np.full(len(ids), np.nan),
            tuple(patients_of_targets(targets, ids)),
        )
    )


def internal_parts(
    folder: Path, target: CombinedTarget, internal: Page | None
) -> dict[str, Page | None]:
    """The internal estimate of each target, from that of the model with metrics `target: metric`.

    Args:
        folder: The model folder, whose `predictions.csv` tells how many slides have each target.
        target: The targets.
        internal: The estimate, as `internal_targets` returns it.

    Returns:
        By target `source` and the metrics by level; None if there are none. Survival is that of
        patients.
    """
    path = folder / PREDICTIONS
    table = None
    if path.is_file():
        columns = [column for part in target.parts for column in observed_columns(part)]
        table = ResultTable(path, ["case_id", "part", *columns])
    return {
        name: None if internal is None else _internal_part(name, part, internal, table)
        for name, part in zip(target.names, target.parts, strict=True)
    }


def _internal_part(
    name: str, part: PartTarget, internal: Page, table: ResultTable | None
) -> Page | None:
    level, found = next((key, own) for key, own in internal.items() if isinstance(own, dict))
    prefix = f"{name}: "
    metrics = {
        metric.removeprefix(prefix): value
        for metric, value in found.items()
        if metric.startswith(prefix)
    }
    if not metrics:
        return None
    slides, patients = _count_known(part, table)
    if isinstance(part, SurvivalTarget) and slides != patients:
        level = "patient"
    number = patients if level == "patient" else slides
    return {"source": internal["source"], level: {"n": number, "patients": patients, **metrics}}


def _count_known(part: PartTarget, table: ResultTable | None) -> tuple[int | None, int | None]:
    """The slides and patients of the internal estimate that have a target; None if not known.

    They are those of the test split, or without one all slides, which are those of the
    cross-validation.
    """
    if table is None:
        return None, None
    parts = table.text("part")
    own = parts == TEST if (parts == TEST).any() else np.ones(table.length, dtype=bool)
    cells = [table.text(column) != "" for column in observed_columns(part)]
    rows = np.flatnonzero(own & np.any(cells, axis=0))
    patients = [str(case) or None for case in table.text("case_id")[rows]]
    return len(rows), len(np.unique(number_groups(patients, len(rows))))
