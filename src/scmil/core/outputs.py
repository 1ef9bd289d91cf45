"""Which files a command wrote into a folder, so that it replaces and deletes these and no others.

Before a command writes a file, it appends a line to the hidden file `.scmil-outputs.jsonl` of the
folder: the command, the name and the SHA-256 of the content. A file whose content is not recorded
for its name was created or edited by somebody else; it is replaced only with `--overwrite`. Since
the line is written first, a command that was killed at any time still recognises its files.

Folders of `train`, `run` and `tile` contain a file that identifies them, and have no such record.
`check_unclaimed` checks them before the first file is written.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from scmil.core.atomic import write_atomically
from scmil.core.fingerprint import sha256_of_file
from scmil.errors import OutputError

RECORD = ".scmil-outputs.jsonl"


class Outputs:
    """The files of one command in one folder; `overwrite` also replaces files of others.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> Outputs(folder, "predict").write(folder / "p.csv", b"1")
    >>> Outputs(folder, "predict").write(folder / "p.csv", b"2")
    >>> _ = (folder / "p.csv").write_text("edited")
    >>> Outputs(folder, "predict").write(folder / "p.csv", b"3")
    Traceback (most recent call last):
    ...
    scmil.errors.OutputError: .../p.csv exists, and was not written by scmil predict, or was changed
    since. Choose another --out, or replace the file with --overwrite.
    """

    def __init__(self, folder: str | Path, command: str, overwrite: bool = False) -> None:
        self.folder, self.command, self.overwrite = Path(folder), command, overwrite
        self._digests: dict[str, set[str]] = {}  # recorded for each name
        self._is_complete = True
        self._lock = threading.Lock()
        self._read()

    def check(
        self,
        *paths: Path,
        content: bytes | None = None,
        marked: Callable[[Path], bool] = lambda path: False,
    ) -> None:
        """Raise if files of others exist at these paths, before hours of work.

        Args:
            paths: The files that will be written.
            content: Files with this content are accepted.
            marked: Whether the content of a file identifies it as written by this command, so that
                it needs no record.

        Raises:
            OutputError: If a file was not written by this command, or is outside the folder.
        """
        for path in paths:
            if not marked(path) or path.is_symlink() or not self._is_inside(path):
                self._check(path, content)

    def write(self, path: Path, content: bytes) -> None:
        """Record a file and write it atomically.

        Raises:
            OutputError: If a file of others with another content exists.
        """
        if self._check(path, content):
            return
        name, digest = self._name(path), hashlib.sha256(content).hexdigest()
        with self._lock:
            if digest not in self._digests.get(name, ()):
                self._append(name, digest)
        write_atomically(path, content)

    def remove(self, path: Path) -> bool:
        """Delete a file if this command wrote it; return whether it was deleted."""
        if not os.path.lexists(path) or not self._is_ours(path):
            return False
        path.unlink()
        return True

    def written(self) -> Iterator[Path]:
        """The files that this command wrote here and that have not changed since."""
        for name in sorted(self._digests):
            if self._is_ours(path := self.folder / name):
                yield path

    def _check(self, path: Path, content: bytes | None) -> bool:
        """Raise for a file of others; return whether the file has this content already."""
        if not self._is_inside(path):
            raise OutputError(
                f"{path} is outside of {self.folder}, because of a symbolic link. Choose "
                "another --out."
            )
        if not os.path.lexists(path):
            return False
        if path.is_dir() and not path.is_symlink():
            raise OutputError(
                f"{path} is a folder, but a file has to be written there. Choose another --out."
            )
        if content is not None and _has_content(path, content):
            return True
        if not (self.overwrite or self._is_ours(path)):
            raise OutputError(
                f"{path} exists, and was not written by scmil {self.command}, or was changed "
                "since. Choose another --out, or replace the file with --overwrite."
            )
        return False

    def _is_inside(self, path: Path) -> bool:
        return path.parent.resolve().is_relative_to(self.folder.resolve())

    def _is_ours(self, path: Path) -> bool:
        digests = self._digests.get(self._name(path))
        return (
            bool(digests)
            and not path.is_symlink()
            and path.is_file()
            and sha256_of_file(path) in (digests or ())
        )

    def _name(self, path: Path) -> str:
        return Path(os.path.relpath(path, self.folder)).as_posix()

    def _read(self) -> None:
        try:
            content = (self.folder / RECORD).read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise OutputError(
                f"{self.folder / RECORD} cannot be read: {error.strerror}. Choose another --out."
            ) from None
        self._is_complete = content.endswith(b"\n")
        for line in content.splitlines():
            try:
                command, name, digest = json.loads(line)
            except (ValueError, TypeError, RecursionError):
                # Half a line, left by a power failure: the file counts as one of others.
                continue
            if command == self.command and isinstance(name, str) and isinstance(digest, str):
                self._digests.setdefault(name, set()).add(digest)

    def _append(self, name: str, digest: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        line = json.dumps([self.command, name, digest]).encode() + b"\n"
        with (self.folder / RECORD).open("ab") as file:
            file.write(line if self._is_complete else b"\n" + line)
            file.flush()
            os.fsync(file.fileno())
        self._is_complete = True
        self._digests.setdefault(name, set()).add(digest)


def check_unclaimed(folder: Path, mark: str, names: Iterable[str], command: str) -> None:
    """Raise if files that a command would replace exist in a folder that it did not create.

    Args:
        folder: The output folder.
        mark: The file that identifies folders of this command.
        names: The files that the command would write.
        command: The name of the command.

    Raises:
        OutputError: If one of the files exists and `mark` does not.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "results.csv").write_text("mine")
    >>> check_unclaimed(folder, "experiment.json", ["results.csv"], "run")
    Traceback (most recent call last):
    ...
    scmil.errors.OutputError: .../results.csv exists, and was not written by scmil run
    (.../experiment.json is missing). Choose another --out, or move the file.
    """
    if not folder.is_dir() or (folder / mark).is_file():
        return
    for name in names:
        # Another process may have created the folder in the meantime; it writes the mark first.
        if os.path.lexists(path := folder / name) and not (folder / mark).is_file():
            raise OutputError(
                f"{path} exists, and was not written by scmil {command} "
                f"({folder / mark} is missing). Choose another --out, or move the file."
            )


def _has_content(path: Path, content: bytes) -> bool:
    """Whether a path is a regular file, not a link, with this content."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size != len(content):
        return False
    return sha256_of_file(path) == hashlib.sha256(content).hexdigest()
