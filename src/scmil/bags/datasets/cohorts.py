"""Cohorts of slides with an official list: which slides must be there, which are, and what to do about the difference.

The lists are in the package (`lists/*.csv`); slides and features are not. A folder of features of any format that
`scmil.formats` knows will do, one folder for each encoder, or a working folder of `scmil encode`.
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
from scmil.errors import DataError, OptionError
from scmil.bags.labels import slide_id
from scmil.bags.splits import Split

Splits: TypeAlias = Callable[[BagSet, int, float, int], list[list[Split]]]  # bags, repeats, share for validation, seed
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
    """A cohort is not as its list says, and the work goes on."""


class Listed(NamedTuple):
    """A slide of the list: its class, its patient if known, its official part, how its tumours are outlined."""

    slide: str
    label: int
    patient: str | None
    part: str | None
    annotation: str | None


@dataclass(frozen=True)
class Cohort:
    """A data set of slides as its organisers list it; answers `of(id)` as a table of labels does.

    >>> from scmil.bags.datasets.camelyon16 import COHORT
    >>> len(COHORT.listed), COHORT.of("tumor_111"), COHORT.find("Test_001.tif").part, COHORT.find("normal_086")
    (399, (1, None), 'test', None)
    """

    name: str
    summary: str
    file: str
    classes: tuple[str, ...]
    splits: Splits
    patient: Callable[[str], str | None] = lambda slide: None
    not_listed: Mapping[str, str] = field(default_factory=dict)  # slides that many have all the same, and what they are
    preset: str = "default"  # for finding tissue

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
        # People write Test_001 and test_001, and cut TCGA's names at the first dot.
        whole = {listed.slide.lower(): listed for listed in self.listed}
        return {name.partition(".")[0]: listed for name, listed in whole.items()} | whole

    def find(self, id: str) -> Listed | None:
        """The slide with this id or file name, whatever the case of its letters; None if the list has it not."""
        return self._by_name.get(slide_id(id).lower())

    def reason(self, id: str) -> str | None:
        """Why a slide that many have is not in the list; None if nothing is known of it."""
        return self.not_listed.get(slide_id(id).lower())

    def of(self, id: str) -> tuple[int | None, str | None]:
        """Label and patient of a slide, None and None if it does not belong."""
        listed = self.find(id)
        return (None, None) if listed is None else (listed.label, listed.patient)


COHORTS: dict[str, Cohort] = {}


def enrol(cohort: Cohort) -> Cohort:
    """Make a cohort known by its name, here and in `load_dataset`."""
    COHORTS[cohort.name] = cohort
    registry.register(cohort.name, cohort.summary)(partial(load, cohort))
    return cohort


# ---------------------------------------------------------------------------------------------------------- the bags


def load(
    cohort: Cohort,
    data: str | Path | None = None,
    key: str | None = None,
    format: str | None = None,
    allow_missing: bool | None = None,
) -> BagSet:
    """The bags of a cohort, in the order of its list, each read when it is asked for; slides that are missing are named.

    `data` (or the environment variable SCMIL_DATA) is the folder of the features, or has one that is called after the data
    set; `key` names the encoder. With `allow_missing`, or SCMIL_ALLOW_MISSING=1, the cohort may be incomplete.
    """
    place = locate(cohort, data)
    if place is None:
        raise DataError(f"{cohort.name} is not on this computer. {remedy(cohort)}")
    bags = _open(cohort, place, key, format)
    found = _matched(cohort, bags, place)
    missing = [listed.slide for listed in cohort.listed if listed.slide not in found]
    if foreign := [id for id in bags.ids if cohort.find(id) is None]:
        _warn(f"{place}: {len(foreign)} bags are not of {cohort.name} and are left out: {_explained(cohort, foreign)}.")
    if missing:
        said = f"{len(missing)} of the {len(cohort.listed)} slides of {cohort.name} have no bag in {place}: {_some(missing)}"
        if not (found and _allowed(allow_missing)):
            raise DataError(f"{said}. {_complete(cohort, place, key, foreign)}")
        _warn(f"{said}; the work goes on without them.")
    return bags.subset([found[listed.slide] for listed in cohort.listed if listed.slide in found])


def _open(cohort: Cohort, place: Path, key: str | None, format: str | None) -> BagSet:
    from scmil.bags.formats import open_bags

    own_folder = key is not None and (place / key).is_dir()  # any tool's features, a folder for each encoder
    try:
        return open_bags(place / str(key), format, cohort) if own_folder else open_bags(place, format, cohort, key=key)
    except OptionError as error:
        raise DataError(f"{cohort.name}: {error} Put the features of {key} into {place / str(key)}.") from None
    except DataError as error:
        if _has(cohort, place, SLIDES) and not _has(cohort, place, FEATURES):
            raise DataError(
                f"{place} has slides of {cohort.name}, and no features. {_encode(cohort, place, key)}"
            ) from None
        raise DataError(f"{cohort.name}: {error} {_encode(cohort, place, key)}") from None


def _matched(cohort: Cohort, bags: BagSet, place: Path) -> dict[str, str]:
    """The id of the bag of each listed slide that has one."""
    found: dict[str, str] = {}
    for id in bags.ids:
        if (listed := cohort.find(id)) and found.setdefault(listed.slide, id) != id:
            raise DataError(f"{place} has two bags of slide {listed.slide!r}: {found[listed.slide]}, {id}. Remove one.")
    return found


def _complete(cohort: Cohort, place: Path, key: str | None, foreign: Sequence[str]) -> str:
    """How to get at what is missing."""
    failures = place / "failures.csv"
    return " ".join(
        [
            *(f"Note: {reason}." for reason in filter(None, map(cohort.reason, foreign))),
            *([f"Slides that failed, and why: {failures}."] if failures.is_file() else []),
            _encode(cohort, place, key),
            f"To go on without them: allow_missing = true under [data], or {ALLOW_MISSING}=1.",
        ]
    )


def _encode(cohort: Cohort, place: Path, key: str | None) -> str:
    encoder = (key or "resnet18").removesuffix(TWO_SCALES)
    options = f"--encoder {encoder}" + (" --two-scales" if (key or "").endswith(TWO_SCALES) else "")
    if (place / "slides.csv").is_file():
        return f"Encode: scmil encode {place} {options}"
    options += "" if cohort.preset == "default" else f" --preset {cohort.preset}"
    if _has(cohort, place, SLIDES):
        work = place.with_name(f"{place.name}-bags")
        return f"Encode: scmil encode {place} --out {work} {options}; then --data {work}"
    return f"Encode the slides: scmil encode SLIDES --out {place} {options}"


def _allowed(allow_missing: bool | None) -> bool:
    return os.environ.get(ALLOW_MISSING, "") in ("1", "true", "yes") if allow_missing is None else allow_missing


def _explained(cohort: Cohort, ids: Sequence[str]) -> str:
    unknown = [id for id in ids if cohort.reason(id) is None]
    return "; ".join([*filter(None, map(cohort.reason, ids)), *([_some(unknown)] if unknown else [])])


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _warn(said: str) -> None:
    warnings.warn(said, CohortWarning, stacklevel=3)


# --------------------------------------------------------------------------------------------------------- where it is


def locate(cohort: Cohort, data: str | Path | None = None) -> Path | None:
    """The folder that `load` would read: the one called after the data set, or the user's folder itself."""
    folder = data or os.environ.get("SCMIL_DATA")
    if not folder:
        return None
    place = Path(folder)
    if not place.is_dir():
        origin = "the argument data" if data else "the environment variable SCMIL_DATA"
        raise DataError(f"{place} is not a folder, but {origin} says so. Name the folder with the features.")
    called = {cohort.name, cohort.name.replace("-", "_")}
    return next((below for below in sorted(place.iterdir()) if below.name.lower() in called and below.is_dir()), place)


def status_of(name: str, data: str | Path | None = None) -> tuple[bool, str, str]:
    """Whether a cohort has features here, where, and what to do if it has not; names of files are looked at, no more."""
    cohort = COHORTS[name]
    place = locate(cohort, data)
    if place is None:
        return False, "", remedy(cohort)
    if _has(cohort, place, FEATURES):
        return True, str(place), ""
    return False, "", _encode(cohort, place, None) if _has(cohort, place, SLIDES) else remedy(cohort)


def remedy(cohort: Cohort) -> str:
    """What a user can do to get a cohort."""
    preset = "" if cohort.preset == "default" else f" --preset {cohort.preset}"
    return (
        f"Make features of the slides, scmil encode SLIDES --out WORK --encoder resnet18{preset}, or take those of another "
        "tool; then name their folder with --data or SCMIL_DATA."
    )


def _has(cohort: Cohort, place: Path, suffixes: tuple[str, ...]) -> bool:
    return any(path.suffix.lower() in suffixes and cohort.find(path.name) for path in _below(place))


def _below(place: Path, depth: int = 0) -> Iterator[Path]:
    for path in sorted(place.iterdir()) if depth <= DEEPEST else ():
        if path.name.startswith("."):
            continue
        if path.is_dir():
            if path.name not in NO_FEATURES:
                yield from _below(path, depth + 1)
        else:
            yield path


# ---------------------------------------------------------------------------------------------------------- the splits


def official_splits(name: str, bags: BagSet, repeats: int = 1, valid: float = 0.1, seed: int = 0) -> list[list[Split]]:
    """The splits by which a cohort is usually tested, `repeats` times; `valid` is the share for validation.

    >>> official_splits("musk1", BagSet([]))
    Traceback (most recent call last):
    ...
    scmil.errors.OptionError: data set 'musk1' has no official splits; these have: ... Take
    kind = "kfold" or "holdout".
    """
    if name not in COHORTS:
        known = ", ".join(COHORTS)
        raise OptionError(
            f'data set {name!r} has no official splits; these have: {known}. Take kind = "kfold" or "holdout".'
        )
    if repeats < 1:
        raise OptionError(f"repeats = {repeats}: at least 1 is needed.")
    return COHORTS[name].splits(bags, repeats, valid, seed)
