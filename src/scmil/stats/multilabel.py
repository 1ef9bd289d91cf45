"""Metrics of several yes/no labels of one slide, some of which may be missing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scmil.core.shapes import Numbers
from scmil.errors import DataError
from scmil.stats.bootstrap import Groups, Interval, number_groups, statistic_intervals
from scmil.stats.calibration import error_intervals
from scmil.stats.metrics import METRICS, score_all
from scmil.stats.small_samples import UNKNOWN, mean_interval, metric_intervals, widest

MACRO = ("auc", "balanced_accuracy", "f1", "brier")


class LabelScores(NamedTuple):
    """The metrics of one label, over the slides that have it."""

    present: int
    positive: int
    scores: dict[str, float]
    intervals: dict[str, Interval]


class MultilabelScores(NamedTuple):
    """One row per label, and the macro averages."""

    labels: dict[str, LabelScores]
    macro: dict[str, float]
    macro_intervals: dict[str, Interval]


def score_multilabel(
    names: Sequence[str],
    truth: ArrayLike,
    probabilities: ArrayLike,
    groups: Groups | None = None,
    threshold: float = 0.5,
    draws: int = 1000,
    seed: int = 0,
) -> MultilabelScores:
    """The metrics of each label and their means over the labels that can be scored.

    A label can be scored if both of its values occur. Labels without both are listed with NaN and
    are left out of the macro averages.

    Args:
        names: The names of the labels.
        truth: 1, 0, or NaN where a label is missing (n, labels).
        probabilities: Predicted probabilities of 1 (n, labels).
        groups: The patient of each slide; None is a patient of its own.
        threshold: A label is predicted if its probability is above it.
        draws: Number of resamples of the macro averages.
        seed: Seed of the resamples.

    Returns:
        The metrics with 95 % intervals: those of `small_samples` for each label, a bootstrap over
        patients for the macro averages. The bootstrap has no width if all labels are predicted
        correctly, so those of AUC, balanced accuracy and F1 are at least as wide as the intervals
        of the labels, combined as if labels were independent.

    Raises:
        DataError: If shapes or values are invalid.

    >>> scores = score_multilabel(["a", "b"], [[1, 0], [0, math.nan]], [[0.9, 0.2], [0.3, 0.8]])
    >>> scores.labels["b"].present, scores.macro["auc"]
    (1, 1.0)
    """
    y, p = _check_multilabel(names, truth, probabilities)
    rows = {name: _score_label(y[:, i], p[:, i], threshold, groups) for i, name in enumerate(names)}
    intervals = statistic_intervals(
        lambda drawn: _macro(y, p, threshold, drawn), len(y), groups, draws, seed
    )
    found = dict(zip(MACRO, intervals, strict=True))
    for metric in ("auc", "balanced_accuracy", "f1"):
        found[metric] = widest(found[metric], _combined_interval(metric, rows.values()))
    return MultilabelScores(rows, macro_scores(y, p, threshold), found)


def _combined_interval(metric: str, rows: Iterable[LabelScores]) -> Interval:
    """The interval of the mean over labels from those of the labels that can be scored."""
    scored = [
        row for row in rows if np.isfinite([row.scores[metric], *row.intervals[metric]]).all()
    ]
    if not scored:
        return UNKNOWN
    return mean_interval(
        [row.scores[metric] for row in scored], [row.intervals[metric] for row in scored]
    )


def macro_scores(
    truth: ArrayLike, probabilities: ArrayLike, threshold: float = 0.5
) -> dict[str, float]:
    """The mean metrics over the labels of which both values occur.

    Args:
        truth: 1, 0, or NaN where a label is missing (n, labels).
        probabilities: Predicted probabilities of 1 (n, labels).
        threshold: A label is predicted if its probability is above it.

    Returns:
        The means by the name of the metric; NaN if no label can be scored.

    Raises:
        DataError: If shapes or values are invalid.

    >>> macro_scores([[1, 0], [0, 0]], [[0.9, 0.2], [0.3, 0.8]])["auc"]
    1.0
    """
    names = [str(i) for i in range(np.shape(truth)[-1])]
    y, p = _check_multilabel(names, truth, probabilities)
    return dict(zip(MACRO, _macro(y, p, threshold, np.arange(len(y))), strict=True))


def _score_label(y: Numbers, p: Numbers, threshold: float, groups: Groups | None) -> LabelScores:
    known = np.flatnonzero(~np.isnan(y))
    labels, positive = y[known].astype(np.int64), int(y[known].sum())
    if not 0 < positive < len(known):
        empty = dict.fromkeys(METRICS, math.nan)
        return LabelScores(len(known), positive, empty, dict.fromkeys(METRICS, UNKNOWN))
    both = np.stack([1 - p[known], p[known]], axis=1)
    patients = None if groups is None else [groups[i] for i in known.tolist()]
    intervals = metric_intervals(labels, both, threshold, patients)
    units = number_groups(patients, len(known))
    intervals |= error_intervals(labels, both, units, draws=500)
    scores = score_all(labels, both, threshold)
    return LabelScores(len(known), positive, scores, intervals)


def _macro(y: Numbers, p: Numbers, threshold: float, rows: NDArray[np.int64]) -> list[float]:
    """The mean metrics over the labels of which both values occur in the rows."""
    found = []
    for truth, scores in zip(y[rows].T, p[rows].T, strict=True):
        known = ~np.isnan(truth)
        labels, own = truth[known].astype(np.int64), scores[known]
        if 0 < labels.sum() < len(labels):
            score = score_all(labels, np.stack([1 - own, own], axis=1), threshold)
            found.append([score[name] for name in MACRO])
    return [math.nan] * len(MACRO) if not found else np.mean(found, axis=0).tolist()


def _check_multilabel(
    names: Sequence[str], truth: ArrayLike, probabilities: ArrayLike
) -> tuple[Numbers, Numbers]:
    y, p = np.asarray(truth, dtype=float), np.asarray(probabilities, dtype=float)
    if y.ndim != 2 or y.shape != p.shape or y.shape[1] != len(names) or not y.size:
        raise DataError(
            f"{len(names)} names, truth {y.shape} and probabilities {p.shape}: shapes (n, labels) "
            "with a name for each label are expected."
        )
    if not (np.isnan(y) | (y == 0) | (y == 1)).all():
        raise DataError("labels must be 1, 0, or NaN where they are missing.")
    if not ((p >= 0) & (p <= 1)).all():
        raise DataError("probabilities must be numbers between 0 and 1.")
    return y, p
