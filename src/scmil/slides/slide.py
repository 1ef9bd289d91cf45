"""Slides: open a file of any supported format and read pixels at any resolution."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from scmil.core.fingerprint import sampled_digest
from scmil.errors import SlideError
from scmil.slides.find import first_of_series
from scmil.slides.readers import MOST_PX_AT_ONCE, Damaged, Pixels, Reader, Size, open_reader
from scmil.slides.resolution import resolve
from scmil.slides.window import Box, TooLarge, read_window

SCANNER_WORDS = (
    "scanner",
    "scanscope",
    "make",
    "model",
    "manufacturer",
    "device",
    "software",
    "date",
)


class Slide:
    """An open slide, returned by `open_slide`.

    Coordinates are level-0 pixels (x, y), resolutions are microns per pixel. Several threads may
    read at once. A pickled slide is opened again when it is unpickled.
    """

    def __init__(self, path: Path, reader: Reader, mpp: float | None = None) -> None:
        self._reader, self._given = reader, mpp
        facts, resolution = reader.facts, resolve(reader.facts.mpp_xy, reader.facts.objective, mpp)
        self.path = path
        self.id = path.name if path.is_dir() else path.stem
        self.size = facts.level_sizes[0]
        self.known_mpp, self.mpp_source = resolution.mpp, resolution.source
        self.objective, self.vendor, self.reader = facts.objective, facts.vendor, facts.reader
        self.level_sizes, self.level_downsamples = facts.level_sizes, facts.level_downsamples
        self.storage_tile = facts.storage_tile
        self.properties, self.associated = facts.properties, facts.associated
        self.warnings = (*facts.warnings, *resolution.warnings)

    @cached_property
    def digest(self) -> str:
        """A digest that identifies the slide regardless of its name, see `slide_digest`."""
        return slide_digest(self.path)

    @property
    def stated_mpp(self) -> float | None:
        """Microns per pixel according to the file or its objective, even if others were given."""
        return resolve(self._reader.facts.mpp_xy, self.objective).mpp

    @property
    def mpp(self) -> float:
        """Microns per level-0 pixel; raises SlideError if they are unknown."""
        if self.known_mpp is None:
            raise SlideError(
                f"slide {self.id!r} contains neither its resolution (mpp, microns per pixel) nor "
                "its objective. Give the mpp with --mpp-of, as a number or as a table with the "
                "columns slide and mpp, or in Python with open_slide(path, mpp=0.25). If only the "
                "objective is known, mpp is 10 / magnification: 0.25 for x40, 0.5 for x20."
            )
        return self.known_mpp

    def with_mpp(self, mpp: float) -> Slide:
        """The same open slide with other microns per pixel than those of the file."""
        check_mpp(self.path, mpp)
        return Slide(self.path, self._reader, mpp)

    def read(self, xy: Sequence[float], size_px: int | Size, mpp: float) -> Pixels:
        """Read a window at any resolution; pixels outside the slide are white.

        The window is exactly size_px * mpp microns wide, whatever levels the file has. It is read
        from the nearest finer level and averaged.

        Args:
            xy: Top-left corner in level-0 pixels.
            size_px: Width and height of the result, or one number for both.
            mpp: Microns per pixel of the result.

        Returns:
            RGB pixels (height, width, 3) in uint8.

        Raises:
            SlideError: If the window is invalid or too large, or the file is damaged there.
        """
        width, height = size_px if isinstance(size_px, tuple) else (size_px, size_px)
        x, y = float(xy[0]), float(xy[1])
        if min(width, height) < 1 or not (math.isfinite(mpp) and mpp > 0 and math.isfinite(x + y)):
            raise SlideError(
                f"slide {self.id!r}: cannot read {width} x {height} px of {mpp} mpp at {x:g}, "
                f"{y:g}. Sizes and mpp must be positive, coordinates finite."
            )
        self._check_size(width, height)
        factor = mpp / self.mpp
        with self._damage_at(x, y):
            return self._window((x, y, x + width * factor, y + height * factor), (width, height))

    def region(self, level: int, xy: Size, size: Size) -> Pixels:
        """Read the stored pixels of a level; (x, y) are pixels of this level."""
        if not 0 <= level < len(self.level_sizes):
            raise SlideError(
                f"slide {self.id!r} has no level {level}: it has {len(self.level_sizes)} levels, "
                "numbered from 0."
            )
        self._check_size(*size)
        by = self.level_downsamples[level]
        with self._damage_at(xy[0] * by, xy[1] * by):
            return self._reader.region(
                level, (int(xy[0]), int(xy[1])), (int(size[0]), int(size[1]))
            )

    def thumbnail(self, longest_px: int = 1024) -> Pixels:
        """The whole slide, with at most `longest_px` pixels on its longer side."""
        if longest_px < 1:
            raise SlideError(f"longest_px = {longest_px}; expected at least 1.")
        factor = max(max(self.size) / longest_px, 1.0)
        size = max(round(self.size[0] / factor), 1), max(round(self.size[1] / factor), 1)
        self._check_size(*size)
        with self._damage_at(0, 0):
            return self._window((0, 0, *self.size), size)

    def _window(self, box: Box, size: Size) -> Pixels:
        return read_window(self._reader, box, size, lambda: _stored_bytes(self.path))

    def _check_size(self, width: int, height: int) -> None:
        if width * height > MOST_PX_AT_ONCE:
            raise SlideError(
                f"slide {self.id!r}: {width} x {height} px were requested, but at most "
                f"{MOST_PX_AT_ONCE} px can be read at once. Read it in parts, or at a coarser "
                "resolution."
            )

    @contextmanager
    def _damage_at(self, x: float, y: float) -> Iterator[None]:
        try:
            yield
        except Damaged as error:
            what = f"the file is damaged or truncated at {x:.0f}, {y:.0f}: {error}"
            raise SlideError(f"{self.path}: {what}. Copy it again.") from error
        except TooLarge as error:
            levels = " x ".join(map(str, self.level_sizes[-1]))
            raise SlideError(
                f"{self.path}: {error}. Its smallest level has {levels} px. Convert it to a "
                "pyramid: vips tiffsave in.tif out.tif --tile --pyramid"
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._reader.close()

    def __enter__(self) -> Slide:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return open_slide, (self.path, self._given)

    def __repr__(self) -> str:
        mpp = f"{self.known_mpp:.4g} mpp" if self.known_mpp else "mpp unknown"
        return f"Slide({self.id!r}, {self.size[0]} x {self.size[1]} px, {mpp}, {self.vendor})"


def open_slide(path: str | os.PathLike[str], mpp: float | None = None) -> Slide:
    """Open a slide.

    Supported are all formats of OpenSlide, TIFF and OME-TIFF, PNG, JPEG, and a folder with one
    DICOM series.

    Args:
        path: The slide.
        mpp: Microns per pixel of level 0, for files that do not contain it or contain a wrong
            value.

    Returns:
        The open slide; use it as a context manager, or call `close`.

    Raises:
        SlideError: If the file does not exist, is damaged, or is not a supported slide.

    >>> import tempfile
    >>> from PIL import Image
    >>> path = Path(tempfile.mkdtemp()) / "pink.png"
    >>> Image.new("RGB", (600, 400), (250, 180, 200)).save(path)
    >>> with open_slide(path, mpp=0.25) as slide:
    ...     slide, slide.read((100, 100), 64, mpp=0.7).mean((0, 1))
    (Slide('pink', 600 x 400 px, 0.25 mpp, PNG), array([250., 180., 200.]))
    """
    path = Path(path)
    if mpp is not None:
        check_mpp(path, mpp)
    series = first_of_series(path) if os.path.isdir(path) else None
    return Slide(path, open_reader(series or path), mpp)


def check_mpp(path: Path, mpp: float) -> None:
    """Raise if microns per pixel that were given for a slide are not a positive number."""
    if not (math.isfinite(mpp) and mpp > 0):
        raise SlideError(f"{path}: mpp = {mpp}; expected a positive number such as 0.25.")


def slide_metadata(slide: Slide, tile_px: int = 256, tile_mpp: float = 0.5) -> dict[str, Any]:
    """The metadata of a slide as plain data for JSON."""
    mpp, (width, height) = slide.known_mpp, slide.size
    tiles = [int(side * mpp / (tile_px * tile_mpp)) for side in slide.size] if mpp else None
    return {
        "id": slide.id,
        "path": str(slide.path),
        "bytes": _stored_bytes(slide.path),
        "format": slide.vendor,
        "reader": slide.reader,
        "size_px": [width, height],
        "size_mm": [round(side * mpp / 1000, 3) for side in slide.size] if mpp else None,
        "mpp": mpp,
        "mpp_source": slide.mpp_source,
        "objective": slide.objective,
        "levels": [
            {"size_px": list(size), "downsample": by, "mpp": mpp * by if mpp else None}
            for size, by in zip(slide.level_sizes, slide.level_downsamples, strict=True)
        ],
        "storage_tile": list(slide.storage_tile) if slide.storage_tile else None,
        "tiles_that_fit": {"size_px": tile_px, "mpp": tile_mpp, "count": tiles[0] * tiles[1]}
        if tiles
        else None,
        "scanner": {
            key: value
            for key, value in sorted(slide.properties.items())
            if _is_scanner_property(key)
        },
        "associated_images": list(slide.associated),
        "warnings": list(slide.warnings),
    }


def slide_files(path: Path) -> list[Path]:
    """The files of a slide: one file, those of a DICOM folder, or an MRXS or VSI file with its data
    folder.
    """
    beside = {".mrxs": path.with_suffix(""), ".vsi": path.with_name(f"_{path.stem}_")}
    folder = beside.get(path.suffix.lower(), path)
    files = {path, *(folder.rglob("*") if folder.is_dir() else ())}
    return sorted(file for file in files if file.is_file())


def _stored_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in slide_files(path))


def slide_digest(path: str | os.PathLike[str]) -> str:
    """A digest of sizes and samples of a slide's files, which identifies it regardless of its name.

    See `scmil.core.fingerprint`.
    """
    try:
        files = slide_files(Path(path))
        if not files:
            raise FileNotFoundError(2, "no such file", str(path))
        return sampled_digest(files)
    except OSError as error:
        raise SlideError(
            f"cannot read {path}: {error.strerror}. Copy it again, or mount its disk."
        ) from None


def _is_scanner_property(key: str) -> bool:
    return not key.startswith("openslide.") and any(word in key.lower() for word in SCANNER_WORDS)
