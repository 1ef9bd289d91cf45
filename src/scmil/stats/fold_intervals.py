"""Intervals of an AUC that is a mean over the folds and repeats of a cross-validation.

Scores are compared only within a fold, because each fold has its own model. The interval is over
patients: those of all folds together, each counted once also if there are several repeats, which
add no patients. That models of different folds share training patients is neglected.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scmil.core.shapes import Numbers
from scmil.stats.bootstrap import Interval
from scmil.stats.metrics import auc, score_all
from scmil.stats.small_samples import (
    PRIOR_PATIENTS,
    UNKNOWN,
    auc_influence,
    auc_interval,
    auc_variance,
    metric_intervals,
)

FOLD_METHODS = (
    "Wilson's score interval for accuracy and score interval with the variance of normal scores "
    "for the mean AUC over folds, both at the effective number of patients; bootstrap over "
    "patients for the Brier score"
)

# Of results that have them.
DECISION_METHODS = (
    "Wilson's score interval of all test bags for balanced accuracy and F1, moved to the mean over "
    "folds"
)


class FoldScores(NamedTuple):
    """The test slides of a fold: classes (b,), probabilities (b, c), and what they are units of.

    A unit is the patient of a slide, or the slide itself; it is the same in all repeats.
    """

    labels: NDArray[np.int64]
    probabilities: Numbers
    units: Sequence[Hashable]


def mean_fold_decision_interval(metric: str, folds: Sequence[FoldScores]) -> Interval:
    """The 95 % interval of the mean balanced accuracy or F1 over the folds of one repeat.

    It is that of all test slides together, moved by the difference between the mean over folds and
    the value of all slides.

    Args:
        metric: "balanced_accuracy" or "f1".
        folds: The folds; `probabilities` has 1 for the class that was decided for.

    Returns:
        The interval; NaN for fewer than two units.

    >>> decided = np.eye(2)[[0, 1, 1, 1]]
    >>> folds = [FoldScores(np.array([0, 1, 0, 1]), decided, list(range(4 * f, 4 * f + 4)))
    ...          for f in range(5)]
    >>> interval = mean_fold_decision_interval("balanced_accuracy", folds)
    >>> [round(limit, 2) for limit in interval]
    [0.56, 0.88]
    """
    labels = np.concatenate([fold.labels for fold in folds])
    p = np.concatenate([fold.probabilities for fold in folds])
    names: dict[Hashable, str] = {}
    units = [names.setdefault(unit, str(len(names))) for fold in folds for unit in fold.units]
    interval = metric_intervals(labels, p, 0.5, units)[metric]
    value = np.mean([score_all(fold.labels, fold.probabilities)[metric] for fold in folds])
    moved = float(value) - score_all(labels, p)[metric]
    low, high = np.clip(np.array(interval) + moved, 0, 1).tolist()
    return Interval(low, high)


def mean_fold_auc(folds: Sequence[FoldScores]) -> float:
    """The mean AUC over the folds in which it is defined; NaN if there is none.

    >>> fold = FoldScores(np.array([0, 1]), np.array([[0.9, 0.1], [0.2, 0.8]]), ["a", "b"])
    >>> mean_fold_auc([fold, fold])
    1.0
    """
    values = [auc(fold.labels, fold.probabilities) for fold in folds]
    known = [value for value in values if np.isfinite(value)]
    return float(np.mean(known)) if known else float("nan")


def mean_fold_auc_interval(folds: Sequence[FoldScores], repeats: int = 1) -> Interval:
    """The 95 % interval of the mean AUC over the folds of a cross-validation.

    It is the score interval of `small_samples.auc_interval` for k folds of m / k positive and
    n / k negative samples: the variance of a mean over k folds is a k-th of that of a fold.

    Args:
        folds: The folds of all repeats.
        repeats: Number of repeats; each tests the same slides again.

    Returns:
        The interval; of more than two classes the mean of those of each class against the rest.
        (NaN, NaN) if no fold has an AUC, or there are fewer than two units.

    >>> p = np.array([[0.9, 0.1], [0.2, 0.8]] * 4)
    >>> fold = FoldScores(np.array([0, 1] * 4), p, list(range(8)))
    >>> [round(end, 3) for end in mean_fold_auc_interval([fold])]
    [0.583, 1.0]
    """
    width = folds[0].probabilities.shape[1] if folds else 2
    ends = [
        _interval_of_class(folds, c, repeats)
        for c in ([1] if width == 2 else range(width))
        if width == 2 or any((fold.labels == c).any() for fold in folds)
    ]
    return Interval(*(float(end) for end in np.mean(ends, axis=0))) if ends else UNKNOWN


def _interval_of_class(folds: Sequence[FoldScores], c: int, repeats: int) -> Interval:
    values, slides, sizes = [], [], np.zeros(2)
    for fold in folds:
        positive = fold.labels == c
        if not 0 < positive.sum() < len(positive):
            continue
        scores = fold.probabilities[:, c]
        value = auc(positive.astype(int), np.stack([1 - scores, scores], 1))
        values.append(value)
        slides.append((fold.units, auc_influence(positive, scores, value)))
        sizes += (positive.sum(), (~positive).sum())
    units = {unit for own, _ in slides for unit in own}
    if not values or len(units) < 2:
        return UNKNOWN
    independent, clustered, tested = _variances(slides)
    folds_of_repeat = max(1.0, len(values) / repeats)
    sizes /= repeats
    effect = max(1.0, clustered / independent if independent > 0 else tested / len(units))
    per_fold = sizes / effect / folds_of_repeat
    observed = effect * independent
    value = float(np.mean(values))
    least = 0.5 / (per_fold.prod() * folds_of_repeat)
    x = NormalDist().inv_cdf(min(max(value, least), 1 - least)) if least < 0.5 else 0.0
    model = auc_variance(x, *per_fold) / folds_of_repeat
    weight = sizes.sum() / effect / (sizes.sum() / effect + PRIOR_PATIENTS)
    scale = max(1.0, weight * observed / model + 1 - weight)
    return auc_interval(value, float(per_fold[0]), float(per_fold[1]), scale / folds_of_repeat)


def _variances(
    slides: Sequence[tuple[Sequence[Hashable], Numbers]],
) -> tuple[float, float, float]:
    """The variance of the mean over folds for independent slides and for whole units, and the
    number of slides of a repeat.
    """
    by_slide: dict[Hashable, float] = {}
    by_unit: dict[Hashable, float] = {}
    for units, influence in slides:
        seen: dict[Hashable, int] = {}
        for unit, value in zip(units, influence / len(slides), strict=True):
            number = seen[unit] = seen.get(unit, 0) + 1
            by_slide[unit, number] = by_slide.get((unit, number), 0.0) + float(value)
            by_unit[unit] = by_unit.get(unit, 0.0) + float(value)
    independent, clustered = (
        float(np.square(list(each.values())).sum()) for each in (by_slide, by_unit)
    )
    return independent, clustered, float(len(by_slide))
