"""Find the slides of a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from scmil.errors import SlideError

SCANNERS = (
    ".svs",
    ".ndpi",
    ".mrxs",
    ".scn",
    ".bif",
    ".vms",
    ".vmu",
    ".svslide",
    ".vsi",
    ".czi",
    ".dcm",
)
PICTURES = (".tif", ".tiff", ".btf", ".tf8", ".qptiff", ".png", ".jpg", ".jpeg")
# Explicit little endian: study (0020,000D) followed by series (0020,000E), at the start of the
# file.
SERIES = re.compile(rb"\x20\x00\x0d\x00UI..[0-9.]*\0?\x20\x00\x0e\x00UI..([0-9.]*)", re.DOTALL)
HEADER_BYTES = 2**16


def find_slides(folder: str | os.PathLike[str]) -> list[Path]:
    """List the slides of a folder, at any depth and sorted.

    Slides are files with a suffix of a scanner or picture format, and folders with one DICOM
    series; a DICOM folder with several series gives the first file of each. Hidden files, the data
    folders of MRXS and VSI and the JPEG parts of VMS are skipped. Links to files are listed, links
    to folders are not followed. Files with the name of a slide that cannot be opened, such as a
    link to a disk that is not mounted, and subfolders that cannot be listed are included: opening
    them raises an error, so that none is skipped silently.
    """
    root = Path(folder)
    if not root.is_dir():
        raise SlideError(
            f"{root} is not a folder. Give the folder of the slides; for a single slide, use "
            "open_slide(path)."
        )
    found: list[Path] = []

    def record_error(error: OSError) -> None:
        if (path := Path(error.filename)) == root:
            _raise_unlistable(error)
        found.append(path)

    for place, folders, names in os.walk(root, onerror=record_error):
        here = [Path(place, name) for name in names if not name.startswith(".")]
        slides = [path for path in here if path.suffix.lower() in SCANNERS + PICTURES]
        owners = {(path.stem, path.suffix.lower()) for path in slides}
        folders[:] = [
            name for name in folders if not name.startswith(".") and not _is_data(name, owners)
        ]
        if any(path.suffix.lower() in (".vms", ".vmu") for path in slides):
            slides = [path for path in slides if path.suffix.lower() not in (".jpg", ".jpeg")]
        dicom = [path for path in slides if path.suffix.lower() == ".dcm"]
        found += set(slides).difference(dicom)
        series = _series(dicom)
        found += [Path(place)] if len(series) == 1 else series
    return sorted(found)


def first_of_series(folder: Path) -> Path | None:
    """The first file of the DICOM series of a folder; None if there is no such file.

    OpenSlide opens any file of a series and finds the others in the same folder.
    """
    try:
        paths = [
            path
            for path in folder.iterdir()
            if path.suffix.lower() == ".dcm" and not path.name.startswith(".")
        ]
    except OSError as error:
        _raise_unlistable(error)
    series = _series(paths)
    if len(series) > 1:
        names = ", ".join(path.name for path in series)
        raise SlideError(
            f"{folder} contains {len(series)} DICOM series. Open one of these files: {names}."
        )
    return series[0] if series else None


def _series(paths: Iterable[Path]) -> list[Path]:
    """The first file of each DICOM series."""
    first: dict[bytes, Path] = {}
    for path in sorted(paths):
        first.setdefault(_series_of(path), path)
    return list(first.values())


def _series_of(path: Path) -> bytes:
    try:
        if not path.is_file():  # reading a pipe would never end
            raise FileNotFoundError
        with path.open("rb") as file:
            match = SERIES.search(file.read(HEADER_BYTES))
    except OSError:
        return os.fsencode(path)  # listed as its own slide; opening it raises
    return match[1] if match else b""


def _raise_unlistable(error: OSError) -> NoReturn:
    raise SlideError(f"{error.filename}: cannot list the folder: {error.strerror}.") from error


def _is_data(folder: str, owners: set[tuple[str, str]]) -> bool:
    """Whether a folder is the data folder of a slide: x of x.mrxs, _x_ of x.vsi."""
    return (folder, ".mrxs") in owners or (folder.strip("_"), ".vsi") in owners
