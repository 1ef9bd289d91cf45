"""Metrics of subgroups for survival, numbers, grades and several labels.

The gaps are tested as those of classes (`subgroups`): the groups are exchanged between patients
with an event and between those without, between patients of the same grade, of the same value of a
label, or of the same quarter of the observed numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scmil.core.shapes import Numbers
from scmil.stats.bootstrap import Groups, MetricEstimate, number_groups
from scmil.stats.concordance import Scorer, concordance, concordance_interval
from scmil.stats.multilabel import score_multilabel
from scmil.stats.ordinal import ordinal_intervals, score_ordinal
from scmil.stats.regression import regression_intervals, score_regression
from scmil.stats.subgroups import (
    LEAST_OF_CLASS,
    Described,
    Family,
    Statistic,
    share_in_groups,
)
from scmil.stats.target_differences import (
    multilabel_scorer,
    ordinal_scorer,
    regression_scorer,
    survival_scorer,
)

DRAWS = 1000  # of bootstrap intervals
QUARTERS = (0.25, 0.5, 0.75)
MACRO = "macro: auc"


@dataclass(frozen=True)
class TargetOutcomes:
    """Test predictions by slide of another task than classes.

    Attributes:
        task: "survival", "regression", "ordinal" or "multilabel".
        observed: Time and event; the number; the position of the grade; labels with NaN where one
            is missing (b, k).
        predicted: The risk; the number; the position of the grade; probabilities (b, w).
        patients: The patient of each slide; None is a patient of its own.
        names: The grades, or the labels; empty for other tasks.
    """

    task: str
    observed: Numbers
    predicted: Numbers
    patients: Groups
    names: tuple[str, ...] = ()

    def describe(self, rows: NDArray[np.int64]) -> Described:
        """The main metrics of the task with their intervals.

        >>> observed = np.array([[1.0], [2.0], [4.0]])
        >>> own = TargetOutcomes("regression", observed, observed, [None] * 3)
        >>> own.describe(np.arange(3)).metrics["mae"].value
        0.0
        """
        patients = [self.patients[i] for i in rows.tolist()]
        y, p = self.observed[rows], self.predicted[rows]
        return _DESCRIBE[self.task](y, p, patients, self.names)

    def families(self, rows: NDArray[np.int64], units: NDArray[np.int64]) -> list[Family]:
        """The metrics as functions of groups of some slides; each label is a family of its own."""
        y, p, who = self.observed[rows], self.predicted[rows], units.tolist()
        # The scorers number the units in the order of their appearance.
        first = np.sort(np.unique(units, return_index=True)[1])

        def of_units(scorer: Scorer) -> Statistic:
            return lambda groups: scorer(groups[:, first])

        if self.task == "survival":
            scorer = survival_scorer(y[:, 0], y[:, 1], p[:, 0], who)
            return [Family({"c_index": of_units(scorer)}, y[:, 1].tolist())]
        if self.task == "regression":
            error = np.abs(y[:, 0] - p[:, 0])
            statistics = {
                "r2": of_units(regression_scorer(y[:, 0], p[:, 0], who)),
                "mae": _mean_of(error),
            }
            quarters = np.searchsorted(np.quantile(self.observed[:, 0], QUARTERS), y[:, 0])
            return [Family(statistics, quarters.tolist())]
        if self.task == "ordinal":
            grades, own = y[:, 0].astype(int), p[:, 0].astype(int)
            statistics = {
                "kappa": of_units(ordinal_scorer(grades, own, len(self.names), who)),
                "accuracy": _mean_of((grades == own).astype(float)),
            }
            return [Family(statistics, grades.tolist())]
        present = np.nansum(y, axis=1)
        found = [Family({MACRO: of_units(multilabel_scorer(y, p, who))}, present.tolist())]
        for i, name in enumerate(self.names):
            scorer = multilabel_scorer(y[:, [i]], p[:, [i]], who)
            strata = np.nan_to_num(y[:, i], nan=-1.0)
            found.append(Family({f"{name}: auc": of_units(scorer)}, strata.tolist()))
        return found


def _mean_of(values: Numbers) -> Statistic:
    return lambda groups: share_in_groups(groups @ values, groups.sum(1))


def _describe_survival(y: Numbers, p: Numbers, patients: Groups, _: tuple[str, ...]) -> Described:
    units = number_groups(patients, len(y))
    first = np.unique(units, return_index=True)[1]
    times, events = y[first, 0], y[first, 1]
    risk = np.bincount(units, p[:, 0]) / np.bincount(units)
    found = MetricEstimate(
        concordance(times, events, risk), concordance_interval(times, events, risk)
    )
    return _described({"c_index": found}, int(events.sum()) >= LEAST_OF_CLASS)


def _describe_numbers(y: Numbers, p: Numbers, patients: Groups, _: tuple[str, ...]) -> Described:
    scores = score_regression(y[:, 0], p[:, 0])
    intervals = regression_intervals(y[:, 0], p[:, 0], patients)
    return _described(
        {name: MetricEstimate(scores[name], intervals[name]) for name in ("r2", "mae")}
    )


def _describe_grades(y: Numbers, p: Numbers, patients: Groups, names: tuple[str, ...]) -> Described:
    grades = y[:, 0].astype(int), p[:, 0].astype(int), len(names)
    scores, intervals = score_ordinal(*grades), ordinal_intervals(*grades, patients, DRAWS)
    chosen = ("kappa", "accuracy")
    return _described({name: MetricEstimate(scores[name], intervals[name]) for name in chosen})


def _describe_labels(y: Numbers, p: Numbers, patients: Groups, names: tuple[str, ...]) -> Described:
    found = score_multilabel(names, y, p, patients, draws=DRAWS)
    metrics = {MACRO: MetricEstimate(found.macro["auc"], found.macro_intervals["auc"])}
    units = number_groups(patients, len(y))
    reliable = []
    for name, column in zip(names, y.T, strict=True):
        row = found.labels.get(name)
        if row is None:
            continue
        metrics[f"{name}: auc"] = MetricEstimate(row.scores["auc"], row.intervals["auc"])
        if min(len(np.unique(units[column == value])) for value in (0, 1)) >= LEAST_OF_CLASS:
            reliable.append(f"{name}: auc")
    # The mean over other labels is no mean over all.
    whole = [MACRO] if len(reliable) == len(names) else []
    return Described(metrics, frozenset([*whole, *reliable]))


def _described(metrics: dict[str, MetricEstimate], enough: bool = True) -> Described:
    return Described(metrics, frozenset(metrics if enough else ()))


_DESCRIBE: dict[str, Callable[[Numbers, Numbers, Groups, tuple[str, ...]], Described]] = {
    "survival": _describe_survival,
    "regression": _describe_numbers,
    "ordinal": _describe_grades,
    "multilabel": _describe_labels,
}
