"""Each arm against the one it names, on the same bags and folds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np

from scmil.stats import significance
from scmil.errors import DataError
from scmil.stats.metrics import decide
from scmil.report.html.markup import change, p_value
from scmil.report.run_files import TUNED, UNRECORDED, Key, Predictions, Run
from scmil.stats.significance import Comparison, DeLong, Interval, SignedRank

FEWEST_DATASETS = 5  # below, a signed-rank test over data sets cannot come near 0.05


@dataclass(frozen=True)
class Compared:
    """One arm against another, on one data set, by one protocol."""

    arm: str
    against: str
    dataset: str
    protocol: str
    accuracy: Comparison
    auc: DeLong | None  # of the mean probability over repeats; two classes only
    holm_p: float  # the signed-rank test over folds, corrected over the data sets; NaN for one test set
    published: float  # the same difference in the published numbers, or NaN

    @property
    def interval(self) -> Interval:
        """The 95 % interval of the change of accuracy, over bags."""
        return self.accuracy.interval or Interval(math.nan, math.nan)


class Across(NamedTuple):
    """One arm against another over all data sets, a mean each."""

    arm: str
    against: str
    protocol: str
    datasets: int
    delta: float
    test: SignedRank

    @property
    def smallest_p(self) -> float:
        """The p-value if all data sets agreed: no test over so few can say more."""
        return 2.0 ** (1 - self.datasets)

    @property
    def p(self) -> float:
        """The p-value of the signed-rank test, NaN if there are too few data sets for it to mean anything."""
        return self.test.p if self.datasets >= FEWEST_DATASETS else math.nan

    def sentence(self) -> str:
        """What the data sets say together, and what they could have said at most."""
        start = (
            f"{self.arm} against {self.against} over {self.datasets} data sets: {change(self.delta)} on average, "
            f"better on {self.test.better}, worse on {self.test.worse}"
        )
        if math.isnan(self.p):
            return f"{start}; too few data sets for a test over them (at least {FEWEST_DATASETS})."
        tested = f"Wilcoxon signed-rank test over data sets p = {p_value(self.p)}".replace("= <", "<")
        return f"{start}; {tested} (the smallest p that {self.datasets} data sets can give is {self.smallest_p:.4f})."


class Worth(NamedTuple):
    """One arm on one data set by every protocol, and as published; NaN where there is no number."""

    arm: str
    dataset: str
    accuracies: tuple[float, ...]  # in the order of run.protocols
    gain: float  # of choosing on the test fold over the honest protocol that stands first
    published: float
    published_gain: float


def compare_arms(run: Run) -> list[Compared]:
    """All comparisons that the run's arms name, where both have a result."""
    compared: list[Compared] = []
    for protocol in run.protocols:
        for arm, against in run.arms:
            pairs = [(Key(arm, dataset, protocol), Key(against or "", dataset, protocol)) for dataset in run.datasets]
            alike = [compare_pair(run, a, b) for a, b in pairs if b in run.results and a in run.results]
            if alike and run.has_folds:
                corrected = significance.holm([each.accuracy.signed_rank.p for each in alike])
                alike = [replace(each, holm_p=float(p)) for each, p in zip(alike, corrected)]
            compared += alike
    return compared


def compare_pair(run: Run, a: Key, b: Key) -> Compared:
    """One arm against another, whether or not the run names them as a pair."""
    folds_a, folds_b = run.folds[a], run.folds[b]
    bags_a, bags_b = run.predictions[a], run.predictions[b]
    if folds_a.keys() != folds_b.keys() or not _same_bags(bags_a, bags_b):
        raise DataError(
            f"{run.folder}: {a.arm!r} and {b.arm!r} were not tested on the same folds and bags of {a.dataset!r}, so they "
            "cannot be compared. Run both with one protocol and one seed: `scmil run` on the same experiment."
        )
    if run.results[a].data != run.results[b].data:
        raise DataError(
            f"{run.folder}: {a.arm!r} and {b.arm!r} were trained on different data of {a.dataset!r} (digests "
            f"{run.results[a].data or UNRECORDED} and {run.results[b].data or UNRECORDED}), so they cannot be compared. "
            "Run both on the same data: `scmil run` or `scmil compare` with --overwrite."
        )
    places = sorted(folds_a)
    comparison = significance.compare(
        [folds_a[place] for place in places],
        [folds_b[place] for place in places],
        test_share=1 / run.results[a].folds if run.has_folds else None,
        units=bags_a.bags.tolist(),
        correct_a=_correct(bags_a),
        correct_b=_correct(bags_b),
        names=(a.arm, b.arm),
    )
    ours, theirs = run.published.get(a[:2]), run.published.get(b[:2])
    published = ours.accuracy - theirs.accuracy if ours and theirs else math.nan
    return Compared(a.arm, b.arm, a.dataset, a.protocol, comparison, _delong(bags_a, bags_b), math.nan, published)


def _same_bags(a: Predictions, b: Predictions) -> bool:
    return bool(np.array_equal(a.bags, b.bags) and np.array_equal(a.labels, b.labels))


def _correct(tested: Predictions) -> np.ndarray:
    correct = np.empty(len(tested.labels))
    for threshold in np.unique(tested.thresholds):
        rows = tested.thresholds == threshold
        correct[rows] = decide(tested.probabilities[rows], float(threshold)) == tested.labels[rows]
    return correct


def _delong(a: Predictions, b: Predictions) -> DeLong | None:
    """Repeats test a bag again and again; their mean counts it once, as DeLong's variance supposes."""
    if a.probabilities.shape[1] != 2:
        return None
    _, first, unit = np.unique(a.bags, return_index=True, return_inverse=True)
    counts = np.bincount(unit)
    scores = [np.bincount(unit, tested.probabilities[:, 1]) / counts for tested in (a, b)]
    labels = a.labels[first]
    return significance.delong(labels, *scores) if np.bincount(labels, minlength=2).min() > 1 else None


def across_datasets(compared: Iterable[Compared]) -> list[Across]:
    """Each pair of arms over its data sets: a signed-rank test of the means, if there are enough of them."""
    found = []
    for (protocol, arm, against), group in groupby(compared, key=lambda each: (each.protocol, each.arm, each.against)):
        deltas = [each.accuracy.delta for each in group]
        if len(deltas) > 1:
            test = significance.wilcoxon(deltas, [0.0] * len(deltas))
            found.append(Across(arm, against, protocol, len(deltas), float(np.mean(deltas)), test))
    return found


def protocol_worth(run: Run) -> list[Worth]:
    """What it brings to choose on the test fold: every arm and data set that has several protocols."""
    rows = []
    for arm in run.arms:
        for dataset in run.datasets:
            keys = [Key(arm.name, dataset, protocol) for protocol in run.protocols]
            met = {key.protocol: run.results[key].metrics["accuracy"].mean for key in keys if key in run.results}
            if len(met) > 1:
                honest = next((met[protocol] for protocol in run.honest if protocol in met), math.nan)
                published = run.published.get((arm.name, dataset))
                paper = published.accuracy if published else math.nan
                accuracies = tuple(met.get(protocol, math.nan) for protocol in run.protocols)
                gain = met.get(TUNED, math.nan) - honest
                rows.append(Worth(arm.name, dataset, accuracies, gain, paper, paper - honest))
    return rows
