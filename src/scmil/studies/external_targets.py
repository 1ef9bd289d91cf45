"""The metrics of a model of another task than classes on another cohort, and its internal estimate.

Survival is scored by patient, other tasks by slide, as in the model folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from scmil.bags.targets import GradeTarget, LabelsTarget
from scmil.core.run_format import OR_HIGHER
from scmil.core.shapes import Numbers
from scmil.report.target_run import INTERVALS
from scmil.stats.bootstrap import number_groups
from scmil.stats.groups import group_positions
from scmil.stats.ordinal import grade_confusion
from scmil.stats.target_calibration import (
    calibrate_numbers,
    calibrate_survival,
    horizon,
    survival_slope,
)
from scmil.studies.external_calibration import calibration_of
from scmil.studies.model_folder import Page
from scmil.studies.model_metrics import estimate_json, plain_number

if TYPE_CHECKING:
    from scmil.bags.targets import Targets
    from scmil.models.objectives import Objective
    from scmil.training.held_out import HeldOut

AT = "auc@"  # the AUC at a time


def score_targets(
    objective: Objective,
    targets: Targets,
    ids: Sequence[str],
    outputs: Numbers,
    cut_off: float | None = None,
    internal: Page | None = None,
) -> Page:
    """Return the metrics of survival, a number, a grade or several labels with 95 % intervals.

    Args:
        objective: The objective of the model.
        targets: The values of the cohort.
        ids: The bags.
        outputs: The outputs of the model for them (b, w).
        cut_off: The risk above which it is high, from the training; None for other tasks.
        internal: The internal estimate: survival is scored at the same times, if the follow-up of
            the cohort is long enough for them.

    Returns:
        `slide`, or `patient` for survival with several slides per patient, with the metrics by
        name and the p-value of the log-rank test; `confusion` of grades, and the calibration.
    """
    from scmil.training.held_out import patients_of_targets, risk_groups, score_held_out

    found = _held_out(objective, targets, ids, outputs, cut_off, internal)
    patients = patients_of_targets(targets, ids)
    number = len(np.unique(number_groups(patients, len(ids))))
    by_patient = targets.task == "survival" and number < len(ids)
    own: Page = {"n": number if by_patient else len(ids), "patients": number}
    scores = score_held_out(targets, found, at=_times_of(targets, ids, internal))
    own |= {name: estimate_json(one.value, *one.interval) for name, one in scores.items()}
    if found.high is not None and 0 < found.high.sum() < len(found.high):
        own["log_rank_p"] = plain_number(risk_groups(targets, found).p_value)
    page: Page = {"intervals": INTERVALS[targets.task].rstrip(".")}
    page["patient" if by_patient else "slide"] = own
    return page | _describe_agreement(targets, ids, outputs, patients, found)


def _held_out(
    objective: Objective,
    targets: Targets,
    ids: Sequence[str],
    outputs: Numbers,
    cut_off: float | None,
    internal: Page | None,
) -> HeldOut:
    from scmil.models.objectives import SurvivalObjective, risk_of
    from scmil.models.survival_bins import survival_at
    from scmil.training.held_out import HeldOut

    if objective.task != "survival":
        return HeldOut(tuple(ids), outputs)
    risk = risk_of(objective, outputs)
    high = None if cut_off is None else risk > cut_off
    if not isinstance(objective, SurvivalObjective):
        return HeldOut(tuple(ids), outputs, risk, high)
    times = _times_of(targets, ids, internal)
    curves = survival_at(objective.edges, outputs, times)
    return HeldOut(tuple(ids), curves, risk, high, times)


def _times_of(targets: Targets, ids: Sequence[str], internal: Page | None) -> tuple[float, ...]:
    """The times of the internal estimate that lie within the follow-up of the cohort, or quantiles
    of the events of the cohort; none for other tasks and without events.
    """
    from scmil.training.target_folds import score_times

    if targets.task != "survival":
        return ()
    values = targets.array(ids)
    events = values[values[:, 1] > 0, 0]
    if not len(events):
        return ()
    levels = [found for found in (internal or {}).values() if isinstance(found, dict)]
    own = levels[0] if levels else {}
    known = sorted(float(name.removeprefix(AT)) for name in own if name.startswith(AT))
    inside = [time for time in known if events.min() <= time < values[:, 0].max()]
    return tuple(inside) if len(inside) > 1 else tuple(score_times(values).tolist())


def _describe_agreement(
    targets: Targets,
    ids: Sequence[str],
    outputs: Numbers,
    patients: Sequence[str | None],
    found: HeldOut,
) -> Page:
    """The confusion of grades and the calibration of the task, as far as it is defined."""
    values, target = targets.array(ids), targets.target
    if targets.task == "survival":
        return {"survival_calibration": _survival_calibration(values, patients, found)}
    if targets.task == "regression":
        numbers = calibrate_numbers(values[:, 0], outputs[:, 0], list(patients))
        of_intercept, of_slope = numbers.intervals
        linear = {
            "intercept": estimate_json(numbers.intercept, *of_intercept),
            "slope": estimate_json(numbers.slope, *of_slope),
        }
        return {"number_calibration": linear}
    groups = [f"bag {i}" if own is None else own for i, own in enumerate(patients)]
    if isinstance(target, GradeTarget):
        grades = values[:, 0].astype(int)
        confusion = grade_confusion(grades, outputs.argmax(1), len(target.grades))
        above = outputs[:, ::-1].cumsum(1)[:, ::-1].clip(0, 1)
        return {
            "confusion": confusion.astype(int).tolist(),
            "calibration": {
                f"{name}{OR_HIGHER}": calibration_of(
                    (grades >= i).astype(float), above[:, i], groups
                )
                for i, name in enumerate(target.grades[1:], start=1)
                if 0 < (grades >= i).sum() < len(grades)
            },
        }
    assert isinstance(target, LabelsTarget)
    calibration: dict[str, Any] = {}
    for name, y, p in zip(target.names, values.T, outputs.T, strict=True):
        rows = np.flatnonzero(~np.isnan(y))
        if 0 < y[rows].sum() < len(rows):
            calibration[name] = calibration_of(y[rows], p[rows], [groups[i] for i in rows])
    return {"calibration": calibration}


def _survival_calibration(
    values: Numbers, patients: Sequence[str | None], found: HeldOut
) -> Page | None:
    """Slope of the log hazard, and for models with survival curves predicted against observed
    survival at the middle time; None without events.
    """
    units = number_groups(list(patients), len(values))
    first = np.unique(units, return_index=True)[1]
    times, events = values[first].T
    at = horizon(times, events, found.times)
    if at is None:
        return None
    assert found.risk is not None
    members = [np.array(own) for own in group_positions(units.tolist()).values()]
    if not found.times:
        slope, interval = survival_slope(times, events, _means(found.risk, members))
        return {"time": None, "slope": estimate_json(slope, *interval), "groups": []}
    place = found.times.index(at)
    survival = _means(found.outputs[:, place], members).clip(1e-9, 1 - 1e-9)
    slope, interval = survival_slope(times, events, np.log(-np.log(survival)))
    ratio, groups = calibrate_survival(times, events, survival, at)
    return {
        "time": plain_number(at),
        "slope": estimate_json(slope, *interval),
        "ratio": estimate_json(ratio.value, *ratio.interval),
        "groups": [
            {
                "patients": group.patients,
                "predicted": plain_number(group.predicted),
                "observed": estimate_json(group.observed, *group.interval),
            }
            for group in groups
        ],
    }


def _means(values: Numbers, members: Sequence[Any]) -> Numbers:
    return np.array([values[own].mean() for own in members])


def internal_targets(metrics: Page) -> Page | None:
    """The estimate of a model folder on patients it was not trained on, from its `metrics.json`.

    Args:
        metrics: The content of `metrics.json` of the model folder.

    Returns:
        `source` in words and the metrics by level: those of the cross-validation over all its
        repeats, or of the test split; None if there is neither.

    >>> row = {"folds": 3, "repeats": 1, "bags": 9, "patients": 9, "r2": 0.5}
    >>> found = internal_targets({"cross_validation": [row | {"r2_low": 0.2, "r2_high": 0.7}]})
    >>> found["source"], found["slide"]["r2"]
    ('the cross-validation with 3 folds', {'value': 0.5, 'low': 0.2, 'high': 0.7})
    """
    for row in metrics.get("cross_validation", [])[-1:]:
        source = f"the cross-validation with {row['folds']} folds"
        if row["repeats"] > 1:
            source += f" (mean of {row['repeats']} repeats)"
        names = [name for name in row if f"{name}_low" in row and f"{name}_high" in row]
        # The summaries of survival are of patients, and count the patients with an event.
        by_patient = "events" in row and row["patients"] < row["bags"]
        own: Page = {"n": row["patients" if by_patient else "bags"], "patients": row["patients"]}
        own |= {
            name: dict(
                zip(("value", "low", "high"), (row[name], row[f"{name}_low"], row[f"{name}_high"]))
            )
            for name in names
        }
        return {"source": source, "patient" if by_patient else "slide": own}
    test = metrics.get("test")
    return {"source": "the internal test split", **test} if isinstance(test, dict) else None
