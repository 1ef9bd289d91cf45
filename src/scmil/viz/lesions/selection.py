"""Select the slides to evaluate, and look up their labels and patients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from scmil.errors import DataError, OptionError
from scmil.models.predictions_file import read_training_slides

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet

PARTS = ("unseen", "all", "train", "valid", "test")


class Known(NamedTuple):
    """The label (index of the class) and the patient of a slide, if they are known."""

    label: int | None
    patient: str | None


def known_labels(
    model: str | Path,
    bags: BagSet,
    classes: Sequence[str],
    table: str | Path | None = None,
    missing: Sequence[str] | None = None,
) -> dict[str, Known]:
    """Label and patient of every bag: from the table, else from the bag, else from the training of
    the model.
    """
    from scmil.bags.labels import read_labels

    listed = None if table is None else read_labels(table, classes=list(classes), missing=missing)
    of_training = _labels_of_training(model, classes)
    found = {}
    for slide_id, label, patient in zip(bags.ids, bags.labels, bags.patients, strict=True):
        sources = [listed.of(slide_id)] if listed else []
        sources += [(label, patient), of_training.get(slide_id, (None, None))]
        found[slide_id] = Known(
            next((label for label, _ in sources if label is not None), None),
            next((patient for _, patient in sources if patient is not None), None),
        )
    return found


def _labels_of_training(
    model: str | Path, classes: Sequence[str]
) -> dict[str, tuple[int | None, str | None]]:
    """Class and patient of each slide of the training."""
    return {
        name: (classes.index(slide.label) if slide.label in classes else None, slide.patient)
        for name, slide in read_training_slides(model).items()
    }


def choose_slides(ids: Sequence[str], split: Mapping[str, Sequence[str]], part: str) -> list[str]:
    """The slides of a split of the model; "unseen" are those outside training and validation."""
    if part == "all":
        return list(ids)
    seen = set(seen_slides(split))
    chosen = [
        slide_id
        for slide_id in ids
        if (slide_id not in seen if part == "unseen" else slide_id in split.get(part, ()))
    ]
    if not chosen:
        raise DataError(
            f"none of the {len(ids)} slides is in the split {part!r} of the model. Give other "
            "bags, or evaluate all with --split all; results on training slides are biased upwards."
        )
    return chosen


def seen_slides(split: Mapping[str, Sequence[str]]) -> list[str]:
    """The slides of the training and validation splits."""
    return [*split.get("train", ()), *split.get("valid", ())]


def check_options(annotations: Path, tile_share: float, part: str, mpp: float | None) -> None:
    """Raise an error if an option of `locate` is out of range."""
    if not annotations.is_dir():
        raise DataError(
            f"{annotations} is not a folder. Give the folder with <slide>.xml (ASAP) or "
            "<slide>.geojson (QuPath) files."
        )
    if not 0 < tile_share <= 1:
        raise OptionError(f"tile_share = {tile_share}, expected a fraction above 0 and up to 1.")
    if part not in PARTS:
        raise OptionError(f"unknown split {part!r}. Choose one of: {', '.join(PARTS)}.")
    if mpp is not None and not 0 < mpp < math.inf:
        raise OptionError(f"mpp = {mpp}, expected microns per pixel above 0.")
