from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("shapely")

from shapely import MultiPolygon, Point, affinity, box, contains_xy
from sklearn.metrics import average_precision_score, roc_auc_score

from scmil.errors import DataError, OptionError
from scmil.stats.localisation import (
    Detections,
    Hits,
    Rule,
    count_hits,
    detect_lesions,
    find_lesions,
    froc,
    froc_intervals,
    score_tiles,
    tile_values,
    tumour_shares,
)
from scmil.stats.localisation.froc import _events
from scmil.stats.localisation.lesions import _rasterise_outlines

MPP = 0.243


def area(*parts: object) -> MultiPolygon:
    return MultiPolygon(list(parts))


def grid(columns: int, rows: int, side: int = 100) -> np.ndarray:
    return np.array([(side * x, side * y) for y in range(rows) for x in range(columns)])


# ------------------------------------------------------------------------------------------ lesions


def test_a_cell_is_inside_if_its_centre_is() -> None:
    draw = np.random.default_rng(0)
    blots = [
        Point(*draw.uniform(0, 2000, 2)).buffer(r) - Point(900, 900).buffer(200)
        for r in (300, 500, 90)
    ]
    drawn = blots[0].union(blots[1]).union(blots[2])
    drawn = drawn if isinstance(drawn, MultiPolygon) else area(drawn)
    found = _rasterise_outlines(drawn, np.array([-3, 5]), (90, 80), 32)
    y, x = np.mgrid[5:95, -3:77] * 32 + 16
    assert np.array_equal(found, contains_xy(drawn, x, y))


def test_the_rim_ends_before_five_cells() -> None:
    lesions = find_lesions(area(box(3200, 3200, 6400, 6400)), MPP)
    middle = 32 * 150
    assert lesions.at(
        np.array([(32 * cell + 16, middle) for cell in (95, 96, 203, 204)])
    ).tolist() == [0, 1, 1, 0]


def test_lesions_nearer_than_75_microns_are_one_and_holes_are_filled() -> None:
    ring = box(0, 0, 6400, 6400) - box(1600, 1600, 4800, 4800)
    near, far = box(6400 + 200, 0, 9600, 3200), box(12800, 0, 16000, 3200)
    lesions = find_lesions(area(ring, near, far), MPP)
    assert len(lesions.lengths_um) == 2
    assert lesions.at(np.array([(3200, 3200), (8000, 1600), (14000, 1600)])).tolist() == [1, 1, 2]


def test_lesions_that_touch_at_a_corner_are_one() -> None:
    # Rims of three cells along the diagonal: with six between, corners meet.
    for gap, count in ((192, 1), (224, 2)):
        steps = area(box(0, 0, 3200, 3200), box(3200 + gap, 3200 + gap, 9600, 9600))
        assert len(find_lesions(steps, MPP).lengths_um) == count


def test_a_hole_at_the_edge_of_the_slide_stays_open() -> None:
    bay = box(0, 0, 3200, 6400) - box(0, 1600, 1600, 4800)
    inside = np.array([(400, 3200)])
    assert find_lesions(area(bay), MPP, (9600, 9600)).at(inside).tolist() == [0]
    assert find_lesions(area(bay), MPP).at(inside).tolist() == [0]
    ring = box(0, 0, 3200, 6400) - box(100, 1600, 1600, 4800)  # closed by a strip
    assert find_lesions(area(ring), MPP, (9600, 9600)).at(inside).tolist() == [1]


def test_the_length_of_a_lesion_is_that_of_its_ellipse() -> None:
    ellipse = affinity.rotate(affinity.scale(Point(5000, 5000).buffer(1, 64), 3000, 1000), 30)
    [length] = find_lesions(area(ellipse), MPP).lengths_um
    # And a rim of four to five cells.
    assert length == pytest.approx(2 * 3000 * MPP + 2 * 4.5 * 32 * MPP, rel=0.01)


@pytest.mark.parametrize(
    ("mpp", "cell"), [(0.243, 32), (0.25, 32), (0.226, 32), (0.5, 16), (1.0, 8), (10.0, 1)]
)
def test_cells_are_nearly_eight_microns_at_any_resolution(mpp: float, cell: int) -> None:
    lesions = find_lesions(area(box(0, 0, 400 / mpp, 400 / mpp)), mpp)
    assert lesions.cell == cell
    assert lesions.lengths_um == pytest.approx([4 / 12**0.5 * (400 + 75)], rel=0.06)
    assert lesions.counted.tolist() == [True]


def test_isolated_tumour_cells_are_found_and_not_counted() -> None:
    # 180 microns, and the rim: less than 275.
    lesions = find_lesions(area(Point(5000, 5000).buffer(90 / MPP)), MPP)
    assert (len(lesions.lengths_um), lesions.counted.tolist()) == (1, [False])


def test_nothing_drawn_is_no_lesion_anywhere() -> None:
    outside = find_lesions(area(box(90_000, 0, 91_000, 1000)), MPP, (5000, 5000))
    for lesions in (find_lesions(MultiPolygon(), MPP), outside):
        assert (
            len(lesions.lengths_um),
            lesions.at(np.array([(5, 5), (90_500, 500)])).tolist(),
        ) == (0, [0, 0])


# --------------------------------------------------------------------------------------- detections


def test_a_peak_suppresses_its_eight_neighbours_and_no_more() -> None:
    # Three by three: the corner wins, the opposite one is far.
    values = np.array([5, 4, 1, 4, 4, 1, 1, 1, 3.0])
    assert detect_lesions(grid(3, 3), 100, values, 1.0).probability.tolist() == [5, 3, 1, 1]


def test_the_radius_is_75_microns_or_reaches_the_neighbours() -> None:
    rule = Rule()
    assert (rule.radius_of(20), rule.radius_of(128), Rule(radius_um=75).radius_of(128)) == (
        75,
        192,
        75,
    )
    assert (
        len(detect_lesions(grid(3, 3), 100, np.ones(9), 1.0, Rule(radius_um=75)).probability) == 9
    )


def test_a_component_is_one_detection_at_its_highest_tile() -> None:
    # Four by three; corners touch.
    values = np.array([0.9, 0.6, 0.1, 0.1, 0.1, 0.7, 0.1, 0.1, 0.1, 0.1, 0.1, 0.8])
    found = detect_lesions(grid(4, 3), 100, values, 1.0, Rule(kind="components"))
    assert found.probability.tolist() == [0.9, 0.8]
    assert found.xy.tolist() == [[50, 50], [350, 250]]


def test_smoothing_prefers_a_region_to_a_lonely_tile() -> None:
    values = np.zeros(40)
    values[5], values[20:27] = 1.0, 0.9
    row = grid(40, 1)
    assert detect_lesions(row, 100, values, 1.0).xy[0, 0] == 550
    smooth = detect_lesions(row, 100, values, 1.0, Rule(smooth_um=100))
    assert 2250 <= smooth.xy[0, 0] <= 2450
    assert detect_lesions(
        row, 100, np.full(40, 0.5), 1.0, Rule(smooth_um=100)
    ).probability == pytest.approx(0.5)


def test_scores_of_zero_or_less_are_no_detections() -> None:
    assert len(detect_lesions(grid(3, 1), 100, np.array([0.0, -2.0, 0.0]), 1.0).probability) == 0
    assert detect_lesions(
        grid(3, 1), 100, np.array([0.1, -2.0, 0.4]), 1.0, Rule(least=0.2)
    ).probability.tolist() == [0.4]


def test_attention_is_weighted_by_what_the_slide_is() -> None:
    class Scores:
        probabilities = np.array([0.75, 0.25])

        def of(self, kind: str) -> np.ndarray:
            return {"ratio": np.array([2.0, 0.0])}[kind]

    assert tile_values(Scores(), "weighted").tolist() == [0.5, 0.0]
    assert tile_values(Scores(), "ratio").tolist() == [2.0, 0.0]


def test_a_rule_that_makes_no_sense_raises() -> None:
    with pytest.raises(
        OptionError, match=r"unknown rule 'maxima' for detections\. Use one of peaks, components\."
    ):
        Rule(kind="maxima")
    with pytest.raises(OptionError, match=r"radius_um = -1: a number from 0 to 1e\+06 is needed\."):
        Rule(radius_um=-1)
    with pytest.raises(DataError, match="1 scores for 2 tiles: one finite number per tile"):
        detect_lesions(grid(2, 1), 100, np.array([0.5]), 1.0)
    with pytest.raises(DataError, match="one finite number per tile"):
        detect_lesions(grid(1, 1), 100, np.array([np.nan]), 1.0)


# --------------------------------------------------------------------------------------------- FROC


def test_what_froc_cannot_count_raises() -> None:
    nothing = find_lesions(MultiPolygon(), MPP)
    with pytest.raises(DataError, match="a score of 0 or less"):
        count_hits(Detections(np.array([0.0]), np.array([[1, 1]])), nothing)
    with pytest.raises(
        DataError, match="no lesion counts in 1 slides: FROC needs some of 275 microns or more"
    ):
        froc([Hits(np.zeros(0), np.array([0.5]), isolated=2)])


def test_only_the_order_of_the_scores_matters() -> None:
    draw = np.random.default_rng(1)
    slides = [Hits(draw.random(2), draw.random(9)) for _ in range(6)]
    squashed = [Hits(np.tanh(hits.lesions), np.tanh(hits.false_positives)) for hits in slides]
    assert froc(slides).score == froc(squashed).score


def some_slides(count: int, seed: int = 0, unit: str | None = None) -> list[Hits]:
    draw = np.random.default_rng(seed)
    return [
        Hits(
            draw.random(k % 3) * (draw.random(k % 3) > 0.3),
            draw.random(4),
            unit=unit and f"{unit} {k // 4}",
        )
        for k in range(count)
    ]


def test_the_interval_holds_the_score_repeats_and_shrinks_with_slides() -> None:
    widths = []
    for count in (12, 192):
        slides = some_slides(count)
        (low, high), each = froc_intervals(slides, 300, seed=3)
        assert low < froc(slides).score < high
        assert len(each) == 6
        assert (
            froc_intervals(slides, 300, seed=3)[0]
            == (low, high)
            != froc_intervals(slides, 300, seed=4)[0]
        )
        widths.append(high - low)
    assert widths[1] < widths[0] / 2


@pytest.mark.parametrize("seed", range(8))
def test_the_corners_are_the_whole_curve(seed: int) -> None:
    draw = np.random.default_rng(seed)
    slides = [
        Hits(
            draw.integers(0, 6, k % 3) / 5,
            draw.integers(1, 6, 5) / 5 if k % 2 else draw.random(9),
            isolated=k % 2,
        )
        for k in range(1, 2 + seed)
    ]
    events, weights = _events(slides), draw.integers(1, 4, len(slides)).astype(float)
    false, found = (weights @ counts for counts in events.corners())
    at = np.linspace(0, 12, 60)
    corners = np.interp(at, false / weights.sum(), found / (weights @ events.lesions))
    assert corners == pytest.approx(np.interp(at, *events.curve(weights)))


def test_slides_of_one_patient_are_drawn_together() -> None:
    # Two patients.
    alike = [Hits(np.array([float(k % 2)]), np.array([0.5]), unit=f"{k % 2}") for k in range(40)]
    alone = [Hits(hits.lesions, hits.false_positives) for hits in alike]
    wide, narrow = (froc_intervals(slides, 300)[0] for slides in (alike, alone))
    assert wide.high - wide.low == pytest.approx(1.0)
    assert narrow.high - narrow.low < 0.5


# -------------------------------------------------------------------------------------------- tiles


def test_the_share_of_a_tile_is_exact_with_holes_and_parts() -> None:
    ring = box(0, 0, 300, 300) - box(100, 100, 200, 200)
    shares = tumour_shares(area(ring, box(400, 0, 425, 100)), grid(5, 3), 100)
    assert shares.reshape(3, 5).tolist() == [[1, 1, 1, 0, 0.25], [1, 0, 1, 0, 0], [1, 1, 1, 0, 0]]
    assert tumour_shares(MultiPolygon(), grid(2, 1), 100).tolist() == [0, 0]


@pytest.mark.parametrize("digits", [1, 8])  # with and without equal scores
def test_tiles_are_scored_as_by_scikit_learn(digits: int) -> None:
    draw = np.random.default_rng(2)
    tumour = [draw.random(n) < 0.2 for n in (50, 80, 7)]
    values = [np.round(draw.random(len(t)) + 0.3 * t, digits) for t in tumour]
    result = score_tiles(tumour, values, draws=50)
    every, scores = np.concatenate(tumour), np.concatenate(values)
    assert result.auc == pytest.approx(roc_auc_score(every, scores))
    assert result.ap == pytest.approx(average_precision_score(every, scores))
    dice = [
        2 * (every & (scores >= t)).sum() / (every.sum() + (scores >= t).sum())
        for t in np.unique(scores)
    ]
    assert result.dice == pytest.approx(max(dice))
    assert result.dice_threshold == np.unique(scores)[int(np.argmax(dice))]
    assert result.slide_auc == pytest.approx(
        np.mean([roc_auc_score(t, v) for t, v in zip(tumour, values)])
    )
    assert (result.tiles, result.tumour_tiles, result.slides_with_both) == (137, every.sum(), 3)
    assert result.auc_interval.low < result.auc < result.auc_interval.high


def test_bins_of_the_draws_do_not_move_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(5)
    tumour = [draw.random(400) < 0.3 for _ in range(12)]
    values = [draw.random(400) + 0.4 * t for t in tumour]
    exact = score_tiles(tumour, values, draws=100)
    monkeypatch.setattr("scmil.stats.localisation.tiles.SCORE_BINS", 500)
    coarse = score_tiles(tumour, values, draws=100)
    assert coarse.auc == exact.auc
    for name in ("auc_interval", "ap_interval", "dice_interval"):
        assert getattr(coarse, name) == pytest.approx(getattr(exact, name), abs=0.003)


def test_without_tumour_tiles_there_is_no_number() -> None:
    result = score_tiles([np.zeros(3, bool)], [np.arange(3.0)], draws=5)
    assert np.isnan(
        [result.auc, result.ap, result.dice, *result.auc_interval, result.slide_auc]
    ).all()


@pytest.mark.parametrize("kind", ["peaks", "components"])
def test_tiles_that_lower_the_logit_are_not_detections(kind: str) -> None:
    row = np.array([[0, 0], [300, 0], [600, 0]])
    rule = Rule("evidence:tumour", kind)
    found = detect_lesions(row, 100, np.array([0.02, -5.0, 0.0]), 1.0, rule)
    assert found.probability.tolist() == [0.02]
