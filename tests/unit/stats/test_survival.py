"""Survival metrics agree with lifelines and scikit-survival, and their intervals are by patient."""

from __future__ import annotations

import math

import numpy as np
import pytest
from survival_golden import EVENT, GROUP, RISK, TIME, read_rows, values_of

from scmil.errors import DataError
from scmil.stats import concordance as concordance_module
from scmil.stats.concordance import (
    concordance,
    concordance_interval,
    concordance_ipcw,
    harrell_pairs,
    share_of_pairs,
)
from scmil.stats.survival import (
    censoring_distribution,
    chi_square_tail,
    kaplan_meier,
    log_rank,
)
from scmil.stats.survival_scores import (
    integrated_brier,
    mean_auc,
    survival_brier,
    survival_intervals,
    time_dependent_auc,
)

AT = [5, 10, 15, 25]


def curves(times: list[float] | range) -> np.ndarray:
    return np.exp(-(np.array(times)[None] / 24) * np.exp(RISK)[:, None])


def test_kaplan_meier_is_that_of_lifelines_and_scikit_survival() -> None:
    rows = read_rows("kaplan_meier")[1:]  # the first is time 0, before every event
    estimate = kaplan_meier(TIME, EVENT)
    for name in ("time", "at_risk", "events", "censored"):
        ours = estimate.times if name == "time" else getattr(estimate, name)
        assert ours.tolist() == [float(row[name]) for row in rows]
    for package in ("lifelines", "sksurv"):
        for name, ours in (
            ("survival", estimate.survival),
            ("lower", estimate.low),
            ("upper", estimate.high),
        ):
            theirs = [float(row[f"{package}_{name}"]) for row in rows]
            assert ours == pytest.approx(theirs, abs=1e-9)
    assert estimate.median == values_of("median_survival", "all rows")[0]
    assert estimate.at([0, 1, 1.5]).tolist() == [1.0, 0.875, 0.875]
    assert estimate.at_risk_at([0, 1, 1.5, 99]).tolist() == [40, 40, 35, 0]


def test_medians_of_groups_and_of_a_curve_that_stays_high() -> None:
    for group in (0, 1, 2):
        rows = group == GROUP
        expected = values_of("median_survival", f"group {group}")[0]
        assert kaplan_meier(TIME[rows], EVENT[rows]).median == expected
    assert math.isnan(kaplan_meier([1, 2, 3], [1, 0, 0]).median)


def test_the_censoring_distribution_is_that_of_scikit_survival() -> None:
    ours = censoring_distribution(TIME, EVENT).at([5, 10, 25])
    expected = [values_of("censoring_survival", f"time {t}")[0] for t in (5, 10, 25)]
    assert ours == pytest.approx(expected, abs=1e-12)


def test_log_rank_of_two_and_of_three_groups() -> None:
    two = GROUP < 2
    cases = (
        (log_rank(TIME[two], EVENT[two], GROUP[two].tolist()), "group 0 against group 1"),
        (log_rank(TIME, EVENT, GROUP.tolist()), "three groups"),
        (log_rank(TIME, EVENT, (np.median(RISK) < RISK).tolist()), "risk above its median"),
    )
    for ours, setting in cases:
        for theirs in values_of("log_rank_chi_square", setting):
            assert ours.chi_square == pytest.approx(theirs, abs=1e-9)
        for theirs in values_of("log_rank_p", setting):
            assert ours.p_value == pytest.approx(theirs, rel=1e-9)
    assert cases[1][0].degrees == 2


def test_log_rank_needs_two_groups_and_says_nothing_without_events() -> None:
    with pytest.raises(DataError, match="at least two groups"):
        log_rank(TIME, EVENT, ["a"] * 40)
    assert log_rank([1, 2], [0, 0], ["a", "b"]).p_value == 1.0


def test_the_tail_of_chi_square_is_that_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for degrees in range(1, 9):
        for statistic in (0.0, 0.3, 4.0, 30.0):
            expected = stats.chi2.sf(statistic, degrees)
            assert chi_square_tail(statistic, degrees) == pytest.approx(expected, rel=1e-9)


def test_concordance_is_that_of_lifelines_and_scikit_survival() -> None:
    for theirs in values_of("harrell_c", "risk"):
        assert concordance(TIME, EVENT, RISK) == pytest.approx(theirs, abs=1e-12)
    assert concordance(TIME, EVENT, -RISK) == pytest.approx(
        1 - values_of("harrell_c", "risk")[0], abs=1e-12
    )


@pytest.mark.parametrize("tau", [None, 15.0, 30.0])
def test_unos_concordance_is_that_of_scikit_survival(tau: float | None) -> None:
    whole = values_of("uno_c", f"estimated on all rows; tau={tau}")[0]
    part = values_of("uno_c", f"estimated on rows 0-24; tau={tau}")[0]
    assert concordance_ipcw(TIME, EVENT, RISK, tau) == pytest.approx(whole, abs=1e-9)
    rows = slice(0, 25)
    ours = concordance_ipcw(TIME[rows], EVENT[rows], RISK[rows], tau, (TIME, EVENT))
    assert ours == pytest.approx(part, abs=1e-9)


def test_time_dependent_auc_is_that_of_scikit_survival() -> None:
    ours = time_dependent_auc(TIME, EVENT, RISK, AT)
    for time, value in zip(AT, ours, strict=True):
        assert value == pytest.approx(
            values_of("time_dependent_auc", f"all rows, time {time}")[0], abs=1e-9
        )
    mean = values_of("mean_time_dependent_auc", "times 5")[0]
    assert mean_auc(ours, AT, TIME, EVENT) == pytest.approx(mean, abs=1e-9)


def test_brier_scores_are_those_of_scikit_survival() -> None:
    ours = survival_brier(TIME, EVENT, curves(AT), AT)
    for time, value in zip(AT, ours, strict=True):
        assert value == pytest.approx(
            values_of("brier_score", f"all rows, time {time}")[0], abs=1e-9
        )
    for times, setting in ((AT, "times 5, 10"), (range(3, 31), "times 3, 4")):
        expected = values_of("integrated_brier_score", setting)[0]
        ours_integrated = integrated_brier(TIME, EVENT, curves(times), times)
        assert ours_integrated == pytest.approx(expected, abs=1e-9)


def test_what_was_never_observed_has_no_value() -> None:
    early = (TIME[TIME < 10], EVENT[TIME < 10])
    assert np.isnan(time_dependent_auc(TIME, EVENT, RISK, [20], early)).all()
    assert np.isnan(survival_brier(TIME, EVENT, curves([20]), [20], early)).all()
    assert math.isnan(concordance([1, 2], [0, 0], [1, 2]))
    assert np.isnan(time_dependent_auc([1, 2], [1, 1], [2, 1], [0.5, 3])).all()
    assert math.isnan(mean_auc([0.5], [0.5], [1, 2], [1, 1]))


def test_the_values_with_intervals_are_those_of_the_single_functions() -> None:
    scores = survival_intervals(TIME, EVENT, RISK, survival=curves(AT), at=AT, draws=200)
    auc = time_dependent_auc(TIME, EVENT, RISK, AT)
    expected = {
        "c_index": concordance(TIME, EVENT, RISK),
        "uno_c": concordance_ipcw(TIME, EVENT, RISK),
        "auc": mean_auc(auc, AT, TIME, EVENT),
        "integrated_brier": integrated_brier(TIME, EVENT, curves(AT), AT),
    } | {f"auc@{t}": value for t, value in zip(AT, auc, strict=True)}
    assert {name: score.value for name, score in scores.items()} == pytest.approx(expected)
    for score in scores.values():
        assert score.interval.low < score.value < score.interval.high


def test_a_resample_is_the_metric_of_the_drawn_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting a patient twice is the same as listing the patient twice, also in blocks of rows."""
    drawn = np.random.default_rng(0).integers(40, size=40)
    counts = np.bincount(drawn, minlength=40).astype(float)[None]
    monkeypatch.setattr(concordance_module, "PAIRS_PER_BLOCK", 100)
    pairs = harrell_pairs(TIME, EVENT.astype(bool), RISK)
    expected = concordance(TIME[drawn], EVENT[drawn], RISK[drawn])
    assert share_of_pairs(pairs, counts)[0] == pytest.approx(expected, abs=1e-12)


def test_intervals_are_over_patients() -> None:
    """Each patient twice: as many patients as before, and the same interval."""
    twice = np.repeat(np.arange(40), 2)
    single = survival_intervals(TIME, EVENT, RISK, draws=300)["c_index"].interval
    double = survival_intervals(
        TIME[twice], EVENT[twice], RISK[twice], groups=twice.tolist(), draws=300
    )["c_index"].interval
    assert double == pytest.approx(single, abs=1e-9)
    bootstrap = survival_intervals(TIME, EVENT, RISK, at=[5, 10], draws=300)["auc"].interval
    twofold = survival_intervals(
        TIME[twice], EVENT[twice], RISK[twice], at=[5, 10], groups=twice.tolist(), draws=300
    )["auc"].interval
    assert twofold == pytest.approx(bootstrap, abs=1e-9)
    alone = survival_intervals(TIME, EVENT, RISK, groups=["a"] * 40)["c_index"]
    assert math.isnan(alone.interval.low)


def test_a_perfect_order_of_few_patients_is_not_certain() -> None:
    times = np.arange(1, 9)
    scores = survival_intervals(times, [1] * 8, -times, at=[4.5], draws=50)
    for name in ("c_index", "uno_c", "auc@4.5"):
        assert scores[name].value == 1.0
        assert scores[name].interval.high == 1.0
        assert 0.4 < scores[name].interval.low < 0.95


def test_the_interval_of_a_concordance_is_close_to_the_bootstrap_in_large_samples() -> None:
    random = np.random.default_rng(0)
    risk = random.normal(size=400)
    times = random.exponential(np.exp(-risk))
    events = random.random(400) < 0.7
    pairs = harrell_pairs(times, events, risk)
    counts = random.multinomial(400, np.full(400, 1 / 400), size=500).astype(float)
    expected = np.quantile(share_of_pairs(pairs, counts), [0.025, 0.975])
    assert concordance_interval(times, events, risk) == pytest.approx(expected, abs=0.012)


@pytest.mark.parametrize(("n", "noise"), [(20, 1.0), (20, 0.1), (50, 0.5)])
def test_concordance_intervals_contain_the_true_value(n: int, noise: float) -> None:
    """Log-normal times whose order depends on the risk, 40 % censored independently."""
    random = np.random.default_rng(1)

    def draw(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        risk = random.normal(size=size)
        times = np.exp(-risk + noise * random.normal(size=size))
        return times, random.random(size) > 0.4, risk

    true = concordance(*draw(4000))
    hits = sum(
        low <= true <= high for low, high in (concordance_interval(*draw(n)) for _ in range(300))
    )
    assert hits >= 0.92 * 300


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: concordance([1, 2], [1], [1, 2]), "shape"),
        (lambda: concordance([1, math.inf], [1, 0], [1, 2]), "1 of 2 times are not finite"),
        (lambda: concordance([1, 2], [1, 2], [1, 2]), "1 .event. or 0 .censored."),
        (lambda: concordance([1, 2], ["dead", "alive"], [1, 2]), "Recode"),
        (lambda: concordance([1, 2], [1, 0], [1, math.nan]), "1 of them not finite"),
        (lambda: survival_brier([1, 2], [1, 0], [[0.5]], [1]), r"\(2, 1\) is expected"),
        (lambda: survival_brier([1, 2], [1, 0], [[0.5], [2]], [1]), "between 0 and 1"),
        (lambda: integrated_brier([1, 2], [1, 0], [[0.5]] * 2, [1]), "two ascending times"),
    ],
)
def test_invalid_input_is_rejected(call: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        call()


def test_a_perfect_mean_auc_has_an_interval_with_a_width() -> None:
    times = np.arange(1.0, 11.0)
    scores = survival_intervals(times, np.ones(10), -times, at=[3.5, 5.5, 7.5], draws=50)
    limits = np.array([scores[f"auc@{point}"].interval for point in (3.5, 5.5, 7.5)])
    low, high = scores["auc"].interval
    assert scores["auc"].value == high == 1
    assert limits[:, 0].min() <= low <= limits[:, 0].max() < 0.9
