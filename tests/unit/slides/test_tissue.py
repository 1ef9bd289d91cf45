from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scmil.errors import OptionError, UnknownNameError
from scmil.slides.tissue import (
    PRESETS,
    _majority,
    find_tissue,
    otsu_threshold,
    outline,
    pen_marks,
    polygons,
)

shapely = pytest.importorskip("shapely")
image = pytest.importorskip("PIL.Image")

THUMBNAILS = Path(__file__).parents[2] / "data" / "slides" / "thumbnails"
REGION = THUMBNAILS.parent / "cmu-1-small-region.svs"
WHITE, PINK = (240, 240, 240), (215, 140, 190)


class Drawn:
    """A slide of two levels whose coarse one is a drawing."""

    def __init__(self, pixels: NDArray[np.uint8], downsample: int = 64) -> None:
        height, width = pixels.shape[:2]
        self.id, self.pixels, self.known_mpp = "drawn", pixels, 0.5
        self.size = (width * downsample, height * downsample)
        self.level_sizes = (self.size, (width, height))
        self.level_downsamples = (1.0, float(downsample))

    def region(self, level: int, xy: tuple[int, int], size: tuple[int, int]) -> NDArray[np.uint8]:
        assert (level, xy, size) == (1, (0, 0), self.level_sizes[1])
        return self.pixels

    def thumbnail(self, longest_px: int = 1024) -> NDArray[np.uint8]:
        self.asked_px = longest_px
        return self.pixels


def drawing(
    *boxes: tuple[int, int, int, int], size: tuple[int, int] = (200, 160)
) -> NDArray[np.uint8]:
    """Pink boxes (left, top, right, bottom) on white."""
    pixels = np.full((size[1], size[0], 3), WHITE, dtype=np.uint8)
    for left, top, right, bottom in boxes:
        pixels[top:bottom, left:right] = PINK
    return pixels


def found(pixels: NDArray[np.uint8], downsample: int = 64, **options: Any) -> Any:
    return find_tissue(Drawn(pixels, downsample), **options)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------- the recipe


@pytest.mark.parametrize("window", [1, 3, 7])
def test_a_majority_is_the_threshold_of_a_median(window: int) -> None:
    filters = pytest.importorskip("PIL.ImageFilter")
    values = np.random.default_rng(0).integers(0, 20, (31, 40)).astype(np.uint8)
    values[:12, 25:] += 8
    blurred = image.fromarray(values).filter(filters.MedianFilter(window))
    assert np.array_equal(_majority(values > 10, window), np.asarray(blurred) > 10)


def test_a_square_of_tissue_is_found_where_it_is() -> None:
    tissue = found(drawing((40, 30, 140, 130)))
    expected = shapely.box(40 * 64, 30 * 64, 140 * 64, 130 * 64)
    assert tissue.area.is_valid
    # The median rounds corners.
    assert tissue.area.symmetric_difference(expected).area < 0.01 * expected.area
    assert tissue.fraction == pytest.approx(100 * 100 / (200 * 160), rel=0.01)
    assert tissue.recipe["downsample"] == 64
    assert (tissue.recipe["preset"], tissue.recipe["sthresh"]) == ("default", 8)


def test_tissue_at_the_border_of_the_slide_reaches_the_border() -> None:
    left, top, right, bottom = found(drawing((0, 0, 200, 160))).area.bounds
    assert (left, top, right, bottom) == (0, 0, 200 * 64, 160 * 64)


def test_a_slide_without_tissue_has_an_empty_area() -> None:
    tissue = found(drawing())
    assert tissue.area.is_empty
    assert tissue.fraction == 0
    assert repr(tissue) == "Tissue('drawn', 0 pieces, 0.0 % of the slide)"


def test_small_pieces_are_kept_by_the_preset_for_biopsies_only() -> None:
    # 900 pixels; 6 400 are 100 squares of 512, 64 are one.
    pixels = drawing((20, 20, 50, 50), size=(400, 400))
    assert found(pixels).area.is_empty
    assert not found(pixels, preset="biopsy").area.is_empty
    assert not found(pixels, a_t=10).area.is_empty


def test_areas_are_counted_at_the_true_downsample() -> None:
    pixels = drawing((20, 20, 110, 110), size=(500, 500))  # 8 100 pixels
    assert not found(pixels, downsample=64).area.is_empty  # a_t = 6 400
    assert found(pixels, downsample=48).area.is_empty  # a_t = 11 378


def test_tissue_that_is_much_of_a_small_slide_is_never_too_small() -> None:
    """A region of 2 000 pixels is smaller than the smallest piece that the default keeps."""
    tissue = found(drawing((40, 30, 140, 130)), downsample=10)
    assert tissue.fraction == pytest.approx(100 * 100 / (200 * 160), rel=0.01)


def test_large_holes_stay_and_small_ones_are_filled() -> None:
    pixels = drawing((10, 10, 190, 150))
    pixels[30:70, 30:70] = WHITE  # 1 600 pixels, more than 16 squares of 64
    pixels[100:120, 100:120] = WHITE  # 400
    [piece] = found(pixels).area.geoms
    assert len(piece.interiors) == 1
    assert shapely.Polygon(piece.interiors[0]).contains(shapely.Point(50 * 64, 50 * 64))


def test_only_the_largest_holes_of_each_piece_are_kept() -> None:
    pixels = drawing((0, 0, 190, 160), (210, 0, 400, 160), size=(400, 160))
    for number in range(3):
        for left in (10, 220):
            pixels[20 : 60 + 4 * number, left + 60 * number : left + 40 + 60 * number] = WHITE
    pieces = found(pixels, max_holes=2).area.geoms
    assert [len(piece.interiors) for piece in pieces] == [2, 2]
    assert not any(
        shapely.Polygon(hole).contains(shapely.Point(30 * 64, 40 * 64))
        for hole in pieces[0].interiors
    )


def test_an_island_in_a_hole_is_a_piece_of_its_own() -> None:
    pixels = drawing((0, 0, 300, 300), size=(300, 300))
    pixels[20:280, 20:280] = WHITE
    pixels[100:200, 100:200] = PINK
    assert sorted(len(piece.interiors) for piece in found(pixels).area.geoms) == [0, 1]


def test_closing_joins_what_is_nearer_than_the_kernel_and_takes_nothing_away() -> None:
    pixels = drawing((10, 10, 99, 150), (101, 10, 190, 150))
    assert len(found(pixels, mthresh=1, close=4).area.geoms) == 1
    assert len(found(pixels, mthresh=1, close=0).area.geoms) == 2
    assert found(pixels, mthresh=1, close=4).area.covers(
        shapely.box(10 * 64, 10 * 64, 99 * 64, 150 * 64)
    )


def test_otsu_finds_its_own_threshold() -> None:
    pixels = drawing((40, 30, 140, 130))
    pixels[pixels[..., 1] == 240] = (240, 222, 232)  # a tinted background, saturation 19
    assert found(pixels).fraction > 0.99
    assert found(pixels, otsu=True).fraction == pytest.approx(0.3125, rel=0.01)
    assert found(pixels, preset="otsu").recipe["otsu"] is True


@pytest.mark.parametrize("seed", range(3))
def test_otsus_threshold_has_the_largest_variance_between_its_sides(seed: int) -> None:
    generator = np.random.default_rng(seed)
    values = (
        np.concatenate([generator.normal(60, 20, 500), generator.normal(170, 15, 200)])
        .clip(0, 255)
        .astype(np.uint8)
    )

    def between(threshold: int) -> float:
        low, high = values[values <= threshold], values[values > threshold]
        return (
            0.0
            if not low.size or not high.size
            else low.size * high.size * float(low.mean() - high.mean()) ** 2
        )

    assert between(otsu_threshold(values)) == pytest.approx(max(map(between, range(256))))


@pytest.mark.parametrize(
    ("size", "expected_px"), [((100_000, 80_000), 1562), ((3_000, 2_000), 1024), ((500, 400), 500)]
)
def test_a_slide_of_one_level_is_seen_through_a_thumbnail(
    size: tuple[int, int], expected_px: int
) -> None:
    slide = Drawn(drawing((40, 30, 140, 130)))
    slide.size, slide.level_sizes, slide.level_downsamples = size, (size,), (1.0,)  # type: ignore[assignment]
    tissue = find_tissue(slide)  # type: ignore[arg-type]
    assert slide.asked_px == expected_px
    assert tissue.area.bounds[2] == pytest.approx(140 / 200 * size[0], rel=0.01)
    # Each axis has its own scale.
    assert tissue.area.bounds[3] == pytest.approx(130 / 160 * size[1], rel=0.01)


def test_all_presets_are_those_of_clam() -> None:
    assert list(PRESETS) == ["default", "biopsy", "resection", "tcga", "otsu"]
    assert PRESETS["tcga"] == dict(
        sthresh=8, mthresh=7, close=4, otsu=False, a_t=16, a_h=4, max_holes=8
    )


def test_what_is_not_known_is_rejected() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'biopsy'"):
        found(drawing(), preset="biospy")
    with pytest.raises(OptionError, match=r"no option 'sthres'. Options: pen, sthresh"):
        found(drawing(), sthres=3)
    with pytest.raises(OptionError, match="a_t = -1; expected a number of at least 0"):
        found(drawing(), a_t=-1)
    with pytest.raises(OptionError, match=r"mthresh = 6; .* odd"):
        found(drawing(), mthresh=6)


# ----------------------------------------------------------------------------------------- outlines


@pytest.mark.parametrize("seed", range(40))
def test_an_outline_has_exactly_the_pixels_of_the_mask(seed: int) -> None:
    generator = np.random.default_rng(seed)
    mask = generator.random(generator.integers(1, 12, 2)) < generator.choice([0.2, 0.5, 0.8])
    area = outline(mask)
    assert area.is_valid
    assert area.area == mask.sum()
    rows, columns = np.indices(mask.shape)
    assert np.array_equal(shapely.contains_xy(area, columns + 0.5, rows + 0.5), mask)


def test_polygons_that_cross_themselves_or_each_other_become_valid() -> None:
    bow = shapely.Polygon([(0, 0), (2, 2), (2, 0), (0, 2)])
    assert polygons(bow).area == 2
    overlapping = shapely.GeometryCollection(
        [shapely.box(0, 0, 2, 2), shapely.box(1, 0, 3, 2), shapely.Point(9, 9)]
    )
    assert polygons(overlapping).is_valid
    assert polygons(overlapping).area == 6


# ---------------------------------------------------------------------------------------------- ink


@pytest.mark.parametrize(
    "colour",
    [(33, 94, 94), (80, 156, 144), (93, 144, 213), (191, 14, 11), (215, 60, 85), (43, 13, 27)],
)
def test_strokes_on_tissue_are_taken_out(colour: tuple[int, int, int]) -> None:
    pixels = drawing((10, 10, 190, 150))
    pixels[70:90, 10:190] = colour
    ink = pen_marks(pixels)
    assert ink[70:90, 10:190].all()
    assert not ink[:60].any()
    assert not ink[100:].any()
    stroke = shapely.box(10 * 64, 70 * 64, 190 * 64, 90 * 64)
    assert found(pixels).area.intersection(stroke).area == 0
    assert found(pixels, pen=False).area.intersection(stroke).area > 0


@pytest.mark.parametrize(
    "colour",
    [
        (235, 180, 215),
        (178, 130, 164),
        (172, 108, 157),
        (206, 114, 157),
        (90, 60, 130),
        (84, 39, 84),
    ],
)
def test_haematoxylin_and_eosin_are_no_ink(colour: tuple[int, int, int]) -> None:
    pixels = drawing()
    pixels[40:120, 40:160] = colour
    assert not pen_marks(pixels).any()


def test_nuclei_and_blood_cells_are_no_ink() -> None:
    pixels = drawing((0, 0, 200, 160))
    pixels[20:35, 20:35], pixels[60:75, 60:75] = (30, 20, 40), (190, 30, 35)
    assert not pen_marks(pixels).any()


def test_cells_of_an_overview_that_is_fine_are_no_ink() -> None:
    pixels = drawing((0, 0, 400, 400), size=(400, 400))
    pixels[20:60, 20:60] = (
        30,
        30,
        30,
    )  # 1 600 pixels, and a nucleus where the overview is hardly smaller than the slide
    assert found(pixels, downsample=3).area.intersects(
        shapely.Point(40 * 3, 40 * 3)
    )  # filled, since no ink made the hole
    assert not found(pixels, downsample=64).area.intersects(shapely.Point(40 * 64, 40 * 64))


def test_tissue_inside_a_drawn_circle_stays() -> None:
    pixels = drawing((0, 0, 300, 300), size=(300, 300))
    pixels[100:200, 100:200] = (20, 20, 20)
    pixels[120:180, 120:180] = PINK
    # 60 x 60 pixels are less than the smallest piece, and more than the smallest hole.
    area = found(pixels).area
    assert area.contains(shapely.Point(150 * 64, 150 * 64))
    assert not area.contains(shapely.Point(110 * 64, 110 * 64))


def test_holes_that_ink_made_do_not_take_the_place_of_real_ones() -> None:
    pixels = drawing((0, 0, 400, 200), size=(400, 200))
    for left in (10, 110, 210):
        pixels[20:80, left : left + 60] = (20, 20, 20)
    pixels[120:160, 100:140] = WHITE
    area = found(pixels, max_holes=1).area
    assert not area.intersects(shapely.Point(120 * 64, 140 * 64))
    assert not any(area.intersects(shapely.Point(left * 64, 50 * 64)) for left in (40, 140, 240))


def test_a_circle_on_glass_encloses_no_tissue() -> None:
    pixels = drawing((0, 100, 200, 160))
    pixels[10:70, 60:120] = (200, 20, 20)
    pixels[20:60, 70:110] = WHITE
    assert not found(pixels, max_holes=0).area.intersects(shapely.Point(90 * 64, 40 * 64))


def test_a_stroke_on_glass_leaves_no_tissue() -> None:
    pixels = drawing()
    pixels[40:120, 40:160] = (33, 94, 94)
    assert found(pixels, preset="biopsy").area.is_empty
    assert not found(pixels, preset="biopsy", pen=False).area.is_empty


def test_dark_epidermis_of_a_real_slide_is_tissue() -> None:
    pytest.importorskip("openslide")
    from scmil.slides import open_slide

    with open_slide(REGION) as slide:
        tissue, anything = find_tissue(slide), find_tissue(slide, pen=False)
    assert tissue.area.area > 0.97 * anything.area.area
    assert 0.35 < tissue.fraction < 0.45


@pytest.mark.parametrize(
    ("name", "ink", "tissue"),  # boxes chosen by eye: left, top, right, bottom
    [
        (
            "diagnostic-slide-thumb-rgb",
            [
                (230, 465, 260, 480),
                (27, 330, 33, 370),
                (155, 48, 178, 58),
                (225, 313, 265, 319),
                (37, 88, 44, 105),
            ],
            [(120, 110, 180, 180), (340, 360, 400, 395), (190, 120, 215, 140)],
        ),
        (
            "tcga-green-pen",
            [(350, 20, 420, 80), (200, 450, 270, 600)],
            [(480, 330, 740, 600), (60, 190, 180, 280)],
        ),
        (
            "tcga-red-pen",
            [(80, 150, 120, 250), (30, 0, 100, 15)],
            [(210, 130, 380, 180), (380, 270, 460, 340)],
        ),
        (
            "wsi-blue-pen",
            [(150, 62, 170, 72), (152, 105, 160, 125)],
            [(90, 20, 120, 50), (60, 80, 90, 95), (2, 65, 30, 85)],
        ),
        ("tcga-lung-rgb", [], [(0, 0, 380, 290), (0, 300, 300, 512)]),
    ],
)
def test_ink_of_real_slides_is_taken_out_and_their_tissue_is_not(
    name: str, ink: list[tuple[int, int, int, int]], tissue: list[tuple[int, int, int, int]]
) -> None:
    marks = pen_marks(np.asarray(image.open(THUMBNAILS / f"{name}.png").convert("RGB")))
    for left, top, right, bottom in ink:
        assert marks[top:bottom, left:right].mean() > 0.9
    for left, top, right, bottom in tissue:
        assert marks[top:bottom, left:right].mean() < 0.01
