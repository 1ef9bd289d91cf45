"""Slides of scanners through OpenSlide: SVS, NDPI, MRXS, SCN, BIF, DICOM and others."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from scmil.core.extras import need
from scmil.slides.readers import MOST_PX_AT_ONCE, Damaged, Facts, Pixels, Size, on_white, true_downsamples
from scmil.slides.resolution import UM_IN, number, of_density


def vendor_of(path: Path) -> str | None:
    """The name that OpenSlide has for the format, if it knows it; "generic-tiff" for a TIFF of no scanner."""
    openslide = need("openslide", "slides")
    try:
        return openslide.OpenSlide.detect_format(path)
    except openslide.OpenSlideError:
        return None


class OpenSlideReader:
    """A file that OpenSlide reads. After an error OpenSlide refuses all further work, so the file is opened anew then."""

    def __init__(self, path: Path) -> None:
        self._library = need("openslide", "slides")
        self._path = path
        self._slide = self._open()
        self._stated: tuple[float, ...] = self._slide.level_downsamples
        self.facts = self._facts()

    def _open(self) -> Any:
        try:
            return self._library.OpenSlide(self._path)
        except self._library.OpenSlideError as error:
            raise Damaged(str(error)) from error

    def _facts(self) -> Facts:
        said, sizes = self._properties(), self._slide.level_dimensions
        tile = self._tile(said, 0)
        for level in range(len(sizes)):
            self._check_tile(said, level)
        objective = number(said.get("openslide.objective-power")) or number(said.get("aperio.AppMag"))
        mpp = tuple(number(said.get(f"openslide.mpp-{axis}")) for axis in "xy")
        density = number(said.get("tiff.XResolution")), number(said.get("tiff.YResolution"))
        return Facts(
            reader="openslide",
            vendor=said["openslide.vendor"],
            level_sizes=sizes,
            level_downsamples=true_downsamples(sizes, self._stated),
            storage_tile=(int(tile[0]), int(tile[1])) if tile[0] and tile[1] else None,
            mpp_xy=(
                (mpp[0], mpp[1])
                if mpp[0] and mpp[1]
                else of_density(density, UM_IN.get(said.get("tiff.ResolutionUnit", "")))
            ),
            objective=objective,
            properties=said,
            associated=tuple(self._slide.associated_images),
        )

    def _tile(self, said: dict[str, str], level: int) -> tuple[float | None, float | None]:
        width, height = (number(said.get(f"openslide.level[{level}].tile-{side}")) for side in ("width", "height"))
        return width, height

    def _check_tile(self, said: dict[str, str], level: int) -> None:
        """Refuse tiles that no memory holds: OpenSlide would end the whole process over them."""
        width, height = self._tile(said, level)
        if width and height and width * height > MOST_PX_AT_ONCE:
            raise Damaged(
                f"level {level} has tiles of {width:.0f} x {height:.0f} px, and {MOST_PX_AT_ONCE} px is the most"
            )

    def _properties(self) -> dict[str, str]:
        said = {}
        for key in self._slide.properties:
            with suppress(KeyError, UnicodeDecodeError):  # a property of a damaged header may have no text
                said[key] = self._slide.properties[key]
        return said

    def region(self, level: int, xy: Size, size: Size) -> Pixels:
        """The pixels of a level, transparent ones white."""
        at = tuple(int(self._asked(level, coordinate)) for coordinate in xy)
        try:
            image = self._slide.read_region(at, level, size)
        except self._library.OpenSlideError:
            # The error may be another thread's: only a fresh handle tells whether this region is readable.
            fresh = self._open()
            try:
                image = fresh.read_region(at, level, size)
            except self._library.OpenSlideError as error:
                raise Damaged(str(error)) from error
            self._slide = fresh
        if image.getchannel("A").getextrema()[0] == 255:  # pillow drops the fourth channel faster than NumPy
            return np.array(image.convert("RGB"))
        rgba = np.asarray(image)
        return on_white(rgba[..., :3], rgba[..., 3])

    def _asked(self, level: int, at: int) -> int:
        return round(at * self._stated[level])

    def origin(self, level: int, at: int) -> float:
        """OpenSlide takes whole level-0 pixels and divides by its own downsample: what it then gives lies here."""
        return self._asked(level, at) / self._stated[level] * self.facts.level_downsamples[level]

    def close(self) -> None:
        """Close the slide."""
        self._slide.close()
