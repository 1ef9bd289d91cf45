"""A slide: pixels at any resolution, from whatever file they are in."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from scmil.errors import SlideError
from scmil.fingerprint import sampled_digest
from scmil.slides.find import first_of_series
from scmil.slides.readers import MOST_PX_AT_ONCE, Damaged, Pixels, Reader, Size, open_reader
from scmil.slides.resolution import resolve
from scmil.slides.window import TooLarge, read_window

SCANNER_WORDS = ("scanner", "scanscope", "make", "model", "manufacturer", "device", "software", "date")


class Slide:
    """An open slide: coordinates are level-0 pixels (x, y), resolution is microns per pixel. `open_slide` makes one.

    Many threads may read at once. A slide that goes to another process is opened there anew.
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
        """What identifies the slide, whatever its name: see `slide_digest`."""
        return slide_digest(self.path)

    @property
    def mpp(self) -> float:
        """Microns per level-0 pixel; if nobody knows them, an error that says what to do."""
        if self.known_mpp is None:
            raise SlideError(
                f"slide {self.id!r} says neither its resolution (mpp, microns per pixel) nor its objective. Give the mpp in "
                "a column 'mpp' of the table of slides; or with --mpp-of, in Python open_slide(path, mpp=0.25); and if all "
                "you know is the objective, it is 10 / power: 0.25 for x40, 0.5 for x20."
            )
        return self.known_mpp

    def read(self, xy: Sequence[float], size_px: int | Size, mpp: float) -> Pixels:
        """Read `size_px` pixels of `mpp` microns each, from the level-0 corner (x, y) on; white outside the slide.

        The window is exact, size_px * mpp microns wide, whatever levels the file has: it is read from the nearest level that
        is not coarser, and averaged down from there.
        """
        width, height = size_px if isinstance(size_px, tuple) else (size_px, size_px)
        x, y = float(xy[0]), float(xy[1])
        if min(width, height) < 1 or not (math.isfinite(mpp) and mpp > 0 and math.isfinite(x + y)):
            raise SlideError(
                f"slide {self.id!r}: {width} x {height} px of {mpp} mpp at {x:g}, {y:g} cannot be read. "
                "Sizes and mpp must be positive, the place finite."
            )
        self._check_size(width, height)
        factor = mpp / self.mpp
        with self._damage_at(x, y):
            return read_window(self._reader, (x, y, x + width * factor, y + height * factor), (width, height))

    def region(self, level: int, xy: Size, size: Size) -> Pixels:
        """The pixels of a level as they are in the file; (x, y) are pixels of that level."""
        if not 0 <= level < len(self.level_sizes):
            raise SlideError(f"slide {self.id!r} has no level {level}: it has {len(self.level_sizes)}, counted from 0.")
        self._check_size(*size)
        by = self.level_downsamples[level]
        with self._damage_at(xy[0] * by, xy[1] * by):
            return self._reader.region(level, (int(xy[0]), int(xy[1])), (int(size[0]), int(size[1])))

    def thumbnail(self, longest_px: int = 1024) -> Pixels:
        """The whole slide, its longer side `longest_px`, or less if the slide has fewer pixels."""
        if longest_px < 1:
            raise SlideError(f"longest_px = {longest_px}: a thumbnail has at least 1 px.")
        factor = max(max(self.size) / longest_px, 1.0)
        size = max(round(self.size[0] / factor), 1), max(round(self.size[1] / factor), 1)
        self._check_size(*size)
        with self._damage_at(0, 0):
            return read_window(self._reader, (0, 0, *self.size), size)

    def _check_size(self, width: int, height: int) -> None:
        if width * height > MOST_PX_AT_ONCE:
            raise SlideError(
                f"slide {self.id!r}: {width} x {height} px are asked for, and {MOST_PX_AT_ONCE} px is the most at once. "
                "Read it in parts, or at a coarser resolution."
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
                f"{self.path}: {error}. Its smallest level has {levels} px: convert it to a pyramid, "
                "vips tiffsave in.tif out.tif --tile --pyramid"
            ) from error

    def close(self) -> None:
        """Let go of the file."""
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
    """Open a slide: whatever OpenSlide reads, TIFF of any kind, PNG, JPEG, or a folder of one DICOM series.

    `mpp`, microns per pixel of level 0, is for files that do not say it, or say it wrongly.

    >>> import tempfile
    >>> from PIL import Image
    >>> path = Path(tempfile.mkdtemp()) / "pink.png"
    >>> Image.new("RGB", (600, 400), (250, 180, 200)).save(path)
    >>> with open_slide(path, mpp=0.25) as slide:
    ...     slide, slide.read((100, 100), 64, mpp=0.7).mean((0, 1))
    (Slide('pink', 600 x 400 px, 0.25 mpp, PNG), array([250., 180., 200.]))
    """
    path = Path(path)
    if mpp is not None and not (math.isfinite(mpp) and mpp > 0):
        raise SlideError(f"{path}: mpp = {mpp}; microns per pixel are a positive number, as 0.25.")
    series = first_of_series(path) if os.path.isdir(path) else None
    return Slide(path, open_reader(series or path), mpp)


def describe(slide: Slide, tile_px: int = 256, tile_mpp: float = 0.5) -> dict[str, Any]:
    """What a person wants to know of a slide before work starts, as plain data for JSON."""
    mpp, (width, height) = slide.known_mpp, slide.size
    tiles = [int(side * mpp / (tile_px * tile_mpp)) for side in slide.size] if mpp else None
    return {
        "id": slide.id,
        "path": str(slide.path),
        "bytes": sum(file.stat().st_size for file in slide_files(slide.path)),
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
        "tiles_that_fit": {"size_px": tile_px, "mpp": tile_mpp, "count": tiles[0] * tiles[1]} if tiles else None,
        "scanner": {key: value for key, value in sorted(slide.properties.items()) if _of_scanner(key)},
        "associated_images": list(slide.associated),
        "warnings": list(slide.warnings),
    }


def slide_files(path: Path) -> list[Path]:
    """The files of a slide: one, those of a DICOM folder, or an MRXS or VSI with the folder that belongs to it."""
    beside = {".mrxs": path.with_suffix(""), ".vsi": path.with_name(f"_{path.stem}_")}
    folder = beside.get(path.suffix.lower(), path)
    files = {path, *(folder.rglob("*") if folder.is_dir() else ())}
    return sorted(file for file in files if file.is_file())


def slide_digest(path: str | os.PathLike[str]) -> str:
    """What identifies a slide, whatever its name: a digest of sizes and samples of its files, see `scmil.fingerprint`."""
    try:
        files = slide_files(Path(path))
        if not files:
            raise FileNotFoundError(2, "there is no such file", str(path))
        return sampled_digest(files)
    except OSError as error:
        raise SlideError(f"{path} cannot be read: {error.strerror}. Copy it again, or mount its disk.") from None


def _of_scanner(key: str) -> bool:
    return not key.startswith("openslide.") and any(word in key.lower() for word in SCANNER_WORDS)
