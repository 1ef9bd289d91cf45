"""Small cohorts stay in memory once they are read."""

from __future__ import annotations

from scmil.bags.bag import Bag, BagSet

MAX_NUMBERS = 250_000_000  # 1 GB of float32: features of larger cohorts are read when needed


def keep_in_memory(bags: BagSet) -> BagSet:
    """Return the same bags, whose features are kept once they are read.

    If all bags together have more than `MAX_NUMBERS` features, none is kept, and bags are read
    whenever they are needed. Changes of the files are found as before, by `BagSet.inputs`.

    >>> import torch
    >>> reads = []
    >>> def load(bag_id):
    ...     reads.append(bag_id)
    ...     return Bag(bag_id, torch.zeros(2, 9))
    >>> bags = keep_in_memory(BagSet.lazy(["a", "b"], load))
    >>> bags[0] is bags[0], bags.subset(["a"])[0] is bags[0], reads
    (True, True, ['a'])
    """
    kept: dict[str, Bag] = {}
    position_of = {bag_id: position for position, bag_id in enumerate(bags.ids)}
    numbers = 0

    def load(bag_id: str) -> Bag:
        nonlocal numbers
        if (known := kept.get(bag_id)) is not None:
            return known
        bag = bags[position_of[bag_id]]
        numbers += bag.features.numel()
        if numbers <= MAX_NUMBERS:
            kept[bag_id] = bag
        else:
            kept.clear()
        return bag

    return bags.with_loader(load)
