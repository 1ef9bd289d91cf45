"""Windows of a slide at any scale: read from the nearest finer level and averaged."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scmil.core.extras import import_extra
from scmil.slides.readers import Pixels, Reader, Size

Box = tuple[float, float, float, float]  # left, top, right, bottom in level-0 pixels

UNNOTICED_PX = 0.02  # a shift of at most this is accepted to avoid the blur of resampling
# A level may be coarser than requested by this factor, since sizes of levels are rounded.
COARSER_BY = 1.01
BLOCK_PX = 2**24  # a window that needs more pixels is read in parts
# With the margin for resampling, at most twice as many: memory stays below 300 MB.
MARGIN = 2
# Pixels of the file for one window: a level of 131 072 px per side is read, a larger one rejected.
MOST_PX = 2**34
LARGE_PX = 2**28  # windows with fewer pixels are read from files of any size
PX_PER_BYTE = 200  # limit for larger windows; white tiles in JPEG have about 70


class TooLarge(Exception):
    """A window that needs too many pixels of the file; `Slide` adds the path."""


def read_window(reader: Reader, box: Box, size: Size, stored: Callable[[], int]) -> Pixels:
    """Read a box of a slide and resize it to `size`; white outside the slide.

    Large boxes are read in parts with a bounded number of pixels. `stored` returns the size of the
    file in bytes: a small file whose pixels would take minutes to read is damaged or malicious.
    """
    level = _level(reader, box, size)
    needed = _area(_clip_to_slide(reader, box)) / reader.facts.level_downsamples[level] ** 2
    most = MOST_PX if needed <= LARGE_PX else min(MOST_PX, max(LARGE_PX, PX_PER_BYTE * stored()))
    if needed > most:
        raise TooLarge(
            f"{size[0]} x {size[1]} px need {needed:.3g} px of the file, at most {most} are read"
        )
    return _window(reader, box, size)


def _window(reader: Reader, box: Box, size: Size) -> Pixels:
    (left, top, right, bottom), (width, height) = box, size
    level = _level(reader, box, size)
    if not _fits_in_memory(reader, level, box, size):
        if not _area(_clip_to_slide(reader, box)):
            return np.full((height, width, 3), 255, np.uint8)
        return _in_halves(reader, box, size) if max(size) > 1 else _one_pixel(reader, level, box)
    across = _exact(reader, level, left, right, width)
    down = _exact(reader, level, top, bottom, height)
    if across and down:
        return _averaged(reader, level, across, down, size)
    return _resampled(reader, level, box, size)


def level_for(downsamples: tuple[float, ...], factor: float) -> int:
    """The coarsest level whose downsample is at most `factor`; the finest if there is none.

    >>> [level_for((1.0, 4.0, 16.0), factor) for factor in (8.0, 3.99, 0.5)]
    [1, 1, 0]
    """
    fine = [level for level, by in enumerate(downsamples) if by <= factor * COARSER_BY]
    return max(fine, key=lambda level: downsamples[level], default=0)


def _level(reader: Reader, box: Box, size: Size) -> int:
    return level_for(
        reader.facts.level_downsamples,
        min((box[2] - box[0]) / size[0], (box[3] - box[1]) / size[1]),
    )


def _area(box: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def _clip_to_slide(reader: Reader, box: Box) -> Box:
    """The part of a box that lies on the slide; its area may be 0."""
    width, height = reader.facts.level_sizes[0]
    left, top = min(max(box[0], 0), width), min(max(box[1], 0), height)
    return left, top, max(min(box[2], width), left), max(min(box[3], height), top)


def _fits_in_memory(reader: Reader, level: int, box: Box, size: Size) -> bool:
    """Whether a window can be read at once, without and with its margin for resampling."""
    needed = _area(box) / reader.facts.level_downsamples[level] ** 2
    return (
        needed <= BLOCK_PX and needed * (1 + 2 / size[0]) * (1 + 2 / size[1]) <= MARGIN * BLOCK_PX
    )


class _Exact(NamedTuple):
    """A span that starts at a pixel border of the level and is reduced by an integer factor."""

    start: int
    each: int


class _Padded(NamedTuple):
    """Pixels of the level that contain a span, and the position of the span in them."""

    start: int
    length: int
    low: float
    high: float


def _exact(reader: Reader, level: int, low: float, high: float, size: int) -> _Exact | None:
    by = reader.facts.level_downsamples[level]
    start, scale = round(low / by), (high - low) / by / size
    each, shift = round(scale), (low - reader.origin(level, start)) / by
    drift = abs(scale - each) * size
    return (
        _Exact(start, each)
        if each >= 1 and abs(shift) <= UNNOTICED_PX and drift <= UNNOTICED_PX
        else None
    )


def _padded(reader: Reader, level: int, low: float, high: float, size: int, axis: int) -> _Padded:
    by, extent = reader.facts.level_downsamples[level], reader.facts.level_sizes[level][axis]
    # The reach of the averages of the first and the last pixel.
    margin = math.ceil((high - low) / by / size) + 1
    first, last = math.floor(low / by), math.ceil(high / by)
    # The margin contains pixels of the slide only, never the white around it.
    start = min(first, max(first - margin, 0))
    while reader.origin(level, start) > low:
        start -= 1
    offset = (low - reader.origin(level, start)) / by
    end = offset + (high - low) / by
    stop = max(last, min(last + margin, extent))
    return _Padded(start, max(stop - start, math.ceil(end)), offset, end)


def _averaged(reader: Reader, level: int, across: _Exact, down: _Exact, size: Size) -> Pixels:
    pixels = reader.region(
        level, (across.start, down.start), (size[0] * across.each, size[1] * down.each)
    )
    if across.each == down.each == 1:
        return pixels
    return np.array(
        import_extra("PIL.Image", "slides").fromarray(pixels).reduce((across.each, down.each))
    )


def _resampled(reader: Reader, level: int, box: Box, size: Size) -> Pixels:
    pillow = import_extra("PIL.Image", "slides")
    x = _padded(reader, level, box[0], box[2], size[0], axis=0)
    y = _padded(reader, level, box[1], box[3], size[1], axis=1)
    image = pillow.fromarray(reader.region(level, (x.start, y.start), (x.length, y.length)))
    # Pillow's bilinear filter widens with the reduction factor, so that it averages; unlike its box
    # filter it does not shift the image.
    return np.array(
        image.resize(size, pillow.Resampling.BILINEAR, box=(x.low, y.low, x.high, y.high))
    )


def _in_halves(reader: Reader, box: Box, size: Size) -> Pixels:
    # A strip is always decoded completely, so a file of strips is cut into bands of its full width
    # as long as possible.
    axis = 1 if size[1] > 1 and (size[1] > size[0] or reader.facts.storage_tile is None) else 0
    first = size[axis] // 2
    middle = box[axis] + (box[axis + 2] - box[axis]) * first / size[axis]
    one_box, other_box, one_size, other_size = list(box), list(box), list(size), list(size)
    one_box[axis + 2] = other_box[axis] = middle
    one_size[axis], other_size[axis] = first, size[axis] - first
    one = _window(
        reader, (one_box[0], one_box[1], one_box[2], one_box[3]), (one_size[0], one_size[1])
    )
    other = _window(
        reader,
        (other_box[0], other_box[1], other_box[2], other_box[3]),
        (other_size[0], other_size[1]),
    )
    return np.concatenate([one, other], axis=1 - axis)


def _one_pixel(reader: Reader, level: int, box: Box) -> Pixels:
    """The average of a box that is too large to be read at once, including the white around the
    slide.
    """
    by, inside = reader.facts.level_downsamples[level], _clip_to_slide(reader, box)
    left, top = math.floor(inside[0] / by), math.floor(inside[1] / by)
    right, bottom = max(round(inside[2] / by), left + 1), max(round(inside[3] / by), top + 1)
    across = min(right - left, BLOCK_PX)
    down = max(BLOCK_PX // across, 1)
    sums = np.zeros(3, np.uint64)
    for y in range(top, bottom, down):
        for x in range(left, right, across):
            band = reader.region(level, (x, y), (min(across, right - x), min(down, bottom - y)))
            sums += (
                band.reshape(len(band), -1)
                .sum(0, dtype=np.uint32)
                .reshape(-1, 3)
                .sum(0, dtype=np.uint64)
            )
    share = _area(inside) / _area(box)
    mean = sums / ((right - left) * (bottom - top))
    return np.rint(mean * share + 255 * (1 - share)).astype(np.uint8).reshape(1, 1, 3)
