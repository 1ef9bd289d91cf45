"""Held-out predictions: joined folds, metrics of a fold, and risk groups of patients."""

from __future__ import annotations

import numpy as np
import pytest
from target_cohort import make_bags, make_targets

from scmil.bags.splits import Split
from scmil.bags.targets import SurvivalTarget, Targets
from scmil.models.objectives import CoxObjective, Objective, SurvivalObjective
from scmil.training import target_baseline
from scmil.training.held_out import (
    HeldOut,
    join_held_out,
    risk_groups,
    score_fold,
    score_held_out,
)
from scmil.training.target_baseline import baseline_fold
from scmil.training.target_folds import fold_predictions

TASKS = ("survival", "regression", "ordinal", "multilabel")


def predictions(task: str, targets: Targets, seed: int = 0) -> HeldOut:
    random = np.random.default_rng(seed)
    n = len(targets)
    if task == "survival":
        risk = random.normal(size=n)
        return HeldOut(targets.ids, risk[:, None], risk, risk > 0)
    if task == "regression":
        return HeldOut(targets.ids, random.normal(size=(n, 1)))
    return HeldOut(targets.ids, random.random((n, 4 if task == "ordinal" else 3)))


@pytest.mark.parametrize("task", TASKS)
def test_a_fold_has_the_same_values_as_its_metrics_with_intervals(task: str) -> None:
    targets = make_targets(task, make_bags(30)[1])
    found = predictions(task, targets)
    scores = score_held_out(targets, found, draws=20)
    for name, value in score_fold(targets, found).items():
        assert value == pytest.approx(scores[name].value)


def test_cox_has_an_auc_at_given_times() -> None:
    targets = make_targets("survival", make_bags(30)[1])
    scores = score_held_out(targets, predictions("survival", targets), draws=20, at=[0.2, 0.5])
    assert {"auc", "auc@0.2", "auc@0.5"} <= scores.keys()
    assert "integrated_brier" not in scores


def test_joined_folds_keep_their_order() -> None:
    risk = np.array([1.0, 2.0])
    parts = [HeldOut((name,), risk[i : i + 1, None], risk[i : i + 1], risk[i : i + 1] > 1)
             for i, name in enumerate("ab")]  # fmt: skip
    joined = join_held_out(parts)
    assert joined.ids == ("a", "b")
    assert joined.risk is not None
    assert joined.risk.tolist() == [1.0, 2.0]


def test_more_than_half_of_the_slides_decide_the_group_of_a_patient() -> None:
    values = tuple((float(1 + i // 3), True) for i in range(12))
    patients = tuple(f"p{i // 3}" for i in range(12))
    ids = tuple(f"s{i}" for i in range(12))
    targets = Targets(SurvivalTarget(), ids, values, patients)
    # Of the first two patients the first slide is low, the other two are high.
    high = np.array([False, True, True] * 2 + [True, False, False] * 2)
    found = HeldOut(ids, np.zeros((12, 1)), np.zeros(12), high)
    by_first = HeldOut(ids, np.zeros((12, 1)), np.zeros(12), np.arange(12) >= 6)
    assert risk_groups(targets, found).chi_square > 2
    assert risk_groups(targets, found).p_value == risk_groups(targets, by_first).p_value


@pytest.mark.parametrize("cox", [True, False])
def test_the_cut_off_is_the_median_of_the_training_bags(cox: bool) -> None:
    split = Split((0, 1, 2), (3, 4, 5))
    ids = [f"s{i}" for i in range(6)]
    values = np.array([[float(i + 1), 1.0] for i in range(6)])
    # The first test bag lies between the median of the training bags and that of all bags.
    part: tuple[Objective, np.ndarray, np.ndarray]
    if cox:
        part = (CoxObjective(2), np.array([[0.0], [1.0], [2.0]]), np.array([[1.5], [6.0], [7.0]]))
    else:
        known, new = (
            np.array([[s, s] for s in own]) for own in ((0.9, 0.8, 0.7), (0.75, 0.2, 0.1))
        )
        part = (SurvivalObjective((2.0,)), known, new)
    found = fold_predictions(part, split, ids, values)
    assert found.ids == ("s3", "s4", "s5")
    assert found.high is not None
    assert found.high.tolist() == [True] * 3


def test_the_baseline_of_a_fold_does_not_see_the_test_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(target_baseline, "COX_STEPS", 3)
    bags, shares = make_bags(20)
    targets = make_targets("survival", shares)
    x = np.stack([bag.features.mean(0).numpy() for bag in bags]).astype(float)
    split = Split(tuple(range(12)), tuple(range(12, 20)))
    found = baseline_fold(x, targets, targets.ids, split)
    other = tuple((9.0, True) if i >= 12 else value for i, value in enumerate(targets.values))
    changed = Targets(targets.target, targets.ids, other, targets.patients)
    again = baseline_fold(x, changed, targets.ids, split)
    assert np.array_equal(found.outputs, again.outputs)
    assert found.high is not None
    assert again.high is not None
    assert np.array_equal(found.high, again.high)
