"""A heatmap colours tiles where they lie, by rank, and shows the truth in red."""

from __future__ import annotations

import numpy as np
import pytest

from scmil.errors import DataError

pytest.importorskip("PIL")

from scmil.slides.heatmap import STRENGTH, TRUTH, colours, draw_heatmap, ranks


class White:
    size = (1000, 500)

    def thumbnail(self, longest_px: int) -> np.ndarray:
        return np.full((longest_px // 2, longest_px, 3), 255, np.uint8)


def test_a_tile_is_coloured_where_it_lies_and_the_rest_is_not() -> None:
    xy, scores = np.array([[0, 0], [500, 250]]), np.array([0.0, 1.0])
    picture = np.asarray(draw_heatmap(White(), xy, 100, scores, longest_px=200)).astype(int)  # type: ignore[arg-type]
    low, high = ((255 * (255 - STRENGTH) + colour * STRENGTH) / 255 for colour in colours(np.array([0.0, 1.0])))
    np.testing.assert_allclose(picture[10, 10], low, atol=2)
    np.testing.assert_allclose(picture[60, 110], high, atol=2)
    assert (picture[80, 50] == 255).all()


def test_the_truth_is_a_red_line() -> None:
    outline = np.array([[200, 100], [800, 100], [800, 400], [200, 400]])
    nothing = np.zeros((0, 2))
    picture = np.asarray(draw_heatmap(White(), nothing, 1, np.zeros(0), [outline], longest_px=200))  # type: ignore[arg-type]
    assert tuple(picture[20, 100]) == TRUTH[:3]
    assert (picture[50, 100] == 255).all()


def test_ranks_do_not_depend_on_scale_and_ties_share() -> None:
    scores = np.array([3.0, 1.0, 1.0, 2.0])
    np.testing.assert_array_equal(ranks(scores), ranks(np.exp(5 * scores)))
    assert ranks(scores)[1] == ranks(scores)[2]
    assert ranks(np.array([7.0])).tolist() == [0.0]


def test_scores_and_tiles_must_agree() -> None:
    with pytest.raises(DataError, match="2 scores for 1 tiles"):
        draw_heatmap(White(), np.zeros((1, 2)), 1, np.zeros(2))  # type: ignore[arg-type]
