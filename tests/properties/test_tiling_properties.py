from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scmil.slides.tiling import Tiling, tile
from scmil.slides.tissue import Tissue, polygons

shapely = pytest.importorskip("shapely")


@dataclass(frozen=True)
class Case:
    size: tuple[int, int]
    mpp: float
    area: object
    options: dict[str, float]
    id: str = "drawn"
    digest: str | None = None

    def tiled(self, **others: float) -> Tiling:
        tissue = Tissue(self.area, self.id, self.size)  # type: ignore[arg-type]
        return tile(self, tissue, **(self.options | others))  # type: ignore[arg-type]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    width, height = draw(st.integers(50, 3000)), draw(st.integers(50, 3000))
    size_px = draw(st.integers(16, 256))
    options = {
        "size_px": size_px,
        "mpp": draw(st.sampled_from([0.25, 0.5, 1.0, 0.3])),
        "overlap_px": draw(st.sampled_from([0, 0, size_px // 4])),
        "min_tissue": draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])),
    }
    share = st.floats(0, 1)
    discs = [
        shapely.Point(draw(share) * width, draw(share) * height).buffer(
            (0.02 + draw(share)) * width / 2, quad_segs=4
        )
        for _ in range(draw(st.integers(0, 4)))
    ]
    hole = shapely.Point(draw(share) * width, draw(share) * height).buffer(
        draw(share) * width / 5, quad_segs=4
    )
    area = polygons((shapely.union_all(discs) - hole) & shapely.box(0, 0, width, height))
    return Case((width, height), draw(st.sampled_from([0.25, 0.2431, 0.5, 0.1])), area, options)


@settings(deadline=None, max_examples=80)
@given(cases())
def test_tiles_lie_on_one_grid_inside_the_slide_and_apart(case: Case) -> None:
    tiling = case.tiled()
    assert (tiling.xy % tiling.stride == 0).all()
    assert (tiling.xy >= 0).all()
    assert (tiling.xy + tiling.side <= np.array(case.size) + 1e-6).all()
    if case.options["overlap_px"] == 0:
        assert tiling.stride >= tiling.side - 1e-6
    assert len(np.unique(tiling.xy, axis=0)) == len(tiling)
    rows_first = tiling.xy[np.lexsort((tiling.xy[:, 0], tiling.xy[:, 1]))]
    assert np.array_equal(tiling.xy, rows_first)


@settings(deadline=None, max_examples=80)
@given(cases())
def test_the_side_is_what_was_asked_in_microns_and_the_step_at_most_a_pixel_more(
    case: Case,
) -> None:
    tiling = case.tiled()
    assert abs(tiling.side * case.mpp - case.options["size_px"] * case.options["mpp"]) < 1e-9
    step = (case.options["size_px"] - case.options["overlap_px"]) * case.options["mpp"] / case.mpp
    assert step - 1e-6 <= tiling.stride < step + 1


@settings(deadline=None, max_examples=60)
@given(cases())
def test_exactly_the_windows_with_enough_tissue_are_kept(case: Case) -> None:
    tiling = case.tiled()
    columns, rows = (
        np.arange(0, length - tiling.side + 1e-6, tiling.stride, dtype=int) for length in case.size
    )
    x, y = (corner.ravel() for corner in np.meshgrid(columns, rows))
    windows = shapely.box(x, y, x + tiling.side, y + tiling.side)
    fraction = shapely.area(shapely.intersection(windows, case.area)) / tiling.side**2
    kept = {tuple(xy) for xy in tiling.xy.tolist()}
    for corner, part in zip(zip(x.tolist(), y.tolist()), fraction):
        if part > max(case.options["min_tissue"], 1e-9) + 1e-6:
            assert corner in kept
        elif part < case.options["min_tissue"] - 1e-6 or part == 0:
            assert corner not in kept


@settings(deadline=None, max_examples=40)
@given(cases())
def test_all_tissue_in_the_grid_is_in_a_tile_if_any_touch_is_enough(case: Case) -> None:
    tiling = case.tiled(min_tissue=0)
    columns, rows = ((length - tiling.side + 1e-6) // tiling.stride + 1 for length in case.size)
    if columns < 1 or rows < 1:
        assert len(tiling) == 0
        return
    starts = [np.arange(count) * tiling.stride for count in (columns, rows)]
    x, y = (corner.ravel() for corner in np.meshgrid(*starts))
    grid = shapely.union_all(shapely.box(x, y, x + tiling.side, y + tiling.side))
    tiles = shapely.union_all(shapely.box(*tiling.xy.T, *(tiling.xy + tiling.side).T))
    missed = shapely.intersection(case.area, grid).difference(tiles)
    assert missed.area <= 1e-6 * max(grid.area, 1)


@settings(deadline=None, max_examples=40)
@given(cases())
def test_tiling_is_the_same_each_time(case: Case) -> None:
    one, other = case.tiled(), case.tiled()
    assert np.array_equal(one.xy, other.xy)
    assert np.array_equal(one.fraction, other.fraction)


@settings(deadline=None, max_examples=80)
@given(cases(), st.sampled_from([2, 4]))
def test_each_tile_lies_within_its_parent(case: Case, factor: int) -> None:
    tiling = case.tiled()
    coarse, parent = tiling.parents(factor)
    assert sorted(set(parent.tolist())) == list(range(len(coarse)))  # no parent without a tile
    assert coarse.stride == factor * tiling.stride
    offset = tiling.xy - coarse.xy[parent]
    assert ((offset >= 0) & (offset < coarse.stride)).all()
    gap = max(
        tiling.stride - tiling.side, 0
    )  # under a pixel, since steps are whole; it adds up over the cells of a parent
    assert (offset + tiling.side <= coarse.side + (factor - 1) * gap + 1e-6).all()
