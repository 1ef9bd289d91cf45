"""Bags in the order that they are needed: the next one is read while this one is worked on, small cohorts stay in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from scmil.bags.bag import Bag, BagSet
from scmil.errors import DataError, ScmilError

SHARE = 1 / 4  # of the free memory is for bags that stay


class Loader:
    """Reads bags one ahead, and keeps those that fit into `room` bytes, over all sets that it is asked for.

    >>> import torch
    >>> bags = BagSet.lazy(["a", "b", "c"], lambda id: Bag(id, torch.zeros(2, 9)))
    >>> [bag.id for bag in Loader().read(bags, [2, 0, 1])]
    ['c', 'a', 'b']
    """

    def __init__(self, room: int | None = None) -> None:
        self.room = int(SHARE * free_memory()) if room is None else room
        self._kept: dict[tuple[int, int], Bag] = {}
        self._sets: dict[int, Sequence[Bag]] = {}  # a set that lives keeps its number

    def read(self, bags: Sequence[Bag], order: Iterable[int] | None = None) -> Iterator[Bag]:
        """The bags at these positions, in this order; without an order, all as they come."""
        positions = list(range(len(bags)) if order is None else order)
        if not isinstance(bags, BagSet):  # a list of bags is in memory already
            yield from (bags[position] for position in positions)
            return
        self._sets[id(bags)] = bags
        with ThreadPoolExecutor(1, "scmil-loader") as thread:
            waiting: Callable[[], Bag] | None = None
            for step, position in enumerate(positions, start=1):
                bag = (waiting or self._ask(thread, bags, position))()
                waiting = self._ask(thread, bags, positions[step]) if step < len(positions) else None
                yield bag

    def _ask(self, thread: Executor, bags: BagSet, position: int) -> Callable[[], Bag]:
        kept = self._kept.get((id(bags), position))
        return thread.submit(self._load, bags, position).result if kept is None else lambda: kept

    def _load(self, bags: BagSet, position: int) -> Bag:
        bag = _read(bags, position)
        size = bag.features.nbytes
        if size <= self.room:
            self.room -= size
            self._kept[id(bags), position] = bag
        return bag


def _read(bags: BagSet, position: int) -> Bag:
    """One bag; what its file has against it is told with the bag's name."""
    name = bags.ids[position]
    try:
        return bags[position]
    except ScmilError as error:
        raise type(error)(f"bag {name!r}: {error}") from None
    except OSError as error:
        raise DataError(f"bag {name!r} cannot be read: {error}.") from error
    except Exception as error:
        error.add_note(f"This happened while bag {name!r} was read.")
        raise


def ids_of(bags: Sequence[Bag]) -> list[str]:
    """The ids, without reading a bag where they are known without."""
    return list(bags.ids) if isinstance(bags, BagSet) else [bag.id for bag in bags]


def labels_of(bags: Sequence[Bag]) -> list[int | None]:
    """The labels, without reading a bag where they are known without."""
    return list(bags.labels) if isinstance(bags, BagSet) else [bag.label for bag in bags]


def free_memory() -> int:
    """Bytes that can be taken without pushing anything out; where the system does not tell, 1 GiB.

    >>> free_memory() > 0
    True
    """
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable")))
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 2**30
