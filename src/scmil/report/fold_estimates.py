"""AUC and accuracy of a cross-validation as text, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scmil.report.html.markup import format_number
from scmil.stats.fold_intervals import FOLD_METHODS

CLASS_METRICS = (("auc", "AUC"), ("accuracy", "accuracy"))


def fold_estimates(
    row: Mapping[str, Any],
    methods: bool = False,
    shown: Sequence[tuple[str, str]] = CLASS_METRICS,
) -> str:
    """Metrics with 95 % intervals; results of earlier versions have none for the AUC.

    Args:
        row: A summary of a cross-validation, as `result.json` holds it.
        methods: Whether to add how the intervals of AUC and accuracy are computed.
        shown: The columns of the metrics, and their names.

    >>> fold_estimates({"auc": 0.8, "auc_low": 0.7, "auc_high": 0.88, "accuracy": 0.75})
    'AUC 0.800 (95 % interval 0.700 to 0.880), accuracy 0.750'
    """
    parts = []
    for metric, name in shown:
        low, high = (row.get(f"{metric}_{end}") for end in ("low", "high"))
        limits = (
            ""
            if low is None or high is None
            else f" (95 % interval {format_number(low)} to {format_number(high)})"
        )
        parts.append(f"{name} {format_number(row[metric])}{limits}")
    return ", ".join(parts) + (f". Intervals: {FOLD_METHODS}" if methods else "")
