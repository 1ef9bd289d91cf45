"""What makes a long run over slides lose nothing: finished files are kept, failures are written down, the rest goes on.

A unit of work whose file exists is done. A lock of the operating system says who is at it; it dies with its process, so
that a killed run leaves nothing behind that would have to be cleared by hand.
"""

from __future__ import annotations

import csv
import errno
import io
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from scmil.errors import DataError, DiskFullError, OptionError, OutputError, ScmilError
from scmil.core.files import no_formula, unquoted, write_atomically

Item = TypeVar("Item")

LONGEST_NAME = 200  # bytes; file systems take 255, and suffixes and temporary names are longer
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)  # devices on Windows, with any suffix
TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{32}")  # as `write_atomically` names its files
SECONDS_BETWEEN_LOOKS = 0.2
MADE_GOOD = "made good since"  # the cause that strikes an earlier line of a ledger out
SMALL = 100  # lines; a ledger of more is written anew only when half of it is struck out
TAIL = 256  # bytes by which a file that was written anew is told from one that has only grown


class Failure(NamedTuple):
    """One line of the ledger: what failed, at which stage, why, when, and the file that it came from."""

    slide: str
    stage: str
    cause: str
    when: str
    file: str


class Ledger:
    """The failures of all runs into a folder, as a table that people read too; several processes may write at once.

    A slide has one line a stage: its last failure. A line is added at the end, and only what was added is read again, so that
    a folder in which everything fails costs no more for each slide than one in which a single slide does.

    >>> import tempfile
    >>> ledger = Ledger(tempfile.mkdtemp())
    >>> ledger.add("tumor_078", "tile", "the file ends too early", "slides/tumor_078.tif")
    >>> [(failure.slide, failure.cause) for failure in ledger.read()]
    [('tumor_078', 'the file ends too early')]
    >>> ledger.clear("tumor_078", "tile")
    >>> ledger.read()
    []
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / "failures.csv"
        self._forget()

    def _forget(self) -> None:
        self._failures: dict[tuple[str, str], Failure] = {}
        self._lines = 0  # also those that later ones replace or strike out
        self._read, self._tail = 0, b""  # bytes that were read, and the last of them
        self._ends_well = True

    def read(self) -> list[Failure]:
        """All failures that are not yet made good, the oldest first."""
        self._forget()
        self._look()
        return list(self._failures.values())

    def of(self, slide: str, stage: str) -> Failure | None:
        """The failure of a slide at a stage, if there is one."""
        self._look()
        return self._failures.get((slide, stage))

    def among(self, slides: Iterable[str], stage: str) -> dict[str, Failure]:
        """The failures of these slides at a stage."""
        self._look()
        return {slide: failure for slide in slides if (failure := self._failures.get((slide, stage)))}

    def add(self, slide: str, stage: str, cause: str, file: str = "") -> None:
        """Write a failure down, in place of an earlier one of the same slide and stage."""
        with locked(self.path, wait=True):
            self._look()
            self._put(Failure(slide, stage, " ".join(cause.split()), datetime.now(UTC).isoformat(), file))

    def clear(self, slide: str, stage: str) -> None:
        """Strike the failure of a slide at a stage out, because it is made good."""
        with locked(self.path, wait=True):
            if self.of(slide, stage):
                self._put(Failure(slide, stage, MADE_GOOD, datetime.now(UTC).isoformat(), ""))

    def _put(self, failure: Failure) -> None:
        """Add a line; a file that is not there, that ends in half a line, or that has many old ones is written anew."""
        earlier = self._failures.pop(failure[:2], None)
        if failure.cause != MADE_GOOD:
            self._failures[failure[:2]] = failure
        old = self._lines + 1 - len(self._failures)
        whole = not self._lines or not self._ends_well
        try:
            if whole or (earlier and (self._lines < SMALL or old > len(self._failures))):
                self._write_anew()
            else:
                self._append(failure)
        except BaseException:
            self._forget()  # what is remembered is what the file says
            raise

    def _write_anew(self) -> None:
        _remove(_leftovers(self.path.parent).get(self.path.name, ()))
        write_atomically(self.path, _as_lines([Failure._fields, *self._failures.values()]))
        self._forget()

    def _append(self, failure: Failure) -> None:
        with self.path.open("ab") as file:
            file.write(_as_lines([failure]))
            file.flush()
            os.fsync(file.fileno())

    def _look(self) -> None:
        """Read what was added since the last look, or all if the file was written anew."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read - len(self._tail))
                if not self._ends_well or file.read(len(self._tail)) != self._tail:
                    self._forget()
                    file.seek(0)
                content = file.read()
        except FileNotFoundError:
            self._forget()
            return
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error}. Mend it, or delete it to try all again.") from None
        self._take(content)
        self._tail = (self._tail + content)[-TAIL:]
        self._read += len(content)

    def _take(self, content: bytes) -> None:
        text = content.decode("utf-8", "surrogateescape")  # file names may have bytes that are no text
        try:
            rows = list(filter(None, csv.reader(io.StringIO(text, newline=""))))
        except csv.Error as error:
            raise DataError(f"{self.path} cannot be read: {error}. Mend it, or delete it to try all again.") from None
        expected = list(Failure._fields)
        self._ends_well = not content or content.endswith(b"\n")
        if not self._ends_well and self._lines + len(rows) > 1 and len(rows[-1]) < len(expected):
            rows.pop()  # half a line, as a machine leaves it that loses its power
        if (not self._lines and rows[:1] != [expected]) or any(len(row) != len(expected) for row in rows):
            said = ",".join(expected)
            raise DataError(f"{self.path} is no table of {said}. Mend it, or delete it to try all slides again.")
        for failure in (Failure(*map(unquoted, row)) for row in rows[not self._lines :]):
            self._failures.pop(failure[:2], None)
            if failure.cause != MADE_GOOD:
                self._failures[failure[:2]] = failure
        self._lines += len(rows)


def _as_lines(rows: Iterable[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(no_formula, row) for row in rows)
    return text.getvalue().encode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class Outcome:
    """The names of the items by what became of them; `bugs` are those of `failed` that failed by a mistake of a program."""

    done: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()  # still in the hands of another process
    bugs: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()  # of an earlier version, which did not record the slides that tiles were made from

    def __str__(self) -> str:
        parts = [f"{len(self.done)} made", f"{len(self.kept)} kept", f"{len(self.failed)} failed"]
        parts += [f"{len(self.taken)} in another process"] * bool(self.taken)
        parts[-1] += f" ({len(self.bugs)} by a bug: please report it)" if self.bugs else ""
        if self.unknown:
            parts.append(
                f"{len(self.unknown)} with tiles of an earlier version, which did not record their slides: taken as they are"
            )
        return ", ".join(parts)


def for_each(
    items: Sequence[Item],
    make: Callable[[Item], None],
    *,
    target: Callable[[Item], Path],
    ledger: Ledger,
    stage: str,
    retry_failed: bool = False,
    on_done: Callable[[Item, str], None] | None = None,
    name: Callable[[Item], str] | None = None,
    source: Callable[[Item], object] = str,
    wait: bool = True,
    swept: bool = False,
) -> Outcome:
    """Make the file of every item that has none; an item that fails is written into the ledger, and the others go on.

    Any number of processes may do this with the same items: each item is made by one. What another process is at is looked
    at again in the end, when it is done (`wait=False`: it is reported as taken). Items that failed before are passed over
    unless `retry_failed`. A full disk stops the run, since every further item would fail too. `on_done` is told each item
    and what became of it: "done", "kept", "failed" or "taken". In the ledger an item has the name of its file without the
    suffix, or `name(item)`, and `source(item)` is the file that it came from. Whoever deals many items out to calls of a few
    calls `sweep` once, and says so with `swept`: the folders are then not looked through for each.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> def make(word: str) -> None:
    ...     write_atomically(folder / f"{word}.txt", word.upper().encode())
    >>> todo = dict(target=lambda word: folder / f"{word}.txt", ledger=Ledger(folder), stage="shout")
    >>> print(for_each(["a", "b"], make, **todo))
    2 made, 0 kept, 0 failed
    >>> print(for_each(["a", "b", "c"], make, **todo))
    1 made, 2 kept, 0 failed
    """
    run = _Run(make, target, ledger, stage, retry_failed, name or (lambda item: target(item).stem), source)
    run.prepare(items, swept)
    states: dict[str, list[str]] = {state: [] for state in ("done", "kept", "failed", "taken")}

    def tell(item: Item, state: str) -> None:
        states[state].append(run.name(item))
        if on_done is not None:
            on_done(item, state)

    later = []
    for item in items:
        state = run.attempt(item)
        if state == "taken" and wait:
            later.append(item)
        else:
            tell(item, state)
    for item in later:
        tell(item, run.attempt(item, wait=True))
    return Outcome(**{state: tuple(names) for state, names in states.items()}, bugs=tuple(run.bugs))


@dataclass
class _Run(Generic[Item]):
    """One call of `for_each`: what is asked for, and what was there when it began."""

    make: Callable[[Item], None]
    target: Callable[[Item], Path]
    ledger: Ledger
    stage: str
    retry_failed: bool
    name: Callable[[Item], str]
    source: Callable[[Item], object]
    bugs: list[str] = field(default_factory=list)
    leftovers: set[Path] = field(default_factory=set)  # files that a killed process had begun
    before: dict[str, Failure] = field(default_factory=dict)

    def prepare(self, items: Sequence[Item], swept: bool) -> None:
        """Refuse before the first item what would spoil all of them, and look at what is there."""
        if not swept:
            self.leftovers = set(_check_targets(items, self.target, self.ledger))
        self.before = self.ledger.among([self.name(item) for item in items], self.stage)

    def attempt(self, item: Item, wait: bool = False) -> str:
        """Make the file of an item if it is missing and nobody is at it, and say what became of the item."""
        target, name = self.target(item), self.name(item)
        half_made = wait or target in self.leftovers  # if we waited, the other process may have been killed
        known = name in self.before
        if not half_made and target.exists() and not known:
            return "kept"
        if not half_made and not target.exists() and known and not self.retry_failed:
            return "failed"
        # An OSError here is of the lock, the ledger or the folder; errors of `make` do not come this far.
        with refusing(target.parent), locked(target, wait) as ours:
            return self._decide(item, target, name, half_made) if ours else "taken"

    def _decide(self, item: Item, target: Path, name: str, half_made: bool) -> str:
        if half_made:
            _remove(_leftovers(target.parent).get(target.name, ()))
        failure = self.ledger.of(name, self.stage)
        if target.exists():
            state = "kept"
        elif failure and not (self.retry_failed and failure == self.before.get(name)):
            return "failed"  # before, or in another process since this run began
        else:
            state = self._make(item, target, name)
        if failure and state != "failed":
            self.ledger.clear(name, self.stage)
        return state

    def _make(self, item: Item, target: Path, name: str) -> str:
        try:
            self.make(item)
            if not target.exists():
                raise RuntimeError(f"no file {target.name} was written")
        except Exception as error:
            if isinstance(error, DiskFullError):
                raise
            if is_disk_full(error):
                raise _refusal(target.parent, error) from error
            if not isinstance(error, (ScmilError, OSError, MemoryError)):
                self.bugs.append(name)
            self.ledger.add(name, self.stage, plain_words(error), str(self.source(item)))
            return "failed"
        return "done"


def sweep(items: Iterable[Item], target: Callable[[Item], Path], ledger: Ledger) -> None:
    """Do once what `for_each` does first: refuse what would spoil all items, and remove what killed processes left."""
    for path, halves in _check_targets(items, target, ledger).items():
        with locked(path, wait=False) as ours:
            _remove(halves if ours else ())


def _check_targets(items: Iterable[Item], target: Callable[[Item], Path], ledger: Ledger) -> dict[Path, list[Path]]:
    """Refuse two items with one file and folders that cannot be written; return the half files of those that are there."""
    owners: dict[Path, Item] = {}
    for item in items:
        if (first := owners.setdefault(target(item), item)) != item:
            raise DataError(f"{first} and {item} would both be written to {target(item)}. Rename one.")
    folders = {path.parent for path in owners}
    for folder in sorted(folders | {ledger.path.parent}):
        check_writable(folder)
    halves = {folder / name: paths for folder in folders for name, paths in _leftovers(folder).items()}
    return {path: halves[path] for path in halves.keys() & owners.keys()}


def check_writable(folder: str | Path) -> None:
    """Refuse a folder that nothing can be written to, before hours of work are lost on it; a new one is made."""
    probe = Path(folder) / f".probe.{uuid.uuid4().hex}"
    with refusing(Path(folder)):
        probe.parent.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(b"x")
        finally:
            probe.unlink(missing_ok=True)


@contextmanager
def refusing(folder: Path) -> Iterator[None]:
    """What the system has against writing here is told in words."""
    try:
        yield
    except ScmilError:
        raise
    except OSError as error:
        raise _refusal(folder, error) from error


def safe_name(id: str) -> str:
    """A file name for any id, another one for every id, that cannot leave its folder; ordinary ids stay as they are.

    >>> safe_name("TCGA-05-4244-01Z-00-DX1.a5f1"), safe_name("../etc/passwd"), safe_name("con"), safe_name("100%")
    ('TCGA-05-4244-01Z-00-DX1.a5f1', '%2E.%2Fetc%2Fpasswd', '%63on', '100%25')
    """
    if not id:
        raise DataError("an empty id has no file name. Give every slide an id.")
    letters = [letter if letter.isalnum() or letter in " -_.,+=@()[]#&~" else _escaped(letter) for letter in id]
    if id.startswith((".", " ", "~")) or RESERVED.match(id):
        letters[0] = _escaped(id[0])
    if id.endswith((".", " ")):  # Windows drops them
        letters[-1] = _escaped(id[-1])
    name = "".join(letters)
    if len(name.encode("utf-8", "surrogatepass")) <= LONGEST_NAME:
        return name
    digest = sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return name.encode("utf-8", "surrogatepass")[: LONGEST_NAME - 20].decode("utf-8", "ignore") + "%~" + digest


def plain_words(error: BaseException) -> str:
    """The cause of a failure as one says it.

    >>> plain_words(FileNotFoundError(2, "No such file or directory", "a.svs")), plain_words(KeyError("features"))
    ('No such file or directory: a.svs', "KeyError: 'features' (a bug: please report it)")
    """
    if isinstance(error, MemoryError):
        return "not enough memory" + (f": {error}" if str(error) else "")
    if isinstance(error, ScmilError):
        return str(error) or type(error).__name__
    if isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}" if error.strerror else str(error) or type(error).__name__
    return f"{type(error).__name__}: {error} (a bug: please report it)"


@contextmanager
def one_of_many(name: str, failed: dict[str, str]) -> Iterator[None]:
    """Whatever goes wrong inside with one slide or bag becomes its entry in `failed`, and the others go on.

    A full disk and an option that is wrong for all of them are raised.

    >>> failed: dict[str, str] = {}
    >>> with one_of_many("slide_1", failed):
    ...     raise DataError("the file ends too early")
    >>> failed
    {'slide_1': 'the file ends too early'}
    """
    try:
        yield
    except OptionError:
        raise
    except Exception as error:
        if is_disk_full(error):
            raise
        failed[name] = plain_words(error)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or one that it came from, says that no space is left; HDF5 says so in its text alone.

    >>> is_disk_full(OSError(errno.ENOSPC, "No space left on device")), is_disk_full(OSError(errno.EIO, "broken"))
    (True, False)
    """
    if error is None:
        return False
    number = error.errno if isinstance(error, OSError) else None
    full = isinstance(error, DiskFullError) or number in (errno.ENOSPC, errno.EDQUOT)
    full = full or "No space left on device" in str(error)
    return full or is_disk_full(error.__cause__ or (None if error.__suppress_context__ else error.__context__))


def _refusal(folder: Path, error: BaseException) -> ScmilError:
    if is_disk_full(error):
        free = f"{shutil.disk_usage(folder).free / 2**20:.1f} MB" if folder.is_dir() else "nothing"
        return DiskFullError(
            f"no space is left for {folder}: {free} of the disk is free ({plain_words(error)}). Make room, or write to "
            "another disk, and start again: what is finished is kept."
        )
    return OutputError(
        f"{folder} cannot be written to: {plain_words(error)}. Give a folder of yours, or ask for the right to write there."
    )


@contextmanager
def locked(path: Path, wait: bool) -> Iterator[bool]:
    """Hold the lock of a file; False if another process has it and we do not wait."""
    import filelock

    folder = path.parent / ".locks"
    none = OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock: Any = filelock.FileLock(folder / f"{path.name}.lock")
        lock.acquire(timeout=-1 if wait else 0, poll_interval=SECONDS_BETWEEN_LOOKS)
    except filelock.Timeout:
        yield False
        return
    except NotImplementedError:  # as some versions say that the file system has no locks; others take a soft one
        raise _refusal(path.parent, none) from None
    except OSError as error:
        raise _refusal(path.parent, error) from error
    if isinstance(lock, filelock.SoftFileLock):  # a mere file: it would outlive a killed process, and block its item
        lock.release()
        raise _refusal(path.parent, none)
    try:
        yield True
    finally:
        lock.release()


def _leftovers(folder: Path) -> dict[str, list[Path]]:
    """Temporary files by the name of the file that they were to become."""
    found: dict[str, list[Path]] = {}
    for path in folder.glob(".*"):
        if match := TEMPORARY.fullmatch(path.name):
            found.setdefault(match["name"], []).append(path)
    return found


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _escaped(letter: str) -> str:
    return "".join(f"%{byte:02X}" for byte in letter.encode("utf-8", "surrogatepass"))
