"""Tile scores as a pyramidal TIFF in the geometry of the slide, to overlay it in a slide viewer."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scmil.core.atomic import atomic_path
from scmil.core.extras import import_extra
from scmil.viz.drawing.colour_scale import Numbers, Scale
from scmil.viz.drawing.tiles import raster

TILE_PX = 32  # width of a tile in the overlay: sharp edges, small file
STORED_PX = 256
# Size of the colour table, which is faster than interpolation and finer than 8 bits.
COLOURS = 2**16
SMALLEST_PX = 512  # levels are added until the longer side is at most this


def write_overlay(
    path: str | Path,
    size: tuple[int, int],
    mpp: float,
    xy: NDArray[Any],
    side: float,
    scores: NDArray[Any],
    scale: Scale,
) -> None:
    """Write the colours of tiles as a tiled, pyramidal, lossless RGBA TIFF, transparent without
    tiles.

    A tile is 32 pixels wide, and the microns per pixel are those of the slide times `side / 32`, so
    that the extent is that of the slide up to one pixel. The file is written one row of TIFF tiles
    at a time, so that memory does not grow with the height.

    >>> import tempfile, openslide
    >>> path = Path(tempfile.mkdtemp()) / "overlay.tiff"
    >>> xy, scores = np.array([[256, 512]]), np.array([1.0])
    >>> write_overlay(path, (4000, 2000), 0.25, xy, 256, scores, Scale(low=0, high=1))
    >>> with openslide.OpenSlide(path) as slide:
    ...     pixel = slide.read_region((40, 70), 0, (1, 1)).getpixel((0, 0))
    ...     slide.dimensions, float(slide.properties["openslide.mpp-x"]), pixel
    ((500, 250), 2.0, (255, 230, 50, 255))
    """
    tifffile = import_extra("tifffile", "slides")
    shares, downsample = scale.shares(scores), side / TILE_PX
    sizes = level_sizes((math.ceil(size[0] / downsample), math.ceil(size[1] / downsample)))
    extent = sizes[0][0] * downsample, sizes[0][1] * downsample
    with (
        atomic_path(Path(path)) as temporary,
        tifffile.TiffWriter(temporary, bigtiff=_may_be_big(sizes[0])) as file,
    ):
        for number, (width, height) in enumerate(sizes):
            per_cm = 10_000 / (mpp * extent[0] / width), 10_000 / (mpp * extent[1] / height)
            file.write(
                _stored_tiles(xy, side, shares, scale, extent, (width, height)),
                shape=(height, width, 4),
                dtype=np.uint8,
                tile=(STORED_PX, STORED_PX),
                photometric="rgb",
                extrasamples=("unassalpha",),
                compression="adobe_deflate",
                resolution=per_cm,
                resolutionunit="CENTIMETER",
                subfiletype=int(number > 0),
                description=f"scmil heatmap, {scale.description}; mpp = {mpp * downsample:.9g}"
                if number == 0
                else None,
                metadata=None,
                software=False,
            )


def level_sizes(size: tuple[int, int]) -> list[tuple[int, int]]:
    """Width and height of each level, half of the one before.

    >>> level_sizes((1500, 700))
    [(1500, 700), (750, 350), (375, 175)]
    """
    sizes = [size]
    while max(sizes[-1]) > SMALLEST_PX:
        sizes.append((math.ceil(sizes[-1][0] / 2), math.ceil(sizes[-1][1] / 2)))
    return sizes


def _stored_tiles(
    xy: NDArray[Any],
    side: float,
    shares: Numbers,
    scale: Scale,
    extent: tuple[float, float],
    size: tuple[int, int],
) -> Iterator[bytes]:
    """The compressed tiles of a level, row by row; every level is drawn from the scores, none
    from another level.
    """
    width, height = size
    by = extent[1] / height
    columns = math.ceil(width / STORED_PX)
    opaque = np.full((COLOURS, 1), 255)
    table = np.hstack([scale.colours(np.linspace(0, 1, COLOURS)), opaque]).astype(np.uint8)
    empty = zlib.compress(bytes(STORED_PX * STORED_PX * 4))
    for top in range(0, height, STORED_PX):
        rows = min(STORED_PX, height - top)
        window = 0, top * by, extent[0], (top + rows) * by
        near = (xy[:, 1] < window[3] + by) & (xy[:, 1] + side > window[1] - by)
        strip = np.zeros((STORED_PX, columns * STORED_PX, 4), np.uint8)
        if near.any():
            shown = raster(xy[near], side, shares[near], window, (width, rows))
            covered = np.isfinite(shown)
            strip[:rows, :width][covered] = table[
                np.rint(shown[covered] * (COLOURS - 1)).astype(np.int64)
            ]
        for left in range(0, columns * STORED_PX, STORED_PX):
            part = strip[:, left : left + STORED_PX]
            yield zlib.compress(part.tobytes(), 1) if part[..., 3].any() else empty


def _may_be_big(size: tuple[int, int]) -> bool:
    """Whether the file could pass the 4 GB of a classic TIFF, if nothing could be compressed."""
    return size[0] * size[1] * 4 * 4 / 3 > 2**32
