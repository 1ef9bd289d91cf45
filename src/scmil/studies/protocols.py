"""From probabilities to metrics: the three selection protocols, the metrics of every fold, and
their summary. No model is needed here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scmil.bags.splits import Split
from scmil.stats.fold_intervals import (
    FoldScores,
    mean_fold_auc_interval,
    mean_fold_decision_interval,
)
from scmil.stats.metrics import (
    METRICS,
    auc_many,
    calibration_error,
    decide,
    score_all,
)
from scmil.stats.significance import bootstrap_interval
from scmil.stats.small_samples import proportion_interval
from scmil.training.selection import choose_candidate, choose_threshold

Row = dict[str, Any]
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class ScoredFold:
    """The test bags of a fold, scored by one selection protocol."""

    protocol: str
    repeat: int
    fold: int
    epoch: int
    threshold: float
    test: tuple[int, ...]
    probabilities: Numbers  # (test bags, classes)

    def row(self, labels: NDArray[np.int64]) -> Row:
        """Return all metrics of the fold."""
        place = {
            "protocol": self.protocol,
            "repeat": self.repeat,
            "fold": self.fold,
            "bags": len(self.test),
        }
        scores = score_all(labels[list(self.test)], self.probabilities, self.threshold)
        choice = {"epoch": self.epoch, "threshold": round(self.threshold, 7)}
        return {**place, **{name: _or_none(round(scores[name], 7)) for name in METRICS}, **choice}

    def predictions(self, ids: Sequence[str], labels: NDArray[np.int64]) -> Iterable[Row]:
        """Yield a row of predictions.csv for every test bag."""
        for position, p in zip(self.test, self.probabilities, strict=True):
            place = {
                "protocol": self.protocol,
                "repeat": self.repeat,
                "fold": self.fold,
                "bag": ids[position],
            }
            probabilities_row = {f"p{c}": f"{value:.7g}" for c, value in enumerate(p)}
            yield {
                **place,
                "label": int(labels[position]),
                "threshold": f"{self.threshold:.7g}",
                **probabilities_row,
            }


def score(
    protocol: str,
    repeat: int,
    fold: int,
    split: Split,
    p: Numbers,
    labels: NDArray[np.int64],
    first: int = 1,
) -> ScoredFold:
    """Choose epoch and threshold as the protocol does; `p` is (epochs, bags, classes), `first` the
    first epoch, from 1, that `nested` may choose.
    """
    if protocol == "last":
        epoch, threshold = len(p) - 1, 0.5
    elif protocol == "nested":
        valid = list(split.valid)
        epoch, threshold = choose_nested(labels[valid], p[:, valid], first)
    else:
        epoch, threshold = choose_on_test(labels[list(split.test)], p[:, list(split.test)])
    return ScoredFold(
        protocol, repeat, fold, epoch + 1, threshold, split.test, p[epoch][list(split.test)]
    )


def choose_nested(labels: NDArray[np.int64], p: Numbers, first: int = 1) -> tuple[int, float]:
    """Choose epoch and threshold on a validation split.

    The epoch has the highest AUC, and of equal ones the lowest loss; the threshold is Youden's.

    >>> p = np.array([[[0.4, 0.6], [0.5, 0.5]], [[0.9, 0.1], [0.6, 0.4]]])
    >>> choose_nested(np.array([0, 1]), p)
    (1, 0.25)
    """
    epoch = choose_candidate(labels, p, first - 1)
    return epoch, choose_threshold(labels, p[epoch])


def choose_on_test(labels: NDArray[np.int64], p: Numbers) -> tuple[int, float]:
    """Choose epoch and threshold on the test fold itself.

    The epoch has the best mean of AUC and of the accuracy at Youden's threshold, as in the
    published script of DSMIL. The result is optimistically biased; the protocol exists to measure
    this bias.

    >>> p = np.array([[[0.4, 0.6], [0.5, 0.5]], [[0.9, 0.1], [0.6, 0.4]]])
    >>> choose_on_test(np.array([0, 1]), p)
    (1, 0.25)
    """
    thresholds = [choose_threshold(labels, one) for one in p]
    scores = [
        score_all(labels, one, threshold) for one, threshold in zip(p, thresholds, strict=True)
    ]
    epoch = int(np.argmax([score["accuracy"] + np.nan_to_num(score["auc"]) for score in scores]))
    return epoch, thresholds[epoch]


def summarise(
    folds: Sequence[ScoredFold], labels: NDArray[np.int64], groups: Sequence[str | None] | None
) -> Row:
    """Return the mean over repeats of the mean over folds, with deviations and an interval.

    The interval is over bags (patients, if there are any): Wilson's for accuracy, balanced accuracy
    and F1, the score interval of `mean_fold_auc_interval` for the AUC, a bootstrap for the Brier
    score. The calibration error needs more bags than a fold has: it is taken over all bags of a
    repeat, and has no interval.
    """
    rows = [fold.row(labels) for fold in folds]
    repeats = sorted({fold.repeat for fold in folds})
    first = [fold for fold in folds if fold.repeat == repeats[0]]
    summary: Row = {
        "protocol": folds[0].protocol,
        "repeats": len(repeats),
        "folds": len(first),
        "bags": sum(len(fold.test) for fold in first),
    }
    for metric in METRICS:
        values = [[row[metric] for row in rows if row["repeat"] == repeat] for repeat in repeats]
        if metric == "calibration_error":
            means = [
                _pooled_calibration([f for f in folds if f.repeat == repeat], labels)
                for repeat in repeats
            ]
        else:
            means = [_mean(of_repeat) for of_repeat in values]
        summary[metric] = _mean(means)
        summary[f"{metric}_sd_repeats"] = _sd(means)
        summary[f"{metric}_sd_folds"] = _sd([value for of_repeat in values for value in of_repeat])
        low, high = _metric_interval(metric, folds, labels, groups)
        summary[f"{metric}_low"], summary[f"{metric}_high"] = low, high
    return {
        key: round(value, 7) if isinstance(value, float) else value
        for key, value in summary.items()
    }


def _pooled_calibration(folds: Sequence[ScoredFold], labels: NDArray[np.int64]) -> float:
    tested = [position for fold in folds for position in fold.test]
    return float(
        calibration_error(labels[tested], np.concatenate([fold.probabilities for fold in folds]))
    )


def _metric_interval(
    metric: str,
    folds: Sequence[ScoredFold],
    labels: NDArray[np.int64],
    groups: Sequence[str | None] | None,
) -> tuple[float | None, float | None]:
    if metric == "auc":
        return _auc_interval(folds, labels, groups)
    if metric in ("balanced_accuracy", "f1"):
        return _decision_interval(metric, folds, labels, groups)
    if metric not in ("accuracy", "brier"):
        return None, None
    by_bag: dict[int, list[float]] = {}
    for fold in folds:
        y = labels[list(fold.test)]
        if metric == "accuracy":
            values = (decide(fold.probabilities, fold.threshold) == y).astype(float)
        elif fold.probabilities.shape[1] == 2:
            values = (fold.probabilities[:, 1] - y) ** 2
        else:
            values = ((fold.probabilities - np.eye(fold.probabilities.shape[1])[y]) ** 2).sum(1)
        for position, value in zip(fold.test, values, strict=True):
            by_bag.setdefault(position, []).append(float(value))
    units = sorted(by_bag)
    patients = None if groups is None else [groups[unit] for unit in units]
    means = [float(np.mean(by_bag[unit])) for unit in units]
    interval = proportion_interval if metric == "accuracy" else bootstrap_interval
    low, high = interval(means, patients)
    return float(low), float(high)


def _auc_interval(
    folds: Sequence[ScoredFold], labels: NDArray[np.int64], groups: Sequence[str | None] | None
) -> tuple[float | None, float | None]:
    """The interval of the mean AUC over folds, over bags or patients."""
    scores = [
        FoldScores(labels[list(fold.test)], fold.probabilities, _units_of(fold, groups))
        for fold in folds
    ]
    low, high = mean_fold_auc_interval(scores, len({fold.repeat for fold in folds}))
    return _or_none(float(low)), _or_none(float(high))


def _decision_interval(
    metric: str,
    folds: Sequence[ScoredFold],
    labels: NDArray[np.int64],
    groups: Sequence[str | None] | None,
) -> tuple[float | None, float | None]:
    """The mean over repeats of the limits, since repeats add no patients."""
    by_repeat: dict[int, list[FoldScores]] = {}
    for fold in folds:
        decided = np.eye(fold.probabilities.shape[1])[decide(fold.probabilities, fold.threshold)]
        scores = FoldScores(labels[list(fold.test)], decided, _units_of(fold, groups))
        by_repeat.setdefault(fold.repeat, []).append(scores)
    limits = [mean_fold_decision_interval(metric, own) for own in by_repeat.values()]
    low, high = np.mean(limits, axis=0).tolist()
    return _or_none(low), _or_none(high)


def _units_of(fold: ScoredFold, groups: Sequence[str | None] | None) -> list[Hashable]:
    """The patient of each test bag, or the bag itself."""
    own = [None if groups is None else groups[i] for i in fold.test]
    return [i if unit is None else unit for i, unit in zip(fold.test, own, strict=True)]


def history_rows(
    kind: str,
    train_loss: Numbers,
    probabilities: NDArray[np.float32],
    splits: Sequence[Split],
    labels: NDArray[np.int64],
) -> list[Row]:
    """Return the curves as means over folds; nothing is chosen by the test columns."""
    rows = []
    for epoch, losses in enumerate(train_loss):
        evaluated = bool(np.isfinite(probabilities[epoch]).any())
        row: Row = {"training": kind, "epoch": epoch + 1, "train_loss": f"{losses.mean():.6g}"}
        tested = (
            _test_curves(probabilities[epoch].astype(float), splits, labels)
            if evaluated
            else (None, None, None)
        )
        rows.append(
            row | dict(zip(("test_loss", "test_accuracy", "test_auc"), tested, strict=True))
        )
    return rows


def _test_curves(
    p: Numbers, splits: Sequence[Split], labels: NDArray[np.int64]
) -> tuple[str, str, str]:
    losses, hits, areas = [], [], []
    for fold, split in enumerate(splits):
        test = list(split.test)
        own, y = p[fold, test], labels[test]
        losses.append(-np.log(np.maximum(own[np.arange(len(y)), y], 1e-12)).mean())
        hits.append((decide(own, 0.5) == y).mean())
        areas.append(
            auc_many(y, own[None, :, 1])[0] if own.shape[1] == 2 else score_all(y, own)["auc"]
        )
    return f"{np.mean(losses):.6g}", f"{np.mean(hits):.6g}", f"{_mean(areas):.6g}"


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None and value == value]
    return float(np.mean(known)) if known else float("nan")


def _sd(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and value == value]
    return float(np.std(known, ddof=1)) if len(known) > 1 else None


def _or_none(value: float) -> float | None:
    return value if value == value else None
