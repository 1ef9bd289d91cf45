"""Bags with values of another task than classes."""

from __future__ import annotations

import pytest
import torch

from scmil import Bag
from scmil.bags.bag import BagSet
from scmil.bags.target_bags import split_strata, with_targets
from scmil.bags.targets import LabelsTarget, NumberTarget, SurvivalTarget, Targets
from scmil.errors import DataError


def bags_named(*names: str) -> BagSet:
    return BagSet([Bag(name, torch.full((2, 3), float(i))) for i, name in enumerate(names)])


def numbers(**values: float | None) -> Targets:
    return Targets(
        NumberTarget("age"), tuple(values), tuple(values.values()), (None,) * len(values)
    )


def test_bags_have_the_values_and_patients_of_the_table() -> None:
    targets = Targets(NumberTarget(), ("a", "b", "c"), (1.0, 5.0, 9.0), ("p", "q", "q"))
    bags = with_targets(bags_named("c.svs", "a.svs", "b.svs"), targets)
    assert bags.patients == ("q", "p", "q")
    assert bags.targets is not None
    assert bags.targets.array(bags.ids)[:, 0].tolist() == [9.0, 1.0, 5.0]
    assert bags[0].features[0, 0] == 0.0
    assert bags.subset(["a.svs"]).targets is not None


def test_bags_without_a_value_are_rejected_or_left_out() -> None:
    bags, targets = bags_named("a", "b", "c"), numbers(a=1.0, b=2.0, c=None)
    with pytest.raises(DataError, match=r"without a value for the task 'regression' \(1 of 3\): c"):
        with_targets(bags, targets)
    assert with_targets(bags, targets, drop_missing=True).ids == ("a", "b")


def test_names_that_do_not_agree_are_shown() -> None:
    with pytest.raises(DataError, match="slides of the table have names such as a, b"):
        with_targets(bags_named("x"), numbers(a=1.0, b=2.0), drop_missing=True)


def test_values_that_cannot_be_learned_are_rejected() -> None:
    with pytest.raises(DataError, match="constant"):
        with_targets(bags_named("a", "b"), numbers(a=2.0, b=2.0))


def test_a_changed_value_changes_the_inputs() -> None:
    first = with_targets(bags_named("a", "b", "c"), numbers(a=1.0, b=2.0, c=3.0)).inputs()
    other = with_targets(bags_named("a", "b", "c"), numbers(a=1.5, b=2.0, c=3.0)).inputs()
    assert other.changes_since(first) == ["the label of 1 bag changed (a)"]


def test_strata_are_events() -> None:
    times = tuple((1.0 + i, i % 4 == 0) for i in range(16))
    ids = tuple(f"s{i}" for i in range(16))
    strata = split_strata(Targets(SurvivalTarget(), ids, times, (None,) * 16), ids)
    assert strata == [int(event) for _, event in times]


def test_strata_of_labels_are_those_of_the_most_balanced_label() -> None:
    values = tuple((i == 0, i < 5, None if i else True) for i in range(10))
    ids = tuple(f"s{i}" for i in range(10))
    targets = Targets(LabelsTarget(("rare", "balanced", "missing")), ids, values, (None,) * 10)
    assert split_strata(targets, ids) == [1] * 5 + [0] * 5


def test_a_rare_stratum_gives_way_to_halves_of_the_patients() -> None:
    times = tuple((1.0 + i, i == 3) for i in range(12))
    ids = tuple(f"s{i}" for i in range(12))
    patients = tuple(f"p{i // 2}" for i in range(12))
    strata = split_strata(Targets(SurvivalTarget(), ids, times, patients), ids)
    assert strata == [0, 0, 1, 1] * 3
