"""Data sets provide times, numbers, grades and labels that depend on their positive instances."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from scmil.bags.audit_targets import check_targets
from scmil.bags.bag import Bag, BagSet
from scmil.bags.datasets import load_dataset, load_targets, target_tasks
from scmil.bags.datasets.colon import epithelial_grade, epithelial_share
from scmil.bags.targets import TARGETS
from scmil.errors import DataError, OptionError, UnknownNameError
from scmil.stats.concordance import concordance

NAME = "synthetic:bags=60,witness=0.3,seed=3"


def relative_shares(name: str) -> np.ndarray:
    shares = np.array([float(bag.instance_labels.double().mean()) for bag in load_dataset(name)])
    return shares / shares.max()


@pytest.mark.parametrize("task", TARGETS)
def test_the_synthetic_bags_have_every_task(task: str) -> None:
    targets = load_targets(NAME, task)
    assert targets.task == task
    assert targets.ids == tuple(load_dataset(NAME).ids)
    check_targets(targets)
    assert load_targets(NAME, task, load_dataset(NAME)) == targets  # the same for the same seed


def test_positive_instances_drive_the_synthetic_targets() -> None:
    shares = relative_shares(NAME)
    times, events = load_targets(NAME, "survival").array(load_dataset(NAME).ids).T
    assert concordance(times, events, shares) > 0.75
    assert 0.4 < events.mean() < 0.95
    assert load_targets(NAME, "regression").values == tuple(shares.tolist())
    grades = np.array(load_targets(NAME, "ordinal").values)
    assert ((grades == 0) == (shares == 0)).all()
    assert shares[grades == 2].min() > shares[grades == 1].max()
    labels = load_targets(NAME, "multilabel").array(load_dataset(NAME).ids)
    assert ((labels[:, 0] == 1) == (shares > 0)).all()
    assert 0 < np.isnan(labels[:, 1]).sum() < 25
    chance = labels[:, 2][~np.isnan(labels[:, 2])]
    assert 0.3 < chance.mean() < 0.7


def test_another_seed_gives_other_times() -> None:
    other = NAME.replace("seed=3", "seed=4")
    assert load_targets(NAME, "survival").values != load_targets(other, "survival").values


def nuclei() -> BagSet:
    rows = [[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]]
    return BagSet(
        [
            Bag(f"image {i}", torch.ones(4, 2), instance_labels=torch.tensor(row))
            for i, row in enumerate(rows)
        ]
    )


def test_the_share_of_epithelial_nuclei_is_a_number_and_a_grade() -> None:
    assert target_tasks("colon-nuclei") == ("regression", "ordinal")
    assert epithelial_share(nuclei()).values == (0.0, 0.25, 0.75)
    grade = epithelial_grade(nuclei())
    assert grade.values == (0, 1, 2)
    assert grade.target.grades == ("none", "up to a half", "more than a half")
    without = BagSet([Bag("image 0", torch.ones(4, 2))])
    with pytest.raises(DataError, match="'image 0' has no labels of instances"):
        epithelial_share(without)


def test_a_task_that_a_data_set_lacks_is_rejected_with_those_that_it_has() -> None:
    with pytest.raises(OptionError, match=r"task 'survival'\. It has: class, reg"):
        load_targets("digits", "survival")
    with pytest.raises(OptionError, match=r"It has: class\."):
        load_targets("musk1", "regression")
    with pytest.raises(UnknownNameError, match="digits"):
        load_targets("digit", "regression")
