"""The calibration of one probability on another cohort, as `metrics.json` holds it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scmil.core.shapes import Numbers
from scmil.stats.calibration import (
    brier_parts,
    recalibrate,
    recalibration_intervals,
    reliability_table,
)
from scmil.studies.model_folder import Page
from scmil.studies.model_metrics import estimate_json


def calibration_of(y: Numbers, p: Numbers, groups: Sequence[str]) -> Page:
    """Intercept, slope, reliability diagram and parts of the Brier score of one probability.

    Args:
        y: 0 or 1 (n,).
        p: Predicted probability of 1 (n,).
        groups: The patient of each slide.

    Returns:
        The estimates with 95 % intervals, and the bins of the diagram.

    >>> y, p = np.array([0.0, 1.0] * 4), np.array([0.3, 0.8] * 4)
    >>> found = calibration_of(y, p, [str(i) for i in range(8)])
    >>> found["separated"], found["bins"][0]["slides"]
    (True, 4)
    """
    found = recalibrate(y, p)
    intervals = recalibration_intervals(y, p, groups)
    page: Page = {
        name: estimate_json(value, *intervals[name]) for name, value in found._asdict().items()
    }
    page["separated"] = found.slope == np.inf
    page["brier"] = {name: round(v, 6) for name, v in brier_parts(y, p)._asdict().items()}
    page["bins"] = [
        {
            "from": own.low,
            "to": own.high,
            "slides": own.slides,
            "predicted": round(own.predicted, 6),
            "observed": estimate_json(own.observed, *own.interval),
        }
        for own in reliability_table(y, p, groups=groups)
    ]
    return page
