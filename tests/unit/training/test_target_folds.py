"""Cross-validated predictions of every task, with metrics, a baseline and no leakage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from survival_golden import EVENT, TIME, column, values_of
from target_cohort import make_bags, make_targets

from scmil.bags.bag import Bag
from scmil.bags.splits import Split
from scmil.bags.targets import SurvivalTarget, Targets
from scmil.errors import DataError, OptionError, SplitError
from scmil.models.objectives import CoxObjective, SurvivalObjective
from scmil.training import target_baseline
from scmil.training.recipes import Recipe
from scmil.training.target_baseline import baseline_folds, ridge
from scmil.training.target_folds import (
    HeldOut,
    cross_fit,
    objective_for,
    risk_groups,
    score_held_out,
    target_folds,
)

pytestmark = pytest.mark.slow  # models are trained

RECIPE = Recipe(epochs=5, learning_rate=1e-2, weight_decay=0.0)
MODEL = {"aggregator": "mean", "embed": [8]}
TASKS = {"survival": "c_index", "regression": "r2", "ordinal": "kappa", "multilabel": "macro: auc"}
CHANCE = {"survival": 0.5, "regression": 0.0, "ordinal": 0.0, "multilabel": 0.5}


def cohort(task: str, signal: float = 1.0, n: int = 60) -> tuple[list[Bag], Targets]:
    bags, shares = make_bags(n, signal)
    return bags, make_targets(task, shares)


def run(
    task: str, signal: float = 1.0, loss: str | None = None, epochs: int = 5
) -> tuple[Targets, HeldOut]:
    bags, targets = cohort(task, signal)
    splits = target_folds(targets, [bag.id for bag in bags], folds=2)
    return targets, cross_fit(
        bags, targets, splits, replace(RECIPE, epochs=epochs), MODEL, loss=loss
    )


@pytest.mark.parametrize("task", TASKS)
def test_the_planted_signal_is_significant_and_its_absence_is_not(task: str) -> None:
    targets, found = run(task)
    assert sorted(found.ids) == sorted(targets.ids)
    estimate = score_held_out(targets, found, draws=200)[TASKS[task]]
    assert estimate.interval.low > CHANCE[task]
    assert estimate.interval.low < estimate.value <= estimate.interval.high
    targets, found = run(task, signal=0.0)
    estimate = score_held_out(targets, found, draws=200)[TASKS[task]]
    assert estimate.interval.low < CHANCE[task] + 0.05


def test_survival_has_curves_groups_and_horizons() -> None:
    targets, found = run("survival")
    scores = score_held_out(targets, found, draws=100)
    assert {"c_index", "uno_c", "auc", "integrated_brier"} <= scores.keys()
    assert scores["integrated_brier"].value < 0.25
    assert len(found.times) == found.outputs.shape[1] == 3
    assert risk_groups(targets, found).p_value < 0.05


@pytest.mark.slow
def test_cox_has_risks_without_curves() -> None:
    # A step is a risk set: there are as many steps as epochs.
    targets, found = run("survival", loss="cox", epochs=25)
    scores = score_held_out(targets, found)
    assert scores["c_index"].interval.low > 0.5
    assert "integrated_brier" not in scores
    assert found.times == ()


@pytest.mark.parametrize("task", TASKS)
def test_the_baseline_finds_the_signal(task: str) -> None:
    bags, targets = cohort(task)
    splits = target_folds(targets, [bag.id for bag in bags], folds=2)
    found = baseline_folds(bags, targets, splits)
    estimate = score_held_out(targets, found, draws=200)[TASKS[task]]
    assert estimate.interval.low > CHANCE[task]


def test_the_cox_baseline_is_that_of_lifelines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a penalty, the coefficients of x1 and x2 of the golden table."""
    monkeypatch.setattr(target_baseline, "COX_PENALTY", 0.0)
    x = np.stack([column("x1"), column("x2")], axis=1)
    values = np.stack([TIME, EVENT], axis=1)
    found = target_baseline._cox_risks(x, values, np.eye(2))
    expected = [
        values_of("cox_coefficient", f"covariates x1, x2: {name}; ties=efron")[0]
        for name in ("x1", "x2")
    ]
    assert found.tolist() == pytest.approx(expected, abs=1e-4)


def test_ridge_is_that_of_scikit_learn_for_one_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    random = np.random.default_rng(0)
    x, y = random.normal(size=(20, 4)), random.normal(size=20)
    x -= x.mean(0)
    monkeypatch.setattr(target_baseline, "PENALTIES", (3.0,))
    expected = linear.Ridge(alpha=3.0).fit(x, y).predict(x)
    assert ridge(x, y, x) == pytest.approx(expected, abs=1e-9)


def test_bins_and_scales_come_from_the_training_split() -> None:
    values = np.array([[1.0, 1.0], [2.0, 1.0], [3.0, 1.0], [4.0, 1.0], [50.0, 0.0]])
    objective = objective_for(SurvivalTarget(), values)
    assert isinstance(objective, SurvivalObjective)
    assert max(objective.edges) < 4
    cox = objective_for(SurvivalTarget(), values, "cox")
    assert isinstance(cox, CoxObjective)
    assert cox.risk_set == 5
    with pytest.raises(OptionError, match="Known: discrete, cox"):
        objective_for(SurvivalTarget(), values, "weibull")


def test_test_bags_do_not_change_the_training() -> None:
    """Other values of the test bags give the same predictions for them."""
    bags, targets = cohort("regression", n=20)
    split = Split(tuple(range(10)), tuple(range(10, 20)))
    changed = (*targets.values[:10], *(1000.0 + i for i in range(10)))
    other = Targets(targets.target, targets.ids, changed, targets.patients)
    quick = Recipe(epochs=1)
    one, two = (cross_fit(bags, each, [split], quick, MODEL) for each in (targets, other))
    assert (one.outputs == two.outputs).all()


def test_patients_stay_together_and_are_averaged() -> None:
    bags, targets = cohort("survival", n=40)
    values = tuple(targets.values[i - i % 2] for i in range(40))
    patients = tuple(f"p{i // 2}" for i in range(40))
    paired = Targets(targets.target, targets.ids, values, patients)
    splits = target_folds(paired, paired.ids, folds=3)
    for split in splits:
        assert not {patients[i] for i in split.train} & {patients[i] for i in split.test}
    risk = np.arange(40.0)
    pairs = HeldOut(paired.ids, risk[:, None], risk, risk > 20)
    halves = Targets(targets.target, targets.ids[::2], values[::2], patients[::2])
    means = HeldOut(halves.ids, risk[::2, None] + 0.5, risk[::2] + 0.5, risk[::2] > 20)
    assert score_held_out(paired, pairs) == score_held_out(halves, means)
    with pytest.raises(SplitError, match="p0"):
        cross_fit(bags, paired, [Split(tuple(range(1, 20)), (0, 30))])


def test_rare_events_do_not_prevent_folds() -> None:
    values = tuple((1.0 + i, i == 0) for i in range(9))
    ids = tuple(f"s{i}" for i in range(9))
    targets = Targets(SurvivalTarget(), ids, values, (None,) * 9)
    assert [len(split.test) for split in target_folds(targets, ids, folds=3)] == [3, 3, 3]


def test_invalid_input_is_rejected() -> None:
    bags, targets = cohort("regression", n=6)
    half = Split((0, 1, 2), (3, 4, 5))
    with pytest.raises(OptionError, match="test split of two folds"):
        cross_fit(bags, targets, [half, half])
    with pytest.raises(OptionError, match="need the task 'survival'"):
        risk_groups(targets, HeldOut(targets.ids, np.zeros((6, 1))))
    constant = Targets(targets.target, targets.ids, (1.0,) * 6, targets.patients)
    with pytest.raises(DataError, match="constant"):
        cross_fit(bags, constant, [half])
