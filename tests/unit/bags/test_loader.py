from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from scmil import Bag, BagSet
from scmil.bags.hdf5 import read_bag
from scmil.bags.loader import Loader, ids_of, labels_of
from scmil.errors import DataError

NAMES = ("a", "b", "c", "d")


def lazy(load: Callable[[str], Bag] | None = None) -> BagSet:
    return BagSet.lazy(
        NAMES, load or (lambda bag_id: Bag(bag_id, torch.zeros(2, 8), 1)), labels=[1] * 4
    )


def counted(reads: list[str]) -> BagSet:
    def load(bag_id: str) -> Bag:
        reads.append(bag_id)
        return Bag(bag_id, torch.zeros(2, 8), 1)  # 64 bytes

    return lazy(load)


def test_bags_come_in_the_order_that_was_asked_for() -> None:
    for bags in (lazy(), list(lazy())):
        loader = Loader()
        for order in ([2, 0, 3, 1], [1, 1, 0], []):
            assert [bag.id for bag in loader.read(bags, order)] == [NAMES[i] for i in order]
        assert [bag.id for bag in loader.read(bags)] == list(NAMES)


def test_the_next_bag_is_read_while_this_one_is_worked_on_and_none_beyond() -> None:
    started = {name: threading.Event() for name in NAMES}

    def load(bag_id: str) -> Bag:
        started[bag_id].set()
        return Bag(bag_id, torch.zeros(2, 8), 1)

    reading = Loader(budget=0).read(lazy(load))
    next(reading)
    assert started["b"].wait(5), "the second was begun before it was asked for"
    assert not started["c"].wait(0.05)
    del reading


def test_what_has_room_is_read_once() -> None:
    reads: list[str] = []
    bags, loader = counted(reads), Loader(budget=10**6)
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        assert [bag.id for bag in loader.read(bags, order)] == [NAMES[i] for i in order]
    assert reads == list(NAMES)


def test_what_has_no_room_is_read_again() -> None:
    reads: list[str] = []
    bags, loader = counted(reads), Loader(budget=2 * 64 + 63)
    for _ in range(3):
        assert len(list(loader.read(bags))) == 4
    assert {name: reads.count(name) for name in NAMES} == {"a": 1, "b": 1, "c": 3, "d": 3}


def test_two_sets_with_the_same_names_stay_separate() -> None:
    ones = lazy(lambda bag_id: Bag(bag_id, torch.ones(2, 8), 1))
    loader, zeros = Loader(), lazy()
    for _ in range(2):
        assert {float(bag.features.sum()) for bag in loader.read(zeros)} == {0.0}
        assert {float(bag.features.sum()) for bag in loader.read(ones)} == {16.0}


def test_the_error_for_an_unreadable_file_names_the_bag(tmp_path: Path) -> None:
    def broken(error: Exception) -> BagSet:
        def load(bag_id: str) -> Bag:
            if bag_id == "c":
                raise error
            return Bag(bag_id, torch.zeros(2, 8), 1)

        return lazy(load)

    with pytest.raises(DataError, match=r"^bag 'a': .*absent\.h5: there is no such file"):
        list(Loader().read(lazy(lambda bag_id: read_bag(tmp_path / "absent.h5"))))
    reading = Loader().read(broken(OSError("the disk is gone")))
    assert [next(reading).id, next(reading).id] == ["a", "b"], "those before it are not lost"
    with pytest.raises(DataError, match=r"bag 'c' cannot be read: the disk is gone\."):
        next(reading)
    with pytest.raises(ZeroDivisionError) as caught:
        list(Loader().read(broken(ZeroDivisionError("a mistake"))))
    assert caught.value.__notes__ == ["This happened while bag 'c' was read."]


def test_ids_and_labels_are_known_without_reading() -> None:
    reads: list[str] = []
    assert (ids_of(counted(reads)), labels_of(counted(reads)), reads) == (list(NAMES), [1] * 4, [])
    assert (ids_of([Bag("x", torch.zeros(1, 1))]), labels_of([Bag("x", torch.zeros(1, 1))])) == (
        ["x"],
        [None],
    )
