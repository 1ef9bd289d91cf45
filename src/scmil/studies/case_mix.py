"""How the slides of another cohort differ from those of the training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from scmil.bags.target_types import ordered_names
from scmil.bags.targets import (
    ClassTarget,
    CombinedTarget,
    LabelsTarget,
    NumberTarget,
    PartTarget,
    SurvivalTarget,
    Target,
    Targets,
)
from scmil.core.shapes import Numbers
from scmil.models.predictions_file import PREDICTIONS
from scmil.report.run_files import ResultTable
from scmil.studies.model_folder import Page
from scmil.studies.target_metrics import observed_columns
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


def case_mix(
    cohort: Fingerprint, training: Fingerprint, outcomes: Sequence[Page] | None = None
) -> list[Page]:
    """Return a table of properties: of the training split, and of another cohort.

    Args:
        cohort: The slides that were evaluated, read with the scaling of the training.
        training: The slides of the model.
        outcomes: The rows of the outcomes of another task than classes, see `outcome_mix`.

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
    if outcomes is not None:  # the classes of the training are strata of the splits
        return [*rows, *outcomes]
    classes = sorted({slide.label for slide in (*known, *own) if slide.label is not None})
    for name in classes:
        rows.append(_mix_row(f"class {name}", _class_share(known, name), _class_share(own, name)))
    return rows


def outcome_mix(folder: Path, targets: Targets, ids: Sequence[str]) -> list[Page]:
    """Return the rows of `case_mix` for the outcomes of another task than classes.

    Args:
        folder: The model folder, whose `predictions.csv` has the values of the training split.
        targets: The values of the cohort.
        ids: The slides of the cohort.

    Returns:
        Share of events and follow-up, the number, or the share of each grade or label; of several
        targets those of each, over the slides that have it.
    """
    target = targets.target
    if isinstance(target, CombinedTarget):
        parts = [targets.part(number) for number in range(len(target.parts))]
        return [
            row | {"property": f"{name}: {row['property']}"}
            for name, part in zip(target.names, parts, strict=True)
            for row in _part_mix(folder, part, ids)
        ]
    cohort = targets.array(ids)
    train = _training_values(folder / PREDICTIONS, targets.target)
    described = [
        {} if values is None else _describe_outcomes(targets.target, values)
        for values in (train, cohort)
    ]
    return [_mix_row(name, described[0].get(name), text) for name, text in described[1].items()]


def _part_mix(folder: Path, part: Targets, ids: Sequence[str]) -> list[Page]:
    """How many slides have one of several targets, and its values."""
    known = [bag_id for bag_id in ids if part.of(bag_id) is not None]
    train = _training_values(folder / PREDICTIONS, part.target)
    inside = None if train is None else str(len(train))
    rows = outcome_mix(folder, part, known) if known else []
    return [_mix_row("slides with a value", inside, str(len(known))), *rows]


def _training_values(path: Path, target: Target | PartTarget) -> Numbers | None:
    """The values of the training split (b, k), of the slides that have any; None if they are not in
    the folder.
    """
    if not path.is_file():
        return None
    columns = observed_columns(target)
    table = ResultTable(path, ["part", *columns])
    rows = np.flatnonzero(table.text("part") == "train")
    if names := ordered_names(target):
        cells = [str(cell) for cell in table.text(columns[0])[rows]]
        return np.array([names.index(cell) for cell in cells if cell], dtype=float)[:, None]
    values = np.stack([table.numbers(name, empty=True)[rows] for name in columns], axis=1)
    return values[np.isfinite(values).any(1)]


def _describe_outcomes(target: Target | PartTarget, values: Numbers) -> dict[str, str]:
    if isinstance(target, SurvivalTarget):
        follow_up = f"{target.time}, median (quartiles)"
        return {"events": _share_of(values[:, 1]), follow_up: _quartiles(values[:, 0])}
    if isinstance(target, NumberTarget):
        return {f"{target.name}, median (quartiles)": _quartiles(values[:, 0])}
    if names := ordered_names(target):
        noun = "class" if isinstance(target, ClassTarget) else "grade"
        parts = [(name, values[:, 0] == i) for i, name in enumerate(names)]
        return {f"{noun} {name}": _share_of(part.astype(float)) for name, part in parts}
    assert isinstance(target, LabelsTarget)
    return {name: _share_of(column) for name, column in zip(target.names, values.T, strict=True)}


def _share_of(values: Numbers) -> str:
    """The number of ones and their share of the known values."""
    known = values[np.isfinite(values)]
    if not len(known):
        return "not known"
    unknown = len(values) - len(known)
    share = f"{int(known.sum())} ({100 * known.mean():.0f} %)"
    return f"{share}, unknown ({unknown})" if unknown else share


def _quartiles(values: Numbers) -> str:
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return f"{middle:.4g} ({low:.4g} to {high:.4g})"


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
