"""Tiles: one grid for the whole slide, and of it the windows that hold enough tissue."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scmil.errors import DataError, OptionError
from scmil.core.extras import need
from scmil.core.files import write_atomically
from scmil.core.safe_io import DAMAGE, LARGEST_SIDE_PX, check_number, check_provenance, check_xy, h5_array, opened_h5
from scmil.limits import BOUNDS, MOST_TILES, bounded

if TYPE_CHECKING:
    from shapely import MultiPolygon

    from scmil.slides.slide import Slide
    from scmil.slides.tissue import Tissue

FORMAT = "scmil-tiles-1"
RULES = ("fraction", "four_pt")
SLACK_PX = 1e-6  # a window of 512.0000000001 pixels, as divisions give it, is one of 512
SLACK_FRACTION = 1e-9  # sums of areas are off by less than that


@dataclass(frozen=True, eq=False)
class Tiling:
    """The tiles of one slide, row by row: top-left corners in level-0 pixels, and the size that a tile is read with.

    >>> xy = np.array([[0, 0], [512, 0], [2048, 512]])
    >>> tiling = Tiling("slide", xy, 256, 0.5, slide_mpp=0.25, slide_size=(4000, 3000), overlap_px=0, fraction=np.ones(3))
    >>> tiling, tiling.side, tiling.stride
    (Tiling('slide', 3 tiles of 256 px at 0.5 µm), 512.0, 512)
    """

    slide_id: str
    xy: NDArray[np.int64]  # (n, 2)
    size_px: int
    mpp: float
    slide_mpp: float
    slide_size: tuple[int, int]
    overlap_px: int  # in pixels of a tile
    fraction: NDArray[np.float32]  # (n,) the part of each tile that is tissue
    stride: int = 0  # level-0 pixels from one tile to the next; 0 is the smallest whole number that keeps tiles apart
    warnings: tuple[str, ...] = ()
    slide_digest: str | None = None  # of the file that was tiled; None in files of earlier versions

    def __post_init__(self) -> None:
        step = (self.size_px - self.overlap_px) * self.mpp / self.slide_mpp
        object.__setattr__(self, "stride", self.stride or max(math.ceil(step - SLACK_PX), 1))

    @property
    def side(self) -> float:
        """The width of a tile in level-0 pixels; not always a whole number."""
        return self.size_px * self.mpp / self.slide_mpp

    def __len__(self) -> int:
        return len(self.xy)

    def __repr__(self) -> str:
        return f"Tiling({self.slide_id!r}, {len(self)} tiles of {self.size_px} px at {self.mpp:g} µm)"

    def parents(self, factor: int = 4) -> tuple[Tiling, NDArray[np.int64]]:
        """The tiles of a coarser scale that hold these, `factor` by `factor` cells in each, and the parent of each tile.

        Every tile has a parent, as DSMIL's two scales need it. A parent at the right or lower border may reach beyond the
        slide, where reading gives white. A parent's fraction counts only the tiles that were kept.

        >>> xy = np.array([[0, 0], [512, 0], [2048, 512]])
        >>> tiling = Tiling("slide", xy, 256, 0.5, 0.25, (4000, 3000), overlap_px=0, fraction=np.ones(3))
        >>> coarse, parent = tiling.parents(factor=4)
        >>> coarse.xy.tolist(), parent.tolist(), coarse.side
        ([[0, 0], [2048, 0]], [0, 0, 1], 2048.0)
        """
        if factor < 1:
            raise OptionError(f"factor = {factor}: a whole number from 1 is needed.")
        stride = factor * self.stride
        cells, parent = np.unique(self.xy[:, ::-1] // stride, axis=0, return_inverse=True)  # (y, x): row by row
        parent = parent.reshape(-1)
        inside = np.bincount(parent, weights=self.fraction, minlength=len(cells)) / factor**2
        coarse = replace(
            self,
            xy=cells[:, ::-1] * stride,
            mpp=self.mpp * factor,
            fraction=inside.astype(np.float32),
            stride=stride,
            warnings=(),
        )
        return coarse, parent


def tile(
    slide: Slide,
    tissue: Tissue,
    *,
    size_px: int = 256,
    mpp: float = 0.5,
    overlap_px: int = 0,
    min_tissue: float = 0.1,
    rule: str = "fraction",
) -> Tiling:
    """Lay one grid over the whole slide and keep the windows with enough tissue, row by row.

    A window is `size_px` pixels of `mpp` microns wide whatever the slide's resolution, never leaves the slide, and overlaps
    its neighbours only by `overlap_px`: the step is rounded up to whole level-0 pixels. With the rule "fraction" a window is
    kept if at least `min_tissue` of its area is tissue; 0 keeps whatever touches tissue. With CLAM's "four_pt" it is kept if
    one of the four points a quarter of its width around its centre is inside an outline and the centre is in none of its
    holes; `min_tissue` is then not used.
    """
    _check(size_px, mpp, overlap_px, min_tissue, rule)
    if tissue.slide_size != slide.size:
        met, expected = (" x ".join(map(str, size)) for size in (tissue.slide_size, slide.size))
        raise DataError(
            f"tissue of a slide of {met} pixels, but slide {slide.id!r} has {expected}. Find its own tissue."
        )
    none, nothing = np.zeros((0, 2), dtype=np.int64), np.zeros(0, dtype=np.float32)
    warnings = _resolution_warnings(mpp, slide.mpp)
    grid = Tiling(slide.id, none, size_px, mpp, slide.mpp, slide.size, overlap_px, nothing, 0, warnings, slide.digest)
    side = grid.side
    if (places := math.prod(max(length // grid.stride, 1) for length in slide.size)) > MOST_TILES:
        raise OptionError(
            f"tiles of {size_px} px at {mpp:g} microns that overlap by {overlap_px} px have about {places} places on slide "
            f"{slide.id!r}, and {MOST_TILES} is the most. Take larger tiles, or less overlap."
        )
    x, y = (np.arange(0, length - side + SLACK_PX, grid.stride, dtype=np.int64) for length in slide.size)
    fraction = covered(tissue.area, x, y, side)
    if rule == "four_pt":
        keep = _four_points(tissue.area, x + side / 2, y + side / 2, side / 4)
    else:
        keep = (fraction > SLACK_FRACTION) & (fraction >= min_tissue - SLACK_FRACTION)
    rows, columns = np.nonzero(keep)
    return replace(grid, xy=np.stack([x[columns], y[rows]], axis=1), fraction=fraction[keep].astype(np.float32))


def _check(size_px: int, mpp: float, overlap_px: int, min_tissue: float, rule: str) -> None:
    if size_px < 1:
        raise OptionError(f"size_px = {size_px}: a tile has at least 1 pixel.")
    if not 0 < mpp < math.inf:
        raise OptionError(f"mpp = {mpp}: microns per pixel above 0 are needed, such as 0.5 for x20.")
    if not 0 <= overlap_px < size_px:
        raise OptionError(
            f"overlap_px = {overlap_px}: from 0 to {size_px - 1}, less than the {size_px} pixels of a tile."
        )
    if not 0 <= min_tissue <= 1:
        raise OptionError(f"min_tissue = {min_tissue}: a part between 0 and 1 is needed.")
    if rule not in RULES:
        raise OptionError(f"rule = {rule!r}: one of {', '.join(RULES)} is needed.")


def _resolution_warnings(mpp: float, slide_mpp: float) -> tuple[str, ...]:
    if mpp >= 0.9 * slide_mpp:  # scanners that claim x20 differ by that much
        return ()
    return (f"{mpp:g} µm per pixel is asked, but the slide has {slide_mpp:g}: pixels would be invented.",)


# ------------------------------------------------------------------------------------------------- how much is tissue


def covered(area: MultiPolygon, x: NDArray[Any], y: NDArray[Any], side: float) -> NDArray[np.float64]:
    """The exact part of each square window that the polygons cover; windows start at every x and y, rows are y.

    >>> from shapely import MultiPolygon, box
    >>> covered(MultiPolygon([box(5, 0, 15, 5)]), np.array([0, 10]), np.array([0]), side=10)
    array([[0.25, 0.25]])
    """
    x_lines, y_lines = (np.unique(np.concatenate([starts, starts + side])) for starts in (x, y))
    if not x.size or not y.size:
        return np.zeros((y.size, x.size))
    cells = _cell_areas(area, x_lines, y_lines)
    sums = np.pad(cells.cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))  # of everything above and to the left
    left, right = np.searchsorted(x_lines, x), np.searchsorted(x_lines, x + side)
    top, bottom = np.searchsorted(y_lines, y)[:, None], np.searchsorted(y_lines, y + side)[:, None]
    inside = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
    return (inside / side**2).clip(0, 1)


def _cell_areas(area: MultiPolygon, x_lines: NDArray[np.float64], y_lines: NDArray[np.float64]) -> NDArray[np.float64]:
    """The covered area of each cell between lines, by Green's theorem: of each edge, what lies to its left.

    An edge within a cell has in it the part between the cell's left border and itself, and all of every cell to the left.
    """
    start, stop = _edges(area)
    start, stop = _cut(start, stop, x_lines, y_lines)
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
    """All edges, with the polygon on their left."""
    shapely = need("shapely", "slides")
    rings = shapely.get_rings(shapely.normalize(shapely.get_parts(area)))  # outer rings clockwise, holes the other way
    points, ring = shapely.get_coordinates(rings, return_index=True)
    within = ring[:-1] == ring[1:]
    return points[1:][within], points[:-1][within]


def _cut(
    start: NDArray[np.float64], stop: NDArray[np.float64], x_lines: NDArray[np.float64], y_lines: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Cut edges where they cross lines, so that each piece lies within one cell."""
    everyone = np.arange(len(start))
    edge, at = [everyone, everyone], [np.zeros(len(start)), np.ones(len(start))]  # places on an edge, from 0 to 1
    for axis, lines in enumerate((x_lines, y_lines)):
        one, other = start[:, axis], stop[:, axis]
        first = np.searchsorted(lines, np.minimum(one, other), side="right")
        count = np.searchsorted(lines, np.maximum(one, other), side="left") - first
        count = np.maximum(count, 0)
        crossing = np.repeat(everyone, count)
        nth = np.arange(len(crossing)) - np.repeat(np.cumsum(count) - count, count)
        edge.append(crossing)
        at.append((lines[first[crossing] + nth] - one[crossing]) / (other - one)[crossing])
    edges, places = np.concatenate(edge), np.concatenate(at)
    order = np.lexsort((places, edges))
    edges, places = edges[order], places[order]
    points = start[edges] + (stop - start)[edges] * places[:, None]
    within = edges[:-1] == edges[1:]
    return points[:-1][within], points[1:][within]


def _four_points(area: MultiPolygon, x: NDArray[Any], y: NDArray[Any], quarter: float) -> NDArray[np.bool_]:
    shapely = need("shapely", "slides")
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


# -------------------------------------------------------------------------------------------------------------- files


def write_tiling(tiling: Tiling, tissue: Tissue, path: str | Path) -> None:
    """Write the tiles as HDF5, with the names that TRIDENT's readers look for beside our exact ones.

    TRIDENT's numbers are rounded magnifications and pixels; those that count are `mpp`, `slide_mpp` and `side_level0`.
    """
    h5py = need("h5py", "slides")
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        coords = file.create_dataset("coords", data=tiling.xy.astype(np.int64).reshape(-1, 2))
        file["fraction"] = tiling.fraction
        if tiling.slide_digest is not None:
            coords.attrs["slide_digest"] = tiling.slide_digest
        coords.attrs.update(
            name=tiling.slide_id,
            patch_size=tiling.size_px,
            patch_size_level0=round(tiling.side),
            level0_width=tiling.slide_size[0],
            level0_height=tiling.slide_size[1],
            overlap=tiling.overlap_px,
            target_magnification=round(10 / tiling.mpp),
            level0_magnification=round(10 / tiling.slide_mpp),
            scmil_format=FORMAT,
            size_px=tiling.size_px,
            mpp=tiling.mpp,
            slide_mpp=tiling.slide_mpp,
            side_level0=tiling.side,
            stride_level0=tiling.stride,
            tissue=json.dumps(dict(tissue.recipe), sort_keys=True),
            warnings=json.dumps(tiling.warnings),
        )
    write_atomically(Path(path), content.getvalue())


def read_tiling(path: str | Path) -> Tiling:
    """Read what `write_tiling` wrote."""
    need("h5py", "slides")
    try:
        with opened_h5(path) as file:
            met = file["coords"].attrs.get("scmil_format") if "coords" in file else None
            if met != FORMAT:
                raise DataError(f"{path} has no tiles of scmil: its format is {met!r}, and {FORMAT!r} is needed.")
            return _tiling(h5_array(file, "coords"), h5_array(file, "fraction"), dict(file["coords"].attrs))
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file.") from None
    except DAMAGE as error:
        if isinstance(error, DataError) and str(path) in str(error):
            raise
        raise DataError(f"{path} is damaged: {str(error).rstrip('.')}. Tile this slide again.") from None


def _tiling(xy: NDArray[Any], fraction: NDArray[Any], attributes: dict[str, Any]) -> Tiling:
    if xy.shape != (len(fraction), 2) or fraction.ndim != 1:
        raise ValueError(f"coordinates of shape {xy.shape} and fractions of shape {fraction.shape} do not fit")
    if not np.issubdtype(xy.dtype, np.integer) or not ((fraction >= 0) & (fraction <= 1)).all():
        raise ValueError("coordinates are not whole numbers, or fractions are not between 0 and 1")
    for key in ("size_px", "mpp", "slide_mpp"):
        bounded(key, np.asarray(attributes[key]).item(), "coords")
    if not BOUNDS["overlap_px"].holds(int(attributes["overlap"])) or not 0 < int(attributes["stride_level0"]) < 2**31:
        raise ValueError("the overlap or the stride is not that of tiles")
    tiling = Tiling(
        slide_id=str(attributes["name"]),
        xy=check_xy(xy),
        size_px=int(attributes["size_px"]),
        mpp=float(attributes["mpp"]),
        slide_mpp=float(attributes["slide_mpp"]),
        slide_size=(int(attributes["level0_width"]), int(attributes["level0_height"])),
        overlap_px=int(attributes["overlap"]),
        fraction=fraction.astype(np.float32),
        stride=int(attributes["stride_level0"]),
        warnings=tuple(map(str, json.loads(attributes["warnings"]))),
        slide_digest=None if (digest := attributes.get("slide_digest")) is None else str(digest),
    )
    check_provenance(
        {"mpp": tiling.mpp, "slide_mpp": tiling.slide_mpp, "slide_size": tiling.slide_size, "size_px": tiling.size_px}
    )
    check_number("overlap", tiling.overlap_px, 0, tiling.size_px - 1)
    check_number("stride_level0", tiling.stride, 1, LARGEST_SIDE_PX)
    return tiling
