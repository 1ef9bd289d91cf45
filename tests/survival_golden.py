"""The survival table of tests/data/golden and the numbers that public packages computed from it."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from scmil.core.shapes import Numbers

GOLDEN = Path(__file__).parent / "data" / "golden"


def read_rows(name: str) -> list[dict[str, str]]:
    with (GOLDEN / f"survival_{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


TABLE = read_rows("table")
NUMBERS = read_rows("numbers")


def column(name: str) -> Numbers:
    return np.array([float(row[name]) for row in TABLE])


def values_of(quantity: str, setting: str) -> list[float]:
    """The values of all packages that computed the quantity in a setting that contains the text."""
    found = [
        float(row["value"])
        for row in NUMBERS
        if row["quantity"] == quantity and setting in row["setting"]
    ]
    assert found, (quantity, setting)
    return found


TIME, EVENT, RISK, GROUP = (column(name) for name in ("time", "event", "risk", "group"))
EVENT = EVENT.astype(int)
