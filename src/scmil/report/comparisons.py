"""Compare each method with its reference method, on the same bags and folds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np

from scmil.errors import DataError
from scmil.report.html.markup import change, p_equals
from scmil.report.run import TUNED, UNRECORDED, Key, Predictions, Run
from scmil.stats import significance
from scmil.stats.metrics import decide
from scmil.stats.significance import DeLong, FoldComparison, Interval, SignedRank

FEWEST_DATASETS = 5  # with fewer, a signed-rank test over data sets cannot reach p = 0.05


@dataclass(frozen=True)
class MethodComparison:
    """One method against another, on one data set, under one selection protocol."""

    method: str
    against: str
    dataset: str
    protocol: str
    accuracy: FoldComparison
    auc: DeLong | None  # of the mean probability over repeats; two classes only
    # The signed-rank test over folds, corrected over the data sets; NaN for one test set.
    holm_p: float
    published: float  # the same difference in the published numbers, or NaN

    @property
    def interval(self) -> Interval:
        """The 95 % confidence interval of the difference in accuracy, over bags."""
        return self.accuracy.interval or Interval(math.nan, math.nan)


class Across(NamedTuple):
    """One method against another, over the means of all data sets."""

    method: str
    against: str
    protocol: str
    datasets: int
    delta: float
    test: SignedRank

    @property
    def smallest_p(self) -> float:
        """The p-value if all data sets agree, the smallest that is possible."""
        return 2.0 ** (1 - self.datasets)

    @property
    def p(self) -> float:
        """The p-value of the signed-rank test; NaN with too few data sets."""
        return self.test.p if self.datasets >= FEWEST_DATASETS else math.nan

    def sentence(self) -> str:
        """The result in a sentence, with the smallest possible p-value."""
        start = (
            f"{self.method} against {self.against} over {self.datasets} data sets: "
            f"{change(self.delta)} on average, better on {self.test.better}, worse on "
            f"{self.test.worse}"
        )
        if math.isnan(self.p):
            return f"{start}; too few data sets for a test over them (at least {FEWEST_DATASETS})."
        tested = f"Wilcoxon signed-rank test over data sets {p_equals(self.p)}"
        return (
            f"{start}; {tested} (the smallest possible p with {self.datasets} data sets is "
            f"{self.smallest_p:.4f})."
        )


class ProtocolEffect(NamedTuple):
    """The accuracy of one method on one data set under each protocol, and the published one; NaN
    where there is no result.
    """

    method: str
    dataset: str
    accuracies: tuple[float, ...]  # in the order of run.protocols
    gain: float  # of selecting on the test fold, over the first leakage-free protocol
    published: float
    published_gain: float


def compare_methods(run: Run) -> list[MethodComparison]:
    """Compare all methods that name a reference method, where both have a result."""
    compared: list[MethodComparison] = []
    for protocol in run.protocols:
        for method, against in run.methods:
            pairs = [
                (Key(method, dataset, protocol), Key(against or "", dataset, protocol))
                for dataset in run.datasets
            ]
            alike = [
                compare_pair(run, a, b) for a, b in pairs if b in run.results and a in run.results
            ]
            if alike and run.has_folds:
                corrected = significance.holm([each.accuracy.signed_rank.p for each in alike])
                alike = [replace(each, holm_p=float(p)) for each, p in zip(alike, corrected)]
            compared += alike
    return compared


def compare_pair(run: Run, a: Key, b: Key) -> MethodComparison:
    """Compare two methods, whether or not one is the reference method of the other."""
    folds_a, folds_b = run.folds[a], run.folds[b]
    bags_a, bags_b = run.predictions[a], run.predictions[b]
    if folds_a.keys() != folds_b.keys() or not _same_bags(bags_a, bags_b):
        raise DataError(
            f"{run.folder}: {a.method!r} and {b.method!r} were not tested on the same folds and "
            f"bags of {a.dataset!r}, so they cannot be compared. Run both with the same splits and "
            "seed: `scmil run` on one experiment."
        )
    if run.results[a].data != run.results[b].data:
        raise DataError(
            f"{run.folder}: {a.method!r} and {b.method!r} were trained on different data of "
            f"{a.dataset!r} (digests {run.results[a].data or UNRECORDED} and "
            f"{run.results[b].data or UNRECORDED}), so they cannot be compared. "
            "Run both on the same data: `scmil run` or `scmil compare` with --overwrite."
        )
    places = sorted(folds_a)
    comparison = significance.compare_folds(
        [folds_a[place] for place in places],
        [folds_b[place] for place in places],
        test_share=1 / run.results[a].folds if run.has_folds else None,
        units=bags_a.bags.tolist(),
        correct_a=_correct(bags_a),
        correct_b=_correct(bags_b),
        names=(a.method, b.method),
    )
    ours, theirs = run.published.get(a[:2]), run.published.get(b[:2])
    published = ours.accuracy - theirs.accuracy if ours and theirs else math.nan
    return MethodComparison(
        a.method,
        b.method,
        a.dataset,
        a.protocol,
        comparison,
        _delong(bags_a, bags_b),
        math.nan,
        published,
    )


def _same_bags(a: Predictions, b: Predictions) -> bool:
    return bool(np.array_equal(a.bags, b.bags) and np.array_equal(a.labels, b.labels))


def _correct(tested: Predictions) -> np.ndarray:
    correct = np.empty(len(tested.labels))
    for threshold in np.unique(tested.thresholds):
        rows = tested.thresholds == threshold
        correct[rows] = decide(tested.probabilities[rows], float(threshold)) == tested.labels[rows]
    return correct


def _delong(a: Predictions, b: Predictions) -> DeLong | None:
    """DeLong's test of the mean over repeats: its variance assumes that each bag counts once."""
    if a.probabilities.shape[1] != 2:
        return None
    _, first, unit = np.unique(a.bags, return_index=True, return_inverse=True)
    counts = np.bincount(unit)
    scores = [np.bincount(unit, tested.probabilities[:, 1]) / counts for tested in (a, b)]
    labels = a.labels[first]
    return (
        significance.delong(labels, *scores) if np.bincount(labels, minlength=2).min() > 1 else None
    )


def across_datasets(compared: Iterable[MethodComparison]) -> list[Across]:
    """Compare each pair of methods over its data sets, with a signed-rank test of the means."""
    found = []
    for (protocol, method, against), group in groupby(
        compared, key=lambda each: (each.protocol, each.method, each.against)
    ):
        deltas = [each.accuracy.delta for each in group]
        if len(deltas) > 1:
            test = significance.wilcoxon(deltas, [0.0] * len(deltas))
            found.append(
                Across(method, against, protocol, len(deltas), float(np.mean(deltas)), test)
            )
    return found


def protocol_effects(run: Run) -> list[ProtocolEffect]:
    """The effect of selecting on the test fold, for each run with several selection protocols."""
    rows = []
    for method in run.methods:
        for dataset in run.datasets:
            keys = [Key(method.name, dataset, protocol) for protocol in run.protocols]
            accuracy = {
                key.protocol: run.results[key].metrics["accuracy"].mean
                for key in keys
                if key in run.results
            }
            if len(accuracy) > 1:
                reference = next(
                    (accuracy[name] for name in run.leakage_free if name in accuracy), math.nan
                )
                published = run.published.get((method.name, dataset))
                paper = published.accuracy if published else math.nan
                accuracies = tuple(accuracy.get(protocol, math.nan) for protocol in run.protocols)
                gain = accuracy.get(TUNED, math.nan) - reference
                rows.append(
                    ProtocolEffect(method.name, dataset, accuracies, gain, paper, paper - reference)
                )
    return rows
