"""Bags, and sets of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from scmil import Bag
from scmil.bags.bag import BagSet, standardise
from scmil.errors import BagError, DataError


def three() -> BagSet:
    return BagSet(
        [
            Bag("alpha", torch.zeros(3, 2), 0, patient="P"),
            Bag("beta", torch.ones(1, 2), 1),
            Bag("gamma", torch.full((2, 2), 2.0), 1, patient="P"),
        ]
    )


def test_labels_and_patients_are_known_without_reading_features() -> None:
    read: list[str] = []

    def load(id: str) -> Bag:
        read.append(id)
        return Bag(id, torch.zeros(1, 5), int(id), f"P{id}")

    bags = BagSet.lazy("01", load, [0, 1], ["P0", "P1"])
    half = bags.subset(["1"])
    assert (half.ids, half.labels, half.patients, bags[:1].labels) == (("1",), (1,), ("P1",), (0,))
    assert read == []
    assert half[0].patient == "P1"
    assert bags.dim == 5
    assert read == ["1", "0"]


def test_a_bag_that_is_not_what_was_announced_is_refused() -> None:
    bags = BagSet.lazy(["a"], lambda id: Bag(id, torch.zeros(1, 1), 1), labels=[0])
    with pytest.raises(DataError, match=r"\('a', 1, None\), but \('a', 0, None\) was announced"):
        bags[0]


def test_positions_slices_and_iteration_agree_with_a_list() -> None:
    bags = three()
    assert [bag.id for bag in bags] == ["alpha", "beta", "gamma"]
    assert bags[-1].id == "gamma"
    assert bags[np.int64(1)].id == "beta"
    assert bags[::-2].ids == ("gamma", "alpha")
    assert isinstance(bags[:0], BagSet)
    with pytest.raises(IndexError):
        bags[3]


def test_a_subset_by_positions_or_ids_keeps_what_belongs_to_the_bags() -> None:
    bags = BagSet(three(), classes=["normal", "tumour"])
    part = bags.subset(np.array([2, 0]))
    assert (part.ids, part.labels, part.patients) == (("gamma", "alpha"), (1, 0), ("P", "P"))
    assert part.classes == ("normal", "tumour")
    assert torch.equal(part[0].features, bags[2].features)
    assert bags.subset(["beta"]).ids == ("beta",)


def test_an_unknown_bag_is_refused_with_the_nearest() -> None:
    with pytest.raises(DataError, match=r"no bag 'gama'\. The nearest id is 'gamma'"):
        three().subset(["gama"])
    with pytest.raises(DataError, match="no bag at position 3: the 3 bags are counted from 0"):
        three().subset([3])
    with pytest.raises(DataError, match="no bag at position -1"):
        three().subset([-1])


def test_a_bag_twice_is_refused() -> None:
    with pytest.raises(DataError, match="'alpha' is there twice"):
        BagSet([*three(), three()[0]])
    with pytest.raises(DataError, match="'beta' is there twice"):
        three().subset([1, 1])


def test_announcements_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match="2 ids, 1 labels and 2 patients"):
        BagSet.lazy(["a", "b"], lambda id: Bag(id, torch.zeros(1, 1)), labels=[0])
    with pytest.raises(DataError, match="label 1, but only 1 classes are named"):
        BagSet(three(), classes=["normal"])


def test_the_representation_counts_the_classes() -> None:
    assert repr(three()) == "BagSet(3 bags, 1/2 of class 0/1)"
    assert repr(BagSet(three(), classes=["no", "yes"])) == "BagSet(3 bags, 1/2 of class no/yes)"
    assert repr(BagSet([Bag("a", torch.zeros(1, 1))])) == "BagSet(1 bags, 1 without a label)"


def test_an_empty_set_has_no_dimension() -> None:
    with pytest.raises(DataError, match="without bags has no dimension"):
        BagSet([]).dim


def test_instance_labels_are_one_each() -> None:
    Bag("a", torch.zeros(2, 3), instance_labels=torch.tensor([0, 1]))
    with pytest.raises(BagError, match=r"bag 'a': instance labels of shape \(3,\), but \(2,\) is needed"):
        Bag("a", torch.zeros(2, 3), instance_labels=torch.tensor([0, 1, 1]))


def test_standardisation_is_fitted_on_the_training_bags_alone() -> None:
    train = [Bag("a", torch.tensor([[0.0, 7.0], [2.0, 7.0]]))]
    test = [Bag("b", torch.tensor([[4.0, 9.0]]), label=1)]
    (a,), (b,) = standardise(train, test)
    assert a.features.tolist() == [[-1, 0], [1, 0]]
    assert b.features.tolist() == [[3, 2]]
    assert b.label == 1


def test_standardisation_changes_nothing_but_the_features() -> None:
    nine = torch.tensor([0, 1])
    bags = BagSet([Bag("a", torch.tensor([[0.0], [2.0]]), 1, "P", nine)])
    [[bag]] = standardise(bags)
    assert (bag.id, bag.label, bag.patient, bag.features.dtype) == ("a", 1, "P", torch.float32)
    assert bag.instance_labels is nine
