"""How the slides of another cohort differ from those of the training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from scmil.core.shapes import Numbers
from scmil.studies.model_folder import Page
from scmil.studies.training_fingerprint import FACTS, Fingerprint, KnownSlide

NAMES = {
    "encoder": "encoder",
    "vendor": "slide format",
    "scanner": "scanner",
    "objective": "objective",
    "slide_mpp": "resolution of the slide (mpp)",
    "mpp": "resolution of the tiles (mpp)",
    "size_px": "tile size (px)",
}
MOST_VALUES = 4  # of a property that the table lists


def case_mix(cohort: Fingerprint, training: Fingerprint) -> list[Page]:
    """Return a table of properties: of the training split, and of another cohort.

    Args:
        cohort: The slides that were evaluated, read with the scaling of the training.
        training: The slides of the model.

    Returns:
        Rows with `property`, `training`, `cohort` and `differs`; None where a property is unknown.
    """
    own = list(cohort.slides)
    known = [slide for slide in training.slides if slide.split in ("train", None)]
    rows: list[Page] = [
        _mix_row("slides", str(len(known)), str(len(own))),
        _mix_row("patients", _count_patients(known), _count_patients(own)),
    ]
    for key in FACTS:
        first, second = (_shares([slide.facts.get(key) for slide in s]) for s in (known, own))
        if first or second:
            values = [{slide.facts.get(key) for slide in s} - {None} for s in (known, own)]
            differs = bool(values[0] and values[1] and not values[1] <= values[0])
            rows.append(_mix_row(NAMES[key], first, second, differs))
    rows.append(_mix_row("tiles per slide, median (quartiles)", _sizes(known), _sizes(own)))
    classes = sorted({slide.label for slide in (*known, *own) if slide.label is not None})
    for name in classes:
        rows.append(_mix_row(f"class {name}", _class_share(known, name), _class_share(own, name)))
    return rows


def feature_shift(cohort: Fingerprint, training: Fingerprint) -> Page | None:
    """Return how far the mean features of the cohort are from those of the training.

    The distance is the root mean square over all features of the difference of the means of the
    slides, in standard deviations of the tiles of the training split. The same distance of the
    internal validation or test split shows how large it is without a change of hospital.

    Returns:
        `cohort` and, for each internal split, the distance and the number of slides; None if the
        model has no fingerprint of features.
    """
    if training.scaling is None or "train" not in training.means or not cohort.means:
        return None
    deviation = training.scaling.deviation.numpy()

    def distance(mean: Numbers) -> float:
        return round(
            float(np.sqrt(np.mean(((mean - training.means["train"]) / deviation) ** 2))), 4
        )

    counts = Counter(slide.split for slide in training.slides)
    inside = {
        name: {"distance": distance(mean), "slides": counts[name]}
        for name, mean in training.means.items()
        if name != "train"
    }
    [mean] = cohort.means.values()
    own = {"distance": distance(mean), "slides": len(cohort.slides)}
    return {"cohort": own, "internal": inside}


def _mix_row(name: str, training: str | None, cohort: str | None, differs: bool = False) -> Page:
    return {"property": name, "training": training, "cohort": cohort, "differs": differs}


def _count_patients(slides: Sequence[KnownSlide]) -> str | None:
    known = {slide.patient for slide in slides} - {None}
    return str(len(known)) if known else None


def _shares(values: Sequence[str | None]) -> str | None:
    """The values with their numbers of slides, most frequent first; None if all are unknown."""
    counts = Counter(value for value in values if value is not None)
    if not counts:
        return None
    if len(counts) == 1 and sum(counts.values()) == len(values):
        return next(iter(counts))
    listed = [f"{value} ({count})" for value, count in counts.most_common(MOST_VALUES)]
    more = len(counts) - len(listed)
    unknown = len(values) - sum(counts.values())
    listed += [f"{more} more"] * bool(more) + [f"unknown ({unknown})"] * bool(unknown)
    return ", ".join(listed)


def _sizes(slides: Sequence[KnownSlide]) -> str | None:
    tiles = [slide.tiles for slide in slides if slide.tiles is not None]
    if not tiles:
        return None
    low, middle, high = np.quantile(tiles, (0.25, 0.5, 0.75))
    return f"{middle:.0f} ({low:.0f} to {high:.0f})"


def _class_share(slides: Sequence[KnownSlide], name: str) -> str | None:
    known = [slide.label for slide in slides if slide.label is not None]
    if not known:
        return None
    return f"{known.count(name)} ({100 * known.count(name) / len(known):.0f} %)"
