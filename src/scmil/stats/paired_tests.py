"""Paired significance tests, and corrections for overlapping folds and multiple tests."""

from __future__ import annotations

import math
from importlib import import_module
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scmil.core.shapes import Numbers
from scmil.errors import DataError, MissingExtraError
from scmil.stats.bootstrap import check_values

EXACT_PAIRS = 200


class MeanSd(NamedTuple):
    """A mean and a sample standard deviation."""

    mean: float
    sd: float


class SignedRank(NamedTuple):
    """A signed-rank test: its p-value, the rank-biserial correlation (-1 to 1), and how many pairs
    are better, worse and equal in `a`.
    """

    p: float
    effect: float
    better: int
    worse: int
    equal: int


class DeLong(NamedTuple):
    """Two AUCs on the same bags, their difference with its 95 % interval, and its p-value."""

    auc_a: float
    auc_b: float
    difference: float
    low: float
    high: float
    p: float


def mean_sd(values: ArrayLike) -> MeanSd:
    """The mean and the sample standard deviation, which is NaN for a single value.

    >>> mean_sd([1, 2, 3])
    MeanSd(mean=2.0, sd=1.0)
    """
    numbers = check_values(values, least=1)
    return MeanSd(
        float(numbers.mean()), float(numbers.std(ddof=1)) if len(numbers) > 1 else math.nan
    )


def wilcoxon(a: ArrayLike, b: ArrayLike) -> SignedRank:
    """Wilcoxon's signed-rank test of paired values, such as the means of two methods on data sets.

    Zeros keep their ranks (Pratt): equal pairs are evidence for no difference, and p would be too
    small without them. p is exact up to 200 pairs, also with ties, and a normal approximation
    beyond. The effect is the rank sum of the better pairs minus that of the worse ones, divided by
    the sum of all ranks (matched-pairs rank-biserial correlation). With 5 pairs the smallest
    possible p is 0.0625, so 5 data sets cannot reach 0.05.

    >>> wilcoxon([5, 6, 7, 8, 9], [1, 1, 1, 1, 1])
    SignedRank(p=0.0625, effect=1.0, better=5, worse=0, equal=0)
    """
    differences = paired_differences(a, b)
    better, worse = int((differences > 0).sum()), int((differences < 0).sum())
    equal = len(differences) - better - worse
    if not better + worse:
        return SignedRank(1.0, 0.0, 0, 0, equal)
    ranks = midranks(np.abs(differences))
    surplus = float((np.sign(differences) * ranks).sum())
    if len(differences) <= EXACT_PAIRS:
        p = _exact_p_value(surplus, ranks[differences != 0])
    else:
        p = float(_scipy("stats").wilcoxon(differences, zero_method="pratt").pvalue)
    return SignedRank(p, surplus / float(ranks.sum()), better, worse, equal)


def holm(p_values: ArrayLike) -> Numbers:
    """Adjust p-values for multiple tests (Holm); the results are compared with 0.05 as usual.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    p = check_values(p_values, least=1)
    if p.min() < 0 or p.max() > 1:
        raise DataError(
            f"p-values from {p.min():g} to {p.max():g}: numbers from 0 to 1 are expected."
        )
    order = np.argsort(p)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1)
    return adjusted


def delong(labels: ArrayLike, a: ArrayLike, b: ArrayLike) -> DeLong:
    """Test whether two sets of scores of the same bags differ in AUC (DeLong, DeLong and
    Clarke-Pearson, by midranks).

    Scores with the same ranking give p = 1. If the variance cannot be estimated although the AUCs
    differ, for example perfect scores against constant ones, p and the interval are NaN.

    >>> same = delong([0, 0, 1, 1], [0.1, 0.4, 0.3, 0.8], [1, 4, 3, 8])
    >>> same.auc_a, same.auc_b, same.p
    (0.75, 0.75, 1.0)
    """
    y, scores = np.asarray(labels), [check_values(values, least=4) for values in (a, b)]
    if any(len(values) != len(y) for values in scores):
        raise DataError(
            f"{len(y)} labels, {len(scores[0])} and {len(scores[1])} scores: the same number of "
            "each is expected. Use the same bags."
        )
    if not np.isin(y, (0, 1)).all() or min((y == 0).sum(), (y == 1).sum()) < 2:
        raise DataError("labels must be 0 or 1, with at least 2 bags of each. Add bags.")
    (won_a, lost_a), (won_b, lost_b) = (_placements(y == 1, values) for values in scores)
    auc_a, auc_b = float(won_a.mean()), float(won_b.mean())
    difference = auc_a - auc_b
    variance = (won_a - won_b).var(ddof=1) / len(won_a) + (lost_a - lost_b).var(ddof=1) / len(
        lost_a
    )
    deviation = math.sqrt(variance) if variance > 1e-24 else 0.0  # what rounding leaves of zero
    if not deviation:
        limit, p = (0.0, 1.0) if abs(difference) < 1e-12 else (math.nan, math.nan)
    else:
        limit = NormalDist().inv_cdf(0.975) * deviation
        p = math.erfc(abs(difference) / deviation / math.sqrt(2))
    return DeLong(auc_a, auc_b, difference, difference - limit, difference + limit, p)


def corrected_t(differences: ArrayLike, test_share: float) -> float:
    """The p-value of the corrected resampled t-test (Nadeau and Bengio) for the fold differences of
    a cross-validation.

    The folds of a cross-validation share most of their training bags, and those of repeats also
    their test bags: 50 folds are not 50 independent results, and the p-value of a plain test over
    them is too small. Here the variance of the mean is not 1/k of that of one fold but 1/k +
    test_share / (1 - test_share), where `test_share` is the fraction of all bags in the test split
    of a fold, 0.1 for ten folds. If all differences are equal, t is undefined, and p is that of k
    equal signs: 2^(1 - k).

    In the example the factor is 4/9, so t = 3 with 2 degrees of freedom, and p = 1 - 3 / sqrt(11):

    >>> round(corrected_t([0.1, 0.2, 0.3], test_share=0.1), 4)
    0.0955
    >>> corrected_t([0.0, 0.0, 0.0], test_share=0.1)
    1.0
    """
    values = check_values(differences, least=2)
    if not 0 < test_share < 1:
        raise DataError(
            f"test_share = {test_share}: a number between 0 and 1 is expected. Pass the fraction "
            "of the bags in the test split of a fold."
        )
    values = _round_differences(values)
    if values.min() == values.max():
        return 2.0 ** (1 - len(values)) if values[0] else 1.0
    deviation = values.std(ddof=1) * math.sqrt(1 / len(values) + test_share / (1 - test_share))
    return float(2 * _scipy("special").stdtr(len(values) - 1, -abs(values.mean()) / deviation))


def sign_flips(differences: ArrayLike, draws: int = 9999, seed: int = 0) -> float:
    """The p-value of the paired permutation test: how often the sum with random signs is at least
    as far from zero.

    For two methods on one test set, with one difference per bag: if both are equally good, each
    difference could as well have the other sign. For up to 13 non-zero differences all signs are
    tried, for more `draws` random ones.

    >>> sign_flips([1, 1, 1, 1, 0, 0])  # all plus or all minus: 2 of 16
    0.125
    >>> sign_flips([0.0, 0.0])
    1.0
    """
    values = _round_differences(check_values(differences, least=1))
    values = values[values != 0]
    if not len(values):
        return 1.0
    everything = len(values) <= 13
    if everything:
        flips = 1 - 2 * ((np.arange(2 ** len(values))[:, None] >> np.arange(len(values))) & 1)
        sums = flips @ values
    else:
        random = np.random.default_rng(seed)
        sums = (
            np.array([values[random.random(len(values)) < 0.5].sum() for _ in range(draws)]) * 2
            - values.sum()
        )
    reached = int((np.abs(sums) >= abs(values.sum()) - 1e-9).sum())
    return reached / len(sums) if everything else (reached + 1) / (draws + 1)


def paired_differences(a: ArrayLike | None, b: ArrayLike | None) -> Numbers:
    """`a - b`, rounded; raises DataError unless they have the same length."""
    first, second = check_values(a, least=1), check_values(b, least=1)
    if len(first) != len(second):
        raise DataError(
            f"{len(first)} values against {len(second)}: pairs are expected. Use the same folds or "
            "bags for both."
        )
    return _round_differences(first - second)


def _round_differences(differences: Numbers) -> Numbers:
    return differences.round(12)  # 0.9 - 0.8 and 0.8 - 0.7 are equal


def midranks(values: Numbers) -> Numbers:
    """The ranks from 1; equal values share the mean of their ranks.

    >>> midranks(np.array([3.0, 1.0, 3.0])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, position, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[position]


def _exact_p_value(surplus: float, ranks: Numbers) -> float:
    """How often the sum of the ranks with random signs is at least as far from zero."""
    # Of each sum of twice the ranks with a plus: integers, because midranks are halves.
    chances = np.ones(1)
    for doubled in (2 * ranks).astype(int):
        longer = np.zeros(len(chances) + doubled)
        longer[: len(chances)] += chances / 2
        longer[doubled:] += chances / 2
        chances = longer
    sums = np.arange(len(chances)) - ranks.sum()
    return min(float(chances[np.abs(sums) >= abs(surplus)].sum()), 1.0)


def _placements(positive: NDArray[np.bool_], scores: Numbers) -> tuple[Numbers, Numbers]:
    """For each positive the fraction of negatives below it, for each negative that of positives
    above it; ties count half.
    """
    ranks = midranks(scores)
    above, below = scores[positive], scores[~positive]
    return (ranks[positive] - midranks(above)) / len(below), 1 - (
        ranks[~positive] - midranks(below)
    ) / len(above)


def _scipy(module: str) -> Any:
    try:
        return import_module(f"scipy.{module}")
    except ModuleNotFoundError:  # too large for everyone's installation
        raise MissingExtraError(
            "this test needs scipy, which is not installed: pip install 'scmil[statistics]'"
        ) from None
