"""Whether a difference is more than chance: mean and spread, bootstrap by patient, and tests that do not claim too much."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from importlib import import_module
from statistics import NormalDist
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scmil.errors import DataError, MissingExtraError

Array: TypeAlias = NDArray[np.float64]
Groups: TypeAlias = Sequence[Hashable | None]
LEVEL = 0.05
EXACT_PAIRS = 200
DRAWN_AT_ONCE = 2_000_000  # patients of a bootstrap: all draws of a hundred thousand would take five gigabytes


class MeanSd(NamedTuple):
    """The mean, and the standard deviation of one value around it."""

    mean: float
    sd: float


class Interval(NamedTuple):
    """Where a mean lies, at some level of confidence."""

    low: float
    high: float


class SignedRank(NamedTuple):
    """A signed-rank test: its p-value, how one-sided the ranks are (-1 to 1), and the pairs that a wins, loses and ties."""

    p: float
    effect: float
    better: int
    worse: int
    equal: int


class DeLong(NamedTuple):
    """Two AUCs over the same bags, their difference with its 95 % interval, and the p-value of no difference."""

    auc_a: float
    auc_b: float
    difference: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class Comparison:
    """Two arms over the same folds: `delta` is the mean of `a` minus that of `b`, `p` that of the corrected t-test."""

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
        """Whether the corrected test rules chance out: not the signed rank, which takes overlapping folds for new data."""
        return self.p < LEVEL

    def sentence(self) -> str:
        """What a reader may take home, and no more.

        >>> ranks = SignedRank(p=0.6, effect=0.1, better=5, worse=4, equal=1)
        >>> with_sc = Comparison("Sparse coding", "none", "accuracy", 0.9, 0.896, 0.004, 0.7, ranks, Interval(-0.012, 0.021))
        >>> with_sc.sentence()
        'Sparse coding changed accuracy by +0.004 compared with none (95 % interval -0.012 to +0.021): no difference that
        this data can show.'
        """
        interval = self.interval and f" (95 % interval {_signed(self.interval.low)} to {_signed(self.interval.high)})"
        change = f"{self.a} changed {self.metric} by {_signed(self.delta)} compared with {self.b}{interval or ''}"
        return f"{change}: {self._verdict()}."

    def _verdict(self) -> str:
        if not self.significant:
            return "no difference that this data can show"
        p = "p < 0.001" if self.p < 0.001 else f"p = {self.p:.3f}"
        if self.interval and self.interval.low <= 0 <= self.interval.high:
            return f"weak evidence of a difference, for the folds agree on it ({p}) but the interval includes zero"
        return f"a difference that chance alone would rarely make ({p})"


def mean_sd(values: ArrayLike) -> MeanSd:
    """The mean and the sample standard deviation; a single value has no spread to speak of: NaN.

    >>> mean_sd([1, 2, 3])
    MeanSd(mean=2.0, sd=1.0)
    """
    numbers = _numbers(values, least=1)
    return MeanSd(float(numbers.mean()), float(numbers.std(ddof=1)) if len(numbers) > 1 else math.nan)


def bootstrap_interval(
    values: ArrayLike, groups: Groups | None = None, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> Interval:
    """Where the mean of the values would lie with other bags, or with other patients if `groups` has the patient of each.

    Whole patients are drawn with replacement, because slides of one patient are no independent evidence; a group of None
    is a patient of its own. The interval is that of the percentiles.

    >>> bootstrap_interval([2.0, 2.0, 2.0])
    Interval(low=2.0, high=2.0)
    """
    numbers = _numbers(values, least=2)
    if not 0 < level < 1 or draws < 1:
        raise DataError(f"level = {level}, draws = {draws}: a level between 0 and 1 and at least one draw are needed.")
    units = _codes(groups, len(numbers))
    sizes, sums = np.bincount(units), np.bincount(units, numbers)
    if len(sizes) < 2:
        raise DataError("all values belong to one patient: an interval needs at least 2 patients.")
    random, rows = np.random.default_rng(seed), max(1, DRAWN_AT_ONCE // len(sizes))
    means = np.empty(draws)
    for start in range(0, draws, rows):
        drawn = random.integers(len(sizes), size=(min(rows, draws - start), len(sizes)))
        means[start : start + rows] = sums[drawn].sum(1) / sizes[drawn].sum(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def wilcoxon(a: ArrayLike, b: ArrayLike) -> SignedRank:
    """Wilcoxon's signed-rank test of paired values, such as the means of two arms over data sets.

    Zeros keep their ranks (Pratt): pairs that tie speak for no difference, and leaving them out would make the rest too
    sure. p is exact, ties or not, up to 200 pairs, and a normal approximation beyond. The effect is the rank sum of the
    pairs that a wins minus that of those it loses, over that of all pairs (matched-pairs rank-biserial correlation).
    With 5 pairs the smallest p that can occur is 0.0625, however large the differences: 5 data sets cannot reach 0.05.

    >>> wilcoxon([5, 6, 7, 8, 9], [1, 1, 1, 1, 1])
    SignedRank(p=0.0625, effect=1.0, better=5, worse=0, equal=0)
    """
    differences = _differences(a, b)
    better, worse = int((differences > 0).sum()), int((differences < 0).sum())
    equal = len(differences) - better - worse
    if not better + worse:
        return SignedRank(1.0, 0.0, 0, 0, equal)
    ranks = _midranks(np.abs(differences))
    surplus = float((np.sign(differences) * ranks).sum())
    if len(differences) <= EXACT_PAIRS:
        p = _chance_of(surplus, ranks[differences != 0])
    else:
        p = float(_scipy("stats").wilcoxon(differences, zero_method="pratt").pvalue)
    return SignedRank(p, surplus / float(ranks.sum()), better, worse, equal)


def holm(p_values: ArrayLike) -> Array:
    """Adjust p-values for having tested more than once (Holm): compare the results with 0.05 as usual.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    p = _numbers(p_values, least=1)
    if p.min() < 0 or p.max() > 1:
        raise DataError(f"p-values from {p.min():g} to {p.max():g}: they lie between 0 and 1.")
    order = np.argsort(p)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1)
    return adjusted


def delong(labels: ArrayLike, a: ArrayLike, b: ArrayLike) -> DeLong:
    """Test whether two scorings of the same bags differ in AUC (DeLong, DeLong and Clarke-Pearson, by midranks).

    The same order of the bags gives p = 1. Where the variance cannot be estimated although the AUCs differ, as for a
    perfect scoring against a constant one, p and the interval are NaN.

    >>> same = delong([0, 0, 1, 1], [0.1, 0.4, 0.3, 0.8], [1, 4, 3, 8])
    >>> same.auc_a, same.auc_b, same.p
    (0.75, 0.75, 1.0)
    """
    y, scores = np.asarray(labels), [_numbers(values, least=4) for values in (a, b)]
    if any(len(values) != len(y) for values in scores):
        raise DataError(f"{len(y)} labels, {len(scores[0])} and {len(scores[1])} scores: the same bags are needed.")
    if not np.isin(y, (0, 1)).all() or min((y == 0).sum(), (y == 1).sum()) < 2:
        raise DataError("labels must be 0 or 1, with at least 2 bags of each.")
    (won_a, lost_a), (won_b, lost_b) = (_placements(y == 1, values) for values in scores)
    auc_a, auc_b = float(won_a.mean()), float(won_b.mean())
    difference = auc_a - auc_b
    variance = (won_a - won_b).var(ddof=1) / len(won_a) + (lost_a - lost_b).var(ddof=1) / len(lost_a)
    deviation = math.sqrt(variance) if variance > 1e-24 else 0.0  # what rounding leaves of zero
    if not deviation:
        limit, p = (0.0, 1.0) if abs(difference) < 1e-12 else (math.nan, math.nan)
    else:
        limit = NormalDist().inv_cdf(0.975) * deviation
        p = math.erfc(abs(difference) / deviation / math.sqrt(2))
    return DeLong(auc_a, auc_b, difference, difference - limit, difference + limit, p)


def corrected_t(differences: ArrayLike, test_share: float) -> float:
    """The p-value of the corrected resampled t-test (Nadeau and Bengio) for the fold differences of a cross-validation.

    The folds of a cross-validation share most of their training bags, and those of repeats also their test bags: 50 folds
    are not 50 independent results, and plain tests over them are too sure. Here the variance of the mean is not 1/k of that
    of one fold but 1/k + test_share / (1 - test_share), where `test_share` is the share of all bags that a fold tests, 0.1
    for ten folds. If all differences are the same there is no t, and what is left is that k folds agree: 2^(1 - k).

    Here the factor is 4/9, so t = 3 with 2 degrees of freedom, and p = 1 - 3 / sqrt(11):

    >>> round(corrected_t([0.1, 0.2, 0.3], test_share=0.1), 4)
    0.0955
    >>> corrected_t([0.0, 0.0, 0.0], test_share=0.1)
    1.0
    """
    values = _numbers(differences, least=2)
    if not 0 < test_share < 1:
        raise DataError(
            f"test_share = {test_share}: the share of the bags that a fold tests, between 0 and 1, is needed."
        )
    values = _rounded(values)
    if values.min() == values.max():
        return 2.0 ** (1 - len(values)) if values[0] else 1.0
    deviation = values.std(ddof=1) * math.sqrt(1 / len(values) + test_share / (1 - test_share))
    return float(2 * _scipy("special").stdtr(len(values) - 1, -abs(values.mean()) / deviation))


def sign_flips(differences: ArrayLike, draws: int = 9999, seed: int = 0) -> float:
    """The p-value of the paired permutation test: how often random signs bring the sum as far from zero as it is.

    For two arms on one test set, a difference a bag: if neither were better, each could as well have the other sign. Up to
    13 differences that are not zero all signs are tried, beyond it `draws` random ones.

    >>> sign_flips([1, 1, 1, 1, 0, 0])  # all plus or all minus: 2 of 16
    0.125
    >>> sign_flips([0.0, 0.0])
    1.0
    """
    values = _rounded(_numbers(differences, least=1))
    values = values[values != 0]
    if not len(values):
        return 1.0
    everything = len(values) <= 13
    if everything:
        flips = 1 - 2 * ((np.arange(2 ** len(values))[:, None] >> np.arange(len(values))) & 1)
        sums = flips @ values
    else:
        random = np.random.default_rng(seed)
        sums = np.array([values[random.random(len(values)) < 0.5].sum() for _ in range(draws)]) * 2 - values.sum()
    reached = int((np.abs(sums) >= abs(values.sum()) - 1e-9).sum())
    return reached / len(sums) if everything else (reached + 1) / (draws + 1)


def compare(
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
) -> Comparison:
    """Compare two arms over the same folds (`a` and `b`, one value a fold) and the same bags.

    The interval is over bags, or over patients if there are `groups`, not over folds. It needs a table with a line for
    every prediction: `units` has the bag, `correct_a` and `correct_b` what each arm has earned there (1 or 0 for accuracy,
    the squared error for the Brier score), `groups` the patient. Repeats of a bag are averaged first. An AUC is no mean
    over bags: leave the table out, and there is no interval.

    Without a `test_share` all values come from one test set, and only training differs: then p is that of `sign_flips` over
    its bags, for runs on the same bags are no new evidence.

    >>> compare([0.5, 1.0], [0.5, 0.5], 0.5, ("SC", "no SC"), units="wxyz", correct_a=[1, 0, 1, 1],
    ...         correct_b=[1, 0, 1, 0]).sentence()
    'SC changed accuracy by +0.250 compared with no SC (95 % interval +0.000 to +0.750): no difference that this data can
    show.'
    """
    differences = _differences(a, b)
    tables = [table is not None for table in (units, correct_a, correct_b)]
    if any(tables) and not all(tables):
        raise DataError("units, correct_a and correct_b belong together: all of them, or none.")
    if test_share is not None:
        p = corrected_t(differences, test_share)
    elif units is None:
        raise DataError("one test set is compared over its bags: units, correct_a and correct_b are needed.")
    else:
        p = sign_flips(_mean_by_bag(units, _differences(correct_a, correct_b)), seed=seed)
    return Comparison(
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
        else _interval_over_bags(units, _differences(correct_a, correct_b), groups, seed),
    )


def _mean_by_bag(units: Sequence[Hashable], earned: Array) -> Array:
    """Repeats of a bag are averaged."""
    if len(units) != len(earned):
        raise DataError(f"{len(units)} units for {len(earned)} predictions: one for every prediction is needed.")
    codes = _codes(units, len(earned))
    return np.bincount(codes, earned) / np.bincount(codes)


def _interval_over_bags(units: Sequence[Hashable], earned: Array, groups: Groups | None, seed: int) -> Interval:
    mean = _mean_by_bag(units, earned)
    if groups is None:
        return bootstrap_interval(mean, seed=seed)
    if len(groups) != len(units):
        raise DataError(f"{len(groups)} groups for {len(units)} predictions: one for every prediction is needed.")
    patients: dict[Hashable, Hashable] = {}
    for unit, group in zip(units, groups, strict=True):
        if patients.setdefault(unit, group) != group:
            raise DataError(f"bag {unit!r} belongs to both patient {patients[unit]!r} and patient {group!r}.")
    return bootstrap_interval(mean, list(patients.values()), seed=seed)


def _numbers(values: ArrayLike | None, least: int) -> Array:
    numbers = np.asarray(values, dtype=float)
    if numbers.ndim != 1 or len(numbers) < least:
        raise DataError(f"values of shape {numbers.shape}: a list of at least {least} is needed.")
    if not np.isfinite(numbers).all():
        at = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise DataError(f"value {at} of {len(numbers)} is {numbers[at]}: leave it out, of both arms if there are two.")
    return numbers


def _differences(a: ArrayLike | None, b: ArrayLike | None) -> Array:
    first, second = _numbers(a, least=1), _numbers(b, least=1)
    if len(first) != len(second):
        raise DataError(f"{len(first)} values against {len(second)}: pairs over the same folds or bags are needed.")
    return _rounded(first - second)


def _rounded(differences: Array) -> Array:
    return differences.round(12)  # 0.9 - 0.8 and 0.8 - 0.7 are the same difference


def _codes(groups: Groups | None, n: int) -> NDArray[np.int64]:
    """A number for every group, in order of appearance; None is a group of its own every time."""
    if groups is None:
        return np.arange(n)
    if len(groups) != n:
        raise DataError(f"{len(groups)} groups for {n} values: one for every value is needed, None if it is unknown.")
    seen: dict[Hashable, int] = {}
    keys = [("alone", i) if group is None else ("group", group) for i, group in enumerate(groups)]
    return np.array([seen.setdefault(key, len(seen)) for key in keys])


def _midranks(values: Array) -> Array:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def _chance_of(surplus: float, ranks: Array) -> float:
    """How often random signs bring the ranks to a sum at least as far from zero."""
    chances = np.ones(1)  # of every sum of twice the ranks that get a plus: whole numbers, as midranks are halves
    for doubled in (2 * ranks).astype(int):
        longer = np.zeros(len(chances) + doubled)
        longer[: len(chances)] += chances / 2
        longer[doubled:] += chances / 2
        chances = longer
    sums = np.arange(len(chances)) - ranks.sum()
    return min(float(chances[np.abs(sums) >= abs(surplus)].sum()), 1.0)


def _placements(positive: NDArray[np.bool_], scores: Array) -> tuple[Array, Array]:
    """For every positive the share of negatives below it, for every negative that of positives above it; ties are half."""
    ranks = _midranks(scores)
    above, below = scores[positive], scores[~positive]
    return (ranks[positive] - _midranks(above)) / len(below), 1 - (ranks[~positive] - _midranks(below)) / len(above)


def _signed(value: float) -> str:
    return f"{round(value, 3) + 0.0:+.3f}"  # + 0.0, for there is no -0.000


def _scipy(part: str) -> Any:
    try:
        return import_module(f"scipy.{part}")
    except ModuleNotFoundError:  # too large for everyone's installation
        raise MissingExtraError(
            "this test needs scipy, which is not installed: pip install 'scmil[statistics]'"
        ) from None
