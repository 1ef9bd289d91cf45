"""The work folder of a cohort: its paths, its list of slides and its settings.

    work/slides.csv               the slides: name, file, microns per pixel if given, file times
    work/tiling.json              how the slides were tiled
    work/tissue/<slide>.geojson   tissue outlines; edited outlines are used by the next run
    work/tiles/<slide>.h5, .jpg   the tiles and a preview image
    work/bags/<encoder>/<slide>.h5
    work/failures.csv             the failure log

An existing output file is complete and is not computed again. The settings are stored next to the
outputs, so that a folder never mixes two kinds of tiles or features. Tiles and bags record the
digest of the slide that they were computed from; another file with the same name is rejected.
"""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from scmil.bags.slide_ids import slide_id
from scmil.bags.table_rows import read_rows
from scmil.core.atomic import write_atomically
from scmil.core.jobs.locks import locked, safe_name, translate_os_errors
from scmil.core.jobs.shards import ALL, Shard
from scmil.core.limits import bounded, check_overlap
from scmil.core.tables import csv_bytes, read_json, unescape_formula
from scmil.core.text import first_names
from scmil.errors import DataError, OptionError
from scmil.slides import Slide, find_slides, open_slide


@dataclass(frozen=True)
class TileSettings:
    """Tissue segmentation and tiling settings, the same for all slides of a work folder."""

    size_px: int = 256
    mpp: float = 0.5
    overlap_px: int = 0
    min_tissue: float = 0.1
    rule: str = "fraction"
    preset: str = "default"
    otsu: bool | None = None
    pen: bool = True

    def tile_options(self) -> dict[str, Any]:
        """The keyword arguments of `scmil.tile`."""
        keys = ("size_px", "mpp", "overlap_px", "min_tissue", "rule")
        return {key: getattr(self, key) for key in keys}


class Source(NamedTuple):
    """A slide of the cohort: its name, its file, and its microns per pixel if the user gave them.

    The given microns per pixel are used if the file states none, or with `override_mpp`. `times` is
    a digest of the sizes and modification times of the slide's files when it was last compared with
    its tiles.
    """

    id: str
    path: Path
    mpp: float | None = None
    times: str | None = None
    override_mpp: bool = False

    def choose_mpp(self, stated: float | None) -> float | None:
        """The microns per pixel to use for a file that states these, or none.

        >>> Source("a", Path("a.svs"), 0.25).choose_mpp(0.499)
        0.499
        >>> Source("a", Path("a.svs"), 0.25).choose_mpp(None)
        0.25
        >>> Source("a", Path("a.svs"), 0.25, override_mpp=True).choose_mpp(0.499)
        0.25
        """
        is_used = self.mpp is not None and (self.override_mpp or stated is None)
        return self.mpp if is_used else stated

    def open(self) -> Slide:
        """Open the slide under its name in the cohort."""
        slide = open_slide(self.path)
        mpp = self.choose_mpp(slide.stated_mpp)
        if mpp is not None and mpp != slide.stated_mpp:
            slide = slide.with_mpp(mpp)
        slide.id = self.id
        return slide


# ------------------------------------------------------------------------------------------- slides


def find_cohort(
    slides: str | Path, mpp_of: float | str | Path | None = None, *, override_mpp: bool = False
) -> list[Source]:
    """List the slides of a folder, at any depth, or a single slide.

    Args:
        slides: A folder of slides, or one slide.
        mpp_of: Microns per pixel at level 0 of slides whose files do not state them: one number for
            all, or a table with the columns `slide` and `mpp`.
        override_mpp: Whether `mpp_of` also replaces the values that files state.

    Returns:
        The slides in sorted order.

    Raises:
        DataError: If there are no slides, or the table names slides that do not exist.
        OptionError: If `override_mpp` is used without `mpp_of`.
    """
    if override_mpp and mpp_of is None:
        raise OptionError(
            "--override-mpp needs --mpp-of: a number for all slides, or a table with the columns "
            "slide and mpp."
        )
    path = Path(slides)
    paths = find_slides(path) if path.is_dir() else [path]
    if not os.path.lexists(path):
        raise DataError(f"{path}: no such file or folder. Give a slide or a folder of slides.")
    if not paths:
        raise DataError(
            f"{path} contains no slides: no file has a slide suffix (.svs, .tif, .ndpi, .mrxs, …)."
        )
    mpp_by_slide = read_mpp(mpp_of) if isinstance(mpp_of, (str, Path)) else {}
    mpp = None if mpp_of is None or isinstance(mpp_of, (str, Path)) else float(mpp_of)
    if mpp is not None and not 0 < mpp < float("inf"):
        raise OptionError(
            f"--mpp-of {mpp:g}: expected a positive number of microns per pixel, such as 0.25."
        )
    sources = [Source(_name_of_slide(one), one.absolute(), mpp) for one in paths]
    if unknown := mpp_by_slide.keys() - {slide_id(source.id) for source in sources}:
        raise DataError(
            f"{mpp_of} names {len(unknown)} slides that are not in {path}: "
            f"{first_names(sorted(unknown))}. Remove these rows, or correct the names."
        )
    sources = [
        source._replace(mpp=mpp_by_slide.get(slide_id(source.id), source.mpp)) for source in sources
    ]
    return [
        source._replace(override_mpp=override_mpp and source.mpp is not None) for source in sources
    ]


def _name_of_slide(path: Path) -> str:
    """The file name without suffix, or the whole name of a DICOM folder."""
    return path.name if path.is_dir() else path.stem


def read_mpp(path: str | Path) -> dict[str, float]:
    """Read microns per pixel from a table with the columns `slide` (or `wsi`, …) and `mpp`."""
    table = read_rows(path)
    slide_column = table.need(("slide", "slide_id", "wsi", "filename"), "slide", "slide")
    mpp_column = table.need(("mpp",), "microns per pixel", "mpp")
    mpp_by_slide: dict[str, float] = {}
    for number, row in table.lines:
        try:
            mpp = float(row[mpp_column])
        except ValueError:
            mpp = float("nan")
        if not 0 < mpp < float("inf"):
            raise DataError(
                f"{path}, line {number}: mpp = {row[mpp_column]!r}; expected a positive number of "
                "microns per pixel."
            )
        name = slide_id(row[slide_column])
        if mpp_by_slide.setdefault(name, mpp) != mpp:
            raise DataError(
                f"{path}, line {number}: slide {name!r} has mpp {mpp:g} here and "
                f"{mpp_by_slide[name]:g} in an earlier line. Keep one of them."
            )
    return mpp_by_slide


def read_sources(work: str | Path) -> list[Source]:
    """Read the slides of a work folder from slides.csv."""
    path = Path(work) / "slides.csv"
    if not path.is_file():
        raise DataError(
            f"{work} has no slides.csv, so it was not written by scmil tile. "
            f"Run this first: scmil tile SLIDES --out {work}"
        )
    try:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            rows = list(csv.DictReader(file))
        counts = Counter(row["slide"] for row in rows)
        if repeated := [name for name, count in counts.items() if count > 1]:
            raise ValueError(f"slide {repeated[0]!r} is listed twice")
        if not all(row["slide"] for row in rows):
            raise ValueError("a slide has an empty name")
        return [
            Source(
                unescape_formula(row["slide"]),
                Path(unescape_formula(row["path"])),
                float(row["mpp"]) if row["mpp"] else None,
                row.get("times") or None,  # tables of earlier versions have no such column
                # In tables of earlier versions, a given value always replaced that of the file.
                bool(row["mpp"]) and row.get("override_mpp", "yes") == "yes",
            )
            for row in rows
        ]
    except (AttributeError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise DataError(
            f"{path} is not a table with the columns slide,path,mpp ({error!r}). "
            "Fix it, or tile into a new folder."
        ) from None


def write_sources(work: Path, sources: Iterable[Source]) -> None:
    """Write slides.csv; it has the column `override_mpp` if microns per pixel were given."""
    sources = list(sources)
    rows = [[source.id, str(source.path), source.mpp, source.times or ""] for source in sources]
    header = ["slide", "path", "mpp", "times"]
    if any(source.mpp is not None for source in sources):
        header.append("override_mpp")
        for row, source in zip(rows, sources, strict=True):
            row.append("yes" if source.override_mpp else "no")
    write_atomically(work / "slides.csv", csv_bytes([header, *rows], errors="surrogateescape"))


def tiled_slides(
    work: str | Path, only: Sequence[str] | None = None, shard: Shard = ALL
) -> list[Source]:
    """List the slides of a work folder that have tiles.

    Args:
        work: The work folder.
        only: Names of slides; None for all.
        shard: The part of these names to list. Names are assigned to shards whether or not they
            have tiles, so that shards stay disjoint while slides are being tiled.
    """
    sources = read_sources(work)
    names = only if only is not None else [source.id for source in sources]
    own = set(shard.of(sorted(names)))
    return [
        source for source in sources if source.id in own and tiles_file(work, source.id).is_file()
    ]


# -------------------------------------------------------------------------------------------- paths


def tiles_file(work: str | Path, name: str) -> Path:
    """The path of the tiles of a slide."""
    return Path(work) / "tiles" / f"{safe_name(name)}.h5"


def tissue_file(work: str | Path, name: str) -> Path:
    """The path of the tissue outlines of a slide."""
    return Path(work) / "tissue" / f"{safe_name(name)}.geojson"


def bags_folder(work: str | Path, encoder: str, scales: int = 1) -> Path:
    """The folder of the bags of an encoder."""
    return Path(work) / "bags" / (safe_name(encoder) + ("-two-scales" if scales == 2 else ""))


def delete_if_stale(path: Path, is_stale: Callable[[], bool]) -> None:
    """Delete an outdated output file, unless another process is computing it again."""
    if is_stale():
        with locked(path, wait=False) as acquired:
            if acquired and is_stale():
                path.unlink()


# ----------------------------------------------------------------------------------------- settings


def read_settings(work: str | Path) -> TileSettings:
    """Read the settings that the slides of a work folder were tiled with."""
    path = Path(work) / "tiling.json"
    try:
        settings = TileSettings(**read_json(path))
        for key in ("size_px", "mpp", "overlap_px", "min_tissue"):
            bounded(key, getattr(settings, key), "settings")
        check_overlap(settings.size_px, settings.overlap_px, "settings")
        return settings
    except (OSError, ValueError, TypeError) as error:
        raise DataError(
            f"{path} does not contain tiling settings ({error}). Tile the slides into a new folder."
        ) from None


def check_same_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings of a folder, or raise if it was started with other settings."""
    # The lock makes the second of two processes that start together compare its settings as well.
    with translate_os_errors(path.parent), locked(path, wait=True):
        if not path.is_file():
            write_atomically(path, json.dumps(settings, indent=2, sort_keys=True).encode())
            return
    try:
        before = dict(read_json(path))
    except (OSError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} does not contain the settings of this folder ({error}). Use another folder."
        ) from None
    keys = sorted({*before, *settings})
    if differing := [key for key in keys if before.get(key) != settings.get(key)]:
        differences = ", ".join(
            f"{key} = {before.get(key)!r} before, {settings.get(key)!r} now" for key in differing
        )
        raise OptionError(
            f"{path.parent} was started with other settings: {differences}. "
            "Use another folder, or the same settings."
        )
