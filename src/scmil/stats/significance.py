"""Comparison of two methods: paired tests, corrected for the overlap of cross-validation folds, and
bootstrap intervals over patients.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from scmil.core.shapes import Numbers
from scmil.errors import DataError
from scmil.stats.bootstrap import Groups, Interval, bootstrap_interval, number_groups
from scmil.stats.paired_tests import (
    DeLong,
    MeanSd,
    SignedRank,
    corrected_t,
    delong,
    holm,
    mean_sd,
    paired_differences,
    sign_flips,
    wilcoxon,
)

__all__ = [
    "DeLong",
    "FoldComparison",
    "Interval",
    "MeanSd",
    "SignedRank",
    "bootstrap_interval",
    "compare_folds",
    "corrected_t",
    "delong",
    "holm",
    "mean_sd",
    "sign_flips",
    "wilcoxon",
]

LEVEL = 0.05


@dataclass(frozen=True)
class FoldComparison:
    """Two methods on the same folds: `delta` is the mean of `a` minus that of `b`, `p` is that of
    the corrected t-test.
    """

    a: str
    b: str
    metric: str
    mean_a: float
    mean_b: float
    delta: float
    p: float
    signed_rank: SignedRank
    interval: Interval | None = None

    @property
    def significant(self) -> bool:
        """Whether p < 0.05 in the corrected test; the signed-rank test treats overlapping folds as
        independent data.
        """
        return self.p < LEVEL

    def sentence(self) -> str:
        """The result as one sentence.

        >>> ranks = SignedRank(p=0.6, effect=0.1, better=5, worse=4, equal=1)
        >>> interval = Interval(-0.012, 0.021)
        >>> FoldComparison("SC", "no SC", "AUC", 0.9, 0.896, 0.004, 0.7, ranks, interval).sentence()
        'SC changed AUC by +0.004 compared with no SC (95 % interval -0.012 to +0.021): no
        difference that this data can show.'
        """
        interval = (
            self.interval
            and f" (95 % interval {_signed(self.interval.low)} to {_signed(self.interval.high)})"
        )
        return (
            f"{self.a} changed {self.metric} by {_signed(self.delta)} compared with "
            f"{self.b}{interval or ''}: {self._verdict()}."
        )

    def _verdict(self) -> str:
        if not self.significant:
            return "no difference that this data can show"
        p = "p < 0.001" if self.p < 0.001 else f"p = {self.p:.3f}"
        if self.interval and self.interval.low <= 0 <= self.interval.high:
            return (
                f"weak evidence of a difference, for the folds agree on it ({p}) but the interval "
                "includes zero"
            )
        return f"a difference that chance alone would rarely make ({p})"


def compare_folds(
    a: ArrayLike,
    b: ArrayLike,
    test_share: float | None,
    names: tuple[str, str],
    metric: str = "accuracy",
    units: Sequence[Hashable] | None = None,
    correct_a: ArrayLike | None = None,
    correct_b: ArrayLike | None = None,
    groups: Groups | None = None,
    seed: int = 0,
) -> FoldComparison:
    """Compare two methods over the same folds and the same bags.

    The interval is over bags, or over patients if there are `groups`, not over folds. It needs
    `units`, `correct_a` and `correct_b`, with one entry per prediction; repeats of a bag are
    averaged first. An AUC is not a mean over bags: leave the three out, and there is no interval.

    Args:
        a: The values of the first method, one per fold.
        b: The values of the second method, one per fold.
        test_share: The fraction of the bags in the test split of a fold. None if all values come
            from one test set and only training differs: then p is that of `sign_flips` over the
            bags, because further runs on the same bags are not independent.
        names: The names of the methods.
        metric: The name of the metric.
        units: The bag of each prediction.
        correct_a: The score of each prediction of the first method: 1 or 0 for accuracy, the
            squared error for the Brier score.
        correct_b: The same for the second method.
        groups: The patient of each prediction.
        seed: Seed of the bootstrap and of the permutation test.

    Returns:
        Means, difference, p-values and interval.

    Raises:
        DataError: If lengths differ, values are not finite, or arguments are missing.

    >>> compare_folds([0.5, 1.0], [0.5, 0.5], 0.5, ("SC", "no SC"), units="wxyz",
    ...               correct_a=[1, 0, 1, 1], correct_b=[1, 0, 1, 0]).sentence()
    'SC changed accuracy by +0.250 compared with no SC (95 % interval +0.000 to +0.750): no
    difference that this data can show.'
    """
    differences = paired_differences(a, b)
    tables = [table is not None for table in (units, correct_a, correct_b)]
    if any(tables) and not all(tables):
        raise DataError(
            "units, correct_a and correct_b belong together: pass all of them, or none."
        )
    if test_share is not None:
        p = corrected_t(differences, test_share)
    elif units is None:
        raise DataError(
            "test_share is None, so one test set is compared over its bags, which needs units, "
            "correct_a and correct_b. Pass them."
        )
    else:
        p = sign_flips(_mean_by_bag(units, paired_differences(correct_a, correct_b)), seed=seed)
    return FoldComparison(
        a=names[0],
        b=names[1],
        metric=metric,
        mean_a=mean_sd(a).mean,
        mean_b=mean_sd(b).mean,
        delta=float(differences.mean()),
        p=p,
        signed_rank=wilcoxon(a, b),
        interval=None
        if units is None
        else _interval_over_bags(units, paired_differences(correct_a, correct_b), groups, seed),
    )


def _mean_by_bag(units: Sequence[Hashable], scores: Numbers) -> Numbers:
    """The mean of each bag over its repeats."""
    if len(units) != len(scores):
        raise DataError(
            f"{len(units)} units for {len(scores)} predictions: one for each prediction is "
            "expected."
        )
    codes = number_groups(units, len(scores))
    return np.bincount(codes, scores) / np.bincount(codes)


def _interval_over_bags(
    units: Sequence[Hashable], scores: Numbers, groups: Groups | None, seed: int
) -> Interval:
    mean = _mean_by_bag(units, scores)
    if groups is None:
        return bootstrap_interval(mean, seed=seed)
    if len(groups) != len(units):
        raise DataError(
            f"{len(groups)} groups for {len(units)} predictions: one for each prediction is "
            "expected."
        )
    patients: dict[Hashable, Hashable] = {}
    for unit, group in zip(units, groups, strict=True):
        if patients.setdefault(unit, group) != group:
            raise DataError(
                f"bag {unit!r} belongs to both patient {patients[unit]!r} and patient {group!r}, "
                "and one is expected. Correct the groups."
            )
    return bootstrap_interval(mean, list(patients.values()), seed=seed)


def _signed(value: float) -> str:
    return f"{round(value, 3) + 0.0:+.3f}"  # + 0.0 turns -0.0 into 0.0
