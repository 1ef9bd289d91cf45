"""Readers of slide files with one interface: OpenSlide, tifffile, and Pillow for PNG and JPEG."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from scmil.errors import SlideError

Pixels = NDArray[np.uint8]  # (h, w, 3)
Size = tuple[int, int]  # width, height

# A window, tile or strip of more pixels is rejected before memory is allocated: 1.5 GB.
MOST_PX_AT_ONCE = 500_000_000
# Colours are converted in bands of this many pixels; intermediate arrays are 4 times as large.
BAND_PX = 2**22
TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
PICTURE_STARTS = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG"}
PICTURE_SUFFIXES = {"PNG": (".png",), "JPEG": (".jpg", ".jpeg")}


# These files contain only a small overview; the pixels are in a data folder with this name.
DATA_FOLDERS = {".mrxs": "{}", ".vsi": "_{}_"}


class Damaged(Exception):
    """A damaged file, or pixels that cannot be decoded; `Slide` adds the path and the position."""


@dataclass(frozen=True)
class Facts:
    """The metadata of a file; microns per pixel and objective are not checked."""

    reader: str
    vendor: str
    level_sizes: tuple[Size, ...]
    level_downsamples: tuple[float, ...]
    storage_tile: Size | None = None
    mpp_xy: tuple[float, float] | None = None
    objective: float | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    associated: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Reader(Protocol):
    """An open file. `region` may be called from many threads at once."""

    facts: Facts

    def region(self, level: int, xy: Size, size: Size) -> Pixels:
        """Read pixels of a level, from its pixel (x, y); white outside the slide."""
        ...

    def origin(self, level: int, at: int) -> float:
        """The level-0 coordinate of the pixel `at` of `region`, along either axis."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


def open_reader(path: Path) -> Reader:
    """Open a file by its content, regardless of its name: OpenSlide, then tifffile, then Pillow.

    A file that is a generic TIFF for OpenSlide is opened with tifffile, which also supports levels
    in SubIFDs, channels, planes and 16 bits, and reads tiles faster.
    """
    from scmil.slides.readers.by_openslide import OpenSlideReader, vendor_of
    from scmil.slides.readers.by_pillow import PictureReader
    from scmil.slides.readers.by_tifffile import TiffReader

    start = _first_bytes(path)
    vendor = vendor_of(path)
    failure = ""
    if vendor not in (None, "generic-tiff"):
        try:
            return _check_suffix(path, OpenSlideReader(path))
        except Damaged as error:
            failure = f"OpenSlide detects the format {vendor} but cannot open it: {error}"
    if path.suffix.lower() in DATA_FOLDERS:
        raise SlideError(_missing_pixels(path, failure))
    try:
        if start.startswith(TIFF_STARTS):
            reader: Reader = TiffReader(path)
        elif kind := next(
            (kind for magic, kind in PICTURE_STARTS.items() if start.startswith(magic)), None
        ):
            reader = PictureReader(path, kind)
        else:
            raise SlideError(
                f"{path}: {failure}. Check whether the file is complete."
                if failure
                else _unknown_format(path, start)
            )
    except Damaged as error:
        raise SlideError(
            f"{path}: the file is damaged or truncated: {failure or error}. Copy it again."
        ) from error
    if failure:
        reader.facts = _with_warning(
            reader.facts, f"{failure}. It is read with {reader.facts.reader} instead."
        )
    return _check_suffix(path, reader)


def true_downsamples(
    sizes: tuple[Size, ...], stated: tuple[float, ...] | None = None
) -> tuple[float, ...]:
    """The downsample factors of levels, as integers where the rounding of level sizes allows it.

    A level of 702 px of a slide of 1403 px has the factor 2, with the last half pixel rounded up;
    the factor 1403 / 702 would shift pixels far from the corner.

    >>> true_downsamples(((1403, 1001), (702, 501), (350, 250), (561, 400)))
    (1.0, 2.0, 4.0, 2.50...)
    """
    width, height = sizes[0]
    ratios = [(width / w + height / h) / 2 for w, h in sizes] if stated is None else stated
    wholes = [float(round(ratio)) for ratio in ratios]
    return tuple(
        whole
        if whole >= 1 and abs(width / whole - w) < 1 and abs(height / whole - h) < 1
        else float(ratio)
        for (w, h), ratio, whole in zip(sizes, ratios, wholes, strict=True)
    )


def in_bands(size: Size, convert: Callable[[slice], Pixels]) -> Pixels:
    """Convert pixels a few rows at a time, so that the conversion needs little extra memory.

    >>> in_bands((2, 3), lambda rows: np.full((3, 2, 3), 7, np.uint8)[rows]).mean()
    np.float64(7.0)
    """
    width, height = size
    pixels: Pixels = np.empty((height, width, 3), np.uint8)
    rows = max(BAND_PX // width, 1)
    for top in range(0, height, rows):
        pixels[top : top + rows] = convert(slice(top, min(top + rows, height)))
    return pixels


def on_white(colours: Pixels, alpha: Pixels, premultiplied: bool = False) -> Pixels:
    """Composite transparent pixels on white.

    >>> on_white(np.array([[[0, 100, 200]]], np.uint8), np.array([[51]], np.uint8))
    array([[[204, 224, 244]]], dtype=uint8)
    """
    if alpha.min(initial=255) == 255:
        return np.ascontiguousarray(colours)
    share = alpha[..., None].astype(np.uint32)
    light = colours.astype(np.uint32) * (255 if premultiplied else share)
    return np.minimum((light + 255 * (255 - share) + 127) // 255, 255).astype(np.uint8)


def _first_bytes(path: Path) -> bytes:
    try:
        if os.path.isdir(path):
            raise SlideError(
                f"{path} is a folder, not a slide. find_slides(folder) lists the slides in it."
            )
        if path.is_symlink() and not path.exists():
            where = os.readlink(path)
            raise SlideError(
                f"{path} is a link to {where}, which does not exist. Mount the disk, or remove "
                "the link."
            )
        if path.exists() and not path.is_file():
            raise SlideError(f"{path} is not a regular file, so it cannot be a slide. Remove it.")
        with path.open("rb") as file:
            start = file.read(16)
    except FileNotFoundError:
        raise SlideError(f"{path}: no such file.") from None
    except PermissionError:
        raise SlideError(
            f"{path}: no permission to read it. Ask its owner, or run chmod u+r."
        ) from None
    except OSError as error:
        raise SlideError(f"{path}: cannot read it: {error.strerror}.") from error
    if not start:
        raise SlideError(
            f"{path} is empty (0 bytes). The copy was probably interrupted: copy it again."
        )
    return start


def _missing_pixels(path: Path, failure: str) -> str:
    folder = path.with_name(DATA_FOLDERS[path.suffix.lower()].format(path.stem))
    state = "exists" if folder.is_dir() else "does not exist: copy it as well"
    advice = f" {failure}." if failure else " If it is complete, convert the slide to OME-TIFF."
    return (
        f"{path} contains only an overview of a slide; its pixels are in the folder {folder.name}, "
        f"which {state}.{advice}"
    )


def _unknown_format(path: Path, start: bytes) -> str:
    size = os.path.getsize(path)
    return (
        f"{path} is not a slide, or its format is not supported: its {size} bytes start with "
        f"{start[:8]!r}. Supported are the formats of OpenSlide, TIFF, PNG and JPEG."
    )


def _check_suffix(path: Path, reader: Reader) -> Reader:
    """Add a warning if the suffix does not match the content."""
    suffix, kind = path.suffix.lower(), reader.facts.vendor
    if reader.facts.reader == "image":
        wrong = suffix not in PICTURE_SUFFIXES[kind]
    else:
        wrong = any(suffix in suffixes for suffixes in PICTURE_SUFFIXES.values())
    if wrong:
        warning = (
            f"the suffix is {suffix or 'missing'}, but the content is {kind}; it is read as {kind}."
        )
        reader.facts = _with_warning(reader.facts, warning)
    return reader


def _with_warning(facts: Facts, warning: str) -> Facts:
    return replace(facts, warnings=(*facts.warnings, warning))
