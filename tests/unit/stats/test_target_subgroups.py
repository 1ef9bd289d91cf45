"""Subgroups of survival, numbers, grades and labels: a planted gap is found, chance is not."""

from __future__ import annotations

import numpy as np
import pytest

from scmil.stats import target_subgroups
from scmil.stats.bootstrap import Groups
from scmil.stats.concordance import concordance
from scmil.stats.ordinal import score_ordinal
from scmil.stats.regression import score_regression
from scmil.stats.subgroups import SubgroupTable, compare_subgroups
from scmil.stats.target_subgroups import TargetOutcomes

N = 120
MAIN = {"survival": "c_index", "regression": "r2", "ordinal": "kappa", "multilabel": "tp53: auc"}
SITES = ["a", "b"] * (N // 2)


def outcomes(task: str, gap: bool, seed: int = 0, patients: Groups | None = None) -> TargetOutcomes:
    """Predictions with noise; with a gap those of site b are random."""
    random = np.random.default_rng(seed)
    truth = random.normal(size=N)
    guess = truth + 0.4 * random.normal(size=N)
    if gap:
        guess = np.where(np.array(SITES) == "b", random.normal(size=N), guess)
    names: tuple[str, ...] = ()
    if task == "survival":
        observed = np.stack([np.exp(-truth), random.random(N) < 0.7], axis=1).astype(float)
        predicted = guess[:, None]
    elif task == "regression":
        observed, predicted = truth[:, None], guess[:, None]
    elif task == "ordinal":
        names = ("1", "2", "3")
        observed, predicted = (
            np.digitize(values, [-0.5, 0.5]).astype(float)[:, None] for values in (truth, guess)
        )
    else:
        names = ("tp53", "rare")
        labels = np.stack([truth > 0, np.arange(N) < 3], axis=1).astype(float)
        labels[::10, 0] = np.nan
        observed = labels
        predicted = np.stack([1 / (1 + np.exp(-guess)), random.random(N)], axis=1)
    return TargetOutcomes(task, observed, predicted, patients or [None] * N, names)


def compare(task: str, gap: bool, seed: int = 0) -> SubgroupTable:
    return compare_subgroups(outcomes(task, gap, seed), {"site": SITES}, permutations=400)


@pytest.mark.parametrize("task", MAIN)
def test_a_site_that_is_predicted_at_random_is_the_worst(task: str) -> None:
    table = compare(task, gap=True)
    [gap] = [gap for gap in table.gaps if gap.metric == MAIN[task]]
    assert (gap.best, gap.worst) == ("a", "b")
    assert gap.adjusted < 0.05
    values = {group.name: group.metrics[MAIN[task]] for group in table.groups}
    assert gap.difference == pytest.approx(values["a"].value - values["b"].value)
    assert values["a"].interval.low < values["a"].value < values["a"].interval.high


@pytest.mark.parametrize("task", MAIN)
def test_without_a_gap_few_p_values_are_small(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_subgroups, "DRAWS", 2)  # of intervals, which do not matter here
    small = 0
    for seed in range(20):
        [gap] = [gap for gap in compare(task, False, seed).gaps if gap.metric == MAIN[task]]
        small += gap.p < 0.05
    assert small <= 4  # binomial with 20 and 0.05: more than 4 in 0.3 % of the cases


def test_metrics_of_a_group_are_those_of_its_slides() -> None:
    rows = np.arange(0, N, 2)
    own = outcomes("survival", True)
    found = own.describe(rows).metrics["c_index"].value
    times, events = own.observed[rows].T
    expected = concordance(times, events, own.predicted[rows, 0])
    assert found == pytest.approx(expected)
    own = outcomes("regression", True)
    scores = score_regression(own.observed[rows, 0], own.predicted[rows, 0])
    metrics = own.describe(rows).metrics
    assert (metrics["r2"].value, metrics["mae"].value) == (scores["r2"], scores["mae"])
    own = outcomes("ordinal", True)
    truth, guess = (values[rows, 0].astype(int) for values in (own.observed, own.predicted))
    assert own.describe(rows).metrics["kappa"].value == score_ordinal(truth, guess, 3)["kappa"]


def test_a_smaller_error_is_better_and_is_not_the_largest_gap() -> None:
    random = np.random.default_rng(0)
    truth = 1000 * random.normal(size=(N, 1))
    noise = np.where(np.array(SITES) == "b", 900, 100)[:, None] * random.normal(size=(N, 1))
    own = TargetOutcomes("regression", truth, truth + noise, [None] * N)
    table = compare_subgroups(own, {"site": SITES}, permutations=50)
    gaps = {gap.metric: gap for gap in table.gaps}
    assert gaps["mae"].difference > 100
    assert (gaps["mae"].best, gaps["mae"].worst) == ("a", "b")
    assert table.worst == gaps["r2"]


def test_a_rare_label_is_shown_but_not_compared() -> None:
    table = compare("multilabel", gap=True)
    assert {gap.metric for gap in table.gaps} == {"tp53: auc"}  # nor is the mean over labels
    assert "rare: auc" in table.groups[0].metrics


def test_too_few_events_make_a_group_small() -> None:
    own = outcomes("survival", True)
    censored = own.observed.copy()
    censored[np.flatnonzero(np.array(SITES) == "b")[4:], 1] = 0
    few = TargetOutcomes("survival", censored, own.predicted, own.patients)
    table = compare_subgroups(few, {"site": SITES}, permutations=10)
    assert [group.small for group in table.groups] == [False, True]
    assert table.not_compared == ("site",)


def test_slides_of_a_patient_stay_together() -> None:
    """Every patient has ten slides: what looks certain by slide is not by patient."""
    patients = [f"p{i // 20}{SITES[i]}" for i in range(N)]
    own = outcomes("regression", True, patients=patients)
    assert compare_subgroups(own, {"site": SITES}, permutations=50).not_compared == ("site",)
    columns = {"site": ["a" if i < N // 2 else "b" for i in range(N)]}
    pairs: Groups = [f"p{i // 2}" for i in range(N)]
    table = compare_subgroups(outcomes("regression", True, patients=pairs), columns, 50)
    assert [group.patients for group in table.groups] == [30, 30]
