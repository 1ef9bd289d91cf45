"""Reader for the formats of OpenSlide: SVS, NDPI, MRXS, SCN, BIF, DICOM and others."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from scmil.core.extras import import_extra
from scmil.errors import SlideError
from scmil.slides.readers import (
    MOST_PX_AT_ONCE,
    Damaged,
    Facts,
    Pixels,
    Size,
    on_white,
    true_downsamples,
)
from scmil.slides.readers.aperio_tiles import AperioTiles
from scmil.slides.readers.jpeg import Corrupt
from scmil.slides.resolution import UM_IN, mpp_of_density, parse_positive

CACHE_BYTES = 4 * 2**20  # of OpenSlide, for slides whose tiles are decoded without it


def vendor_of(path: Path) -> str | None:
    """OpenSlide's name of the format, None if unknown; "generic-tiff" for a TIFF of no scanner."""
    openslide = import_extra("openslide", "slides")
    try:
        return openslide.OpenSlide.detect_format(path)
    except openslide.OpenSlideError:
        return None


class OpenSlideReader:
    """A file that OpenSlide reads.

    After an error, an OpenSlide handle raises for every further call, so the file is opened again.
    """

    def __init__(self, path: Path) -> None:
        self._library = import_extra("openslide", "slides")
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
        properties, sizes = self._properties(), self._slide.level_dimensions
        tile = self._tile(properties, 0)
        for level in range(len(sizes)):
            self._check_tile(properties, level)
        objective = parse_positive(properties.get("openslide.objective-power")) or parse_positive(
            properties.get("aperio.AppMag")
        )
        mpp = tuple(parse_positive(properties.get(f"openslide.mpp-{axis}")) for axis in "xy")
        x, y = (parse_positive(properties.get(f"tiff.{axis}Resolution")) for axis in "XY")
        return Facts(
            reader="openslide",
            vendor=properties["openslide.vendor"],
            level_sizes=sizes,
            level_downsamples=true_downsamples(sizes, self._stated),
            storage_tile=(int(tile[0]), int(tile[1])) if tile[0] and tile[1] else None,
            mpp_xy=(
                (mpp[0], mpp[1])
                if mpp[0] and mpp[1]
                else mpp_of_density((x, y), UM_IN.get(properties.get("tiff.ResolutionUnit", "")))
            ),
            objective=objective,
            properties=properties,
            associated=tuple(self._slide.associated_images),
        )

    def _tile(self, properties: dict[str, str], level: int) -> tuple[float | None, float | None]:
        width, height = (
            parse_positive(properties.get(f"openslide.level[{level}].tile-{side}"))
            for side in ("width", "height")
        )
        return width, height

    def _check_tile(self, properties: dict[str, str], level: int) -> None:
        """Reject tiles that do not fit into memory: OpenSlide would abort the process."""
        width, height = self._tile(properties, level)
        if width and height and width * height > MOST_PX_AT_ONCE:
            raise Damaged(
                f"level {level} has tiles of {width:.0f} x {height:.0f} px, at most "
                f"{MOST_PX_AT_ONCE} px are supported"
            )

    def _properties(self) -> dict[str, str]:
        properties = {}
        for key in self._slide.properties:
            # A property of a damaged header may have no text.
            with suppress(KeyError, UnicodeDecodeError):
                properties[key] = self._slide.properties[key]
        return properties

    def region(self, level: int, xy: Size, size: Size) -> Pixels:
        """Read pixels of a level; transparent pixels are white."""
        # Between two pixels of a level OpenSlide interpolates.
        if self._tiles is not None and self._stated[level].is_integer():
            try:
                if self._tiles.agrees(level):
                    return self._tiles.region(level, xy, size)
            except Corrupt:
                raise
            except Damaged:  # or a tile that OpenSlide fills, or a rare kind of JPEG
                pass
        image = self._image(level, xy, size)
        # Pillow drops the fourth channel faster than NumPy.
        if image.getchannel("A").getextrema()[0] == 255:
            return np.array(image.convert("RGB"))
        rgba = np.asarray(image)
        return on_white(rgba[..., :3], rgba[..., 3])

    @cached_property
    def _tiles(self) -> AperioTiles | None:
        """The tiles of the file, if they can be decoded without OpenSlide."""
        if self.facts.vendor != "aperio":
            return None
        try:
            tiles = AperioTiles(self._path, self.facts.level_sizes, self._image)
        except (Damaged, SlideError):
            return None
        # Tiles that OpenSlide decodes are not read again, and memory that is used again is faster.
        self._slide.set_cache(self._library.OpenSlideCache(CACHE_BYTES))
        return tiles

    def _image(self, level: int, xy: Size, size: Size) -> Any:
        """Read pixels of a level with OpenSlide, as an image of Pillow in RGBA."""
        at = tuple(int(self._level0(level, coordinate)) for coordinate in xy)
        try:
            return self._slide.read_region(at, level, size)
        except self._library.OpenSlideError:
            # Another thread may have caused the error: a new handle shows whether this region can
            # be read.
            new_slide = self._open()
            try:
                image = new_slide.read_region(at, level, size)
            except self._library.OpenSlideError as error:
                raise Damaged(str(error)) from error
            self._slide = new_slide
            return image

    def _level0(self, level: int, at: int) -> int:
        return round(at * self._stated[level])

    def origin(self, level: int, at: int) -> float:
        """The level-0 coordinate of a pixel.

        OpenSlide takes whole level-0 pixels and divides them by its own downsample factor.
        """
        return self._level0(level, at) / self._stated[level] * self.facts.level_downsamples[level]

    def close(self) -> None:
        """Close the slide."""
        if (tiles := self.__dict__.get("_tiles")) is not None:  # opened by the first region
            tiles.close()
        self._slide.close()
