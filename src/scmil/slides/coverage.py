"""The exact fraction of each window of a grid that is covered by polygons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scmil.core.extras import import_extra

if TYPE_CHECKING:
    from shapely import MultiPolygon


def covered(
    area: MultiPolygon, x: NDArray[Any], y: NDArray[Any], side: float
) -> NDArray[np.float64]:
    """The fraction of each square window that the polygons cover, (len(y), len(x)).

    Windows start at every x and y.

    >>> from shapely import MultiPolygon, box
    >>> covered(MultiPolygon([box(5, 0, 15, 5)]), np.array([0, 10]), np.array([0]), side=10)
    array([[0.25, 0.25]])
    """
    x_lines, y_lines = (np.unique(np.concatenate([starts, starts + side])) for starts in (x, y))
    if not x.size or not y.size:
        return np.zeros((y.size, x.size))
    cells = _cell_areas(area, x_lines, y_lines)
    # Sums over all cells above and to the left.
    sums = np.pad(cells.cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))
    left, right = np.searchsorted(x_lines, x), np.searchsorted(x_lines, x + side)
    top, bottom = np.searchsorted(y_lines, y)[:, None], np.searchsorted(y_lines, y + side)[:, None]
    inside = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
    return (inside / side**2).clip(0, 1)


def _cell_areas(
    area: MultiPolygon, x_lines: NDArray[np.float64], y_lines: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The covered area of each grid cell between the lines, by Green's theorem.

    An edge contributes the area to its left: in its own cell the part between the cell's left
    border and the edge, and the whole width of every cell further left.
    """
    start, stop = _edges(area)
    start, stop = _split_edges(start, stop, x_lines, y_lines)
    middle, rise = (start + stop) / 2, stop[:, 1] - start[:, 1]
    column = np.searchsorted(x_lines, middle[:, 0], side="right")  # 0 is left of the first line
    row = np.searchsorted(y_lines, middle[:, 1], side="right")
    shape = (len(y_lines) + 1, len(x_lines) + 1)
    place = row * shape[1] + column
    reach = middle[:, 0] - x_lines[np.maximum(column - 1, 0)]
    own = np.bincount(place, weights=reach * rise, minlength=shape[0] * shape[1]).reshape(shape)
    rises = np.bincount(place, weights=rise, minlength=shape[0] * shape[1]).reshape(shape)
    further_right = rises[:, ::-1].cumsum(axis=1)[:, ::-1][:, 2:]
    return own[1:-1, 1:-1] + further_right[1:-1] * np.diff(x_lines)


def _edges(area: MultiPolygon) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """All edges of the polygons, with the interior on their left."""
    shapely = import_extra("shapely", "slides")
    # Outer rings are clockwise, holes counterclockwise.
    rings = shapely.get_rings(shapely.normalize(shapely.get_parts(area)))
    points, ring = shapely.get_coordinates(rings, return_index=True)
    within = ring[:-1] == ring[1:]
    return points[1:][within], points[:-1][within]


def _split_edges(
    start: NDArray[np.float64],
    stop: NDArray[np.float64],
    x_lines: NDArray[np.float64],
    y_lines: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Cut edges where they cross lines, so that each piece lies within one cell."""
    all_edges = np.arange(len(start))
    # Positions on an edge, from 0 to 1.
    edge, at = [all_edges, all_edges], [np.zeros(len(start)), np.ones(len(start))]
    for axis, lines in enumerate((x_lines, y_lines)):
        one, other = start[:, axis], stop[:, axis]
        first = np.searchsorted(lines, np.minimum(one, other), side="right")
        count = np.searchsorted(lines, np.maximum(one, other), side="left") - first
        count = np.maximum(count, 0)
        crossing = np.repeat(all_edges, count)
        nth = np.arange(len(crossing)) - np.repeat(np.cumsum(count) - count, count)
        edge.append(crossing)
        at.append((lines[first[crossing] + nth] - one[crossing]) / (other - one)[crossing])
    edges, places = np.concatenate(edge), np.concatenate(at)
    order = np.lexsort((places, edges))
    edges, places = edges[order], places[order]
    points = start[edges] + (stop - start)[edges] * places[:, None]
    within = edges[:-1] == edges[1:]
    return points[:-1][within], points[1:][within]


def four_points_inside(
    area: MultiPolygon, x: NDArray[Any], y: NDArray[Any], quarter: float
) -> NDArray[np.bool_]:
    """CLAM's rule four_pt for windows with centres at every x and y, see `tile`."""
    shapely = import_extra("shapely", "slides")
    centre_x, centre_y = np.meshgrid(x, y)
    keep = np.zeros(centre_x.shape, dtype=bool)
    for polygon in area.geoms:
        outer, *holes = map(shapely.Polygon, (polygon.exterior, *polygon.interiors))
        shapely.prepare([outer, *holes])
        any_inside = np.zeros_like(keep)
        for right in (-quarter, quarter):
            for down in (-quarter, quarter):
                any_inside |= shapely.intersects_xy(outer, centre_x + right, centre_y + down)
        in_hole = np.zeros_like(keep)
        for hole in holes:
            in_hole |= shapely.contains_xy(hole, centre_x, centre_y)
        keep |= any_inside & ~in_hole
    return keep
