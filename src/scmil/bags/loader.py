"""Reading of bags in order: the next bag is prefetched, and small cohorts stay in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

from scmil.bags.bag import Bag, BagSet
from scmil.core.memory import free_memory
from scmil.errors import DataError, ScmilError

SHARE = 1 / 4  # of the free memory, for bags that stay in memory


class Loader:
    """Reads bags, prefetches the next one, and keeps those that fit into `budget` bytes in memory.

    The budget is shared by all sets that the loader reads.

    >>> import torch
    >>> bags = BagSet.lazy(["a", "b", "c"], lambda bag_id: Bag(bag_id, torch.zeros(2, 9)))
    >>> [bag.id for bag in Loader().read(bags, [2, 0, 1])]
    ['c', 'a', 'b']
    """

    def __init__(self, budget: int | None = None) -> None:
        self.budget = int(SHARE * free_memory()) if budget is None else budget
        self._kept: dict[tuple[int, int], Bag] = {}
        self._sets: dict[
            int, Sequence[Bag]
        ] = {}  # keeps the sets alive, so that their ids stay unique

    def read(self, bags: Sequence[Bag], order: Iterable[int] | None = None) -> Iterator[Bag]:
        """Yield the bags at these positions; all bags if `order` is None."""
        positions = list(range(len(bags)) if order is None else order)
        if not isinstance(bags, BagSet):  # a list of bags is in memory already
            yield from (bags[position] for position in positions)
            return
        self._sets[id(bags)] = bags
        with ThreadPoolExecutor(1, "scmil-loader") as thread:
            waiting: Callable[[], Bag] | None = None
            for step, position in enumerate(positions, start=1):
                bag = (waiting or self._submit(thread, bags, position))()
                waiting = (
                    self._submit(thread, bags, positions[step]) if step < len(positions) else None
                )
                yield bag

    def _submit(self, thread: Executor, bags: BagSet, position: int) -> Callable[[], Bag]:
        kept = self._kept.get((id(bags), position))
        return thread.submit(self._load, bags, position).result if kept is None else lambda: kept

    def _load(self, bags: BagSet, position: int) -> Bag:
        bag = _read_bag(bags, position)
        size = bag.features.nbytes
        if size <= self.budget:
            self.budget -= size
            self._kept[id(bags), position] = bag
        return bag


def _read_bag(bags: BagSet, position: int) -> Bag:
    """Read one bag; an error of its file names the bag."""
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
    """Return the ids; the bags of a `BagSet` are not read."""
    return list(bags.ids) if isinstance(bags, BagSet) else [bag.id for bag in bags]


def labels_of(bags: Sequence[Bag]) -> list[int | None]:
    """Return the labels; the bags of a `BagSet` are not read."""
    return list(bags.labels) if isinstance(bags, BagSet) else [bag.label for bag in bags]
