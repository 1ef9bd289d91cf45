from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from tilings import EVERYWHERE, Blank, shapely, tiled, tissue

from scmil.errors import DataError, OptionError
from scmil.slides.coverage import covered


def test_tiles_are_as_wide_as_asked_in_microns_whatever_the_slide() -> None:
    for slide_mpp in (0.25, 0.2431, 0.5, 0.1):
        tiling = tiled(tissue(EVERYWHERE), Blank(mpp=slide_mpp), size_px=256, mpp=0.5)
        assert tiling.side * slide_mpp == pytest.approx(128, abs=1e-9)


def test_the_grid_covers_the_slide_row_by_row_and_stays_inside() -> None:
    tiling = tiled(tissue(EVERYWHERE))
    assert len(tiling) == 7 * 5  # 4000 / 512 and 3000 / 512
    assert tiling.xy[:8].tolist() == [[512 * column, 0] for column in range(7)] + [[0, 512]]
    assert (tiling.fraction == 1).all()
    assert (tiling.xy.dtype, tiling.fraction.dtype) == (np.int64, np.float32)


def test_the_step_is_rounded_up_so_that_tiles_do_not_overlap() -> None:
    tiling = tiled(tissue(EVERYWHERE), Blank(mpp=0.2431))
    assert tiling.side == pytest.approx(526.53, abs=0.01)
    assert tiling.stride == 527


def test_a_step_that_is_whole_but_for_rounding_stays_whole() -> None:
    slide = Blank((768, 768), mpp=0.1)
    tiling = tiled(tissue(shapely.box(0, 0, 768, 768), slide=slide), slide, size_px=256, mpp=0.3)
    assert tiling.side != 768
    assert (tiling.stride, len(tiling)) == (768, 1)


def test_overlap_shortens_the_step_by_pixels_of_a_tile() -> None:
    tiling = tiled(tissue(EVERYWHERE), overlap_px=64)
    assert tiling.stride == 384
    assert np.unique(np.diff(np.unique(tiling.xy[:, 0]))) == [384]


def test_a_slide_smaller_than_a_tile_has_none() -> None:
    slide = Blank((400, 3000))
    tiling = tiled(tissue(shapely.box(0, 0, 400, 3000), slide=slide), slide)
    assert len(tiling) == 0
    assert tiling.xy.shape == (0, 2)


def test_no_tissue_gives_no_tiles_even_if_none_is_asked() -> None:
    assert len(tiled(tissue(), min_tissue=0)) == 0


def test_a_tile_is_kept_if_enough_of_it_is_tissue() -> None:
    area = tissue(shapely.box(0, 0, 512 + 51, 512))  # of the second tile, 51 of 512 columns: 9.96 %
    assert tiled(area, min_tissue=0.1).xy.tolist() == [[0, 0]]
    assert tiled(area, min_tissue=0.0996).xy.tolist() == [[0, 0], [512, 0]]
    assert tiled(area, min_tissue=0).fraction[1] == pytest.approx(51 / 512)
    assert tiled(area, min_tissue=1).xy.tolist() == [[0, 0]]


def test_holes_are_no_tissue() -> None:
    area = tissue(EVERYWHERE - shapely.box(512, 512, 1024, 1024))
    assert [512, 512] not in tiled(area, min_tissue=0).xy.tolist()
    assert len(tiled(area, min_tissue=0)) == 7 * 5 - 1


@pytest.mark.parametrize("seed", range(8))
def test_fractions_are_those_of_the_polygons_intersections(seed: int) -> None:
    generator = np.random.default_rng(seed)
    discs = [
        shapely.Point(*generator.uniform(-10, 90, 2)).buffer(generator.uniform(2, 30))
        for _ in range(5)
    ]
    area = shapely.MultiPolygon(
        list(shapely.get_parts(shapely.union_all(discs) - shapely.Point(40, 40).buffer(9)))
    )
    side, stride = generator.choice([10, 7.3, 16]), int(generator.integers(1, 20))
    x, y = np.arange(0, 80 - side, stride), np.arange(0, 70 - side, stride)
    expected = [
        [area.intersection(shapely.box(a, b, a + side, b + side)).area / side**2 for a in x]
        for b in y
    ]
    np.testing.assert_allclose(covered(area, x, y, side), expected, atol=1e-12)


def test_a_large_slide_with_a_ragged_outline_is_tiled_in_well_under_a_second() -> None:
    disc = shapely.Point(50_000, 50_000).buffer(49_000, quad_segs=5_000)
    slide = Blank((100_000, 100_000))
    begin = time.process_time()
    tiling = tiled(tissue(disc, slide=slide), slide, min_tissue=0.5)
    assert time.process_time() - begin < 1
    assert len(tiling) == pytest.approx(np.pi * 49_000**2 / 512**2, rel=0.02)


def test_the_rule_of_four_points_asks_around_the_centre() -> None:
    # The points are at 0.25 and 0.75 of the width.
    rightmost_quarter = tissue(shapely.box(512 * 0.8, 0, 512, 512))
    assert len(tiled(rightmost_quarter, rule="four_pt")) == 0
    assert tiled(tissue(shapely.box(512 * 0.7, 0, 512, 512)), rule="four_pt").xy.tolist() == [
        [0, 0]
    ]


def test_the_four_point_rule_rejects_a_centre_in_a_hole() -> None:
    hole_in_the_centre = shapely.box(0, 0, 512, 512) - shapely.box(250, 250, 262, 262)
    assert len(tiled(tissue(hole_in_the_centre), rule="four_pt")) == 0
    assert len(tiled(tissue(hole_in_the_centre))) == 1
    # The four points are outside of it, and the centre in the other's hole.
    island = shapely.box(254, 254, 258, 258)
    assert len(tiled(tissue(hole_in_the_centre, island), rule="four_pt")) == 0


def test_an_island_in_a_hole_counts_for_the_rule_of_four_points() -> None:
    ring, island = (
        EVERYWHERE - shapely.box(500, 500, 2500, 2500),
        shapely.box(1024, 1024, 1536, 1536),
    )
    assert [1024, 1024] in tiled(tissue(ring, island), rule="four_pt").xy.tolist()


def test_every_tile_has_the_parent_that_holds_it() -> None:
    tiling = tiled(tissue(EVERYWHERE))
    coarse, parent = tiling.parents()
    assert (coarse.mpp, coarse.size_px, coarse.stride, coarse.side) == (2.0, 256, 2048, 2048.0)
    assert coarse.xy.tolist() == [[0, 0], [2048, 0], [0, 2048], [2048, 2048]]
    offset = tiling.xy - coarse.xy[parent]
    assert (offset >= 0).all()
    assert (offset + tiling.side <= coarse.side).all()
    assert coarse.fraction.tolist() == [1, 0.75, 0.25, 3 / 16]  # 7 x 5 tiles in 8 x 8 cells
    assert coarse.xy[-1, 0] + coarse.side > 4000  # beyond the slide, which reads as white


def test_no_tiles_have_no_parents() -> None:
    coarse, parent = tiled(tissue()).parents()
    assert (len(coarse), len(parent)) == (0, 0)


def test_a_factor_below_one_is_rejected() -> None:
    with pytest.raises(OptionError, match="factor = 0"):
        tiled(tissue(EVERYWHERE)).parents(0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(size_px=0), "size_px = 0; expected at least 1"),
        (dict(mpp=0), "mpp = 0; expected microns per pixel above 0"),
        (dict(mpp=float("nan")), "mpp = nan"),
        (dict(overlap_px=256), "overlap_px = 256; expected 0 to 255"),
        (dict(overlap_px=-1), "overlap_px = -1"),
        (dict(min_tissue=1.1), "min_tissue = 1.1; expected a fraction between 0 and 1"),
        (dict(min_tissue=float("nan")), "min_tissue = nan"),
        (dict(rule="five_pt"), "rule = 'five_pt'; expected one of fraction, four_pt"),
    ],
)
def test_options_that_make_no_tiles_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        tiled(tissue(EVERYWHERE), **options)


def test_the_tissue_of_another_slide_is_rejected() -> None:
    with pytest.raises(
        DataError, match="to a slide of 4000 x 3000 pixels, but slide 'blank' has 900 x 900"
    ):
        tiled(tissue(EVERYWHERE), Blank((900, 900)))


def test_a_resolution_that_the_slide_does_not_have_is_reported() -> None:
    [warning] = tiled(tissue(EVERYWHERE), Blank(mpp=0.5), mpp=0.25).warnings
    assert warning.startswith("tiles of 0.25 µm per pixel were requested, but the slide has 0.5")
    assert tiled(tissue(EVERYWHERE), Blank(mpp=0.5034), mpp=0.5).warnings == ()
