"""Bags from the feature files of other tools, without conversion.

A format is a class without constructor arguments that has

- `layout`: one line that describes the folder, for error messages;
- `looks_like(folder)`: whether a folder has this format. It must be fast for folders of 10 000
  files, so it uses names and at most a few headers;
- `read(folder, labels, **own)`: returns a lazy `BagSet` and opens no feature file;
- optionally `place(folder, bag)`, `finished(place, id)` and `files(bag, place)`, to write bags: the
  folder for the files, whether a bag is completely written, and its files with their contents;
- optionally `last_resort = True`: it is tried only if no other format fits.

To add a format, write a file in this folder and decorate the class with `@register("its-name",
"what it reads")`. In another package, name it in an entry point of the group `scmil.formats`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from scmil.bags.bag import Bag, BagSet
from scmil.bags.formats.folder import Folder
from scmil.bags.formats.reading import LabelTable, SlideMpp
from scmil.core.outputs import Outputs
from scmil.core.registry import Registry
from scmil.core.tables import csv_bytes
from scmil.errors import DataError, OptionError


class Format(Protocol):
    """The interface of a format, for type checkers."""

    layout: ClassVar[str]

    def looks_like(self, folder: Folder) -> bool:
        """Return whether the folder has this format."""

    def read(self, folder: Folder, labels: LabelTable | None = None) -> BagSet:
        """Return the bags of the folder, which are read lazily."""


@runtime_checkable
class Writer(Protocol):
    """The interface of a format that can also be written."""

    def place(self, folder: Path, bag: Bag) -> Path:
        """Return the folder for this bag."""

    def finished(self, place: Path, bag_id: str) -> bool:
        """Return whether the bag is completely written."""

    def files(self, bag: Bag, place: Path) -> Iterator[tuple[Path, bytes]]:
        """Yield the files of a bag; the one that `finished` checks comes last."""


class Exported(NamedTuple):
    """The ids of the bags that were written, and of those that existed already."""

    written: tuple[str, ...]
    kept: tuple[str, ...]


registry: Registry[Any] = Registry("format")


def register(name: str, summary: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a format class, with a one-line description for `scmil ls`."""
    return registry.register(name, summary)


def names() -> list[str]:
    """Return the names of all formats, including those of installed packages.

    >>> "clam" in names()
    True
    """
    return registry.names()


def writable() -> list[str]:
    """Return the names of the formats that `export_bags` can write.

    >>> writable()
    ['clam', 'trident', 'torchmil']
    """
    return [name for name in names() if isinstance(registry.build(name), Writer)]


def detect_format(folder: str | Path) -> str:
    """Detect the format of a folder; raise `DataError` if none or several formats fit.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "pt_files").mkdir()
    >>> detect_format(folder)
    'clam'
    """
    here = Folder.of(folder)
    formats = {name: registry.build(name) for name in names()}
    last = [name for name, reader in formats.items() if getattr(reader, "last_resort", False)]
    found = [name for name in formats if name not in last and formats[name].looks_like(here)]
    found = found or [name for name in last if formats[name].looks_like(here)]
    if len(found) == 1:
        return found[0]
    if found:
        either = " or ".join(f"format={name!r}" for name in found)
        raise DataError(
            f"{here.path} fits several formats: {', '.join(found)}. Choose one: {either}."
        )
    layouts = "".join(f"\n  {name}: {reader.layout}" for name, reader in formats.items())
    raise DataError(
        f"{here.path} has no format that scmil supports. Found: {here}. Supported formats:{layouts}"
    )


def open_bags(
    folder: str | Path,
    format: str | None = None,  # noqa: A002 -- public keyword
    labels: LabelTable | None = None,
    *,
    key: str | None = None,
    trust_pickle: bool = False,
    slide_mpp: SlideMpp | None = None,
    step: float | None = None,
) -> BagSet:
    """Open a folder of features, written by scmil or another tool, as lazily read bags.

    Args:
        folder: The folder, in any format of `scmil ls formats`.
        format: The name of the format; detected if None.
        labels: A table of labels, such as `read_labels` returns.
        key: The name of the encoder, if the folder contains features of several encoders.
        trust_pickle: Read pickled arrays (DTFD-MIL); no code in the file is run.
        slide_mpp: Microns per pixel of the slides, one number or a number for each id, to convert
            coordinates in microns to pixels.
        step: Level-0 pixels of one unit of the coordinates (torchmil).

    Returns:
        The bags. A file is opened when its bag is accessed.

    Raises:
        DataError: The format cannot be detected, or the folder contains no bag.
        OptionError: The format does not support one of the options.

    >>> import tempfile, torch
    >>> folder = Path(tempfile.mkdtemp())
    >>> torch.save(torch.zeros(3, 8), folder / "007.pt")
    >>> bags = open_bags(folder)
    >>> bags, bags[0]
    (BagSet(1 bags, 1 without a label), Bag('007', 3 x 8, label=None))
    >>> bags[0].provenance
    {'format': 'arrays', 'file': '007.pt'}
    """
    name = detect_format(folder) if format is None else format
    reader = registry.build(name)
    asked = {"key": key, "trust_pickle": trust_pickle or None, "slide_mpp": slide_mpp, "step": step}
    given = {option: value for option, value in asked.items() if value is not None}
    taken = [option for option in asked if option in inspect.signature(reader.read).parameters]
    if unknown := sorted(set(given).difference(taken)):
        raise OptionError(
            f"format {name!r} does not support the option {', '.join(unknown)}. "
            f"It supports: {', '.join(taken) or 'none'}."
        )
    bags: BagSet = reader.read(Folder.of(folder), labels, **given)
    if not bags:
        raise DataError(
            f"{folder} contains no bag in the format {name!r}. Expected layout: {reader.layout}."
        )
    return bags


def export_bags(
    bags: Sequence[Bag],
    folder: str | Path,
    format_name: str,
    known: Mapping[str, Any] | None = None,
    *,
    overwrite: bool = False,
) -> Exported:
    """Write bags in the format of another tool, one at a time; existing bags are kept.

    `known` adds provenance that the bags lack, such as `{"encoder": "uni_v1", "mpp": 0.5}`. Labels
    are written to `labels.csv`, with the columns case_id, slide_id, label. Files that this function
    did not write are replaced only with `overwrite`.

    >>> import tempfile, torch
    >>> folder = Path(tempfile.mkdtemp())
    >>> export_bags([Bag("a", torch.zeros(3, 8), label=1)], folder, "clam")
    Exported(written=('a',), kept=())
    >>> sorted(file.relative_to(folder).as_posix() for file in folder.rglob("[!.]*.*"))
    ['h5_files/a.h5', 'labels.csv', 'pt_files/a.pt']
    """
    writer = build_writer(format_name)
    bags = bags if isinstance(bags, BagSet) else BagSet(bags)
    outputs = Outputs(folder, "export", overwrite)
    _write_labels(bags, outputs)
    place: Path | None = None
    written: list[str] = []
    for position, bag_id in enumerate(bags.ids):
        if place is not None and not overwrite and writer.finished(place, bag_id):
            continue
        bag = bags[position]
        bag = replace(bag, provenance={**(known or {}), **bag.provenance})
        here = writer.place(Path(folder), bag)
        if place not in (None, here):
            raise DataError(
                f"bag {bag_id!r} belongs in {here}, the bags before it in {place}. Export bags of "
                "different encoders or tilings separately."
            )
        place = here
        if overwrite or not writer.finished(place, bag_id):
            for path, content in writer.files(bag, place):
                outputs.write(path, content)
            written.append(bag_id)
    return Exported(
        tuple(written), tuple(bag_id for bag_id in bags.ids if bag_id not in set(written))
    )


def build_writer(format_name: str) -> Writer:
    """Return the writer of a format, or raise if scmil only reads the format."""
    writer = registry.build(format_name)
    if not isinstance(writer, Writer):
        raise DataError(
            f"format {format_name!r} can be read, but not written. Formats that can be written: "
            f"{', '.join(writable())}."
        )
    return writer


def _write_labels(bags: BagSet, outputs: Outputs) -> None:
    """Check that ids are valid file names, and write the labels of the bags."""
    for bag_id in bags.ids:
        if (
            bag_id in ("", ".", "..")
            or bag_id.startswith(".")
            or any(letter in bag_id for letter in "/\\\0")
        ):
            raise DataError(
                f"bag {bag_id!r}: the id is used as a file name, but is not a valid one. Give the "
                "bag another id."
            )
    rows = [
        (patient or bag_id, bag_id, bags.classes[label])
        for bag_id, label, patient in zip(bags.ids, bags.labels, bags.patients, strict=True)
        if label is not None
    ]
    path, content = (
        outputs.folder / "labels.csv",
        csv_bytes([("case_id", "slide_id", "label"), *rows]),
    )
    if all(label is None for label in bags.labels) or (
        path.is_file() and path.read_bytes() == content
    ):
        return
    # Also if scmil wrote it: it may contain the labels of other bags.
    if path.exists() and not outputs.overwrite:
        raise DataError(
            f"{path} exists with other labels. Export to another folder, or replace it with "
            "--overwrite."
        )
    outputs.write(path, content)


# The order in `scmil ls`.
for _module in (
    "scmil",
    "clam",
    "trident",
    "stamp",
    "torchmil",
    "dsmil",
    "slideflow",
    "histossl",
    "dtfd",
    "arrays",
):
    import_module(f"{__name__}.{_module}")
