"""Lesions on a coarse grid, derived from annotation outlines as CAMELYON16 does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scmil.core.extras import import_extra
from scmil.core.shapes import Numbers

if TYPE_CHECKING:
    from shapely import MultiPolygon

CELL_UM = 32 * 0.243  # the official grid: level 5 of CAMELYON16's slides
RIM_UM = 37.5  # a detection this near is a hit: half of 75 microns, the width of five tumour cells
# 200 microns, below which a metastasis is called isolated tumour cells, plus the rim on both sides.
ISOLATED_UM = 275.0


@dataclass(frozen=True, eq=False)
class Lesions:
    """The lesions of a slide, numbered from 1 on a coarse grid; `lengths_um` are their longest
    axes.
    """

    grid: NDArray[np.int32]
    corner: tuple[int, int]  # of the grid, in grid cells
    cell: int  # the edge of a grid cell, in level-0 pixels
    lengths_um: Numbers

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Which lesions count; the others are isolated tumour cells, where a detection is neither a
        hit nor a false positive.
        """
        return self.lengths_um >= ISOLATED_UM

    def at(self, xy: NDArray[Any]) -> NDArray[np.int64]:
        """The number of the lesion at each level-0 pixel, 0 where there is none."""
        column, row = (np.floor(np.asarray(xy) / self.cell).astype(np.int64) - self.corner).T
        inside = (
            (row >= 0) & (column >= 0) & (row < self.grid.shape[0]) & (column < self.grid.shape[1])
        )
        numbers = np.zeros(len(row), np.int64)
        numbers[inside] = self.grid[row[inside], column[inside]]
        return numbers


def find_lesions(
    area: MultiPolygon, mpp: float, slide_size: tuple[int, int] | None = None
) -> Lesions:
    """Lesions from outlines in level-0 pixels: outlines are dilated by 37.5 microns, holes are
    filled, and connected areas are one lesion.

    Grid cells are 32 pixels at CAMELYON16's 0.243 microns, and otherwise the power of two that is
    nearest to the same 7.8 microns. The length of a lesion is the longest axis of the ellipse with
    the same second moments; pixels are points, without the 1/12 that some add for their extent.

    >>> from shapely import MultiPolygon, box
    >>> large, near, far = box(0, 0, 3200, 3200), box(3300, 0, 3400, 100), box(9600, 0, 9700, 100)
    >>> lesions = find_lesions(MultiPolygon([large, near, far]), 0.243)
    >>> lesions.cell, lesions.counted
    (32, array([ True, False]))
    >>> lesions.at(np.array([[3250, 50], [9650, 50], [6400, 50]]))
    array([1, 2, 0])
    """
    cell = 2 ** max(round(math.log2(CELL_UM / mpp)), 0)
    if area.is_empty:
        return Lesions(np.zeros((0, 0), np.int32), (0, 0), cell, np.zeros(0))
    ndimage = import_extra("scipy.ndimage", "slides")
    reach = RIM_UM / (mpp * cell)
    bounds = np.reshape(area.bounds, (2, 2)) / cell
    first, last = (
        np.floor(bounds[0] - reach - 1).astype(int),
        np.ceil(bounds[1] + reach + 1).astype(int),
    )
    # The official grid ends there, so a hole at the edge of the slide is not filled.
    if slide_size is not None:
        first, last = np.maximum(first, 0), np.minimum(last, -(-np.array(slide_size) // cell))
    columns, rows = np.maximum(last - first, 0)
    outlined = _rasterise_outlines(area, first, (rows, columns), cell)
    if not outlined.any():
        return Lesions(np.zeros((0, 0), np.int32), (0, 0), cell, np.zeros(0))
    near = ndimage.distance_transform_edt(~outlined) < reach
    grid, _ = ndimage.label(ndimage.binary_fill_holes(near), np.ones((3, 3)))
    return Lesions(grid, (int(first[0]), int(first[1])), cell, _longest_axes(grid) * cell * mpp)


def _rasterise_outlines(
    area: MultiPolygon, first: NDArray[Any], shape: tuple[int, int], cell: float
) -> NDArray[np.bool_]:
    """The grid cells whose centre is inside: an edge flips all grid cells to the right of where it
    crosses the middle of a row.
    """
    shapely = import_extra("shapely", "slides")
    points, ring = shapely.get_coordinates(
        shapely.get_rings(shapely.get_parts(area)), return_index=True
    )
    points = points / cell - first
    edges = np.flatnonzero(ring[:-1] == ring[1:])
    (x, y), (x_end, y_end) = points[edges].T, points[edges + 1].T
    top = np.clip(np.ceil(np.minimum(y, y_end) - 0.5), 0, shape[0]).astype(np.int64)
    crossed = np.clip(np.ceil(np.maximum(y, y_end) - 0.5), 0, shape[0]).astype(np.int64) - top
    edge = np.repeat(np.arange(len(edges)), crossed)
    row = np.arange(len(edge)) - np.repeat(np.cumsum(crossed) - crossed, crossed) + top[edge]
    at = x[edge] + (row + 0.5 - y[edge]) * (x_end - x)[edge] / (y_end - y)[edge]
    flips = np.zeros((shape[0], shape[1] + 1), np.uint8)
    np.bitwise_xor.at(flips, (row, np.clip(np.ceil(at - 0.5), 0, shape[1]).astype(np.int64)), 1)
    return np.bitwise_xor.accumulate(flips[:, :-1], axis=1).astype(bool)


def _longest_axes(grid: NDArray[np.int32]) -> Numbers:
    """The longest axis of each numbered area, in grid cells.

    >>> _longest_axes(np.array([[1, 1, 1, 1, 0, 2]], np.int32)).round(3)
    array([4.472, 0.   ])
    """
    row, column = grid.nonzero()
    number = grid[row, column] - 1
    count = np.bincount(number)
    y, x = (part - (np.bincount(number, part) / count)[number] for part in (row, column))
    a, b, c = (np.bincount(number, part) / count for part in (x * x, x * y, y * y))
    return np.asarray(4 * np.sqrt((a + c + np.sqrt(4 * b**2 + (a - c) ** 2)) / 2))
