"""Windows of a slide at any scale: read from the nearest finer level, averaged down, never shifted."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from scmil.extras import need
from scmil.slides.readers import Pixels, Reader, Size

Box = tuple[float, float, float, float]  # left, top, right, bottom in level-0 pixels, whole or not

UNNOTICED_PX = 0.02  # a shift of so little is not worth the blur of resampling
COARSER_BY = 1.01  # a level may be coarser by so much than what is asked for; sizes are rounded, so it often is
BLOCK_PX = 2**24  # windows of more pixels are read in parts, so that memory stays below 300 MB


def read_window(reader: Reader, box: Box, size: Size) -> Pixels:
    """The pixels inside a box of a slide, brought to a size; white outside the slide."""
    (left, top, right, bottom), (width, height) = box, size
    level = level_for(reader.facts.level_downsamples, min((right - left) / width, (bottom - top) / height))
    if (right - left) * (bottom - top) / reader.facts.level_downsamples[level] ** 2 > BLOCK_PX and max(size) > 1:
        return _in_halves(reader, box, size)
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
    axis = 0 if size[0] >= size[1] else 1
    first = size[axis] // 2
    middle = box[axis] + (box[axis + 2] - box[axis]) * first / size[axis]
    one_box, other_box, one_size, other_size = list(box), list(box), list(size), list(size)
    one_box[axis + 2] = other_box[axis] = middle
    one_size[axis], other_size[axis] = first, size[axis] - first
    one = read_window(reader, (one_box[0], one_box[1], one_box[2], one_box[3]), (one_size[0], one_size[1]))
    other = read_window(
        reader, (other_box[0], other_box[1], other_box[2], other_box[3]), (other_size[0], other_size[1])
    )
    return np.concatenate([one, other], axis=1 - axis)
