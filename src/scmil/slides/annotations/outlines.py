"""Limits for annotated outlines: numbers of points and crossings, checked before any geometry.

The time to repair and merge polygons grows with the number of crossings of lines. A ring of 3 000
random points has a million crossings in 60 kB and takes minutes, so crossings are estimated first,
as pairs of lines with intersecting bounding boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scmil.core.extras import import_extra
from scmil.errors import DataError

Ring = Sequence[tuple[float, float]]

# Per file; outlines of a pixel classifier have a few hundred thousand.
MOST_POINTS = 1_000_000
# In addition to three per line, which two copies of one outline have; takes a few seconds.
MOST_CROSSINGS = 200_000
PAIRS_AT_ONCE = 10_000_000  # pairs of lines per block, which bounds the memory


def check_outlines(rings: Sequence[Ring], where: object) -> None:
    """Raise if the rings of a file have too many points or crossings to be merged in seconds.

    >>> check_outlines([[(0, 0), (9, 0), (9, 9)]], "slide.geojson")
    """
    if (count := sum(map(len, rings))) > MOST_POINTS:
        raise DataError(
            f"{where} has {count} points, at most {MOST_POINTS} are supported. Simplify the "
            "outlines: QuPath, Objects, Annotations, Simplify shape."
        )
    lines = _ring_lines(rings)
    if len(lines) > 3 and (most := MOST_CROSSINGS + 3 * len(lines)) < _count_crossings(lines, most):
        raise DataError(
            f"{where}: the {len(lines)} lines of its outlines cross more than {most} times, so "
            "they are not outlines of regions. Draw them again, or delete those that cross."
        )


def _ring_lines(rings: Sequence[Ring]) -> NDArray[np.float64]:
    """The lines of all closed rings (n, 2 ends, 2), without lines of length 0."""
    if not rings:
        return np.zeros((0, 2, 2))
    points = [np.asarray(ring, np.float64).reshape(-1, 2) for ring in rings]
    lines = np.concatenate([np.stack([ring, np.roll(ring, -1, axis=0)], axis=1) for ring in points])
    return lines[(lines[:, 0] != lines[:, 1]).any(axis=1)]


def _count_crossings(lines: NDArray[np.float64], most: int) -> int:
    """The number of non-adjacent pairs of lines with intersecting boxes; stops above `most`."""
    shapely = import_extra("shapely", "slides")
    drawn: NDArray[Any] = shapely.linestrings(lines)
    tree, found = shapely.STRtree(drawn), 0
    step = max(PAIRS_AT_ONCE // len(lines), 1)
    for start in range(0, len(drawn), step):
        some = drawn[start : start + step]
        found += tree.query(some).shape[1] - 3 * len(some)  # itself and its two neighbours
        if found > 2 * most:
            break
    return found // 2
