"""Bags are read once as long as all of them fit."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from scmil import Bag, BagSet
from scmil.bags import in_memory
from scmil.bags.in_memory import keep_in_memory
from scmil.core.fingerprint import Mark
from scmil.errors import BagError

NAMES = ["a", "b", "c"]


def counted(reads: Counter[str], **options: object) -> BagSet:
    def load(bag_id: str) -> Bag:
        reads[bag_id] += 1
        return Bag(bag_id, torch.zeros(2, 5), label=0)

    return BagSet.lazy(NAMES, load, labels=[0, 0, 0], **options)


def test_each_bag_is_read_once_also_through_a_subset() -> None:
    reads: Counter[str] = Counter()
    bags = keep_in_memory(counted(reads))
    for some in (bags, bags.subset(["c", "a"]), bags[1:]):
        assert [bag.id for bag in some] == list(some.ids)
    assert reads == {"a": 1, "b": 1, "c": 1}


def test_no_bag_is_kept_if_all_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: Counter[str] = Counter()
    monkeypatch.setattr(in_memory, "MAX_NUMBERS", 29)  # three bags have 30
    bags = keep_in_memory(counted(reads))
    for _ in range(3):
        assert [bag.id for bag in bags] == NAMES
    assert reads == {"a": 3, "b": 3, "c": 3}


def test_as_many_as_fit_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: Counter[str] = Counter()
    monkeypatch.setattr(in_memory, "MAX_NUMBERS", 30)
    bags = keep_in_memory(counted(reads))
    assert [bag.id for bag in bags] == [bag.id for bag in bags]
    assert set(reads.values()) == {1}


def test_a_change_of_a_file_is_found_although_its_bag_is_kept() -> None:
    state = {"digest": "before"}
    bags = keep_in_memory(counted(Counter(), mark=lambda bag_id, before: Mark(state["digest"])))
    inputs = bags.inputs()
    assert len(list(bags)) == 3
    state["digest"] = "after"
    assert bags.inputs(inputs).changes_since(inputs)


def test_a_bag_that_cannot_be_read_is_tried_again() -> None:
    tries: list[str] = []

    def load(bag_id: str) -> Bag:
        tries.append(bag_id)
        if len(tries) == 1:
            raise BagError("the file is locked")
        return Bag(bag_id, torch.zeros(1, 5))

    bags = keep_in_memory(BagSet.lazy(["a"], load))
    with pytest.raises(BagError, match="locked"):
        bags[0]
    assert bags[0].id == "a"
