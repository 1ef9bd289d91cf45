"""Compare methods of a task by its main metric, with a paired bootstrap over patients and a test
over the folds, which is corrected for their shared training bags as that of classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scmil.errors import DataError
from scmil.report.html.markup import change, p_equals
from scmil.report.run import UNRECORDED, Key, Numbers
from scmil.report.target_run import HeldOutRows, TargetRun
from scmil.stats.concordance import Scorer
from scmil.stats.paired_tests import corrected_t, holm
from scmil.stats.survival import KaplanMeier, LogRank, kaplan_meier, log_rank, majority_of_patients
from scmil.stats.target_differences import (
    PairedDifference,
    compare_scorers,
    multilabel_scorer,
    ordinal_scorer,
    regression_scorer,
    survival_scorer,
)


@dataclass(frozen=True)
class TargetComparison:
    """One method against another, on one data set, under one selection protocol."""

    method: str
    against: str
    dataset: str
    protocol: str
    metric: str  # its name in a sentence
    found: PairedDifference
    fold_p: float  # of the corrected t-test over folds; NaN without folds
    holm_p: float  # corrected over all comparisons under the protocol

    @property
    def p(self) -> float:
        """The larger of two p-values: over patients with the models as they are, and over folds
        with the variation between training sets.
        """
        return self.found.p if math.isnan(self.fold_p) else max(self.found.p, self.fold_p)

    @property
    def significant(self) -> bool:
        """Whether p < 0.05, without the correction for several comparisons."""
        return self.p < 0.05

    def sentence(self) -> str:
        """The result as one sentence."""
        low, high = self.found.interval
        if self.significant:
            verdict = f"a difference that chance alone would rarely make ({p_equals(self.p)})"
        elif self.found.p < 0.05:
            verdict = (
                "no difference that exceeds the variation between training sets "
                f"({p_equals(self.p)} over folds)"
            )
        else:
            verdict = "no difference that this data can show"
        return (
            f"{self.method} changed {self.metric} by {change(self.found.difference)} compared "
            f"with {self.against} (95 % interval {change(low)} to {change(high)}): {verdict}."
        )


def compare_target_methods(run: TargetRun) -> list[TargetComparison]:
    """Compare all methods that name a reference method, where both have a result."""
    compared: list[TargetComparison] = []
    for protocol in run.protocols:
        pairs = [
            (Key(method.name, dataset, protocol), Key(method.against or "", dataset, protocol))
            for method in run.methods
            for dataset in run.datasets
        ]
        here = [
            compare_targets(run, a, b) for a, b in pairs if a in run.results and b in run.results
        ]
        known = [place for place, each in enumerate(here) if np.isfinite(each.p)]
        corrected = holm([here[place].p for place in known]).tolist() if known else []
        for place, p in zip(known, corrected):
            here[place] = replace(here[place], holm_p=float(p))
        compared += here
    return compared


def compare_targets(run: TargetRun, a: Key, b: Key) -> TargetComparison:
    """Compare two methods, whether or not one is the reference method of the other.

    Raises:
        DataError: They were not tested on the same bags, or not trained on the same data.
    """
    first, second = run.held_out[a], run.held_out[b]
    same = all(
        np.array_equal(x, y, equal_nan=x.dtype.kind == "f")
        for x, y in zip(
            (first.repeats, first.bags, first.patients, first.observed),
            (second.repeats, second.bags, second.patients, second.observed),
        )
    )
    if not same or run.results[a].data != run.results[b].data:
        raise DataError(
            f"{run.folder}: {a.method!r} and {b.method!r} were not tested on the same bags and "
            f"values of {a.dataset!r} (digests {run.results[a].data or UNRECORDED} and "
            f"{run.results[b].data or UNRECORDED}), so they cannot be compared. Run both on the "
            "same data and splits: `scmil run` or `scmil compare` with --overwrite."
        )
    patients = int(first.patients.max()) + 1
    found = compare_scorers(
        _scorers_of_repeats(run, a.dataset, first),
        _scorers_of_repeats(run, a.dataset, second),
        patients,
    )
    fold_p = _corrected_p(run, a, b)
    return TargetComparison(
        a.method, b.method, a.dataset, a.protocol, run.the_main, found, fold_p, math.nan
    )


def _corrected_p(run: TargetRun, a: Key, b: Key) -> float:
    """The p-value of the corrected resampled t-test over the folds in which both have the metric;
    NaN without folds, or with fewer than two.
    """
    if not run.has_folds:
        return math.nan
    first, second = run.folds[a], run.folds[b]
    differences = [first[place] - second[place] for place in sorted(first) if place in second]
    known = [value for value in differences if math.isfinite(value)]
    return corrected_t(known, 1 / run.results[a].folds) if len(known) > 1 else math.nan


def _scorers_of_repeats(run: TargetRun, dataset: str, rows: HeldOutRows) -> list[Scorer]:
    """The main metric of each repeat as a function of how often each patient counts."""
    score = _SCORERS[run.task]
    target = run.targets[dataset]
    grades = len(target.get("grades") or target.get("classes") or ())
    scorers = []
    for repeat in np.unique(rows.repeats):
        own = rows.repeats == repeat
        patients = rows.patients[own]
        scorer = score(rows.observed[own], rows.predicted[own], grades, patients.tolist())
        # The scorer numbers the patients of the repeat in the order of their appearance.
        present = patients[np.sort(np.unique(patients, return_index=True)[1])]
        scorers.append(_of_present(scorer, present))
    return scorers


def _of_present(scorer: Scorer, present: NDArray[np.int64]) -> Scorer:
    return lambda counts: scorer(counts[:, present])


_SCORERS: dict[str, Callable[[Numbers, Numbers, int, list[int]], Scorer]] = {
    "survival": lambda y, p, _, who: survival_scorer(y[:, 0], y[:, 1], p[:, 0], who),
    "regression": lambda y, p, _, who: regression_scorer(y[:, 0], p[:, 0], who),
    "ordinal": lambda y, p, n, who: ordinal_scorer(
        y[:, 0].astype(int), p[:, 0].astype(int), n, who
    ),
    "multilabel": lambda y, p, _, who: multilabel_scorer(y, p, who),
    "class": lambda y, p, n, who: multilabel_scorer(np.eye(n)[y[:, 0].astype(int)], p, who),
}


class RiskGroups(NamedTuple):
    """Survival of the patients with a low and a high risk; the test is None for one group."""

    groups: dict[str, KaplanMeier]
    sizes: dict[str, int]
    test: LogRank | None


def find_risk_groups(rows: HeldOutRows) -> RiskGroups:
    """Divide patients at the cut-off of the training splits.

    A patient has a high risk if more than half of the predictions, over slides and repeats, are
    above the cut-off of their fold.
    """
    first = np.unique(rows.patients, return_index=True)[1]
    times, events = rows.observed[first].T
    high = majority_of_patients(rows.patients, rows.predicted[:, 1] > 0.5)
    parts = {"low risk": ~high, "high risk": high}
    present = {name: part for name, part in parts.items() if part.any()}
    test = log_rank(times, events, high.tolist()) if len(present) == 2 else None
    return RiskGroups(
        {name: kaplan_meier(times[part], events[part]) for name, part in present.items()},
        {name: int(part.sum()) for name, part in present.items()},
        test,
    )
