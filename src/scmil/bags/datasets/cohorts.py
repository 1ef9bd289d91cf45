"""Cohorts of slides with an official list, which is checked against the features of the user.

The lists are in the package (`lists/*.csv`); slides and features are not. The features can be a
folder in any format of `scmil.formats`, one folder per encoder, or a work folder of
`scmil encode`.
"""

from __future__ import annotations

import csv
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple, TypeAlias

from scmil.bags.bag import BagSet
from scmil.bags.datasets import registry
from scmil.bags.slide_ids import slide_id
from scmil.bags.splits import Split
from scmil.core.text import first_names
from scmil.errors import DataError, OptionError

# Arguments: bags, repeats, fraction for validation, seed.
Splits: TypeAlias = Callable[[BagSet, int, float, int], list[list[Split]]]
ALLOW_MISSING = "SCMIL_ALLOW_MISSING"
TWO_SCALES = "-two-scales"
FEATURES = (".h5", ".hdf5", ".pt", ".pth", ".npy", ".npz", ".csv", ".safetensors")
SLIDES = (".svs", ".tif", ".tiff", ".ndpi", ".mrxs", ".dcm")
NO_FEATURES = (
    "tiles",
    "tissue",
    "patches",
    "masks",
    "stitches",
    "annotations",
)  # folders with files named after slides
DEEPEST = 4


class CohortWarning(UserWarning):
    """Bags of a cohort are missing or not in its list, and are left out."""


class Listed(NamedTuple):
    """A slide of the list: class, patient, official split and kind of annotation, if known."""

    slide: str
    label: int
    patient: str | None
    part: str | None
    annotation: str | None


@dataclass(frozen=True)
class Cohort:
    """A data set of slides as its organisers list it; `of(id)` is that of a label table.

    >>> from scmil.bags.datasets.camelyon16 import COHORT
    >>> len(COHORT.listed), COHORT.of("tumor_111"), COHORT.find("Test_001.tif").part
    (399, (1, None), 'test')
    >>> COHORT.find("normal_086") is None
    True
    """

    name: str
    summary: str
    file: str
    classes: tuple[str, ...]
    splits: Splits
    patient: Callable[[str], str | None] = lambda slide: None
    # Slides that are often distributed with the cohort, with the reason why they are not listed.
    not_listed: Mapping[str, str] = field(default_factory=dict)
    preset: str = "default"  # of the tissue detection

    @cached_property
    def listed(self) -> tuple[Listed, ...]:
        """The slides, in the order of the list."""
        text = (files("scmil.bags.datasets") / "lists" / self.file).read_text(encoding="utf-8")
        return tuple(
            Listed(
                row["slide"],
                self.classes.index(row["class"]),
                self.patient(row["slide"]),
                row.get("part"),
                row.get("annotation"),
            )
            for row in csv.DictReader(text.splitlines())
        )

    @cached_property
    def _by_name(self) -> dict[str, Listed]:
        # Users write Test_001 and test_001, and cut TCGA's names at the first dot.
        whole = {listed.slide.lower(): listed for listed in self.listed}
        return {name.partition(".")[0]: listed for name, listed in whole.items()} | whole

    def find(self, bag_id: str) -> Listed | None:
        """Return the slide with this id or file name, ignoring case; None if it is not listed."""
        return self._by_name.get(slide_id(bag_id).lower())

    def reason(self, bag_id: str) -> str | None:
        """Return why a slide is not in the list; None if the reason is unknown."""
        return self.not_listed.get(slide_id(bag_id).lower())

    def of(self, bag_id: str) -> tuple[int | None, str | None]:
        """Return label and patient of a slide; (None, None) if it is not listed."""
        listed = self.find(bag_id)
        return (None, None) if listed is None else (listed.label, listed.patient)


COHORTS: dict[str, Cohort] = {}


def register_cohort(cohort: Cohort) -> Cohort:
    """Register a cohort by its name, here and in `load_dataset`."""
    COHORTS[cohort.name] = cohort
    registry.register(cohort.name, cohort.summary)(partial(load_cohort, cohort))
    return cohort


def load_cohort(
    cohort: Cohort,
    data: str | Path | None = None,
    key: str | None = None,
    format: str | None = None,  # noqa: A002 -- public keyword
    allow_missing: bool | None = None,
) -> BagSet:
    """Return the bags of a cohort, read lazily, in the order of its list.

    `data` (or the environment variable SCMIL_DATA) is the folder of the features, or contains a
    folder with the name of the data set; `key` is the encoder. Missing slides raise, unless
    `allow_missing` is set, or SCMIL_ALLOW_MISSING=1.
    """
    place = find_cohort_folder(cohort, data)
    if place is None:
        raise DataError(f"{cohort.name} is not on this computer. {cohort_remedy(cohort)}")
    bags = _open_features(cohort, place, key, format)
    found = _match_slides(cohort, bags, place)
    missing = [listed.slide for listed in cohort.listed if listed.slide not in found]
    if foreign := [bag_id for bag_id in bags.ids if cohort.find(bag_id) is None]:
        _warn(
            f"{place}: {len(foreign)} bags are not of {cohort.name} and are left out: "
            f"{_explain_foreign(cohort, foreign)}."
        )
    if missing:
        text = (
            f"{len(missing)} of the {len(cohort.listed)} slides of {cohort.name} have no bag in "
            f"{place}: {first_names(missing)}"
        )
        if not (found and _may_be_incomplete(allow_missing)):
            raise DataError(f"{text}. {_remedy_for_missing(cohort, place, key, foreign)}")
        _warn(f"{text}; continuing without them.")
    return bags.subset([found[listed.slide] for listed in cohort.listed if listed.slide in found])


def _open_features(cohort: Cohort, place: Path, key: str | None, format_name: str | None) -> BagSet:
    """Open the features of a cohort; errors state how to encode its slides."""
    from scmil.bags.formats import open_bags

    # Features of any tool, with one folder per encoder.
    own_folder = key is not None and (place / key).is_dir()
    try:
        return (
            open_bags(place / str(key), format_name, cohort)
            if own_folder
            else open_bags(place, format_name, cohort, key=key)
        )
    except OptionError as error:
        raise DataError(
            f"{cohort.name}: {error} Put the features of {key} into {place / str(key)}."
        ) from None
    except DataError as error:
        if _has_files(cohort, place, SLIDES) and not _has_files(cohort, place, FEATURES):
            raise DataError(
                f"{place} has slides of {cohort.name}, but no features. "
                f"{_encode_command(cohort, place, key)}"
            ) from None
        raise DataError(f"{cohort.name}: {error} {_encode_command(cohort, place, key)}") from None


def _match_slides(cohort: Cohort, bags: BagSet, place: Path) -> dict[str, str]:
    """Return the id of the bag of each listed slide that has one."""
    found: dict[str, str] = {}
    for bag_id in bags.ids:
        if (listed := cohort.find(bag_id)) and found.setdefault(listed.slide, bag_id) != bag_id:
            raise DataError(
                f"{place} has two bags of slide {listed.slide!r}: {found[listed.slide]}, {bag_id}. "
                "Remove one of them."
            )
    return found


def _remedy_for_missing(
    cohort: Cohort, place: Path, key: str | None, foreign: Sequence[str]
) -> str:
    """Return how to add the missing bags, or continue without them."""
    failures = place / "failures.csv"
    return " ".join(
        [
            *(f"Note: {reason}." for reason in filter(None, map(cohort.reason, foreign))),
            *([f"Slides that failed, with the cause: {failures}."] if failures.is_file() else []),
            f"{_encode_command(cohort, place, key)}.",
            f"To continue without them: allow_missing = true under [data], or {ALLOW_MISSING}=1.",
        ]
    )


def _encode_command(cohort: Cohort, place: Path, key: str | None) -> str:
    encoder = (key or "resnet18").removesuffix(TWO_SCALES)
    options = f"--encoder {encoder}" + (" --two-scales" if (key or "").endswith(TWO_SCALES) else "")
    if (place / "slides.csv").is_file():
        return f"Encode: scmil encode {place} {options}"
    options += "" if cohort.preset == "default" else f" --preset {cohort.preset}"
    if _has_files(cohort, place, SLIDES):
        work = place.with_name(f"{place.name}-bags")
        return f"Encode: scmil encode {place} --out {work} {options}; then --data {work}"
    return f"Encode the slides: scmil encode SLIDES --out {place} {options}"


def _may_be_incomplete(allow_missing: bool | None) -> bool:
    return (
        os.environ.get(ALLOW_MISSING, "") in ("1", "true", "yes")
        if allow_missing is None
        else allow_missing
    )


def _explain_foreign(cohort: Cohort, ids: Sequence[str]) -> str:
    unknown = [bag_id for bag_id in ids if cohort.reason(bag_id) is None]
    return "; ".join(
        [*filter(None, map(cohort.reason, ids)), *([first_names(unknown)] if unknown else [])]
    )


def _warn(message: str) -> None:
    warnings.warn(message, CohortWarning, stacklevel=3)


def find_cohort_folder(cohort: Cohort, data: str | Path | None = None) -> Path | None:
    """Return the folder of a cohort: the subfolder with its name, or the user's folder itself."""
    folder = data or os.environ.get("SCMIL_DATA")
    if not folder:
        return None
    place = Path(folder)
    if not place.is_dir():
        origin = "the argument data" if data else "the environment variable SCMIL_DATA"
        raise DataError(
            f"{place} is not a folder, but {origin} names it. Give the folder with the features."
        )
    names = {cohort.name, cohort.name.replace("-", "_")}
    return next(
        (
            below
            for below in sorted(place.iterdir())
            if below.name.lower() in names and below.is_dir()
        ),
        place,
    )


def status_of(name: str, data: str | Path | None = None) -> tuple[bool, str, str]:
    """Return whether a cohort has features, where, and otherwise the remedy; no file is read."""
    cohort = COHORTS[name]
    place = find_cohort_folder(cohort, data)
    if place is None:
        return False, "", cohort_remedy(cohort)
    if _has_files(cohort, place, FEATURES):
        return True, str(place), ""
    return (
        False,
        "",
        _encode_command(cohort, place, None)
        if _has_files(cohort, place, SLIDES)
        else cohort_remedy(cohort),
    )


def cohort_remedy(cohort: Cohort) -> str:
    """Return how a user can get the features of a cohort."""
    preset = "" if cohort.preset == "default" else f" --preset {cohort.preset}"
    return (
        f"Encode the slides: scmil encode SLIDES --out WORK --encoder resnet18{preset}. Or use "
        "features of another tool. Then give their folder with --data or SCMIL_DATA."
    )


def _has_files(cohort: Cohort, place: Path, suffixes: tuple[str, ...]) -> bool:
    """Return whether a file with one of the suffixes has the name of a listed slide."""
    return any(
        path.suffix.lower() in suffixes and cohort.find(path.name) for path in _files_below(place)
    )


def _files_below(place: Path, depth: int = 0) -> Iterator[Path]:
    for path in sorted(place.iterdir()) if depth <= DEEPEST else ():
        if path.name.startswith("."):
            continue
        if path.is_dir():
            if path.name not in NO_FEATURES:
                yield from _files_below(path, depth + 1)
        else:
            yield path


def official_splits(
    name: str, bags: BagSet, repeats: int = 1, valid: float = 0.1, seed: int = 0
) -> list[list[Split]]:
    """Return the official splits of a cohort, `repeats` times.

    `valid` is the fraction of bags for validation.

    >>> official_splits("musk1", BagSet([]))
    Traceback (most recent call last):
    ...
    scmil.errors.OptionError: data set 'musk1' has no official splits. Data sets with official
    splits: ... Use kind = "kfold" or "holdout".
    """
    if name not in COHORTS:
        known = ", ".join(COHORTS)
        raise OptionError(
            f"data set {name!r} has no official splits. Data sets with official splits: {known}. "
            'Use kind = "kfold" or "holdout".'
        )
    if repeats < 1:
        raise OptionError(f"repeats = {repeats}: use at least 1.")
    return COHORTS[name].splits(bags, repeats, valid, seed)
