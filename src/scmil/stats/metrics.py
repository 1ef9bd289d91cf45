"""Metrics of predictions: pure functions of labels (b,) and probabilities (b, c), in NumPy, fast
for small b.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scmil.errors import DataError

LARGER_IS_BETTER = {
    "accuracy": True,
    "auc": True,
    "balanced_accuracy": True,
    "f1": True,
    "brier": False,
    "calibration_error": False,
}
METRICS = tuple(LARGER_IS_BETTER)
CALIBRATION_BINS = 10


def score_all(
    labels: ArrayLike, probabilities: ArrayLike, threshold: float = 0.5
) -> dict[str, float]:
    """All metrics of METRICS at once.

    >>> score_all([0, 1], [[0.9, 0.1], [0.2, 0.8]])["auc"]
    1.0
    """
    y, p = _check_probabilities(labels, probabilities)
    table = _confusion(y, _decide(p, threshold), p.shape[1])
    values = (
        _accuracy(table),
        _auc(y, p),
        _balanced(table),
        _f1(table),
        _brier(y, p),
        _calibration_error(y, p),
    )
    return dict(zip(METRICS, map(float, values), strict=True))


def decide(probabilities: ArrayLike, threshold: float | None = 0.5) -> NDArray[np.int64]:
    """The predicted classes: the second of two classes if its probability is above the threshold,
    the most probable of more, or without a threshold.

    >>> decide([[0.7, 0.3], [0.5, 0.5], [0.4, 0.6]], threshold=0.25).tolist()
    [1, 1, 1]
    """
    p = np.asarray(probabilities, dtype=float)
    return _decide(_check_probabilities(np.zeros(len(p), dtype=int), p)[1], threshold)


def accuracy(labels: ArrayLike, probabilities: ArrayLike, threshold: float = 0.5) -> float:
    """The fraction of bags whose class is predicted correctly.

    >>> accuracy([0, 1, 1], [[0.7, 0.3], [0.4, 0.6], [0.9, 0.1]], threshold=0.2)
    0.333...
    """
    y, p = _check_probabilities(labels, probabilities)
    return float(_accuracy(_confusion(y, _decide(p, threshold), p.shape[1])))


def accuracy_many(
    labels: ArrayLike, scores: ArrayLike, threshold: float = 0.5
) -> NDArray[np.float64]:
    """The accuracy of k sets of scores (k, b) of the same two-class bags: (k,).

    >>> accuracy_many([0, 1], [[0.1, 0.9], [0.9, 0.8]]).tolist()
    [1.0, 0.5]
    """
    y, s = _check_scores(labels, scores)
    return ((s > threshold) == y).mean(1)


def auc(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """The probability that a bag of the class is ranked above a bag of another class; ties count
    half.

    For two classes it is that of the second; for more, the mean over the classes that occur, each
    against the rest. NaN if all labels are equal.

    >>> auc([0, 0, 1], [[0.9, 0.1], [0.4, 0.6], [0.4, 0.6]])
    0.75
    """
    return float(_auc(*_check_probabilities(labels, probabilities)))


def auc_many(labels: ArrayLike, scores: ArrayLike) -> NDArray[np.float64]:
    """The AUC of k sets of scores (k, b) of two-class bags: (k,). Labels are (b,), or (k, b) if
    each set has its own.

    >>> auc_many([0, 0, 1], [[0.1, 0.6, 0.6], [0.1, 0.2, 0.3]]).tolist()
    [0.75, 1.0]
    """
    return _auc_many(*_check_scores(labels, scores))


def balanced_accuracy(labels: ArrayLike, probabilities: ArrayLike, threshold: float = 0.5) -> float:
    """The mean recall of the classes that occur.

    >>> balanced_accuracy([0, 0, 0, 1], [[0.9, 0.1]] * 4)
    0.5
    """
    y, p = _check_probabilities(labels, probabilities)
    return float(_balanced(_confusion(y, _decide(p, threshold), p.shape[1])))


def f1(labels: ArrayLike, probabilities: ArrayLike, threshold: float = 0.5) -> float:
    """The harmonic mean of precision and recall: of the second of two classes; for more, the mean
    over the classes that occur or are predicted.

    Zero if the class neither occurs nor is predicted.

    >>> f1([0, 1, 1], [[0.1, 0.9], [0.1, 0.9], [0.9, 0.1]])
    0.5
    """
    y, p = _check_probabilities(labels, probabilities)
    return float(_f1(_confusion(y, _decide(p, threshold), p.shape[1])))


def brier(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """The mean squared error of the probability of the second of two classes; for more, summed over
    the classes.

    >>> brier([1, 0], [[0.5, 0.5], [1, 0]])
    0.125
    """
    return float(_brier(*_check_probabilities(labels, probabilities)))


def calibration_error(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """Expected calibration error, over 10 bins of equal width.

    For two classes: the probability of the second against its frequency. For more: the probability
    of the predicted class against how often it is correct.

    >>> calibration_error([0, 1], [[0.25, 0.75], [0.25, 0.75]])
    0.25
    """
    return float(_calibration_error(*_check_probabilities(labels, probabilities)))


def youden_threshold(labels: ArrayLike, scores: ArrayLike) -> float:
    """The threshold t for which the rule `score > t` has the largest sensitivity + specificity - 1.

    It lies midway between two neighbouring scores, or beyond all of them if one class for all bags
    is best; of equally good thresholds the one nearest to 0.5, then the lower. 0.5 if all labels
    are equal.

    >>> youden_threshold([0, 0, 1, 1], [0.1, 0.2, 0.3, 0.9])
    0.25
    """
    y, s = (row[0] for row in _check_scores(np.atleast_2d(labels), np.atleast_2d(scores)))
    if y.min() == y.max():
        return 0.5
    values, position = np.unique(s, return_inverse=True)
    positive, negative = np.bincount(position, y), np.bincount(position, 1 - y)
    # J times both counts, below all scores and above each distinct one: integers, so that ties are
    # exact.
    gain = np.concatenate(
        [[0], np.cumsum(negative) * y.sum() - np.cumsum(positive) * (1 - y).sum()]
    )
    lower, upper = values[:-1], values[1:]
    middle = lower + (upper - lower) / 2
    # There is no float between neighbouring floats.
    middle = np.where(middle < upper, middle, lower)
    below, above = min(0.5, np.nextafter(values[0], -np.inf)), max(0.5, values[-1])
    best = np.concatenate([[below], middle, [above]])[gain == gain.max()]
    return float(best[np.argmin(np.abs(best - 0.5))])


def _check_probabilities(
    labels: ArrayLike, probabilities: ArrayLike
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    y, p = np.asarray(labels), np.asarray(probabilities, dtype=float)
    if p.ndim != 2 or p.shape[1] < 2 or y.shape != p.shape[:1] or not len(y):
        raise DataError(
            f"labels {y.shape} and probabilities {p.shape}: shapes (b,) and (b, c) with b > 0 and "
            "c > 1 are expected."
        )
    if not np.isfinite(p).all():
        raise DataError(
            f"{(~np.isfinite(p)).any(1).sum()} of {len(p)} bags have a probability that is not "
            "finite. Leave them out, or train with a lower learning rate."
        )
    if y.dtype.kind not in "iub" or y.min() < 0 or y.max() >= p.shape[1]:
        raise DataError(
            f"labels must be integers from 0 to {p.shape[1] - 1}, one for each column of "
            "probabilities."
        )
    return y.astype(np.int64, copy=False), p


def _check_scores(
    labels: ArrayLike, scores: ArrayLike
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    y, s = np.asarray(labels), np.asarray(scores, dtype=float)
    if s.ndim != 2 or y.shape not in (s.shape, s.shape[1:]) or not s.size:
        raise DataError(
            f"labels {y.shape} and scores {s.shape}: shapes (b,) and (k, b) with k > 0 and b > 0 "
            "are expected."
        )
    if not np.isfinite(s).all():
        raise DataError(
            f"{(~np.isfinite(s)).sum()} of {s.size} scores are not finite. Leave them out."
        )
    if y.dtype.kind not in "iub" or y.min() < 0 or y.max() > 1:
        raise DataError("labels must be 0 or 1.")
    return np.broadcast_to(y.astype(np.int64, copy=False), s.shape), s


def _decide(p: NDArray[np.float64], threshold: float | None) -> NDArray[np.int64]:
    if threshold is None or p.shape[1] > 2:
        return p.argmax(1)
    return (p[:, 1] > threshold).astype(np.int64)


def _confusion(y: NDArray[np.int64], decided: NDArray[np.int64], c: int) -> NDArray[np.int64]:
    # Rows are true classes, columns predicted.
    return np.bincount(y * c + decided, minlength=c * c).reshape(c, c)


def _accuracy(table: NDArray[np.int64]) -> float:
    return table.trace() / table.sum()


def _balanced(table: NDArray[np.int64]) -> float:
    bags = table.sum(1)
    return (table.diagonal()[bags > 0] / bags[bags > 0]).mean()


def _f1(table: NDArray[np.int64]) -> float:
    totals = table.sum(0) + table.sum(1)
    scores = 2 * table.diagonal() / np.maximum(totals, 1)
    return scores[1] if len(table) == 2 else scores[totals > 0].mean()


def _auc(y: NDArray[np.int64], p: NDArray[np.float64]) -> float:
    if y.min() == y.max():
        return np.nan
    if p.shape[1] == 2:
        return _auc_many(y[None], p[None, :, 1])[0]
    present = np.unique(y)
    return _auc_many((y == present[:, None]).astype(np.int64), p[:, present].T).mean()


def _auc_many(y: NDArray[np.int64], s: NDArray[np.float64]) -> NDArray[np.float64]:
    """From the rank sum of the positives, with mean ranks for ties (Mann and Whitney)."""
    order = np.argsort(s, axis=1)
    s, y = np.take_along_axis(s, order, 1), np.take_along_axis(y, order, 1)
    rank = np.arange(s.shape[1])
    new = s[:, 1:] != s[:, :-1]
    edge = np.ones((len(s), 1), dtype=bool)
    first = np.maximum.accumulate(np.where(np.hstack([edge, new]), rank, 0), axis=1)
    last = np.minimum.accumulate(np.where(np.hstack([new, edge]), rank, rank[-1])[:, ::-1], axis=1)[
        :, ::-1
    ]
    positive = y.sum(1)
    pairs = positive * (s.shape[1] - positive)
    below = ((first + last) * y).sum(1) / 2 - positive * (positive - 1) / 2
    return np.divide(below, pairs, out=np.full(len(s), np.nan), where=pairs > 0)


def squared_errors(y: NDArray[np.int64], p: NDArray[np.float64]) -> NDArray[np.float64]:
    """The squared error of each bag (b,), whose mean is the Brier score.

    >>> squared_errors(np.array([0, 1]), np.array([[0.5, 0.5], [0.0, 1.0]])).tolist()
    [0.25, 0.0]
    """
    if p.shape[1] == 2:
        return (p[:, 1] - y) ** 2
    return ((p - np.eye(p.shape[1])[y]) ** 2).sum(1)


def calibration_gaps(
    y: NDArray[np.int64], p: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The bin of the predicted probability of each bag (b,), and its difference to the outcome.

    >>> bins, gaps = calibration_gaps(np.array([0, 1]), np.array([[0.5, 0.5], [0.0, 1.0]]))
    >>> bins.tolist(), gaps.tolist()
    ([5, 9], [0.5, 0.0])
    """
    predicted, observed = (p[:, 1], y) if p.shape[1] == 2 else (p.max(1), p.argmax(1) == y)
    bins = np.clip(predicted * CALIBRATION_BINS, 0, CALIBRATION_BINS - 1).astype(np.int64)
    return bins, predicted - observed


def _brier(y: NDArray[np.int64], p: NDArray[np.float64]) -> float:
    return squared_errors(y, p).mean()


def _calibration_error(y: NDArray[np.int64], p: NDArray[np.float64]) -> float:
    return np.abs(np.bincount(*calibration_gaps(y, p))).sum() / len(y)
