"""The interval that a study can expect, before it is made: widths from numbers of patients.

The intervals are those of the reports (`small_samples.auc_interval`, and Fisher's for a
correlation), at an assumed AUC, concordance or correlation. Scores are assumed to be normal with
equal variances in both classes, and patients to be independent. Close to the mean width over
simulated samples; a test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from scmil.errors import DataError
from scmil.stats.bootstrap import Interval
from scmil.stats.concordance import SIZE_PER_EVENT
from scmil.stats.regression import fisher_interval
from scmil.stats.small_samples import UNKNOWN, auc_interval

AUC, CONCORDANCE, CORRELATION = "auc", "concordance", "correlation"
MOST_PATIENTS = 10_000_000  # beyond it a width is called out of reach


@dataclass(frozen=True)
class ExpectedInterval:
    """The interval that a design gives if the metric is as assumed.

    Attributes:
        design: What is tested, such as "20 % test split".
        value: The assumed AUC, concordance or correlation.
        low: Lower limit of the 95 % interval.
        high: Upper limit.
        tested: Patients that are tested, by class, or events and censored patients, or all.
        needed: Patients of the whole cohort, with the same shares, for the requested width; None
            if more than 10 million are needed.
    """

    design: str
    value: float
    low: float
    high: float
    tested: Mapping[str, float]
    needed: int | None

    @property
    def width(self) -> float:
        """The expected width of the interval."""
        return self.high - self.low

    def as_json(self) -> dict[str, Any]:
        """Return the fields and the width; unknown limits are None."""
        limits = {"low": self.low, "high": self.high, "width": self.width}
        plain = {name: round(v, 4) if math.isfinite(v) else None for name, v in limits.items()}
        return asdict(self) | plain


def expected_auc_interval(value: float, counts: Sequence[float], folds: int = 1) -> Interval:
    """The expected 95 % interval of an AUC.

    Of more than two classes it is the mean of the intervals of each class against the rest, as in
    the reports. With `folds`, it is that of the mean over folds that divide the patients: each
    fold has its own model, whose scores are compared only within the fold.

    Args:
        value: The assumed AUC.
        counts: Number of tested patients of each class.
        folds: Number of folds that they are divided into.

    Returns:
        The interval; (NaN, NaN) if a class has no patient.

    Raises:
        DataError: The AUC is not between 0.5 and 1, or there are fewer than two classes.

    >>> [round(end, 3) for end in expected_auc_interval(0.8, [50, 50])]
    [0.698, 0.869]
    """
    _check_value("AUC", value)
    if len(counts) < 2:
        raise DataError(
            f"{len(counts)} classes: an AUC needs the numbers of patients of at least two."
        )
    total = float(sum(counts))
    positives = counts[1:] if len(counts) == 2 else counts
    ends = [auc_interval(value, own / folds, (total - own) / folds, 1 / folds) for own in positives]
    return Interval(*(float(end) for end in np.mean(ends, axis=0)))


def expected_concordance_interval(value: float, events: float, folds: int = 1) -> Interval:
    """The expected 95 % interval of a concordance, which depends on the number of events.

    Args:
        value: The assumed concordance.
        events: Number of tested patients with an event.
        folds: Number of folds that they are divided into.

    Returns:
        The interval; (NaN, NaN) without an event.

    Raises:
        DataError: The concordance is not between 0.5 and 1.

    >>> [round(end, 3) for end in expected_concordance_interval(0.7, 40)]
    [0.599, 0.781]
    """
    _check_value("concordance", value)
    size = SIZE_PER_EVENT * events / folds
    return auc_interval(value, size, size, 1 / folds) if size > 0 else UNKNOWN


def expected_correlation_interval(value: float, patients: float) -> Interval:
    """The expected 95 % interval of Pearson's correlation of observed and predicted numbers.

    Args:
        value: The assumed correlation.
        patients: Number of tested patients; those of all folds are one sample.

    Returns:
        Fisher's interval; (NaN, NaN) for fewer than four patients.

    Raises:
        DataError: The correlation is not between 0 and 1.

    >>> [round(end, 3) for end in expected_correlation_interval(0.6, 50)]
    [0.386, 0.753]
    """
    if not 0 <= value < 1:
        raise DataError(
            f"assumed correlation = {value}: a number from 0 to below 1 is expected, such as 0.6."
        )
    return fisher_interval(value, 1 / (patients - 3)) if patients > 3 else UNKNOWN


def expected_intervals(
    counts: Mapping[str, int],
    value: float,
    *,
    metric: str = AUC,
    test: float = 0.2,
    folds: int = 5,
    width: float = 0.1,
) -> tuple[ExpectedInterval, ExpectedInterval]:
    """What a test split and a cross-validation of the same patients can show.

    Args:
        counts: Patients of each class; for survival `{"events": ..., "censored": ...}`, for a
            number `{"patients": ...}`.
        value: The assumed AUC, concordance or correlation.
        metric: "auc", "concordance" or "correlation".
        test: Fraction of the patients in the test split.
        folds: Number of folds of the cross-validation, in which every patient is tested once.
        width: The width for which the necessary number of patients is computed.

    Returns:
        The expected intervals of the test split and of the cross-validation.

    Raises:
        DataError: A number is out of range, or there are too few patients for the folds.

    >>> split, folds = expected_intervals({"normal": 60, "tumor": 40}, 0.8)
    >>> split.tested, round(split.width, 2), round(folds.width, 2), folds.needed
    ({'normal': 12, 'tumor': 8}, 0.39, 0.18, 309)
    """
    _check_design(counts, metric, test, folds, width)
    parts = {name: max(1, round(number * test)) for name, number in counts.items()}

    def interval(tested: Mapping[str, float], divided: int) -> Interval:
        if metric == CORRELATION:
            return expected_correlation_interval(value, tested["patients"])
        if metric == CONCORDANCE:
            return expected_concordance_interval(value, tested["events"], divided)
        return expected_auc_interval(value, list(tested.values()), divided)

    found = []
    designs = (
        (f"{100 * test:g} % test split", parts, 1, test),
        (f"{folds} folds", counts, folds, 1),
    )
    for design, tested, divided, share in designs:
        low, high = interval(tested, divided)
        needed = _smallest(counts, width, partial(interval, divided=divided), share)
        found.append(ExpectedInterval(design, value, low, high, dict(tested), needed))
    return found[0], found[1]


def _smallest(
    counts: Mapping[str, int],
    width: float,
    interval: Callable[[Mapping[str, float]], Interval],
    share: float,
) -> int | None:
    """The number of patients of a cohort with the same shares whose interval has this width."""
    total = sum(counts.values())

    def wide(patients: int) -> bool:
        low, high = interval({name: n / total * patients * share for name, n in counts.items()})
        return not high - low <= width

    low, high = 1, 2
    while wide(high):
        low, high = high, high * 2
        if high > MOST_PATIENTS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if wide(middle) else (low, middle)
    return high


def _check_value(name: str, value: float) -> None:
    if not 0.5 <= value < 1:
        raise DataError(
            f"assumed {name} = {value}: a number from 0.5 to below 1 is expected, such as 0.8."
        )


def _check_design(
    counts: Mapping[str, int], metric: str, test: float, folds: int, width: float
) -> None:
    if not 0 < test < 1 or not 0 < width < 1:
        raise DataError(
            f"test = {test}, width = {width}: numbers between 0 and 1 are expected, such as 0.2."
        )
    by_event = metric == CONCORDANCE
    rarest = counts.get("events", 0) if by_event else min(counts.values(), default=0)
    if not 2 <= folds <= rarest:
        other = "patients" if metric == CORRELATION else "patients of the rarest class"
        what = "patients with an event" if by_event else other
        raise DataError(
            f"folds = {folds}, with {rarest} {what}: at least 2 folds are expected, and one such "
            "patient for each. Use fewer folds, or add patients."
        )
