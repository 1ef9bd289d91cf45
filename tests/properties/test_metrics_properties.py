from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from scmil.stats import metrics, significance

numbers = st.floats(-100, 100)
grid = st.integers(-20, 20).map(lambda i: i / 20)  # coarse, so that there are ties
bags = st.lists(st.tuples(st.integers(0, 1), grid), min_size=2, max_size=40).map(np.array)
p_values = st.lists(st.floats(0, 1), min_size=1, max_size=20).map(np.array)


def both_classes(table: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    labels = table[:, 0].astype(int)
    labels[:2] = 0, 1
    return labels, table[:, 1]


def j(labels: NDArray[np.int64], scores: NDArray[np.float64], threshold: float) -> float:
    return (scores[labels == 1] > threshold).mean() - (scores[labels == 0] > threshold).mean()


@given(bags)
def test_auc_depends_on_the_order_alone(table: NDArray[np.float64]) -> None:
    labels, scores = both_classes(table)
    plain, stretched, backwards, swapped = metrics.auc_many(
        np.stack([labels, labels, labels, 1 - labels]),
        np.stack([scores, np.exp(3 * scores) - 7, -scores, scores]),
    )
    assert stretched == plain
    assert backwards == pytest.approx(1 - plain)
    assert swapped == pytest.approx(1 - plain)
    pairs = np.sign(scores[labels == 1][:, None] - scores[labels == 0])
    assert plain == pytest.approx((pairs.mean() + 1) / 2)


@given(
    st.lists(st.tuples(st.integers(0, 1), st.one_of(grid, numbers)), min_size=2, max_size=40).map(
        np.array
    ),
    numbers,
)
def test_no_cut_beats_the_youden_threshold(table: NDArray[np.float64], other: float) -> None:
    labels, scores = both_classes(table)
    best = j(labels, scores, metrics.youden_threshold(labels, scores))
    cuts = [other, 0.5, -np.inf, *scores, *(np.sort(scores)[1:] + np.sort(scores)[:-1]) / 2]
    assert best >= max(j(labels, scores, cut) for cut in cuts) - 1e-12


@given(bags)
def test_every_score_lies_between_zero_and_one(table: NDArray[np.float64]) -> None:
    labels, scores = both_classes(table)
    p = np.stack([1 - np.abs(scores), np.abs(scores)], 1)
    assert all(0 <= value <= 1 for value in metrics.score_all(labels, p).values())


@given(bags)
def test_exchanging_the_classes_keeps_what_has_no_side(table: NDArray[np.float64]) -> None:
    labels, scores = both_classes(table)
    p = np.stack([0.47 - scores / 3, 0.53 + scores / 3], 1)  # never at the threshold
    here, there = metrics.score_all(labels, p), metrics.score_all(1 - labels, p[:, ::-1])
    for name in ("accuracy", "auc", "balanced_accuracy", "brier"):
        assert here[name] == pytest.approx(there[name])


@given(p_values)
def test_holm_never_lowers_a_p_value_nor_changes_the_order(p: NDArray[np.float64]) -> None:
    adjusted = significance.holm(p)
    assert (adjusted >= p).all()
    assert (adjusted <= 1).all()
    assert (np.diff(adjusted[np.argsort(p)]) >= 0).all()
    assert adjusted.min() == min(1, p.min() * len(p))


@settings(deadline=None)
@given(st.lists(numbers, min_size=2, max_size=30), st.integers(0, 100))
def test_the_bootstrap_interval_has_the_mean_inside(values: list[float], seed: int) -> None:
    low, high = significance.bootstrap_interval(values, draws=500, seed=seed)
    assert low - 1e-9 <= np.mean(values) <= high + 1e-9
    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9


@settings(deadline=None)
@given(st.lists(st.tuples(grid, grid), min_size=1, max_size=60).map(np.array))
def test_the_signed_rank_is_a_probability_and_an_effect_with_the_sign_of_the_winner(
    pairs: NDArray[np.float64],
) -> None:
    result = significance.wilcoxon(pairs[:, 0], pairs[:, 1])
    assert 0 < result.p <= 1
    assert -1 <= result.effect <= 1
    assert result.better + result.worse + result.equal == len(pairs)
    if not result.worse:
        assert result.effect >= 0


@given(bags, st.data())
def test_delong_turns_round_with_its_arms(table: NDArray[np.float64], data: st.DataObject) -> None:
    labels, a = both_classes(np.concatenate([table, table]))
    labels[2:4] = 0, 1
    b = np.array(data.draw(st.lists(grid, min_size=len(a), max_size=len(a))))
    forward, backward = significance.delong(labels, a, b), significance.delong(labels, b, a)
    assert backward.difference == pytest.approx(-forward.difference, abs=1e-12)
    assert backward.p == pytest.approx(forward.p, nan_ok=True)
    assert (forward.low, forward.high) == pytest.approx(
        (-backward.high, -backward.low), nan_ok=True, abs=1e-12
    )
