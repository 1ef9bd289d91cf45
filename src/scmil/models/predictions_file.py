"""`predictions.csv` of a model folder: the training slides with patient, split and label."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from scmil.core.tables import unescape_formula

if TYPE_CHECKING:
    from scmil.bags.labels import Labels

PREDICTIONS = "predictions.csv"
TRAINING_COLUMNS = ("case_id", "part", "y_true")


class TrainingSlide(NamedTuple):
    """A slide of the training: its patient, its split, and its class."""

    patient: str | None
    split: str | None
    label: str | None


def read_training_slides(folder: str | Path) -> dict[str, TrainingSlide]:
    """The slides that `predictions.csv` of a model folder lists, by id; none without the file."""
    path = Path(folder) / PREDICTIONS
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        rows = [
            {str(name): unescape_formula(str(value or "")) for name, value in row.items()}
            for row in csv.DictReader(file)
        ]
    return {
        row["slide_id"]: TrainingSlide(*(row.get(name) or None for name in TRAINING_COLUMNS))
        for row in rows
        if row.get("slide_id")
    }


def read_training_labels(folder: str | Path, classes: Sequence[str]) -> Labels | None:
    """The labels that a model was trained with, as a table of labels.

    None without the file, and for a model of another task than classes.
    """
    from scmil.bags.labels import read_labels

    path = Path(folder) / PREDICTIONS
    if not path.is_file():
        return None
    with path.open(newline="", encoding="utf-8") as file:
        header = next(csv.reader(file), [])
    if "y_true" not in header and "y_pred" in header:
        return None
    return read_labels(path, label="y_true", classes=list(classes), missing=())
