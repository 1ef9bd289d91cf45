"""Write a pyramidal TIFF from a function that returns single tiles, in bounded memory."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scmil.core.atomic import atomic_path
from scmil.core.extras import import_extra

TILE = 256
SMALLEST_PX = 512  # levels are added until the longer side has at most this many pixels
# "painted" is part of the file format: slides of earlier versions are recognised by it.
RECIPE = re.compile(r"painted by scmil.*\|Recipe = (\w+)", re.DOTALL)
BIG = 4_000_000_000  # more pixels may exceed the 4 GB of a classic TIFF
Pixels: TypeAlias = NDArray[np.uint8]
Encode: TypeAlias = Callable[[Pixels], bytes]


class SceneTile(NamedTuple):
    """Pixels (256, 256, 3), and a key that tiles with the same pixels share; None if unique."""

    pixels: Pixels
    key: Hashable = None


def write_pyramid(
    path: Path,
    size: tuple[int, int],
    tile: Callable[[int, int], SceneTile],
    mpp: float,
    step: int = 4,
    quality: int = 85,
    recipe: str = "",
) -> None:
    """Write a slide in the format of Aperio scanners: JPEG tiles, a thumbnail and levels.

    Args:
        path: The file; it is written atomically.
        size: Width and height in pixels.
        tile: Returns the tile with the top-left pixel (x, y).
        mpp: Microns per pixel.
        step: Downsample factor between levels.
        quality: JPEG quality.
        recipe: A digest of the options, stored in the file, see `read_recipe`.
    """
    tifffile, imagecodecs = (
        import_extra("tifffile", "slides"),
        import_extra("imagecodecs", "slides"),
    )

    def encode(pixels: Pixels) -> bytes:
        return imagecodecs.jpeg8_encode(
            pixels,
            quality,
            colorspace="RGB",
            outcolorspace="YCBCR",
            subsampling="422",
            optimize=False,
        )

    common = dict(
        photometric="ycbcr", compression="jpeg", subsampling=(2, 1), dtype=np.uint8, metadata=None
    )
    resolution = dict(resolution=(10_000 / mpp, 10_000 / mpp), resolutionunit="CENTIMETER")
    with (
        ExitStack() as stack,
        atomic_path(path) as temporary,
        tifffile.TiffWriter(temporary, bigtiff=size[0] * size[1] > BIG) as file,
    ):
        levels = [
            Level(each, step, encode, stack.enter_context(tempfile.TemporaryFile()))
            for each in pyramid_sizes(size, step)[1:]
        ]
        pages = [
            (size, _first_level(size, tile, step, encode, levels)),
            *((each.size, each.read()) for each in levels),
        ]
        for number, ((width, height), tiles) in enumerate(pages):
            file.write(
                tiles,
                shape=(height, width, 3),
                tile=(TILE, TILE),
                description=_description(size, (width, height), mpp, quality, recipe),
                software=False,
                **common,
                **resolution,
            )
            if number == 0:
                thumbnail = levels[-1].top()
                about = _description(size, thumbnail.shape[1::-1], mpp, quality, recipe)
                file.write(
                    thumbnail,
                    photometric="rgb",
                    metadata=None,
                    description=about,
                    software=False,
                )


def pyramid_sizes(size: tuple[int, int], step: int) -> list[tuple[int, int]]:
    """Width and height of each level, the first included.

    >>> pyramid_sizes((20_000, 10_000), step=4)
    [(20000, 10000), (5000, 2500), (1250, 625), (312, 156)]
    """
    sizes = [size]
    while max(sizes[-1]) > SMALLEST_PX:
        sizes.append((sizes[-1][0] // step, sizes[-1][1] // step))
    return sizes


def means(pixels: Pixels, step: int) -> Pixels:
    """The mean of each `step` by `step` square of pixels.

    >>> means(np.array([[[1], [2]], [[3], [6]]], np.uint8), 2)
    array([[[3]]], dtype=uint8)
    """
    rows = pixels[0::step].astype(np.uint16)
    for i in range(1, step):
        rows += pixels[i::step]
    total = rows[:, 0::step].copy()
    for i in range(1, step):
        total += rows[:, i::step]
    return ((total + step * step // 2) // (step * step)).astype(np.uint8)


class Level:
    """A level above the first: rows are collected into rows of tiles, which are encoded and
    spooled.
    """

    def __init__(self, size: tuple[int, int], step: int, encode: Encode, spool: IO[bytes]) -> None:
        self.size, self.step, self.encode, self.spool = size, step, encode, spool
        self.columns, self.rows_of_tiles = (-(-length // TILE) for length in size)
        self.lengths: list[int] = []
        self.strip = np.full((TILE, self.columns * TILE, 3), 255, np.uint8)
        self.filled = 0
        self.last: list[Pixels] = []

    def add(self, rows: Pixels, above: list[Level]) -> None:
        """Add rows; the means of a full row of tiles are added to the next level."""
        width = min(rows.shape[1], self.strip.shape[1])
        self.strip[self.filled : self.filled + len(rows), :width] = rows[:, :width]
        self.filled += len(rows)
        if self.filled == TILE:
            self.flush(above)

    def flush(self, above: list[Level]) -> None:
        """Encode the collected rows."""
        if len(self.lengths) < self.columns * self.rows_of_tiles:
            for column in range(self.columns):
                content = self.encode(
                    np.ascontiguousarray(self.strip[:, column * TILE : (column + 1) * TILE])
                )
                self.lengths.append(self.spool.write(content))
        if above:
            above[0].add(means(self.strip, self.step), above[1:])
        else:
            self.last.append(self.strip.copy())
        self.filled = 0
        self.strip[:] = 255

    def read(self) -> Iterator[bytes]:
        """The encoded tiles, in order."""
        self.spool.seek(0)
        for length in self.lengths:
            yield self.spool.read(length)

    def top(self) -> Pixels:
        """All pixels of the last level, which is small."""
        return np.concatenate(self.last)[: self.size[1], : self.size[0]]


def _first_level(
    size: tuple[int, int],
    tile: Callable[[int, int], SceneTile],
    step: int,
    encode: Encode,
    levels: list[Level],
) -> Iterator[bytes]:
    """Encode the tiles and add their means to the next level; tiles of one key are encoded once."""
    known: dict[Hashable, tuple[bytes, Pixels]] = {}
    for y in range(0, size[1], TILE):
        contents, smaller = [], []
        for x in range(0, size[0], TILE):
            pixels, key = tile(x, y)
            content, small = known.get(key) or (encode(pixels), means(pixels, step))
            if key is not None:
                known[key] = content, small
            contents.append(content)
            smaller.append(small)
        levels[0].add(np.concatenate(smaller, axis=1), levels[1:])
        if y + TILE >= size[1]:  # before the last tile is yielded: none is requested after it
            _flush_levels(levels)
        yield from contents


def _flush_levels(levels: list[Level]) -> None:
    for number, level in enumerate(levels):
        if level.filled:
            level.flush(levels[number + 1 :])


def read_recipe(path: Path) -> str | None:
    """The digest of the options of a synthetic slide; None if there is no such slide."""
    try:
        with import_extra("tifffile", "slides").TiffFile(path) as file:
            found = RECIPE.search(file.pages[0].description)
    except (OSError, ValueError):
        return None
    return found[1] if found else None


def _description(
    size: tuple[int, int], level: tuple[int, ...], mpp: float, quality: int, recipe: str
) -> str:
    """The description by which readers recognise an Aperio slide, its resolution and objective."""
    (width, height), (w, h) = size, level[:2]
    scaled = "" if size == level else f" -> {w}x{h}"
    return (
        f"Aperio Image Library (painted by scmil)\r\n{width}x{height} "
        f"[0,0 {width}x{height}]{scaled} ({TILE}x{TILE}) "
        f"JPEG/RGB Q={quality}|AppMag = {10 / mpp:.4g}|MPP = {mpp:.6g}|Recipe = {recipe}"
    )
