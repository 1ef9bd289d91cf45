"""Bags, and sets of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from scmil import Bag
from scmil.bags.bag import BagSet
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

    def load(bag_id: str) -> Bag:
        read.append(bag_id)
        return Bag(bag_id, torch.zeros(1, 5), int(bag_id), f"P{bag_id}")

    bags = BagSet.lazy("01", load, [0, 1], ["P0", "P1"])
    half = bags.subset(["1"])
    assert (half.ids, half.labels, half.patients, bags[:1].labels) == (("1",), (1,), ("P1",), (0,))
    assert read == []
    assert half[0].patient == "P1"
    assert bags.dim == 5
    assert read == ["1", "0"]


def test_a_bag_with_another_id_or_label_than_its_set_is_rejected() -> None:
    bags = BagSet.lazy(["a"], lambda bag_id: Bag(bag_id, torch.zeros(1, 1), 1), labels=[0])
    with pytest.raises(DataError, match=r"\('a', 1, None\), but \('a', 0, None\) was expected"):
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


def test_an_unknown_bag_is_rejected_with_the_nearest() -> None:
    with pytest.raises(DataError, match=r"no bag 'gama'\. The nearest id is 'gamma'"):
        three().subset(["gama"])
    with pytest.raises(
        DataError, match="no bag at position 3; the 3 bags have positions from 0 to 2"
    ):
        three().subset([3])
    with pytest.raises(DataError, match="no bag at position -1"):
        three().subset([-1])


def test_a_bag_twice_is_rejected() -> None:
    with pytest.raises(DataError, match="two bags have the id 'alpha'"):
        BagSet([*three(), three()[0]])
    with pytest.raises(DataError, match="two bags have the id 'beta'"):
        three().subset([1, 1])


def test_labels_that_do_not_fit_the_ids_are_rejected() -> None:
    with pytest.raises(DataError, match="2 ids, 1 labels and 2 patients"):
        BagSet.lazy(["a", "b"], lambda bag_id: Bag(bag_id, torch.zeros(1, 1)), labels=[0])
    with pytest.raises(DataError, match="label 1, but only 1 classes are named"):
        BagSet(three(), classes=["normal"])


def test_the_representation_counts_the_classes() -> None:
    assert repr(three()) == "BagSet(3 bags, 1/2 of class 0/1)"
    assert repr(BagSet(three(), classes=["no", "yes"])) == "BagSet(3 bags, 1/2 of class no/yes)"
    assert repr(BagSet([Bag("a", torch.zeros(1, 1))])) == "BagSet(1 bags, 1 without a label)"


def test_an_empty_set_has_no_dimension() -> None:
    with pytest.raises(DataError, match="without bags has no feature dimension"):
        BagSet([]).dim


def test_instance_labels_are_one_each() -> None:
    Bag("a", torch.zeros(2, 3), instance_labels=torch.tensor([0, 1]))
    with pytest.raises(
        BagError, match=r"bag 'a': instance labels of shape \(3,\), but \(2,\) is needed"
    ):
        Bag("a", torch.zeros(2, 3), instance_labels=torch.tensor([0, 1, 1]))
