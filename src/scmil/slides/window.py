"""Windows of a slide at any scale: read from the nearest finer level, averaged down, never shifted."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from scmil.core.extras import need
from scmil.slides.readers import Pixels, Reader, Size

Box = tuple[float, float, float, float]  # left, top, right, bottom in level-0 pixels, whole or not

UNNOTICED_PX = 0.02  # a shift of so little is not worth the blur of resampling
COARSER_BY = 1.01  # a level may be coarser by so much than what is asked for; sizes are rounded, so it often is
BLOCK_PX = 2**24  # a window that needs more pixels of the file is read in parts
MARGIN = 2  # and so many times as many with the margin that resampling needs: memory stays below 300 MB
MOST_PX = 2**34  # of the file for one window: a level of 131 072 px a side is reduced, a larger one is rejected


class TooLarge(Exception):
    """A window that needs more pixels of the file than is reasonable to read; `Slide` adds the file."""


def read_window(reader: Reader, box: Box, size: Size) -> Pixels:
    """The pixels inside a box of a slide, brought to a size; white outside the slide.

    However much of the file is reduced to however few pixels, it is read in parts of a bounded number of pixels.
    """
    level = _level(reader, box, size)
    needed = _area(_inside(reader, box)) / reader.facts.level_downsamples[level] ** 2
    if needed > MOST_PX:
        raise TooLarge(f"{needed:.3g} px would have to be read for {size[0]} x {size[1]} px, and {MOST_PX} is the most")
    return _window(reader, box, size)


def _window(reader: Reader, box: Box, size: Size) -> Pixels:
    (left, top, right, bottom), (width, height) = box, size
    level = _level(reader, box, size)
    if not _fits(reader, level, box, size):
        if not _area(_inside(reader, box)):
            return np.full((height, width, 3), 255, np.uint8)
        return _in_halves(reader, box, size) if max(size) > 1 else _one_pixel(reader, level, box)
    across = _exact(reader, level, left, right, width)
    down = _exact(reader, level, top, bottom, height)
    if across and down:
        return _averaged(reader, level, across, down, size)
    return _resampled(reader, level, box, size)


def level_for(downsamples: tuple[float, ...], factor: float) -> int:
    """The coarsest level that is fine enough to be reduced by `factor` in all; the finest if none is.

    >>> level_for((1.0, 4.0, 16.0), 8.0), level_for((1.0, 4.0, 16.0), 3.99), level_for((1.0, 4.0, 16.0), 0.5)
    (1, 1, 0)
    """
    fine = [level for level, by in enumerate(downsamples) if by <= factor * COARSER_BY]
    return max(fine, key=lambda level: downsamples[level], default=0)


def _level(reader: Reader, box: Box, size: Size) -> int:
    return level_for(reader.facts.level_downsamples, min((box[2] - box[0]) / size[0], (box[3] - box[1]) / size[1]))


def _area(box: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def _inside(reader: Reader, box: Box) -> Box:
    """The part of a box that is on the slide; its area is 0 if there is none."""
    width, height = reader.facts.level_sizes[0]
    left, top = min(max(box[0], 0), width), min(max(box[1], 0), height)
    return left, top, max(min(box[2], width), left), max(min(box[3], height), top)


def _fits(reader: Reader, level: int, box: Box, size: Size) -> bool:
    """Whether a window may be read at once: the pixels in it, and those with a pixel of the result around it."""
    needed = _area(box) / reader.facts.level_downsamples[level] ** 2
    return needed <= BLOCK_PX and needed * (1 + 2 / size[0]) * (1 + 2 / size[1]) <= MARGIN * BLOCK_PX


class _Exact(NamedTuple):
    """A span that begins between two pixels of the level, and where a whole number of them becomes one."""

    start: int
    each: int


class _Padded(NamedTuple):
    """Pixels of the level that hold a span, and where it lies in them."""

    start: int
    length: int
    low: float
    high: float


def _exact(reader: Reader, level: int, low: float, high: float, size: int) -> _Exact | None:
    by = reader.facts.level_downsamples[level]
    start, scale = round(low / by), (high - low) / by / size
    each, shift = round(scale), (low - reader.origin(level, start)) / by
    drift = abs(scale - each) * size
    return _Exact(start, each) if each >= 1 and abs(shift) <= UNNOTICED_PX and drift <= UNNOTICED_PX else None


def _padded(reader: Reader, level: int, low: float, high: float, size: int, axis: int) -> _Padded:
    by, extent = reader.facts.level_downsamples[level], reader.facts.level_sizes[level][axis]
    margin = math.ceil((high - low) / by / size) + 1  # what the average of the first and the last pixel reaches
    first, last = math.floor(low / by), math.ceil(high / by)
    start = min(first, max(first - margin, 0))  # the margin is of the slide, never of the white around it
    while reader.origin(level, start) > low:
        start -= 1
    offset = (low - reader.origin(level, start)) / by
    end = offset + (high - low) / by
    stop = max(last, min(last + margin, extent))
    return _Padded(start, max(stop - start, math.ceil(end)), offset, end)


def _averaged(reader: Reader, level: int, across: _Exact, down: _Exact, size: Size) -> Pixels:
    pixels = reader.region(level, (across.start, down.start), (size[0] * across.each, size[1] * down.each))
    if across.each == down.each == 1:
        return pixels
    return np.array(need("PIL.Image", "slides").fromarray(pixels).reduce((across.each, down.each)))


def _resampled(reader: Reader, level: int, box: Box, size: Size) -> Pixels:
    pillow = need("PIL.Image", "slides")
    x = _padded(reader, level, box[0], box[2], size[0], axis=0)
    y = _padded(reader, level, box[1], box[3], size[1], axis=1)
    image = pillow.fromarray(reader.region(level, (x.start, y.start), (x.length, y.length)))
    # Pillow's bilinear filter widens with the reduction, so that it averages; and unlike its box it moves nothing.
    return np.array(image.resize(size, pillow.Resampling.BILINEAR, box=(x.low, y.low, x.high, y.high)))


def _in_halves(reader: Reader, box: Box, size: Size) -> Pixels:
    # A strip is decoded whole, so that a file of strips is cut into bands of its whole width as long as that is possible.
    axis = 1 if size[1] > 1 and (size[1] > size[0] or reader.facts.storage_tile is None) else 0
    first = size[axis] // 2
    middle = box[axis] + (box[axis + 2] - box[axis]) * first / size[axis]
    one_box, other_box, one_size, other_size = list(box), list(box), list(size), list(size)
    one_box[axis + 2] = other_box[axis] = middle
    one_size[axis], other_size[axis] = first, size[axis] - first
    one = _window(reader, (one_box[0], one_box[1], one_box[2], one_box[3]), (one_size[0], one_size[1]))
    other = _window(reader, (other_box[0], other_box[1], other_box[2], other_box[3]), (other_size[0], other_size[1]))
    return np.concatenate([one, other], axis=1 - axis)


def _one_pixel(reader: Reader, level: int, box: Box) -> Pixels:
    """The average of a box that is too large to be read at once: of the slide in it, by bands, and of the white around."""
    by, inside = reader.facts.level_downsamples[level], _inside(reader, box)
    left, top = math.floor(inside[0] / by), math.floor(inside[1] / by)
    right, bottom = max(round(inside[2] / by), left + 1), max(round(inside[3] / by), top + 1)
    across = min(right - left, BLOCK_PX)
    down = max(BLOCK_PX // across, 1)
    sums = np.zeros(3, np.uint64)
    for y in range(top, bottom, down):
        for x in range(left, right, across):
            band = reader.region(level, (x, y), (min(across, right - x), min(down, bottom - y)))
            sums += band.reshape(len(band), -1).sum(0, dtype=np.uint32).reshape(-1, 3).sum(0, dtype=np.uint64)
    share = _area(inside) / _area(box)
    mean = sums / ((right - left) * (bottom - top))
    return np.rint(mean * share + 255 * (1 - share)).astype(np.uint8).reshape(1, 1, 3)
