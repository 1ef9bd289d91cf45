"""Everyone's features as bags, without conversion. This page is the whole contract.

A format is a class without arguments that

- has `layout`: a line that says what its folder looks like, for people whose folder is something else;
- answers `looks_like(folder)`: cheaply, from names and at most a few headers, for a folder of 10 000 files, too;
- reads: `read(folder, labels, **own)` gives a lazy `BagSet` and opens no file of features;
- perhaps writes: `place(folder, bag)` is where files go, `finished(place, id)` whether a bag is there, and
  `files(bag, place)` gives the files of a bag with their content, to be written one after another;
- perhaps sets `last_resort`: it is asked only if no other format fits.

To add one, write a file in this folder and decorate the class with `@register("its-name", "what it reads")`. From another
package, name it in an entry point of the group `scmil.formats`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from scmil.bags.bag import Bag, BagSet
from scmil.errors import DataError, OptionError
from scmil.core.files import csv_bytes
from scmil.bags.formats.folder import Folder
from scmil.bags.formats.reading import Labels, SlideMpp
from scmil.outputs import Outputs
from scmil.core.registry import Registry


class Format(Protocol):
    """The shape of a format, for type checkers; nothing inherits from it."""

    layout: ClassVar[str]

    def looks_like(self, folder: Folder) -> bool:
        """Whether the folder is of this format."""

    def read(self, folder: Folder, labels: Labels | None = None) -> BagSet:
        """The bags of the folder, each read when it is asked for."""


@runtime_checkable
class Writer(Protocol):
    """The shape of a format that is written, too."""

    def place(self, folder: Path, bag: Bag) -> Path:
        """The folder for bags such as this one."""

    def finished(self, place: Path, id: str) -> bool:
        """Whether the bag has been written whole."""

    def files(self, bag: Bag, place: Path) -> Iterator[tuple[Path, bytes]]:
        """The files of one bag; the one that `finished` looks for comes last."""


class Exported(NamedTuple):
    """The ids of the bags that were written, and of those that were there already."""

    written: tuple[str, ...]
    kept: tuple[str, ...]


registry: Registry[Any] = Registry("format")


def register(name: str, summary: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a format class, with a line for `scmil ls`."""
    return registry.register(name, summary)


def names() -> list[str]:
    """The names of all formats, ours and those of installed packages.

    >>> "clam" in names()
    True
    """
    return registry.names()


def writable() -> list[str]:
    """The names of the formats that `export` writes.

    >>> writable()
    ['clam', 'trident', 'torchmil']
    """
    return [name for name in names() if isinstance(registry.build(name), Writer)]


def detect(folder: str | Path) -> str:
    """Tell the format of a folder; none or several are refused, with what was found and what each looks like.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "pt_files").mkdir()
    >>> detect(folder)
    'clam'
    """
    here = Folder.of(folder)
    formats = {name: registry.build(name) for name in names()}
    last = [name for name, format in formats.items() if getattr(format, "last_resort", False)]
    found = [name for name in formats if name not in last and formats[name].looks_like(here)]
    found = found or [name for name in last if formats[name].looks_like(here)]
    if len(found) == 1:
        return found[0]
    if found:
        either = " or ".join(f"format={name!r}" for name in found)
        raise DataError(f"{here.path} could be of the formats {', '.join(found)}. Name one: {either}.")
    layouts = "".join(f"\n  {name}: {format.layout}" for name, format in formats.items())
    raise DataError(f"{here.path} is of no format that scmil knows. Found: {here}. The formats are{layouts}")


def open_bags(
    folder: str | Path,
    format: str | None = None,
    labels: Labels | None = None,
    *,
    key: str | None = None,
    trust_pickle: bool = False,
    slide_mpp: SlideMpp | None = None,
    step: float | None = None,
) -> BagSet:
    """Open a folder of features as it is, whoever made it; a bag is read when it is asked for.

    `format` is detected if it is not named. `labels` answers `of(id)` with label and patient. Some formats take more:
    `key` chooses among several encoders, `slide_mpp` (one number, or one for each id) makes pixels of microns, `step` says
    how many level-0 pixels one unit of the coordinates is, `trust_pickle` admits a file of pickled arrays.

    >>> import tempfile, torch
    >>> folder = Path(tempfile.mkdtemp())
    >>> torch.save(torch.zeros(3, 8), folder / "007.pt")
    >>> bags = open_bags(folder)
    >>> bags, bags[0], bags[0].provenance
    (BagSet(1 bags, 1 without a label), Bag('007', 3 x 8, label=None), {'format': 'arrays', 'file': '007.pt'})
    """
    name = detect(folder) if format is None else format
    reader = registry.build(name)
    asked = {"key": key, "trust_pickle": trust_pickle or None, "slide_mpp": slide_mpp, "step": step}
    given = {option: value for option, value in asked.items() if value is not None}
    taken = [option for option in asked if option in inspect.signature(reader.read).parameters]
    if unknown := sorted(set(given).difference(taken)):
        raise OptionError(
            f"format {name!r} does not take {', '.join(unknown)}. It takes: {', '.join(taken) or 'none'}."
        )
    bags: BagSet = reader.read(Folder.of(folder), labels, **given)
    if not bags:
        raise DataError(f"{folder} has no bag of the format {name!r}, which looks like: {reader.layout}.")
    return bags


def export(
    bags: Sequence[Bag],
    folder: str | Path,
    format: str,
    known: Mapping[str, Any] | None = None,
    *,
    overwrite: bool = False,
) -> Exported:
    """Write bags as another tool reads them: one at a time, whole or not at all; those that are there are kept.

    `known` adds to the provenance what the bags do not say of themselves, such as `{"encoder": "uni_v1", "mpp": 0.5}`.
    Labels go into `labels.csv`, with the columns case_id, slide_id, label. A file of a bag that is not whole, and that
    this did not write, is rejected; with `overwrite` all files are written, whatever is there.

    >>> import tempfile, torch
    >>> folder = Path(tempfile.mkdtemp())
    >>> export([Bag("a", torch.zeros(3, 8), label=1)], folder, "clam")
    Exported(written=('a',), kept=())
    >>> sorted(file.relative_to(folder).as_posix() for file in folder.rglob("[!.]*.*"))
    ['h5_files/a.h5', 'labels.csv', 'pt_files/a.pt']
    """
    writer = registry.build(format)
    if not isinstance(writer, Writer):
        raise DataError(f"format {format!r} is read, but not written. Written are: {', '.join(writable())}.")
    bags = bags if isinstance(bags, BagSet) else BagSet(bags)
    outputs = Outputs(folder, "export", overwrite)
    _write_labels(bags, outputs)
    place: Path | None = None
    written: list[str] = []
    for position, id in enumerate(bags.ids):
        if place is not None and not overwrite and writer.finished(place, id):
            continue
        bag = bags[position]
        bag = replace(bag, provenance={**(known or {}), **bag.provenance})
        here = writer.place(Path(folder), bag)
        if place not in (None, here):
            raise DataError(f"bag {id!r} belongs into {here}, those before into {place}. Export them one by one.")
        place = here
        if overwrite or not writer.finished(place, id):
            for path, content in writer.files(bag, place):
                outputs.write(path, content)
            written.append(id)
    return Exported(tuple(written), tuple(id for id in bags.ids if id not in set(written)))


def _write_labels(bags: BagSet, outputs: Outputs) -> None:
    for id in bags.ids:
        if id in ("", ".", "..") or id.startswith(".") or any(letter in id for letter in "/\\\0"):
            raise DataError(f"bag {id!r}: the id becomes a file's name, and cannot be one. Give the bag another id.")
    rows = [
        (patient or id, id, bags.classes[label])
        for id, label, patient in zip(bags.ids, bags.labels, bags.patients, strict=True)
        if label is not None
    ]
    path, content = outputs.folder / "labels.csv", csv_bytes([("case_id", "slide_id", "label"), *rows])
    if all(label is None for label in bags.labels) or (path.is_file() and path.read_bytes() == content):
        return
    if path.exists() and not outputs.overwrite:  # also one of ours: it may have the labels of other bags
        raise DataError(f"{path} is there with other labels. Export to another folder, or replace it with --overwrite.")
    outputs.write(path, content)


# The order here is the order in `scmil ls`: ours first, the last resort last.
for _room in ("own", "clam", "trident", "stamp", "torchmil", "dsmil", "slideflow", "histossl", "dtfd", "arrays"):
    import_module(f"{__name__}.{_room}")
