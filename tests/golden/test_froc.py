"""FROC worked out by hand, and the lesions of a real slide of CAMELYON16."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("shapely")

from shapely import MultiPolygon, box, contains_xy

from scmil.slides.annotations.asap import read_asap
from scmil.slides.annotations.lookup import read_lesions
from scmil.stats.localisation import Detections, Froc, Hits, count_hits, find_lesions, froc

REAL = Path(__file__).parents[1] / "data" / "camelyon16" / "tumor_001_derived_from_ncrf.xml"
MPP = 0.243
# pixels, 7.776 microns: a rim of 37.5 microns is 4.82 cells, so four cells away is near and five
# are not.
CELL = 32


def cells(left: int, top: int, right: int, bottom: int) -> object:
    return box(CELL * left, CELL * top, CELL * right, CELL * bottom)


def at(*places: tuple[float, int, int]) -> Detections:
    """Detections in the middle of cells."""
    return Detections(
        np.array([p for p, _, _ in places], float),
        np.array([(CELL * x + 16, CELL * y + 16) for _, x, y in places], np.int64).reshape(-1, 2),
    )


# Slide 1 has lesion A, cells 100 to 199 both ways, and isolated tumour cells of 10 by 10 cells:
# with its rim a square of 18 cells, whose longest axis is at most 4 * sqrt((18 * 18 - 1) / 12) =
# 20.8 cells, below 275 / 7.776 = 35.4. Slide 2 has lesions C and D of 60 by 60 cells. Slides 3 and
# 4 are normal.
SLIDE_1 = MultiPolygon([cells(100, 100, 200, 200), cells(300, 100, 310, 110)])
SLIDE_2 = MultiPolygon([cells(0, 0, 60, 60), cells(200, 0, 260, 60)])
NORMAL = MultiPolygon()
FOUND = (
    (SLIDE_1, at((0.9, 150, 150), (0.8, 203, 150), (0.95, 305, 105), (0.5, 204, 150))),
    #             inside A         in its rim       isolated cells     a cell beyond the rim: false
    (SLIDE_2, at((0.6, 30, 30), (0.4, 130, 30))),  # C is hit, D is missed; one is false
    (NORMAL, at((0.6, 5, 5), (0.6, 90, 9))),  # both false
    (NORMAL, at()),
)


def hits() -> list[Hits]:
    return [count_hits(detections, find_lesions(area, MPP)) for area, detections in FOUND]


def test_every_detection_is_counted_as_by_hand() -> None:
    one, two, three, four = hits()
    assert (one.lesions.tolist(), one.false_positives.tolist(), one.isolated) == ([0.9], [0.5], 1)
    assert (sorted(two.lesions), two.false_positives.tolist(), two.isolated) == (
        [0.0, 0.6],
        [0.4],
        0,
    )
    assert (three.lesions.tolist(), three.false_positives.tolist()) == ([], [0.6, 0.6])
    assert (len(four.lesions), len(four.false_positives)) == (0, 0)


def test_the_curve_is_the_one_worked_out_by_hand() -> None:
    # Three lesions count, four slides. The values met are 0 (D, and the isolated cells), 0.4, 0.5,
    # 0.6 and 0.9; 0 is skipped.   from 0.9 on: 1 of 3 lesions, 0 false      from 0.5 on: 2 of 3, 3
    # false of 4 slides   from 0.6 on: 2 of 3 lesions, 2 false      from 0.4 on: 2 of 3, 4 false
    curve = froc(hits())
    assert (curve.slides, curve.lesions, curve.isolated) == (4, 3, 1)
    assert curve.thresholds.tolist() == [np.inf, 0.9, 0.6, 0.5, 0.4]
    assert curve.false_positives.tolist() == [0, 0, 0.5, 0.75, 1]
    assert curve.sensitivity == pytest.approx([0, 1 / 3, 2 / 3, 2 / 3, 2 / 3])
    # At 1/4 false positive a slide: half way from (0, 1/3) to (1/2, 2/3). From 1/2 on: 2/3.
    assert curve.sensitivities == pytest.approx([1 / 2] + 5 * [2 / 3])
    assert curve.score == pytest.approx(23 / 36)


def test_a_slide_without_detections_counts() -> None:
    # The official script counts files of detections: without slide 4, two false positives are 2/3 a
    # slide, and the line from (0, 1/3) to (2/3, 2/3) is at 11/24 for 1/4 and at 7/12 for 1/2.
    assert froc(hits()[:3]).score == pytest.approx((11 / 24 + 7 / 12 + 4 * 2 / 3) / 6)


def test_the_lowest_value_is_left_out_as_officially() -> None:
    # Nothing is missed, so no 0 is there to be skipped: 0.3 is, and with it the second lesion.
    curve = froc([Hits(np.array([0.9, 0.3]), np.array([0.5]))])
    assert (curve.thresholds.tolist(), curve.sensitivity.tolist()) == (
        [np.inf, 0.9, 0.5],
        [0, 0.5, 0.5],
    )


def spelled_out(slides: list[Hits]) -> tuple[list[float], list[float]]:
    """The definition, a loop at a time."""
    lesions = [p for one in slides for p in [*one.lesions, *[0.0] * one.isolated]]
    false = [p for one in slides for p in one.false_positives]
    count = sum(len(one.lesions) for one in slides)
    rates, shares = [], []
    for threshold in sorted({*lesions, *false})[1:]:
        rates.append(sum(p >= threshold for p in false) / len(slides))
        shares.append(sum(p >= threshold for p in lesions) / count)
    return [*rates, 0.0], [*shares, 0.0]


@pytest.mark.parametrize("seed", range(30))
def test_the_curve_is_the_definition_spelled_out(seed: int) -> None:
    draw = np.random.default_rng(seed)
    slides = [
        Hits(
            np.where(draw.random(k) < 0.3, 0, draw.integers(1, 9, k) / 8),
            draw.integers(1, 9, draw.integers(0, 12)) / 8,
            isolated=int(draw.integers(0, 2)),
        )
        for k in [1, *draw.integers(0, 4, draw.integers(1, 6))]
    ]
    rates, shares = spelled_out(slides)
    curve: Froc = froc(slides)
    assert curve.false_positives == pytest.approx(rates[::-1])
    assert curve.sensitivity == pytest.approx(shares[::-1])
    assert curve.score == pytest.approx(
        np.interp([0.25, 0.5, 1, 2, 4, 8], rates[::-1], shares[::-1]).mean()
    )


def test_the_lesions_of_a_real_slide() -> None:
    area = read_lesions(REAL)
    lesions = find_lesions(area, MPP)
    assert len(read_asap(REAL)) == len(lesions.lengths_um) == 2
    # Square pixels, two thirds of a square millimetre.
    assert area.area == pytest.approx(11_377_414.5)
    # By cells: by more than four of them, by less than the whole rim.
    grown = (lesions.grid > 0).sum() * CELL**2
    assert area.buffer(4 * CELL).area < grown < area.buffer(37.5 / MPP).area
    assert lesions.counted.all()
    for part in area.geoms:  # the longest axis again, from points drawn inside
        grown_part = part.buffer(4.5 * CELL)
        (left, top, right, bottom), draw = grown_part.bounds, np.random.default_rng(0)
        points = draw.uniform((left, top), (right, bottom), (20_000, 2))
        inside = points[contains_xy(grown_part, points)]
        axis = 4 * np.sqrt(np.linalg.eigvalsh(np.cov(inside.T))[-1]) * MPP
        [number] = set(lesions.at(np.array([part.representative_point().coords[0]])).tolist())
        assert lesions.lengths_um[number - 1] == pytest.approx(axis, rel=0.02)


def official_curve(slides: list[Hits]) -> tuple[list[float], list[float]]:
    """The official evaluation: hits are kept as float32, false positives as they are."""
    lesions = np.concatenate(
        [[*slide.lesions, *np.zeros(slide.isolated)] for slide in slides]
    ).astype(np.float32)
    false = np.concatenate([slide.false_positives for slide in slides])
    thresholds = np.unique(np.concatenate([lesions, false]))[:0:-1]
    counted = sum(len(slide.lesions) for slide in slides)
    return (
        [0.0] + [float((false >= t).sum() / len(slides)) for t in thresholds],
        [0.0] + [float((lesions >= t).sum() / counted) for t in thresholds],
    )


def test_float32_scores_tie_as_in_the_official_evaluation_and_others_may_not() -> None:
    random = np.random.default_rng(0)
    scores = random.integers(1, 9, (6, 2, 5)) / 10  # with many ties, not float32 numbers
    single = scores.astype(np.float32).astype(float)
    rounded = [Hits(hit, false, isolated=1) for hit, false in single]
    curve = froc(rounded)
    assert (curve.false_positives.tolist(), curve.sensitivity.tolist()) == official_curve(rounded)
    unrounded = [Hits(hit, false, isolated=1) for hit, false in scores]
    assert len(official_curve(unrounded)[0]) > len(froc(unrounded).thresholds)


def test_table_iv_takes_the_score_of_the_paper() -> None:
    """The column "Probability Map From" of Table IV is "attention score" in both rows."""
    path = Path(__file__).parents[2] / "experiments" / "table4_froc.toml"
    assert tomllib.loads(path.read_text())["localisation"]["score"] == "attention"
