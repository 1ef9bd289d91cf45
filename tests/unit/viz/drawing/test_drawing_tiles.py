"""Colours of tiles by rank or by value, and outlines."""

from __future__ import annotations

import numpy as np
import pytest

from scmil.errors import DataError

pytest.importorskip("PIL")

from PIL import Image

from scmil.viz.drawing.colour_scale import (
    COLOURS,
    SIGNED,
    Scale,
    colours,
    percentiles,
    ranks,
    scale_for,
)
from scmil.viz.drawing.tiles import OPACITY, OUTLINE, RIM, colour_tiles, draw_outlines, raster

EXTENT = (1000, 500)


def white() -> np.ndarray:
    return np.full((100, 200, 3), 255, np.uint8)


def test_a_tile_is_coloured_at_its_position_and_nothing_else_is() -> None:
    xy, scores = np.array([[0, 0], [500, 250]]), np.array([0.0, 1.0])
    picture = colour_tiles(white(), EXTENT, xy, 100, scores, Scale()).astype(int)
    low, high = (
        (255 * (255 - OPACITY) + colour * OPACITY) / 255 for colour in colours(np.array([0.0, 1.0]))
    )
    np.testing.assert_allclose(picture[10, 10], low, atol=2)
    np.testing.assert_allclose(picture[60, 110], high, atol=2)
    assert (picture[80, 50] == 255).all()
    assert (picture[20, 10] == 255).all()  # the tile ends after 20 pixels, counted from 0
    assert (picture[19, 19] != 255).any()


def test_an_outline_is_a_red_line_with_a_white_rim() -> None:
    outline = np.array([[200, 100], [800, 100], [800, 400], [200, 400]])
    picture = Image.fromarray(white())
    draw_outlines(picture, [outline], EXTENT)
    assert picture.getpixel((100, 20)) == OUTLINE[:3]
    assert picture.getpixel((100, 50)) == (255, 255, 255)
    covered = colour_tiles(white(), EXTENT, np.array([[0, 0]]), 1000, np.zeros(1), Scale())
    picture = Image.fromarray(covered)
    draw_outlines(picture, [outline], EXTENT)
    assert picture.getpixel((100, 20)) == OUTLINE[:3]
    assert any(picture.getpixel((100, y)) == RIM[:3] for y in (17, 18, 21, 22))


def test_ranks_do_not_depend_on_scale_and_ties_share() -> None:
    scores = np.array([3.0, 1.0, 1.0, 2.0])
    np.testing.assert_array_equal(ranks(scores), ranks(np.exp(5 * scores)))
    assert ranks(scores)[1] == ranks(scores)[2]
    assert ranks(np.array([7.0])).tolist() == [0.0]


def test_scores_and_tiles_must_agree() -> None:
    with pytest.raises(DataError, match="2 scores for 1 tiles"):
        colour_tiles(white(), EXTENT, np.zeros((1, 2)), 1, np.zeros(2), Scale())


def test_tiles_drawn_together_are_the_same_as_one_by_one() -> None:
    generator = np.random.default_rng(0)
    xy, values = (
        generator.integers(-20, 300, (200, 2)),
        generator.normal(size=200),
    )  # off any grid, and beyond the edges
    total, count = np.zeros((140, 90)), np.zeros((140, 90))
    for (x, y), value in zip(np.rint((xy - (5, 10)) / 3).astype(int), values):
        x1, y1 = np.rint((xy[values == value][0] + 33 - (5, 10)) / 3).astype(int)
        inside = np.s_[max(y, 0) : max(y1, 0), max(x, 0) : max(x1, 0)]
        total[inside] += value
        count[inside] += 1
    actual = raster(xy, 33, values, (5, 10, 275, 430), (90, 140))
    np.testing.assert_array_equal(np.isfinite(actual), count > 0)
    np.testing.assert_allclose(
        actual[count > 0], (total / np.maximum(count, 1))[count > 0], atol=1e-9
    )


def test_tiles_smaller_than_a_pixel_are_visible() -> None:
    actual = raster(
        np.array([[500, 500], [510, 500]]), 8, np.array([0.0, 1.0]), (0, 0, 1000, 1000), (10, 10)
    )
    assert actual[5, 5] == 0.5
    assert np.isfinite(actual).sum() == 1


def test_sixty_thousand_tiles_are_coloured_within_two_seconds() -> None:
    import time

    xy = np.stack(np.meshgrid(np.arange(300), np.arange(200)), -1).reshape(-1, 2) * 256
    values = np.random.default_rng(0).gamma(0.3, size=len(xy))
    before = time.process_time()
    colour_tiles(
        np.full((533, 800, 3), 255, np.uint8), (300 * 256, 200 * 256), xy, 256, values, Scale()
    )
    assert time.process_time() - before < 2  # a rectangle each takes longer


# ------------------------------------------------------------------------------------------- scales


def test_the_lightness_of_the_colours_increases() -> None:
    shown = colours(np.linspace(0, 1, 50))
    lightness = shown @ (0.2126, 0.7152, 0.0722)
    assert (np.diff(lightness) > 0).all()


def test_positive_and_negative_values_have_different_colours() -> None:
    scale = scale_for("atom:3", [np.array([0, 0, 0, -1.0, 2.0])])
    assert scale.signed
    assert scale.low == -scale.high  # type: ignore[operator]
    negative, zero, positive = scale.colours(scale.shares(np.array([-9.0, 0.0, 9.0])))
    assert negative.tolist() == SIGNED[0].tolist()
    assert zero.tolist() == SIGNED[2].tolist()
    assert positive.tolist() == SIGNED[-1].tolist()


def test_an_atom_that_no_tile_uses_is_drawn_as_zero() -> None:
    scale = scale_for("atom:3", [np.zeros(4)])
    assert scale.shares(np.zeros(4)).tolist() == [0.5] * 4


def test_the_same_scale_gives_the_same_colour_to_the_same_value_on_all_slides() -> None:
    slides = [np.array([0.1, 0.5, 0.9]), np.array([0.5, 3.0, 7.0])]
    own = [scale_for("attention", [values]) for values in slides]
    same = scale_for("attention", slides, same=True)
    # ranks: the middle here, the lowest there.
    assert own[0].shares(slides[0])[1] != own[1].shares(slides[1])[0]
    assert same.shares(slides[0])[1] == same.shares(slides[1])[0]
    assert "the same for all" in same.description


def test_percentiles_of_huge_slides_count_every_tile() -> None:
    generator = np.random.default_rng(0)
    large, small = generator.gamma(0.5, size=50_000), 10 + generator.gamma(0.5, size=2_000)
    actual = percentiles([large, small], [1, 50, 99])
    expected = np.percentile(np.concatenate([large, small]), [1, 50, 99])
    np.testing.assert_allclose(actual, expected, rtol=0.02)


def test_a_constant_score_has_one_colour_and_its_value_as_tick() -> None:
    scale = scale_for("sparsity", [np.full(5, 0.25)])
    assert scale.shares(np.full(5, 0.25)).tolist() == [0.0] * 5
    assert scale.ticks(np.full(5, 0.25))[0][1] == "0.25"
    assert scale.colours(np.zeros(1)).tolist() == [COLOURS[0].tolist()]


def test_the_colour_bar_by_rank_has_the_values() -> None:
    ticks = Scale().ticks(np.array([1.0, 2.0, 40.0]))
    assert [(name, value) for _, name, value in ticks][::2] == [
        ("lowest", "1"),
        ("median", "2"),
        ("highest", "40"),
    ]
