"""A metric with its interval in a cell of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scmil.report.html.markup import ABSENT, Markup, element, format_number, join
from scmil.report.html.tables import number_cell


def estimate_cell(
    found: Mapping[str, Any] | None, write: Callable[[float | None], str] = format_number
) -> Markup:
    """A cell with a metric and its interval; a dash if there is none."""
    if found is None:
        return number_cell(ABSENT)
    if found["low"] is None or found["high"] is None:
        return number_cell(write(found["value"]), found["value"])
    low, high = write(found["low"]), write(found["high"])
    text = join(write(found["value"]), element("small", f"{low} to {high}"))
    return number_cell(text, found["value"])
