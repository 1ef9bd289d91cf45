"""From probabilities to numbers: the three protocols, the metrics of every fold, their summary. No model is needed here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scmil.stats.metrics import METRICS, auc_many, calibration_error, decide, score_all, youden_threshold
from scmil.stats.significance import bootstrap_interval
from scmil.bags.splits import Split

Row = dict[str, Any]
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """One fold's test bags, as one protocol scores them."""

    protocol: str
    repeat: int
    fold: int
    epoch: int
    threshold: float
    test: tuple[int, ...]
    probabilities: Numbers  # (test bags, classes)

    def row(self, labels: NDArray[np.int64]) -> Row:
        """All metrics of the fold."""
        place = {"protocol": self.protocol, "repeat": self.repeat, "fold": self.fold, "bags": len(self.test)}
        scores = score_all(labels[list(self.test)], self.probabilities, self.threshold)
        choice = {"epoch": self.epoch, "threshold": round(self.threshold, 7)}
        return {**place, **{name: _or_none(round(scores[name], 7)) for name in METRICS}, **choice}

    def predictions(self, ids: Sequence[str], labels: NDArray[np.int64]) -> Iterable[Row]:
        """A line for every test bag."""
        for position, p in zip(self.test, self.probabilities, strict=True):
            place = {"protocol": self.protocol, "repeat": self.repeat, "fold": self.fold, "bag": ids[position]}
            told = {f"p{c}": f"{value:.7g}" for c, value in enumerate(p)}
            yield {**place, "label": int(labels[position]), "threshold": f"{self.threshold:.7g}", **told}


def score(protocol: str, repeat: int, fold: int, split: Split, p: Numbers, labels: NDArray[np.int64]) -> Scored:
    """Choose epoch and threshold as the protocol does; `p` is (epochs, bags, classes)."""
    if protocol == "last":
        epoch, threshold = len(p) - 1, 0.5
    elif protocol == "nested":
        epoch, threshold = choose_nested(labels[list(split.valid)], p[:, list(split.valid)])
    else:
        epoch, threshold = choose_on_test(labels[list(split.test)], p[:, list(split.test)])
    return Scored(protocol, repeat, fold, epoch + 1, threshold, split.test, p[epoch][list(split.test)])


def choose_nested(labels: NDArray[np.int64], p: Numbers) -> tuple[int, float]:
    """Epoch and threshold from a validation part: highest AUC, of equal ones the lowest loss; then Youden's threshold.

    >>> choose_nested(np.array([0, 1]), np.array([[[0.4, 0.6], [0.5, 0.5]], [[0.9, 0.1], [0.6, 0.4]]]))
    (1, 0.25)
    """
    likely = np.take_along_axis(p, labels[None, :, None], 2)[..., 0]
    losses = -np.log(np.maximum(likely, 1e-12)).mean(1)
    areas = np.nan_to_num([score_all(labels, one)["auc"] for one in p])
    epoch = int(np.lexsort((losses, -areas))[0])
    return epoch, _threshold(labels, p[epoch])


def choose_on_test(labels: NDArray[np.int64], p: Numbers) -> tuple[int, float]:
    """Epoch and threshold from the test fold itself: the best mean of accuracy at Youden's threshold and AUC.

    This is what DSMIL's script does. It is too good by construction, and exists to show by how much.

    >>> choose_on_test(np.array([0, 1]), np.array([[[0.4, 0.6], [0.5, 0.5]], [[0.9, 0.1], [0.6, 0.4]]]))
    (1, 0.25)
    """
    thresholds = [_threshold(labels, one) for one in p]
    scores = [score_all(labels, one, threshold) for one, threshold in zip(p, thresholds, strict=True)]
    epoch = int(np.argmax([score["accuracy"] + np.nan_to_num(score["auc"]) for score in scores]))
    return epoch, thresholds[epoch]


def _threshold(labels: NDArray[np.int64], p: Numbers) -> float:
    """Youden's for two classes; more classes have none, the likeliest is taken."""
    return float(youden_threshold(labels, p[:, 1])) if p.shape[1] == 2 else 0.5


def summarise(folds: Sequence[Scored], labels: NDArray[np.int64], groups: Sequence[str | None] | None) -> Row:
    """Mean over repeats of the mean over folds, with the spread over both.

    The interval is a bootstrap over bags (patients, if there are any), for the metrics that are means over bags. The
    calibration error needs more bags than a fold has: it is taken over all bags of a repeat.
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
            means = [_pooled_calibration([f for f in folds if f.repeat == repeat], labels) for repeat in repeats]
        else:
            means = [_mean(of_repeat) for of_repeat in values]
        summary[metric] = _mean(means)
        summary[f"{metric}_sd_repeats"] = _sd(means)
        summary[f"{metric}_sd_folds"] = _sd([value for of_repeat in values for value in of_repeat])
        low, high = _interval(metric, folds, labels, groups)
        summary[f"{metric}_low"], summary[f"{metric}_high"] = low, high
    return {key: round(value, 7) if isinstance(value, float) else value for key, value in summary.items()}


def _pooled_calibration(folds: Sequence[Scored], labels: NDArray[np.int64]) -> float:
    tested = [position for fold in folds for position in fold.test]
    return float(calibration_error(labels[tested], np.concatenate([fold.probabilities for fold in folds])))


def _interval(
    metric: str, folds: Sequence[Scored], labels: NDArray[np.int64], groups: Sequence[str | None] | None
) -> tuple[float | None, float | None]:
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
    own = None if groups is None else [groups[u] if groups[u] is not None else f"bag {u}" for u in units]
    low, high = bootstrap_interval([float(np.mean(by_bag[unit])) for unit in units], own)
    return float(low), float(high)


def history_rows(
    kind: str,
    train_loss: Numbers,
    probabilities: NDArray[np.float32],
    splits: Sequence[Split],
    labels: NDArray[np.int64],
) -> list[Row]:
    """The curves, as means over folds; the test columns are for looking at, nothing is chosen by them."""
    rows = []
    for epoch, losses in enumerate(train_loss):
        looked = bool(np.isfinite(probabilities[epoch]).any())
        row: Row = {"training": kind, "epoch": epoch + 1, "train_loss": f"{losses.mean():.6g}"}
        tested = _test_curves(probabilities[epoch].astype(float), splits, labels) if looked else (None, None, None)
        rows.append(row | dict(zip(("test_loss", "test_accuracy", "test_auc"), tested, strict=True)))
    return rows


def _test_curves(p: Numbers, splits: Sequence[Split], labels: NDArray[np.int64]) -> tuple[str, str, str]:
    losses, hits, areas = [], [], []
    for fold, split in enumerate(splits):
        test = list(split.test)
        own, y = p[fold, test], labels[test]
        losses.append(-np.log(np.maximum(own[np.arange(len(y)), y], 1e-12)).mean())
        hits.append((decide(own, 0.5) == y).mean())
        areas.append(auc_many(y, own[None, :, 1])[0] if own.shape[1] == 2 else score_all(y, own)["auc"])
    return f"{np.mean(losses):.6g}", f"{np.mean(hits):.6g}", f"{_mean(areas):.6g}"


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None and value == value]
    return float(np.mean(known)) if known else float("nan")


def _sd(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and value == value]
    return float(np.std(known, ddof=1)) if len(known) > 1 else None


def _or_none(value: float) -> float | None:
    return value if value == value else None
