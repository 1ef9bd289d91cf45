"""Synthetic bags of features: known structure, one seed one cohort, wrong options rejected."""

from __future__ import annotations

import numpy as np
import pytest
from benchmark_files import instances

from scmil import load_dataset
from scmil.bags.datasets import split_options
from scmil.bags.datasets.classic import content_hash
from scmil.bags.datasets.synthetic import SIGNAL_DIMS, synthetic
from scmil.errors import OptionError
from scmil.studies.plan import make_plan


def test_a_bag_is_positive_if_an_instance_is() -> None:
    bags = load_dataset("synthetic:bags=40,witness=0.2,noise_dims=3")
    assert (len(bags), bags.labels.count(1), bags.dim) == (40, 20, SIGNAL_DIMS + 3)
    marks = [bag.instance_labels for bag in bags]
    assert [bool(mark.any()) for mark in marks if mark is not None] == [False, True] * 20
    share = np.mean([float(mark.float().mean()) for mark in marks[1::2] if mark is not None])
    assert share == pytest.approx(0.2, abs=0.05)


def test_the_number_of_active_atoms_does_not_change_the_variance() -> None:
    for active in (1, 96):
        x = instances(synthetic(200, strength=0, noise=0, noise_dims=0, active=active))
        assert (x**2).sum(1).mean() == pytest.approx(1, abs=0.05)


def test_positive_instances_differ_from_others_by_one_direction() -> None:
    bags = synthetic(200, witness=0.5, strength=2.0, noise=0, noise_dims=5)
    x = instances(bags)
    is_positive = np.concatenate([np.asarray(bag.instance_labels) for bag in bags]) == 1
    shift = x[is_positive].mean(0) - x[~is_positive].mean(0)
    assert np.linalg.norm(shift) == pytest.approx(2, abs=0.15)


def test_synthetic_bags_repeat_for_a_seed() -> None:
    assert content_hash(synthetic(6, seed=1)) == content_hash(synthetic(6, seed=1))
    assert content_hash(synthetic(6, seed=1)) != content_hash(synthetic(6, seed=2))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("synthetic:bags=1", r"bags = 1, expected a number from 2 to 100000"),
        ("synthetic:witness=2", r"witness = 2, expected a number from 0 to 1"),
        ("synthetic:active=x", r"active = 'x', expected a number from 1 to 96"),
        ("synthetic:bags", r"'bags' is not an option. Options have the form"),
        ("synthetic:bags=2,bags=3", r"'bags=3' is not an option"),
        ("synthetic:size=3", r"'synthetic' does not support the option size"),
        ("musk1:data=x", r"'musk1' does not support the option data"),
    ],
)
def test_wrong_options_in_a_name_are_rejected(name: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        load_dataset(name)


def test_only_the_name_of_a_data_set_is_followed_by_options() -> None:
    assert split_options("C:bags=2") == ("C:bags=2", {})


def test_each_cohort_of_an_experiment_has_its_own_name() -> None:
    names = ["synthetic:witness=0.1", "synthetic:witness=0.2"]
    plan = make_plan({"grid": {"data.dataset": names}}, "mine")
    assert plan.datasets == names
    assert [cell.name.partition("--")[0] for cell in plan.cells] == [
        "synthetic-witness-0-1",
        "synthetic-witness-0-2",
    ]
