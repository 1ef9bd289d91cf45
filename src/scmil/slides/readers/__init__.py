"""Three ways to the pixels of a file, behind one face: OpenSlide, tifffile, and pillow for plain pictures."""

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

MOST_PX_AT_ONCE = 500_000_000  # a window, tile or strip of more pixels is refused before memory is taken: 1.5 GB
BAND_PX = 2**22  # colours are converted in bands of so many pixels, since what lies between may be 4 times as large
TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
PICTURE_STARTS = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG"}
PICTURE_SUFFIXES = {"PNG": (".png",), "JPEG": (".jpg", ".jpeg")}


HOLLOW = {
    ".mrxs": "{}",
    ".vsi": "_{}_",
}  # what these files hold themselves is a small overview; the slide is in a folder


class Damaged(Exception):
    """Pixels that are in the file's directory and not in the file; `Slide` adds the file and the place."""


@dataclass(frozen=True)
class Facts:
    """What a file says of itself; microns per pixel and objective as they stand there, right or wrong."""

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
        """The pixels of a level from (x, y) of that level on; white where there is nothing."""
        ...

    def origin(self, level: int, at: int) -> float:
        """The level-0 coordinate of the pixel that `region` gives for `at`, along either axis."""
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


def open_reader(path: Path) -> Reader:
    """Open a file by its content, whatever its name: OpenSlide first, then tifffile, then pillow.

    What OpenSlide knows as no more than a generic TIFF goes to tifffile, which also sees levels in SubIFDs, channels, planes
    and 16 bits, and reads tiles faster.
    """
    from scmil.slides.readers.by_openslide import OpenSlideReader, vendor_of
    from scmil.slides.readers.by_pillow import PictureReader
    from scmil.slides.readers.by_tifffile import TiffReader

    start = _first_bytes(path)
    vendor = vendor_of(path)
    refusal = ""
    if vendor not in (None, "generic-tiff"):
        try:
            return _named(path, OpenSlideReader(path))
        except Damaged as error:
            refusal = f"OpenSlide takes it for a slide of {vendor} and refuses it: {error}"
    if path.suffix.lower() in HOLLOW:
        raise SlideError(_hollow(path, refusal))
    try:
        if start.startswith(TIFF_STARTS):
            reader: Reader = TiffReader(path)
        elif kind := next((kind for magic, kind in PICTURE_STARTS.items() if start.startswith(magic)), None):
            reader = PictureReader(path, kind)
        else:
            raise SlideError(f"{path}: {refusal}. Is the file whole?" if refusal else _no_slide(path, start))
    except Damaged as error:
        raise SlideError(f"{path}: the file is damaged or truncated: {refusal or error}. Copy it again.") from error
    if refusal:
        reader.facts = _with_warning(reader.facts, f"{refusal}. It is read with {reader.facts.reader} instead.")
    return _named(path, reader)


def true_downsamples(sizes: tuple[Size, ...], stated: tuple[float, ...] | None = None) -> tuple[float, ...]:
    """How much coarser each level is: a whole number where the rounding of its size allows one.

    A level of 702 px of a slide of 1403 is half of it with the last half pixel rounded up; 1403 / 702 would shift what lies
    far from the corner.

    >>> true_downsamples(((1403, 1001), (702, 501), (350, 250), (561, 400)))
    (1.0, 2.0, 4.0, 2.50...)
    """
    width, height = sizes[0]
    ratios = [(width / w + height / h) / 2 for w, h in sizes] if stated is None else stated
    wholes = [float(round(ratio)) for ratio in ratios]
    return tuple(
        whole if whole >= 1 and abs(width / whole - w) < 1 and abs(height / whole - h) < 1 else float(ratio)
        for (w, h), ratio, whole in zip(sizes, ratios, wholes, strict=True)
    )


def in_bands(size: Size, convert: Callable[[slice], Pixels]) -> Pixels:
    """Pixels whose rows are converted a few at a time, so that a conversion needs little memory beside its result.

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
    """Lay pixels with transparency on white.

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
            raise SlideError(f"{path} is a folder; a slide is a file. find_slides(folder) lists those below it.")
        if path.is_symlink() and not path.exists():
            where = os.readlink(path)
            raise SlideError(f"{path} is a link to {where}, which is not there. Mount the disk, or remove the link.")
        if path.exists() and not path.is_file():
            raise SlideError(f"{path} is not a regular file, and cannot be a slide. Remove it.")
        with path.open("rb") as file:
            start = file.read(16)
    except FileNotFoundError:
        raise SlideError(f"{path}: there is no such file.") from None
    except PermissionError:
        raise SlideError(f"{path}: you have no permission to read it. Ask its owner, or chmod u+r.") from None
    except OSError as error:
        raise SlideError(f"{path}: cannot be read: {error.strerror}.") from error
    if not start:
        raise SlideError(f"{path} is empty (0 bytes). The copy was probably cut off: copy it again.")
    return start


def _hollow(path: Path, refusal: str) -> str:
    folder = path.with_name(HOLLOW[path.suffix.lower()].format(path.stem))
    state = "is there" if folder.is_dir() else "is not there: copy it, too"
    why = f" {refusal}." if refusal else " If it is whole, convert the slide to OME-TIFF."
    return f"{path} is only the cover of a slide whose pixels are in the folder {folder.name}, which {state}.{why}"


def _no_slide(path: Path, start: bytes) -> str:
    size = os.path.getsize(path)
    return (
        f"{path} is not a slide, or of a kind that is not known here: its {size} bytes begin with {start[:8]!r}. "
        "OpenSlide's formats, TIFF, PNG and JPEG are read."
    )


def _named(path: Path, reader: Reader) -> Reader:
    """Warn of a name that says another format than the content."""
    suffix, kind = path.suffix.lower(), reader.facts.vendor
    if reader.facts.reader == "image":
        wrong = suffix not in PICTURE_SUFFIXES[kind]
    else:
        wrong = any(suffix in suffixes for suffixes in PICTURE_SUFFIXES.values())
    if wrong:
        said = f"the name ends in {suffix or 'nothing'}, but the content is {kind}; it is read by its content."
        reader.facts = _with_warning(reader.facts, said)
    return reader


def _with_warning(facts: Facts, warning: str) -> Facts:
    return replace(facts, warnings=(*facts.warnings, warning))
