from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from scmil.errors import DataError
from scmil.stats.significance import (
    FoldComparison,
    Interval,
    SignedRank,
    bootstrap_interval,
    compare_folds,
    corrected_t,
    delong,
    holm,
    mean_sd,
    wilcoxon,
)

TEN_FOLDS = np.array([0.10, 0.0, 0.05, -0.04, 0.04, 0.02, -0.02, 0.01, 0.06, -0.02])
RANKS = SignedRank(p=1.0, effect=0.0, better=0, worse=0, equal=0)


def test_the_spread_is_that_of_a_sample() -> None:
    assert mean_sd([0.8, 0.9]) == pytest.approx((0.85, 0.1 / math.sqrt(2)))
    assert math.isnan(mean_sd([0.8]).sd)


def test_the_bootstrap_agrees_with_the_normal_interval_of_many_values() -> None:
    values = np.random.default_rng(0).normal(3, 2, size=400)
    half = 1.96 * values.std(ddof=1) / 20
    low, high = bootstrap_interval(values, draws=10_000)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.02)


def test_slides_of_one_patient_are_one_piece_of_evidence() -> None:
    patients = np.random.default_rng(0).normal(size=30)
    once, ten_times = bootstrap_interval(patients), bootstrap_interval(np.repeat(patients, 10))
    grouped = bootstrap_interval(
        np.repeat(patients, 10), groups=[f"patient {i // 10}" for i in range(300)]
    )
    assert grouped == pytest.approx(once)
    assert ten_times.high - ten_times.low < (grouped.high - grouped.low) / 2


def test_a_value_without_a_patient_is_its_own() -> None:
    values = [1.0, 2.0, 5.0]
    assert bootstrap_interval(values, groups=[None, None, None]) == bootstrap_interval(values)
    assert bootstrap_interval(values, seed=1, draws=50) != bootstrap_interval(
        values, seed=2, draws=50
    )


def test_a_higher_level_gives_a_wider_interval() -> None:
    values = np.random.default_rng(0).normal(size=50)
    narrow, wide = bootstrap_interval(values, level=0.5), bootstrap_interval(values, level=0.99)
    assert wide.low < narrow.low < narrow.high < wide.high


def test_five_data_sets_cannot_reach_significance() -> None:
    result = wilcoxon([0.9, 0.8, 0.7, 0.6, 0.5], [0.1, 0.1, 0.1, 0.1, 0.1])
    assert result == pytest.approx((0.0625, 1.0, 5, 0, 0))
    assert wilcoxon([1, 2, 3, 4, 5, 6], [0] * 6).p < 0.05


def test_the_signed_rank_effect_counts_ranks() -> None:
    result = wilcoxon([3, 0, 2], [0, 1, 2])  # differences 3, -1 and 0 have the ranks 3, 2 and 1
    assert result.effect == pytest.approx((3 - 2) / 6)
    assert (result.better, result.worse, result.equal) == (1, 1, 1)


def test_exchanging_the_methods_turns_the_effect_round() -> None:
    a, b = np.random.default_rng(3).random((2, 20))
    forward, backward = wilcoxon(a, b), wilcoxon(b, a)
    assert backward == pytest.approx((forward.p, -forward.effect, forward.worse, forward.better, 0))
    assert forward.p == pytest.approx(stats.wilcoxon(a, b).pvalue)


def test_the_signed_rank_is_exact_with_ties_and_zeros() -> None:
    differences = np.array([1, 1, 1, -1, 0, 2, 2, 3, -2, 4])
    assert wilcoxon(differences, np.zeros(10)).p == pytest.approx(every_sign(differences))
    assert wilcoxon(differences[:3], np.zeros(3)).p == 0.25


def every_sign(differences: np.ndarray) -> float:
    """Count, among all signs of the differences, those with a sum of signed ranks at least as far
    from zero.
    """
    ranks = stats.rankdata(np.abs(differences)) * (differences != 0)
    signs = np.array(list(product((-1, 1), repeat=len(differences))))
    return float((np.abs(signs @ ranks) >= abs(np.sign(differences) @ ranks)).mean())


@pytest.mark.parametrize(("pairs", "tolerance"), [(50, 0.02), (250, 1e-12)])
def test_the_signed_rank_of_many_pairs_is_that_of_the_normal_approximation(
    pairs: int, tolerance: float
) -> None:
    differences = np.random.default_rng(pairs).integers(-4, 6, size=pairs) / 10
    expected = stats.wilcoxon(differences, zero_method="pratt").pvalue
    assert wilcoxon(differences, np.zeros(pairs)).p == pytest.approx(expected, abs=tolerance)


def test_pairs_that_tie_make_a_difference_less_sure() -> None:
    gains = np.arange(1, 11) / 10
    alone, diluted = (
        wilcoxon(gains, np.zeros(10)),
        wilcoxon([*gains, *[0] * 10, -0.5], np.zeros(21)),
    )
    assert diluted.equal == 10
    assert diluted.p > alone.p


def test_equal_methods_have_no_difference() -> None:
    assert wilcoxon([0.5, 0.7], [0.5, 0.7]) == (1.0, 0.0, 0, 0, 2)


def test_differences_that_are_equal_on_paper_tie() -> None:
    assert wilcoxon([0.3, 0.9, 0.8], [0.1 + 0.2, 0.8, 0.9]) == (1.0, 0.0, 1, 1, 1)


def test_holm_of_a_worked_example() -> None:
    np.testing.assert_allclose(holm([0.01, 0.02, 0.03, 0.5]), [0.04, 0.06, 0.06, 0.5])
    np.testing.assert_allclose(holm([0.9, 0.8]), [1, 1])


def test_delong_of_a_worked_example() -> None:
    # The share of negatives below each positive is 1/2, 1 for a and 1, 3/4 for b;
    # the share of positives above each negative is 1, 1/2 for a and 1, 3/4 for b.
    result = delong([0, 0, 1, 1], [0.1, 0.5, 0.3, 0.9], [0.1, 0.5, 0.9, 0.5])
    variance = np.var([1 / 2 - 1, 1 - 3 / 4], ddof=1) / 2 + np.var([0, 1 / 2 - 3 / 4], ddof=1) / 2
    assert (result.auc_a, result.auc_b, result.difference) == (0.75, 0.875, -0.125)
    assert result.high - result.difference == pytest.approx(1.959964 * math.sqrt(variance))
    assert result.low + result.high == pytest.approx(2 * result.difference)
    assert result.p == pytest.approx(2 * stats.norm.sf(0.125 / math.sqrt(variance)))


def scored(seed: int, n: int = 120) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two noisy views of the same bags, one a little better, both with ties."""
    generator = np.random.default_rng(seed)
    labels = np.arange(n) % 3 % 2
    common = generator.normal(size=n)
    a, b = (np.round(labels * shift + common + generator.normal(size=n), 1) for shift in (1.6, 1.0))
    return labels, a, b


def test_delong_has_the_auc_of_scikit_learn() -> None:
    labels, a, b = scored(0)
    result = delong(labels, a, b)
    assert (result.auc_a, result.auc_b) == pytest.approx(
        (roc_auc_score(labels, a), roc_auc_score(labels, b))
    )


def test_delong_agrees_with_a_bootstrap_of_the_bags() -> None:
    labels, a, b = scored(1)
    generator = np.random.default_rng(0)
    classes = [np.flatnonzero(labels == value) for value in (0, 1)]
    differences = []
    for _ in range(600):
        drawn = np.concatenate([generator.choice(members, len(members)) for members in classes])
        above = [
            np.sign(s[drawn][len(classes[0]) :, None] - s[drawn][None, : len(classes[0])]).mean()
            / 2
            for s in (a, b)
        ]
        differences.append(above[0] - above[1])
    result = delong(labels, a, b)
    assert (result.high - result.low) / 2 / 1.96 == pytest.approx(np.std(differences), rel=0.1)


def test_delong_is_right_about_chance_when_there_is_no_difference() -> None:
    generator = np.random.default_rng(5)
    labels = np.arange(60) % 2
    p = [delong(labels, *(labels + generator.normal(size=(2, 60)))).p for _ in range(400)]
    assert 0.02 < np.mean(np.array(p) < 0.05) < 0.09


def test_the_same_order_of_bags_is_no_difference() -> None:
    labels, a, _ = scored(2)
    result = delong(labels, a, np.exp(a))
    assert (result.difference, result.low, result.high, result.p) == (0, 0, 0, 1)


def test_delong_claims_nothing_without_a_variance() -> None:
    result = delong([0, 0, 1, 1], [1, 2, 3, 4], [7, 7, 7, 7])
    assert (result.auc_a, result.auc_b) == (1, 0.5)
    assert math.isnan(result.p)
    assert math.isnan(result.low)


def test_the_corrected_test_is_less_sure_than_the_plain_one() -> None:
    differences = np.random.default_rng(0).normal(0.02, 0.05, size=50)
    plain = stats.ttest_1samp(differences, 0).pvalue
    assert corrected_t(differences, 1e-12) == pytest.approx(plain)
    assert corrected_t(differences, 0.1) > plain
    t = differences.mean() / (differences.std(ddof=1) * math.sqrt(1 / 50 + 0.1 / 0.9))
    assert corrected_t(differences, 0.1) == pytest.approx(2 * stats.t.sf(abs(t), 49))


def test_repeating_the_same_folds_gives_little_new_evidence() -> None:
    plain_once, plain_often = (
        stats.ttest_1samp(values, 0).pvalue for values in (TEN_FOLDS, np.tile(TEN_FOLDS, 100))
    )
    once, often = (corrected_t(values, 0.1) for values in (TEN_FOLDS, np.tile(TEN_FOLDS, 100)))
    assert plain_once > 0.1
    assert plain_often < 1e-6
    assert once > often > 0.05


def test_folds_that_all_agree_are_as_sure_as_they_are_many() -> None:
    assert corrected_t([0.9 - 0.8, 0.8 - 0.7], 0.5) == 0.5
    assert corrected_t([0.1] * 10, 0.1) == 2**-9


def test_a_comparison_has_all_its_numbers() -> None:
    a, b = [0.8, 0.9, 1.0, 0.9], [0.7, 0.9, 0.8, 0.9]
    result = compare_folds(a, b, 0.25, ("SC-ABMIL", "ABMIL"), metric="AUC")
    assert (result.a, result.b, result.metric, result.interval) == (
        "SC-ABMIL",
        "ABMIL",
        "AUC",
        None,
    )
    assert (result.mean_a, result.mean_b, result.delta) == pytest.approx((0.9, 0.825, 0.075))
    assert result.p == corrected_t(np.array(a) - b, 0.25)
    assert result.signed_rank == wilcoxon(a, b)


def test_the_interval_is_over_bags_and_repeats_are_averaged_first() -> None:
    units = ["w", "x", "y", "z", "z", "w", "x", "y"]  # two repeats, in another order
    correct_a, correct_b = [1, 1, 1, 1, 0, 1, 1, 1], [1, 0, 1, 0, 1, 0, 0, 1]
    methods = dict(a=[1, 0.5], b=[0.5, 0.5], test_share=0.5, names=("A", "B"), seed=3)
    result = compare_folds(**methods, units=units, correct_a=correct_a, correct_b=correct_b)
    assert result.interval == bootstrap_interval([0.5, 1, 0, 0], seed=3)  # w, x, y, z
    groups = ["ann", "ann", "bob", None, None, "ann", "ann", "bob"]
    grouped = compare_folds(
        **methods, units=units, correct_a=correct_a, correct_b=correct_b, groups=groups
    )
    assert grouped.interval == bootstrap_interval(
        [0.5, 1, 0, 0], groups=["ann", "ann", "bob", None], seed=3
    )


@pytest.mark.parametrize(
    ("p", "interval", "words"),
    [
        (
            0.3,
            Interval(-0.01, 0.03),
            r"by +0.010 compared with B (95 % interval -0.010 to +0.030): no difference that",
        ),
        (
            0.06,
            Interval(0.001, 0.03),
            "(95 % interval +0.001 to +0.030): no difference that this data can show.",
        ),
        (
            0.012,
            Interval(0.001, 0.03),
            "a difference that chance alone would rarely make (p = 0.012).",
        ),
        (
            0.012,
            Interval(-0.01, 0.03),
            "weak evidence of a difference, for the folds agree on it (p = 0.012)",
        ),
        (
            0.00001,
            None,
            "A changed accuracy by +0.010 compared with B: a difference that chance alone",
        ),
        (0.00001, None, "(p < 0.001)."),
        (0.00001, Interval(-0.00001, 0.02), "interval +0.000 to +0.020"),
    ],
)
def test_the_sentence_claims_no_more_than_the_test(
    p: float, interval: Interval | None, words: str
) -> None:
    result = FoldComparison("A", "B", "accuracy", 0.51, 0.5, 0.01, p, RANKS, interval)
    assert words in result.sentence()
    assert result.significant == (p < 0.05)


def test_noise_is_not_called_a_difference_although_a_plain_test_would() -> None:
    differences = np.tile(TEN_FOLDS, 5)  # five repeats that agree
    result = compare_folds(0.8 + differences, np.full(50, 0.8), 0.1, ("A", "B"))
    assert result.signed_rank.p < 0.05
    assert not result.significant
    assert result.sentence().endswith("no difference that this data can show.")


def test_what_cannot_be_tested_raises() -> None:
    methods = dict(a=[1, 0.5], b=[0.5, 0.5], test_share=0.5, names=("A", "B"))
    with pytest.raises(DataError, match=r"shape \(0,\): a list of at least 1"):
        mean_sd([])
    with pytest.raises(DataError, match="value 1 of 2 is nan, and a finite number is expected"):
        wilcoxon([0.5, math.nan], [0.5, 0.5])
    with pytest.raises(DataError, match="2 values against 3: pairs"):
        wilcoxon([1, 2], [1, 2, 3])
    with pytest.raises(DataError, match="1 groups for 2 values"):
        bootstrap_interval([1, 2], groups=["x"])
    with pytest.raises(DataError, match="one patient"):
        bootstrap_interval([1, 2], groups=["x", "x"])
    with pytest.raises(DataError, match="level = 95, draws = 2000"):
        bootstrap_interval([1, 2], level=95)
    with pytest.raises(DataError, match=r"p-values from 0\.5 to 1\.5"):
        holm([0.5, 1.5])
    with pytest.raises(DataError, match="test_share = 1: a number"):
        corrected_t([1, 2], 1)
    with pytest.raises(DataError, match="at least 2 bags of each"):
        delong([0, 0, 0, 1], [1, 2, 3, 4], [1, 2, 3, 4])
    with pytest.raises(DataError, match="5 labels, 4 and 4 scores"):
        delong([0, 0, 0, 1, 1], [1, 2, 3, 4], [1, 2, 3, 4])
    with pytest.raises(DataError, match="all of them, or none"):
        compare_folds(**methods, units=["x", "y"])
    with pytest.raises(DataError, match="3 units for 2 predictions"):
        compare_folds(**methods, units=["x", "y", "z"], correct_a=[1, 0], correct_b=[0, 0])
    with pytest.raises(DataError, match="1 groups for 2 predictions"):
        compare_folds(**methods, units=["x", "y"], correct_a=[1, 0], correct_b=[0, 0], groups=["p"])
    with pytest.raises(DataError, match="bag 'x' belongs to both patient 'p' and patient 'q'"):
        compare_folds(
            **methods, units=["x", "x"], correct_a=[1, 0], correct_b=[0, 0], groups=["p", "q"]
        )
