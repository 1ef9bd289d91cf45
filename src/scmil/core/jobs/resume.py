"""Resumable loops over many items: finished files are kept, failures are logged, the rest goes on.

An item whose file exists is done. While an item is processed, its file is locked by a lock of the
operating system, which ends with the process, so that a killed run leaves no lock behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from scmil.core.jobs.failure_log import Failure, FailureLog
from scmil.core.jobs.locks import (
    check_writable,
    delete_files,
    find_leftovers,
    is_disk_full,
    locked,
    output_error,
    translate_os_errors,
)
from scmil.core.text import describe_error
from scmil.errors import DataError, DiskFullError, ScmilError

Item = TypeVar("Item")


@dataclass(frozen=True)
class JobOutcome:
    """The names of the items by state; `bugs` are the failed ones with unexpected exceptions."""

    done: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()  # locked by another process
    bugs: tuple[str, ...] = ()
    # Tiles of an earlier version, which did not record the slide that they were made from.
    unknown: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [f"{len(self.done)} made", f"{len(self.kept)} kept", f"{len(self.failed)} failed"]
        parts += [f"{len(self.taken)} in another process"] * bool(self.taken)
        parts[-1] += f" ({len(self.bugs)} by a bug: please report it)" if self.bugs else ""
        if self.unknown:
            parts.append(
                f"{len(self.unknown)} with tiles of an earlier version, which did not record their "
                "slides: used without this check"
            )
        return ", ".join(parts)


def for_each(
    items: Sequence[Item],
    make: Callable[[Item], None],
    *,
    target: Callable[[Item], Path],
    failure_log: FailureLog,
    stage: str,
    retry_failed: bool = False,
    on_done: Callable[[Item, str], None] | None = None,
    name: Callable[[Item], str] | None = None,
    source: Callable[[Item], object] = str,
    wait: bool = True,
    prepared: bool = False,
) -> JobOutcome:
    """Make the file of every item that has none; failures are logged, and the loop continues.

    Several processes may run this with the same items; each item is made by one of them. A full
    disk ends the loop, since all further items would fail too.

    Args:
        items: The items.
        make: Writes the file of an item, atomically.
        target: Returns the path of this file.
        failure_log: The log of failures.
        stage: The name of this loop in the failure log.
        retry_failed: Whether items of the failure log are tried again.
        on_done: Called with each item and its state: "done", "kept", "failed" or "taken".
        name: Returns the name of an item in the failure log; by default that of its file without
            the suffix.
        source: Returns the source file of an item for the failure log.
        wait: Whether to wait at the end for items that other processes have locked; otherwise they
            are reported as "taken".
        prepared: Whether `prepare_targets` was called for these items already, so that the folders
            are not searched again.

    Returns:
        The names of the items by state.

    Raises:
        DataError: If two items have the same file.
        OutputError: If a folder cannot be written to.
        DiskFullError: If no space is left.

    >>> import tempfile
    >>> from scmil.core.atomic import write_atomically
    >>> folder = Path(tempfile.mkdtemp())
    >>> def make(word: str) -> None:
    ...     write_atomically(folder / f"{word}.txt", word.upper().encode())
    >>> options = {"failure_log": FailureLog(folder), "stage": "upper case"}
    >>> options["target"] = lambda word: folder / f"{word}.txt"
    >>> print(for_each(["a", "b"], make, **options))
    2 made, 0 kept, 0 failed
    >>> print(for_each(["a", "b", "c"], make, **options))
    1 made, 2 kept, 0 failed
    """
    run = _ResumableRun(
        make,
        target,
        failure_log,
        stage,
        retry_failed,
        name or (lambda item: target(item).stem),
        source,
    )
    run.prepare(items, prepared)
    states: dict[str, list[str]] = {state: [] for state in ("done", "kept", "failed", "taken")}

    def report(item: Item, state: str) -> None:
        states[state].append(run.name(item))
        if on_done is not None:
            on_done(item, state)

    later = []
    for item in items:
        state = run.attempt(item)
        if state == "taken" and wait:
            later.append(item)
        else:
            report(item, state)
    for item in later:
        report(item, run.attempt(item, wait=True))
    return JobOutcome(
        **{state: tuple(names) for state, names in states.items()}, bugs=tuple(run.bugs)
    )


@dataclass
class _ResumableRun(Generic[Item]):
    """One call of `for_each`: its arguments, and what existed when it started."""

    make: Callable[[Item], None]
    target: Callable[[Item], Path]
    failure_log: FailureLog
    stage: str
    retry_failed: bool
    name: Callable[[Item], str]
    source: Callable[[Item], object]
    bugs: list[str] = field(default_factory=list)
    leftovers: set[Path] = field(default_factory=set)  # of killed processes
    before: dict[str, Failure] = field(default_factory=dict)

    def prepare(self, items: Sequence[Item], prepared: bool) -> None:
        """Check the folders before the first item, and read the earlier failures."""
        if not prepared:
            self.leftovers = set(_check_targets(items, self.target, self.failure_log))
        self.before = self.failure_log.among([self.name(item) for item in items], self.stage)

    def attempt(self, item: Item, wait: bool = False) -> str:
        """Make the file of an item if it is missing and not locked; return its state."""
        target, name = self.target(item), self.name(item)
        # If this process waited, the other one may have been killed.
        has_leftovers = wait or target in self.leftovers
        failed_before = name in self.before
        if not has_leftovers and target.exists() and not failed_before:
            return "kept"
        if not has_leftovers and not target.exists() and failed_before and not self.retry_failed:
            return "failed"
        # An OSError here concerns the lock, the failure log or the folder; errors of `make` are
        # caught in `_make`.
        with translate_os_errors(target.parent), locked(target, wait) as acquired:
            return self._make_if_needed(item, target, name, has_leftovers) if acquired else "taken"

    def _make_if_needed(self, item: Item, target: Path, name: str, has_leftovers: bool) -> str:
        if has_leftovers:
            delete_files(find_leftovers(target.parent).get(target.name, ()))
        failure = self.failure_log.of(name, self.stage)
        if target.exists():
            state = "kept"
        elif failure and not (self.retry_failed and failure == self.before.get(name)):
            return "failed"  # before, or in another process since this run started
        else:
            state = self._make(item, target, name)
        if failure and state != "failed":
            self.failure_log.clear(name, self.stage)
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
                raise output_error(target.parent, error) from error
            if not isinstance(error, (ScmilError, OSError, MemoryError)):
                self.bugs.append(name)
            self.failure_log.add(name, self.stage, describe_error(error), str(self.source(item)))
            return "failed"
        return "done"


def prepare_targets(
    items: Iterable[Item], target: Callable[[Item], Path], failure_log: FailureLog
) -> None:
    """Do what `for_each` does first: check the targets, delete files of killed processes."""
    for path, leftovers in _check_targets(items, target, failure_log).items():
        with locked(path, wait=False) as acquired:
            delete_files(leftovers if acquired else ())


def _check_targets(
    items: Iterable[Item], target: Callable[[Item], Path], failure_log: FailureLog
) -> dict[Path, list[Path]]:
    """Reject items with the same file and folders without write access; return leftovers."""
    owners: dict[Path, Item] = {}
    for item in items:
        if (first := owners.setdefault(target(item), item)) != item:
            raise DataError(
                f"{first} and {item} would both be written to {target(item)}. Rename one of them."
            )
    folders = {path.parent for path in owners}
    for folder in sorted(folders | {failure_log.path.parent}):
        check_writable(folder)
    leftovers = {
        folder / name: paths for folder in folders for name, paths in find_leftovers(folder).items()
    }
    return {path: leftovers[path] for path in leftovers.keys() & owners.keys()}
