"""Benchmarks by name. `load_dataset("musk1")` gives bags; a data set is one decorated function in a file of this folder."""

from __future__ import annotations

from importlib import import_module

from scmil.bags import Bag
from scmil.registry import Registry

registry: Registry[list[Bag]] = Registry("dataset")


def names() -> list[str]:
    """The names of all data sets.

    >>> "musk1" in names()
    True
    """
    return registry.names()


def load_dataset(name: str) -> list[Bag]:
    """All bags of a data set, checked against its known hash.

    >>> bags = load_dataset("musk1")
    >>> len(bags), bags[0]
    (92, Bag('0', 4 x 166, label=1))
    """
    return registry.build(name)


for _room in ("mil_package",):
    import_module(f"{__name__}.{_room}")
