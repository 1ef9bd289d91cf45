"""The JPEG tiles of Aperio slides, without OpenSlide's compositing.

OpenSlide decodes a tile of 256 px in 0.18 ms and composites it in 0.62 ms. Here tiles are decoded
with imagecodecs, which takes 0.16 ms and returns the same pixels. imagecodecs does not report
damaged JPEG data, so OpenSlide decodes each tile as well: one pixel is read, which is composited in
no time, and a damaged tile raises OpenSlide's error.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from scmil.slides.readers import Damaged, Pixels, Size
from scmil.slides.readers.by_tifffile import TiffReader, segment_size

JPEG, CONTIGUOUS = 7, 1
# Reads an image of a level with OpenSlide, from its pixel (x, y).
Composite = Callable[[int, Size, Size], Any]


class AperioTiles(TiffReader):
    """The tiles of a slide, each decoded only if OpenSlide decodes it without an error.

    Args:
        path: The slide.
        level_sizes: Width and height of the levels of OpenSlide.
        composite: Reads an image with OpenSlide; raises Damaged if a tile is damaged.

    Raises:
        Damaged: If the file is not one of tiles in JPEG with the levels of OpenSlide.
        SlideError: If it has unsupported pixels.
    """

    def __init__(self, path: Path, level_sizes: tuple[Size, ...], composite: Composite) -> None:
        super().__init__(path)
        self._composite, self._checking = composite, Lock()
        self._same: dict[int, bool] = {}
        if self.facts.level_sizes != level_sizes or not all(map(_in_jpeg, self._pages)):
            self.close()
            raise Damaged("not the JPEG tiles of OpenSlide's levels")

    def _levels(self) -> list[Any]:
        """The pages in tiles, as in OpenSlide; other pages are associated images."""
        pages = [page for page in self._file.pages if page.is_tiled]
        for page in pages:
            self._check(page)
        return pages

    def agrees(self, level: int) -> bool:
        """Whether the pixels of a level are those of OpenSlide, on the tile with most content."""
        with self._checking:
            if level not in self._same:
                self._same[level] = self._compare(level)
            return self._same[level]

    def _compare(self, level: int) -> bool:
        page = self._pages[level]
        index = int(np.argmax(page.databytecounts))
        (x, y), (across, down) = _corner(page, index), segment_size(page)
        size = min(across, page.imagewidth - x), min(down, page.imagelength - y)
        try:
            image = self._composite(level, (x, y), size)
            pixels = self.region(level, (x, y), size)
        except Damaged:
            return False
        return np.array_equal(pixels, np.asarray(image.convert("RGB")))

    def _decoded(self, level: int, index: int) -> Pixels:
        page = self._pages[level]
        if not page.databytecounts[index]:
            raise Damaged("a tile was never written: OpenSlide fills it from another level")
        self._composite(level, _corner(page, index), (1, 1))
        return super()._decoded(level, index)


def _in_jpeg(page: Any) -> bool:
    return bool(
        page.is_tiled and int(page.compression) == JPEG and int(page.planarconfig) == CONTIGUOUS
    )


def _corner(page: Any, index: int) -> Size:
    across, down = segment_size(page)
    row, column = divmod(index, -(-page.imagewidth // across))
    return column * across, row * down
