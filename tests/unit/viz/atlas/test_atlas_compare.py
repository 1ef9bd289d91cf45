"""Comparison of classes."""

from __future__ import annotations

import numpy as np
import pytest
from atlas_case import cohort, random_slides, slide
from scipy import stats

from scmil.stats.significance import holm
from scmil.viz.atlas.compare import compare_use
from scmil.viz.atlas.counts import build_atlas


def test_p_is_mann_whitneys_and_corrected_for_every_sign_in_use() -> None:
    scores = random_slides()
    atlas = build_atlas(scores)
    dense = np.stack(
        [
            np.hstack([one.codes.dense() > 0, one.codes.dense() < 0]).mean(0)
            for one in scores.values()
        ]
    )  # type: ignore[union-attr]
    raw = [stats.mannwhitneyu(dense[0::2, k], dense[1::2, k]).pvalue for k in range(12)]
    best = atlas.ranked[0]
    assert (best.atom, best.sign) == (2, "+")
    assert best.p == pytest.approx(holm(raw)[2], rel=1e-3)
    assert best.low is not None
    assert best.high is not None
    assert best.difference is not None
    assert 0 < best.low < best.difference < best.high
    assert best.difference == pytest.approx(dense[1::2, 2].mean() - dense[0::2, 2].mean(), abs=1e-5)


def test_the_interval_is_that_of_resampling_and_is_reproducible() -> None:
    generator = np.random.default_rng(1)
    shares = generator.random((40, 1))
    labels = np.repeat([0, 1], 20)
    found = compare_use(shares, labels, seed=3)
    error = np.hypot(*(shares[labels == k].std() / np.sqrt(20) for k in (0, 1)))
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert compare_use(shares, labels, seed=3).low == found.low
    assert compare_use(shares, labels, seed=4).low != found.low


def test_more_than_two_classes_are_each_compared_with_the_rest() -> None:
    generator = np.random.default_rng(0)
    shares = generator.random((30, 2)) * 0.1
    labels = np.repeat([0, 1, 2], 10)
    shares[labels == 1, 0] += 0.5
    found = compare_use(shares, labels)
    assert found.target[0] == 1
    assert found.difference[0] == pytest.approx(
        shares[labels == 1, 0].mean() - shares[labels != 1, 0].mean()
    )
    assert found.p[0] == pytest.approx(
        stats.kruskal(*(shares[labels == k, 0] for k in range(3))).pvalue
    )
    assert found.low[0] < found.difference[0] < found.high[0]


def test_one_patient_in_a_class_has_no_interval() -> None:
    found = compare_use(np.array([[0.1], [0.2], [0.9]]), np.array([0, 0, 1]))
    assert np.isnan([found.low, found.high]).all()


def test_slides_of_one_patient_count_once() -> None:
    slides = cohort(
        slide("a1", [[1.0]], 0),
        slide("a2", [[0.0]], 0),
        slide("b", [[0.0], [0.0], [0.0], [1.0]], 0),
        slide("c", [[1.0]], 1),
    )
    atlas = build_atlas(slides, patients={"a1": "ann", "a2": "ann"})
    assert atlas.compared == {"normal": 2, "tumour": 1}
    assert atlas.atoms[0].by_class["normal"] == 0.375
    assert build_atlas(slides).compared == {"normal": 3, "tumour": 1}


def test_slides_without_a_label_are_counted_and_not_compared() -> None:
    atlas = build_atlas(random_slides(6), labels={"s00": 0, "s02": 0, "s01": 1, "s03": 1})
    assert (atlas.slides, atlas.tiles, atlas.compared) == (6, 180, {"normal": 2, "tumour": 2})
