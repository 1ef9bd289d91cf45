"""A folder that is listed once, and the contents of its first HDF5 file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from scmil.bags.formats.reading import open_h5, plain_attributes
from scmil.errors import DataError

# The number of files or folders that are opened to detect a format. More than one, because the
# first can be damaged or of another kind.
SOME = 5


class Peek(NamedTuple):
    """Attributes and data set names of an HDF5 file, and attribute names of its `coords`."""

    attributes: Mapping[str, Any]
    datasets: tuple[str, ...]
    on_coords: tuple[str, ...]


@dataclass(frozen=True)
class Folder:
    """A folder and the sorted names in it, without hidden files, such as unfinished ones.

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
        """Return the folder at a path, or raise if there is none."""
        path = Path(path)
        if not path.is_dir():
            what = (
                "this is a file, but a folder is needed. Give the folder that contains it"
                if path.exists()
                else "there is no such folder. Check the path"
            )
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
            raise DataError(
                f"{self.path}: the folder cannot be listed: {error.strerror}. Check its "
                "permissions."
            ) from None
        return tuple(sorted(files)), tuple(sorted(folders))

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.name

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files."""
        return self._listed[0]

    @property
    def folders(self) -> tuple[str, ...]:
        """Names of the subfolders."""
        return self._listed[1]

    def stems(self, suffix: str) -> tuple[str, ...]:
        """Return the names of the files with this suffix, without the suffix."""
        return tuple(
            name.removesuffix(suffix)
            for name in self.files
            if name.endswith(suffix) and name != suffix
        )

    def __truediv__(self, name: str) -> Folder:
        return Folder(self.path / name)

    def some(self) -> Iterator[Folder]:
        """Return the first few subfolders."""
        return (self / name for name in self.folders[:SOME])

    def below(self, suffix: str, deepest: int = 5, widest: int | None = None) -> Iterator[Path]:
        """Yield the files with this suffix, here and in subfolders up to `deepest` levels below.

        Only the first `widest` subfolders of each folder are listed.
        """
        yield from (self.path / f"{stem}{suffix}" for stem in self.stems(suffix))
        if deepest > 0:
            for name in self.folders[:widest]:
                yield from (self / name).below(suffix, deepest - 1, widest)

    @cached_property
    def h5(self) -> Peek | None:
        """Contents of the first readable HDF5 file; None if none of the first few is readable."""
        return first_peek(self.path / f"{stem}.h5" for stem in self.stems(".h5"))

    def __str__(self) -> str:
        kinds = Counter(Path(name).suffix for name in self.files)
        counted = [
            f"{n} file{'s' * (n > 1)} {kind or 'without suffix'}"
            for kind, n in kinds.most_common(SOME)
        ]
        more = ["…"] if len(kinds) > SOME or len(self.folders) > SOME else []
        return (
            ", ".join(counted + [f"folder {name!r}" for name in self.folders[:SOME]] + more)
            or "nothing"
        )


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a circular link: reported when its bag is read
        return False


def _check_link(entry: os.DirEntry[str]) -> None:
    """Raise for a broken link that may lead to a folder of bags.

    A broken link to a file raises when its bag is read.
    """
    if "." not in entry.name and entry.is_symlink() and not os.path.exists(entry.path):
        raise DataError(
            f"{entry.path} is a link to {os.readlink(entry.path)}, which does not exist: its bags "
            "would be missing. Mount the disk that it is on, or remove the link."
        )


def first_peek(paths: Iterator[Path]) -> Peek | None:
    """Return the contents of the first readable HDF5 file; None if there is none."""
    for path in islice(paths, SOME):
        try:
            with open_h5(path) as file:
                on_coords = tuple(file["coords"].attrs) if "coords" in file else ()
                return Peek(plain_attributes(file), tuple(file), on_coords)
        except DataError:
            continue  # damaged: reported when its bag is read
    return None


def choose(found: Mapping[str, Folder], key: str | None, where: Path) -> tuple[str, Folder]:
    """Return the feature folder that `key` names, by its full name or the last part of it.

    >>> found = {name: Folder(Path(name)) for name in ("10x/uni", "20x/uni", "20x/phikon")}
    >>> choose(found, "phikon", Path("job"))[0]
    '20x/phikon'
    >>> choose(found, None, Path("job"))
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: job has several sets of features: 10x/uni, 20x/uni, 20x/phikon.
    Choose one: key='10x/uni'.
    """
    fitting = [name for name in found if key in (None, name, name.rpartition("/")[2])]
    if len(fitting) == 1:
        return fitting[0], found[fitting[0]]
    if not found:
        raise DataError(f"{where} has no folder of features. Check the path and the format.")
    if not fitting:
        raise DataError(f"{where} has no features {key!r}. It has: {', '.join(found)}.")
    raise DataError(
        f"{where} has several sets of features: {', '.join(fitting)}. "
        f"Choose one: key={fitting[0]!r}."
    )
