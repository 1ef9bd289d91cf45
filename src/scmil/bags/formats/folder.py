"""A folder, listed once: what lies in it, and what the first of its HDF5 files holds."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from scmil.errors import DataError
from scmil.bags.formats.reading import open_h5, plain

SOME = 5  # so many files or folders are looked into where thousands may lie: the first can be damaged or foreign


class Peek(NamedTuple):
    """The names in an HDF5 file: of its attributes with their values, of its data sets, of the attributes on `coords`."""

    attributes: Mapping[str, Any]
    datasets: tuple[str, ...]
    on_coords: tuple[str, ...]


@dataclass(frozen=True)
class Folder:
    """A folder and the sorted names in it, without hidden ones; half-written files are hidden.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp())
    >>> for name in ("b.pt", "a.pt", "a.txt", ".c.pt.5f3a"):
    ...     _ = (path / name).write_text("")
    >>> folder = Folder.of(path)
    >>> folder.stems(".pt"), str(folder)
    (('a', 'b'), '2 files .pt, 1 file .txt')
    """

    path: Path

    @classmethod
    def of(cls, path: str | Path) -> Folder:
        """The folder at a path; a path without one is refused."""
        path = Path(path)
        if not path.is_dir():
            what = "is a file, but its folder is needed" if path.exists() else "there is no such folder"
            raise DataError(f"{path}: {what}.")
        return cls(path.resolve() if path.name in ("", "..") else path)

    @cached_property
    def _listed(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        files: list[str] = []
        folders: list[str] = []
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    if not entry.name.startswith("."):
                        _check_link(entry)
                        (folders if _is_folder(entry) else files).append(entry.name)
        except OSError as error:
            raise DataError(f"{self.path}: the folder cannot be listed: {error.strerror}.") from None
        return tuple(sorted(files)), tuple(sorted(folders))

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.name

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the files."""
        return self._listed[0]

    @property
    def folders(self) -> tuple[str, ...]:
        """The names of the folders in it."""
        return self._listed[1]

    def stems(self, suffix: str) -> tuple[str, ...]:
        """The names of the files with this suffix, without it."""
        return tuple(name.removesuffix(suffix) for name in self.files if name.endswith(suffix) and name != suffix)

    def __truediv__(self, name: str) -> Folder:
        return Folder(self.path / name)

    def some(self) -> Iterator[Folder]:
        """The first few folders in it."""
        return (self / name for name in self.folders[:SOME])

    def below(self, suffix: str, deepest: int = 5, widest: int | None = None) -> Iterator[Path]:
        """The files with this suffix, here and in the folders below, of which only the first `widest` are opened."""
        yield from (self.path / f"{stem}{suffix}" for stem in self.stems(suffix))
        if deepest > 0:
            for name in self.folders[:widest]:
                yield from (self / name).below(suffix, deepest - 1, widest)

    @cached_property
    def h5(self) -> Peek | None:
        """A look into the first HDF5 file that can be read; None if there is none among the first few."""
        return first_peek(self.path / f"{stem}.h5" for stem in self.stems(".h5"))

    def __str__(self) -> str:
        kinds = Counter(Path(name).suffix for name in self.files)
        counted = [f"{n} file{'s' * (n > 1)} {kind or 'without suffix'}" for kind, n in kinds.most_common(SOME)]
        more = ["…"] if len(kinds) > SOME or len(self.folders) > SOME else []
        return ", ".join(counted + [f"folder {name!r}" for name in self.folders[:SOME]] + more) or "nothing"


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle: a bag that cannot be read, and is named when it is asked for
        return False


def _check_link(entry: os.DirEntry[str]) -> None:
    """Reject a link that leads nowhere and may be one to a folder of bags; one to a file is an error when it is read."""
    if "." not in entry.name and entry.is_symlink() and not os.path.exists(entry.path):
        raise DataError(
            f"{entry.path} is a link to {os.readlink(entry.path)}, which is not there: its bags would be missing. Mount the "
            "disk that it is on, or remove the link."
        )


def first_peek(paths: Iterator[Path]) -> Peek | None:
    """A look into the first of some HDF5 files that can be read."""
    for path in islice(paths, SOME):
        try:
            with open_h5(path) as file:
                attributes = {name: plain(value) for name, value in file.attrs.items()}
                on_coords = tuple(file["coords"].attrs) if "coords" in file else ()
                return Peek(attributes, tuple(file), on_coords)
        except DataError:
            continue  # damaged: it will be named when its bag is asked for
    return None


def choose(found: Mapping[str, Folder], key: str | None, where: Path) -> tuple[str, Folder]:
    """The one of several folders of features that `key` names, by its whole name or by the last part of it.

    >>> found = {"10x/uni": Folder(Path("a")), "20x/uni": Folder(Path("b")), "20x/phikon": Folder(Path("c"))}
    >>> choose(found, "phikon", Path("job"))[0]
    '20x/phikon'
    >>> choose(found, None, Path("job"))
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: job has several sets of features: 10x/uni, 20x/uni, 20x/phikon. Name one: key='10x/uni'.
    """
    fitting = [name for name in found if key in (None, name, name.rpartition("/")[2])]
    if len(fitting) == 1:
        return fitting[0], found[fitting[0]]
    if not found:
        raise DataError(f"{where} has no folder of features.")
    if not fitting:
        raise DataError(f"{where} has no features {key!r}. It has: {', '.join(found)}.")
    raise DataError(f"{where} has several sets of features: {', '.join(fitting)}. Name one: key={fitting[0]!r}.")
