"""Metrics of a model on each split, by slide and by patient, with intervals over patients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from scmil.bags.splits import Split
from scmil.stats.calibration import error_intervals
from scmil.stats.groups import group_positions, pool_slides
from scmil.stats.metrics import score_all
from scmil.stats.small_samples import METHODS, metric_intervals
from scmil.studies.model_folder import Page

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet

Numbers = NDArray[np.float64]
DRAWS = 1000  # of the bootstrap


def metrics_of_splits(
    bags: BagSet,
    split: Split,
    labels: NDArray[np.int64],
    p: Numbers,
    threshold: float,
    pooling: str = "mean",
) -> Page:
    """Return every metric of every split, by slide and, if patients have several, by patient."""
    patients = bags.patients
    page: Page = {"threshold": threshold, "intervals": METHODS}
    for name, members in split._asdict().items():
        if not members:
            continue
        positions = list(members)
        groups = [f"bag {i}" if patients[i] is None else str(patients[i]) for i in positions]
        y, q = labels[positions], p[positions]
        page[name] = {"slide": interval_of_all(y, q, groups, threshold)}
        if per_patient := pool_by_patient(y, q, groups, pooling):
            page[name]["patient"] = interval_of_all(*per_patient, None, threshold)
    return page


def pool_by_patient(
    labels: NDArray[np.int64], p: Numbers, groups: Sequence[str], pooling: str = "mean"
) -> tuple[NDArray[np.int64], Numbers] | None:
    """Return the label and the mean or largest probabilities of each patient.

    None if every patient has one slide, or if the slides of a patient have different labels.
    """
    members = _sorted_groups(groups)
    mixed = any(len(set(labels[slides].tolist())) > 1 for slides in members)
    if len(members) == len(labels) or mixed:
        return None
    first = labels[[slides[0] for slides in members]]
    return first, np.stack([pool_slides(p[slides], pooling) for slides in members])


def _sorted_groups(groups: Sequence[str]) -> list[NDArray[np.int64]]:
    """Return the positions of each group, ordered by name: the bootstrap depends on the order."""
    positions = group_positions(groups)
    return [np.array(positions[name]) for name in sorted(positions, key=str)]


def interval_of_all(
    labels: NDArray[np.int64],
    p: Numbers,
    groups: Sequence[str] | None,
    threshold: float,
    seed: int = 0,
) -> Page:
    """Return every metric with its 95 % interval over patients, see `small_samples.METHODS`.

    >>> p = np.array([[0.9, 0.1], [0.2, 0.8]] * 4)
    >>> metrics = interval_of_all(np.array([0, 1] * 4), p, None, 0.5)
    >>> metrics["n"], metrics["auc"]
    (8, {'value': 1.0, 'low': 0.582503, 'high': 1.0})
    """
    # The bootstrap depends on the order of the patients: by name.
    units = np.arange(len(labels)) if groups is None else np.unique(groups, return_inverse=True)[1]
    intervals = metric_intervals(labels, p, threshold, groups)
    intervals |= error_intervals(labels, p, units, DRAWS, seed)
    page: Page = {"n": len(labels), "patients": int(units.max()) + 1}
    for metric, value in score_all(labels, p, threshold).items():
        page[metric] = estimate_json(value, *intervals[metric])
    return page


def estimate_json(value: float, low: float, high: float) -> Page:
    """Return a metric with the limits of its interval as JSON, None where they are not finite."""
    return {"value": plain_number(value), "low": plain_number(low), "high": plain_number(high)}


def plain_number(value: float) -> float | None:
    """The number as files hold it: six decimals, None if it is not finite."""
    return round(float(value), 6) if np.isfinite(value) else None
