"""Which files a command wrote into a folder, so that it replaces and deletes these and no others.

Before a command writes a file, it appends a line to the hidden file `.scmil-outputs.jsonl` of the folder: the command, the
name and the SHA-256 of the content. A file whose content is not recorded for its name, such as one that a user has put
there or edited since, is another's: it is replaced only with `--overwrite`. Since the line comes first, a command that is
killed at any moment still knows its files when it is started again.

Folders whose files say themselves what they are, such as those of `train`, `run` and `tile`, have no such record. There,
`check_unclaimed` looks before the first file is written.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from scmil.errors import OutputError
from scmil.core.files import write_atomically
from scmil.fingerprint import sha256_of_file

RECORD = ".scmil-outputs.jsonl"


class Outputs:
    """The files of one command in one folder; `overwrite` replaces also what others wrote.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> Outputs(folder, "predict").write(folder / "p.csv", b"1")
    >>> Outputs(folder, "predict").write(folder / "p.csv", b"2")
    >>> _ = (folder / "p.csv").write_text("edited")
    >>> Outputs(folder, "predict").write(folder / "p.csv", b"3")
    Traceback (most recent call last):
    ...
    scmil.errors.OutputError: .../p.csv is there, and was not written by scmil predict, or was changed since.
    Give --out another place, or replace it with --overwrite.
    """

    def __init__(self, folder: str | Path, command: str, overwrite: bool = False) -> None:
        self.folder, self.command, self.overwrite = Path(folder), command, overwrite
        self._known: dict[str, set[str]] = {}  # the digests that were recorded for each name
        self._ends_well = True
        self._lock = threading.Lock()
        self._read()

    def check(
        self, *paths: Path, content: bytes | None = None, marked: Callable[[Path], bool] = lambda path: False
    ) -> None:
        """Reject another's files at these paths, unless they have this `content`; for a look before hours of work.

        `marked` tells files that need no record, because their own content says that this command wrote them.
        """
        for path in paths:
            if not marked(path) or path.is_symlink() or not self._is_inside(path):
                self._check(path, content)

    def write(self, path: Path, content: bytes) -> None:
        """Record a file and write it, whole or not at all; another's file is rejected, unless it has this very content."""
        if self._check(path, content):
            return
        name, digest = self._name(path), hashlib.sha256(content).hexdigest()
        with self._lock:
            if digest not in self._known.get(name, ()):
                self._append(name, digest)
        write_atomically(path, content)

    def remove(self, path: Path) -> bool:
        """Delete a file that this command wrote; another's stays. Whether it was deleted."""
        if not os.path.lexists(path) or not self._is_ours(path):
            return False
        path.unlink()
        return True

    def written(self) -> Iterator[Path]:
        """The files that this command wrote here, and that nobody changed since."""
        for name in sorted(self._known):
            if self._is_ours(path := self.folder / name):
                yield path

    def _check(self, path: Path, content: bytes | None) -> bool:
        """Reject another's file; whether this content is there already."""
        if not self._is_inside(path):
            raise OutputError(f"{path} is outside of {self.folder}, where a link leads. Give --out another place.")
        if not os.path.lexists(path):
            return False
        if path.is_dir() and not path.is_symlink():
            raise OutputError(f"{path} is a folder, and a file is to be written there. Give --out another place.")
        if content is not None and _has(path, content):
            return True
        if not (self.overwrite or self._is_ours(path)):
            raise OutputError(
                f"{path} is there, and was not written by scmil {self.command}, or was changed since. "
                "Give --out another place, or replace it with --overwrite."
            )
        return False

    def _is_inside(self, path: Path) -> bool:
        return path.parent.resolve().is_relative_to(self.folder.resolve())

    def _is_ours(self, path: Path) -> bool:
        known = self._known.get(self._name(path))
        return bool(known) and not path.is_symlink() and path.is_file() and sha256_of_file(path) in (known or ())

    def _name(self, path: Path) -> str:
        return Path(os.path.relpath(path, self.folder)).as_posix()

    def _read(self) -> None:
        try:
            content = (self.folder / RECORD).read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise OutputError(f"{self.folder / RECORD} cannot be read: {error.strerror}. Give another --out.") from None
        self._ends_well = content.endswith(b"\n")
        for line in content.splitlines():
            try:
                command, name, digest = json.loads(line)
            except (ValueError, TypeError, RecursionError):
                continue  # half a line, as a machine leaves it that loses its power: that file counts as another's
            if command == self.command and isinstance(name, str) and isinstance(digest, str):
                self._known.setdefault(name, set()).add(digest)

    def _append(self, name: str, digest: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        line = json.dumps([self.command, name, digest]).encode() + b"\n"
        with (self.folder / RECORD).open("ab") as file:
            file.write(line if self._ends_well else b"\n" + line)
            file.flush()
            os.fsync(file.fileno())
        self._ends_well = True
        self._known.setdefault(name, set()).add(digest)


def check_unclaimed(folder: Path, mark: str, names: Iterable[str], command: str) -> None:
    """Reject a folder without the file by which a command knows its own folders, if files that it would replace are there.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "results.csv").write_text("mine")
    >>> check_unclaimed(folder, "experiment.json", ["results.csv"], "run")
    Traceback (most recent call last):
    ...
    scmil.errors.OutputError: .../results.csv is there, and was not written by scmil run (.../experiment.json is missing).
    Give --out another folder, or move it away.
    """
    if not folder.is_dir() or (folder / mark).is_file():
        return
    for name in names:
        if os.path.lexists(path := folder / name):
            raise OutputError(
                f"{path} is there, and was not written by scmil {command} ({folder / mark} is missing). "
                "Give --out another folder, or move it away."
            )


def _has(path: Path, content: bytes) -> bool:
    """Whether a file has this content; a link to one has not."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size != len(content):
        return False
    return sha256_of_file(path) == hashlib.sha256(content).hexdigest()
