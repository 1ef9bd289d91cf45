"""Limits for outlines that somebody drew: how many points, and how often lines may cross, before any geometry is computed.

Making polygons valid and joining them takes time for each crossing of two lines. A ring of 3 000 random points has a
million crossings in 60 kB, which is minutes of work, so crossings are counted first: as pairs of lines whose boxes meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scmil.errors import DataError
from scmil.core.extras import need

Ring = Sequence[tuple[float, float]]

MOST_POINTS = 1_000_000  # of one file; an outline that a pixel classifier has drawn has some hundred thousand
MOST_CROSSINGS = 200_000  # beside three for each line, which two copies of one outline have: a few seconds of work
PAIRS_AT_ONCE = 10_000_000  # of lines that are looked at, so that counting takes little memory


def check_outlines(rings: Sequence[Ring], where: object) -> None:
    """Raise if these rings, all of one file, have too many points or cross too often to be joined in a few seconds.

    >>> check_outlines([[(0, 0), (9, 0), (9, 9)]], "slide.geojson")
    """
    if (count := sum(map(len, rings))) > MOST_POINTS:
        raise DataError(
            f"{where} has {count} points, and {MOST_POINTS} is the most that is read. Simplify the outlines: QuPath, "
            "Objects, Annotations, Simplify shape."
        )
    lines = _lines(rings)
    if len(lines) > 3 and (most := MOST_CROSSINGS + 3 * len(lines)) < _crossings(lines, most):
        raise DataError(
            f"{where}: the {len(lines)} lines of its outlines cross more than {most} times. That is not a drawing of "
            "regions. Draw them again, or delete the outlines that cross themselves."
        )


def _lines(rings: Sequence[Ring]) -> NDArray[np.float64]:
    """Every line of every ring (n, 2 ends, 2), closed; a line without a length is left out."""
    if not rings:
        return np.zeros((0, 2, 2))
    points = [np.asarray(ring, np.float64).reshape(-1, 2) for ring in rings]
    lines = np.concatenate([np.stack([ring, np.roll(ring, -1, axis=0)], axis=1) for ring in points])
    return lines[(lines[:, 0] != lines[:, 1]).any(axis=1)]


def _crossings(lines: NDArray[np.float64], most: int) -> int:
    """How many pairs of lines that are not neighbours have boxes that meet; counting ends when there are more than `most`."""
    shapely = need("shapely", "slides")
    drawn: NDArray[Any] = shapely.linestrings(lines)
    tree, found = shapely.STRtree(drawn), 0
    step = max(PAIRS_AT_ONCE // len(lines), 1)
    for start in range(0, len(drawn), step):
        some = drawn[start : start + step]
        found += tree.query(some).shape[1] - 3 * len(some)  # itself and its two neighbours
        if found > 2 * most:
            break
    return found // 2
