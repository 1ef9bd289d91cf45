"""How good a model is on each part, on slides and on patients, with intervals over patients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from scmil.stats.metrics import METRICS, score_all
from scmil.bags.splits import Split
from scmil.studies.model_folder import Page

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet

Numbers = NDArray[np.float64]
DRAWS = 1000  # of the bootstrap


def metrics_of_parts(bags: BagSet, split: Split, labels: NDArray[np.int64], p: Numbers, threshold: float) -> Page:
    """Every metric of every part; of patients too, where one has several slides."""
    patients = bags.patients
    page: Page = {"threshold": threshold}
    for name, part in split._asdict().items():
        if not part:
            continue
        own, groups = list(part), [patients[i] if patients[i] is not None else f"bag {i}" for i in part]
        page[name] = {"slide": interval_of_all(labels[own], p[own], groups, threshold)}
        if several := _by_patient(labels[own], p[own], groups):
            page[name]["patient"] = interval_of_all(*several, None, threshold)
    return page


def _by_patient(
    labels: NDArray[np.int64], p: Numbers, groups: Sequence[str]
) -> tuple[NDArray[np.int64], Numbers] | None:
    """Label and mean probability of each patient; None if each has one slide, or slides of several classes."""
    names, place = np.unique(groups, return_inverse=True)
    first = np.array([labels[place == i][0] for i in range(len(names))])
    if len(names) == len(labels) or (first[place] != labels).any():
        return None
    return first, np.stack([p[place == i].mean(0) for i in range(len(names))])


def interval_of_all(
    labels: NDArray[np.int64], p: Numbers, groups: Sequence[str] | None, threshold: float, seed: int = 0
) -> Page:
    """Every metric with its 95 % interval: patients are drawn anew 1000 times, with all their slides.

    >>> found = interval_of_all(np.array([0, 1] * 4), np.array([[0.9, 0.1], [0.2, 0.8]] * 4), None, 0.5)
    >>> found["n"], found["auc"]
    (8, {'value': 1.0, 'low': 1.0, 'high': 1.0})
    """
    _, place = np.unique(np.arange(len(labels)) if groups is None else np.asarray(groups), return_inverse=True)
    members = [np.flatnonzero(place == unit) for unit in range(place.max() + 1)]
    drawn = np.random.default_rng(seed).integers(len(members), size=(DRAWS, len(members)))
    scores = []
    for units in drawn:
        rows = np.concatenate([members[unit] for unit in units])
        scores.append(list(score_all(labels[rows], p[rows], threshold).values()))
    values = score_all(labels, p, threshold)
    page: Page = {"n": len(labels), "patients": len(members)}
    for metric, column in zip(METRICS, np.array(scores).T, strict=True):
        known = column[np.isfinite(column)]  # an AUC needs both classes
        low, high = np.quantile(known, [0.025, 0.975]) if len(members) > 1 and len(known) else (np.nan, np.nan)
        page[metric] = {"value": _plain(values[metric]), "low": _plain(low), "high": _plain(high)}
    return page


def _plain(value: float) -> float | None:
    return round(float(value), 6) if np.isfinite(value) else None
