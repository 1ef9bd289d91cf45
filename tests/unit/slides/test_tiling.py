from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scmil.errors import DataError, OptionError
from scmil.slides.tiling import Tiling, covered, read_tiling, tile, write_tiling
from scmil.slides.tissue import Tissue

shapely = pytest.importorskip("shapely")
h5py = pytest.importorskip("h5py")


@dataclass
class Blank:
    """A slide that nobody reads."""

    size: tuple[int, int] = (4000, 3000)
    mpp: float = 0.25
    id: str = "blank"
    digest: str | None = None


def tissue(*areas: Any, slide: Blank | None = None) -> Tissue:
    return Tissue(shapely.MultiPolygon(areas), "blank", (slide or Blank()).size, {"method": "by hand"})


def tiled(area: Tissue, slide: Blank | None = None, **options: Any) -> Tiling:
    return tile(slide or Blank(), area, **options)  # type: ignore[arg-type]


EVERYWHERE = shapely.box(0, 0, 4000, 3000)


# -------------------------------------------------------------------------------------------------------------- the grid


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


# -------------------------------------------------------------------------------------------------------- enough tissue


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
    discs = [shapely.Point(*generator.uniform(-10, 90, 2)).buffer(generator.uniform(2, 30)) for _ in range(5)]
    area = shapely.MultiPolygon(list(shapely.get_parts(shapely.union_all(discs) - shapely.Point(40, 40).buffer(9))))
    side, stride = generator.choice([10, 7.3, 16]), int(generator.integers(1, 20))
    x, y = np.arange(0, 80 - side, stride), np.arange(0, 70 - side, stride)
    expected = [[area.intersection(shapely.box(a, b, a + side, b + side)).area / side**2 for a in x] for b in y]
    np.testing.assert_allclose(covered(area, x, y, side), expected, atol=1e-12)


def test_a_large_slide_with_a_ragged_outline_is_tiled_in_well_under_a_second() -> None:
    disc = shapely.Point(50_000, 50_000).buffer(49_000, quad_segs=5_000)
    slide = Blank((100_000, 100_000))
    begin = time.process_time()
    tiling = tiled(tissue(disc, slide=slide), slide, min_tissue=0.5)
    assert time.process_time() - begin < 1
    assert len(tiling) == pytest.approx(np.pi * 49_000**2 / 512**2, rel=0.02)


def test_the_rule_of_four_points_asks_around_the_centre() -> None:
    rightmost_quarter = tissue(shapely.box(512 * 0.8, 0, 512, 512))  # the points are at 0.25 and 0.75 of the width
    assert len(tiled(rightmost_quarter, rule="four_pt")) == 0
    assert tiled(tissue(shapely.box(512 * 0.7, 0, 512, 512)), rule="four_pt").xy.tolist() == [[0, 0]]


def test_the_rule_of_four_points_refuses_a_centre_in_a_hole() -> None:
    hole_in_the_centre = shapely.box(0, 0, 512, 512) - shapely.box(250, 250, 262, 262)
    assert len(tiled(tissue(hole_in_the_centre), rule="four_pt")) == 0
    assert len(tiled(tissue(hole_in_the_centre))) == 1
    island = shapely.box(254, 254, 258, 258)  # the four points are outside of it, and the centre in the other's hole
    assert len(tiled(tissue(hole_in_the_centre, island), rule="four_pt")) == 0


def test_an_island_in_a_hole_counts_for_the_rule_of_four_points() -> None:
    ring, island = EVERYWHERE - shapely.box(500, 500, 2500, 2500), shapely.box(1024, 1024, 1536, 1536)
    assert [1024, 1024] in tiled(tissue(ring, island), rule="four_pt").xy.tolist()


# -------------------------------------------------------------------------------------------------------------- parents


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


def test_a_factor_below_one_is_refused() -> None:
    with pytest.raises(OptionError, match="factor = 0"):
        tiled(tissue(EVERYWHERE)).parents(0)


# -------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(size_px=0), "size_px = 0: a tile has at least 1 pixel"),
        (dict(mpp=0), "mpp = 0: microns per pixel above 0"),
        (dict(mpp=float("nan")), "mpp = nan"),
        (dict(overlap_px=256), "overlap_px = 256: from 0 to 255"),
        (dict(overlap_px=-1), "overlap_px = -1"),
        (dict(min_tissue=1.1), "min_tissue = 1.1: a part between 0 and 1"),
        (dict(min_tissue=float("nan")), "min_tissue = nan"),
        (dict(rule="five_pt"), "rule = 'five_pt': one of fraction, four_pt"),
    ],
)
def test_options_that_make_no_tiles_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        tiled(tissue(EVERYWHERE), **options)


def test_the_tissue_of_another_slide_is_refused() -> None:
    with pytest.raises(DataError, match="tissue of a slide of 4000 x 3000 pixels, but slide 'blank' has 900 x 900"):
        tiled(tissue(EVERYWHERE), Blank((900, 900)))


def test_a_resolution_that_the_slide_does_not_have_is_told() -> None:
    [warning] = tiled(tissue(EVERYWHERE), Blank(mpp=0.5), mpp=0.25).warnings
    assert warning == "0.25 µm per pixel is asked, but the slide has 0.5: pixels would be invented."
    assert tiled(tissue(EVERYWHERE), Blank(mpp=0.5034), mpp=0.5).warnings == ()


# ----------------------------------------------------------------------------------------------------------------- files


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    for options in (dict(), dict(overlap_px=32, mpp=0.1), dict(min_tissue=1, size_px=4096)):
        written = tiled(tissue(EVERYWHERE), Blank(mpp=0.2431), **options)
        write_tiling(written, tissue(EVERYWHERE), tmp_path / "blank.h5")
        read = read_tiling(tmp_path / "blank.h5")
        assert np.array_equal(read.xy, written.xy)
        assert np.array_equal(read.fraction, written.fraction)
        for name in (
            "slide_id",
            "size_px",
            "mpp",
            "slide_mpp",
            "slide_size",
            "stride",
            "overlap_px",
            "warnings",
            "side",
        ):
            assert getattr(read, name) == getattr(written, name)


def test_the_file_has_the_names_that_trident_reads(tmp_path: Path) -> None:
    write_tiling(tiled(tissue(EVERYWHERE), Blank(mpp=0.2431)), tissue(EVERYWHERE), tmp_path / "blank.h5")
    with h5py.File(tmp_path / "blank.h5") as file:
        assert file["coords"].dtype == np.int64
        attributes = dict(file["coords"].attrs)
    expected = dict(
        patch_size=256, patch_size_level0=527, level0_width=4000, level0_height=3000, overlap=0, name="blank"
    )
    assert {name: attributes[name] for name in expected} == expected
    assert (attributes["target_magnification"], attributes["level0_magnification"]) == (20, 41)
    assert attributes["tissue"] == '{"method": "by hand"}'


def test_files_that_are_not_ours_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiles.h5"
    with pytest.raises(DataError, match="there is no such file"):
        read_tiling(path)
    path.write_bytes(b"not HDF5 at all")
    with pytest.raises(DataError, match="is damaged"):
        read_tiling(path)
    with h5py.File(path, "w") as file:
        file["coords"] = np.zeros((3, 2), dtype=np.int64)
    with pytest.raises(DataError, match="its format is None, and 'scmil-tiles-1' is needed"):
        read_tiling(path)


@pytest.mark.parametrize("damage", ["cut", "fewer fractions", "no attribute", "infinite fraction"])
def test_damaged_files_are_refused(tmp_path: Path, damage: str) -> None:
    path, tiling = tmp_path / "tiles.h5", tiled(tissue(EVERYWHERE))
    if damage == "fewer fractions":
        tiling = replace(tiling, fraction=tiling.fraction[:3])
    if damage == "infinite fraction":
        tiling = replace(tiling, fraction=tiling.fraction * np.float32("inf"))
    write_tiling(tiling, tissue(EVERYWHERE), path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:700])
    if damage == "no attribute":
        with h5py.File(path, "a") as file:
            del file["coords"].attrs["slide_mpp"]
    with pytest.raises(DataError, match=r"damaged: .* Tile this slide again"):
        read_tiling(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slide_mpp", "x"), ("slide_mpp", float("nan")), ("mpp", 1e-9), ("mpp", -0.5), ("size_px", 10**9), ("size_px", 0),
        ("overlap", 256), ("overlap", -1), ("stride_level0", -1), ("level0_width", -5), ("level0_height", 2**40),
        ("warnings", "5"), ("warnings", "{"),
    ],
)  # fmt: skip
def test_numbers_of_a_tiling_have_bounds(tmp_path: Path, name: str, value: Any) -> None:
    write_tiling(tiled(tissue(EVERYWHERE)), tissue(EVERYWHERE), tmp_path / "tiles.h5")
    with h5py.File(tmp_path / "tiles.h5", "a") as file:
        file["coords"].attrs[name] = value
    with pytest.raises(DataError, match=r"tiles\.h5 is damaged: .* Tile this slide again"):
        read_tiling(tmp_path / "tiles.h5")


@pytest.mark.parametrize("value", [-(2**62), 2**62])
def test_tiles_far_away_from_every_slide_are_damage(tmp_path: Path, value: int) -> None:
    write_tiling(tiled(tissue(EVERYWHERE)), tissue(EVERYWHERE), tmp_path / "tiles.h5")
    with h5py.File(tmp_path / "tiles.h5", "a") as file:
        file["coords"][0, 0] = value
    with pytest.raises(DataError, match=r"tiles\.h5 is damaged: a coordinate of .* Tile this slide again"):
        read_tiling(tmp_path / "tiles.h5")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tiles.h5")
    with pytest.raises(DataError, match=r"tiles\.h5.*this is not a file, but a pipe"):
        read_tiling(tmp_path / "tiles.h5")
