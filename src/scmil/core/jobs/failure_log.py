"""The log of failures of all runs into a folder, `failures.csv`."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from scmil.core.atomic import write_atomically
from scmil.core.jobs.locks import delete_files, find_leftovers, is_disk_full, locked
from scmil.core.tables import csv_bytes, unescape_formula
from scmil.core.text import describe_error
from scmil.errors import DataError, OptionError

# The cause of a line that cancels an earlier one; part of the file format.
RESOLVED = "made good since"
SMALL = 100  # lines; a longer log is rewritten only when half of its lines are resolved
TAIL = 256  # last bytes, compared to see whether a file was rewritten or only appended to


class Failure(NamedTuple):
    """One line of the failure log: what failed, at which stage, why, when, and its source file."""

    slide: str
    stage: str
    cause: str
    when: str
    file: str


class FailureLog:
    """The failures of all runs into a folder, as a CSV file; several processes may write at once.

    Each slide has at most one line per stage, its last failure. New lines are appended, and only
    new lines are read again, so that the cost per failure does not depend on their number.

    >>> import tempfile
    >>> failure_log = FailureLog(tempfile.mkdtemp())
    >>> failure_log.add("tumor_078", "tile", "the file ends too early", "slides/tumor_078.tif")
    >>> [(failure.slide, failure.cause) for failure in failure_log.read()]
    [('tumor_078', 'the file ends too early')]
    >>> failure_log.clear("tumor_078", "tile")
    >>> failure_log.read()
    []
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / "failures.csv"
        self._reset()

    def _reset(self) -> None:
        self._failures: dict[tuple[str, str], Failure] = {}
        self._lines = 0  # with those that later lines replace or cancel
        self._read_bytes, self._tail = 0, b""  # the number of bytes read, and the last ones
        self._is_complete = True  # whether the last line ends with a line feed

    def read(self) -> list[Failure]:
        """All failures that are not resolved, the oldest first."""
        self._reset()
        self._read_new_lines()
        return list(self._failures.values())

    def of(self, slide: str, stage: str) -> Failure | None:
        """The failure of a slide at a stage, if there is one."""
        self._read_new_lines()
        return self._failures.get((slide, stage))

    def among(self, slides: Iterable[str], stage: str) -> dict[str, Failure]:
        """The failures of these slides at a stage."""
        self._read_new_lines()
        return {
            slide: failure for slide in slides if (failure := self._failures.get((slide, stage)))
        }

    def add(self, slide: str, stage: str, cause: str, file: str = "") -> None:
        """Log a failure; it replaces an earlier one of the same slide and stage."""
        with locked(self.path, wait=True):
            self._read_new_lines()
            self._write(
                Failure(slide, stage, " ".join(cause.split()), datetime.now(UTC).isoformat(), file)
            )

    def clear(self, slide: str, stage: str) -> None:
        """Mark the failure of a slide at a stage as resolved."""
        with locked(self.path, wait=True):
            if self.of(slide, stage):
                self._write(Failure(slide, stage, RESOLVED, datetime.now(UTC).isoformat(), ""))

    def _write(self, failure: Failure) -> None:
        """Append a line; a file that is missing, ends in half a line, or has many old lines is
        rewritten.
        """
        earlier = self._failures.pop(failure[:2], None)
        if failure.cause != RESOLVED:
            self._failures[failure[:2]] = failure
        outdated = self._lines + 1 - len(self._failures)
        must_rewrite = not self._lines or not self._is_complete
        try:
            if must_rewrite or (
                earlier and (self._lines < SMALL or outdated > len(self._failures))
            ):
                self._rewrite_file()
            else:
                self._append(failure)
        except BaseException:
            self._reset()  # the next read starts from the file
            raise

    def _rewrite_file(self) -> None:
        delete_files(find_leftovers(self.path.parent).get(self.path.name, ()))
        write_atomically(self.path, _format_rows([Failure._fields, *self._failures.values()]))
        self._reset()

    def _append(self, failure: Failure) -> None:
        with self.path.open("ab") as file:
            file.write(_format_rows([failure]))
            file.flush()
            os.fsync(file.fileno())

    def _read_new_lines(self) -> None:
        """Read the lines added since the last call, or all if the file was rewritten."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read_bytes - len(self._tail))
                if not self._is_complete or file.read(len(self._tail)) != self._tail:
                    self._reset()
                    file.seek(0)
                content = file.read()
        except FileNotFoundError:
            self._reset()
            return
        except OSError as error:
            raise DataError(
                f"{self.path} cannot be read: {error}. Correct it, or delete it to process "
                "all slides again."
            ) from None
        self._parse(content)
        self._tail = (self._tail + content)[-TAIL:]
        self._read_bytes += len(content)

    def _parse(self, content: bytes) -> None:
        # File names may contain bytes that are not UTF-8.
        text = content.decode("utf-8", "surrogateescape")
        try:
            rows = list(filter(None, csv.reader(io.StringIO(text, newline=""))))
        except csv.Error as error:
            raise DataError(
                f"{self.path} cannot be read: {error}. Correct it, or delete it to process "
                "all slides again."
            ) from None
        expected = list(Failure._fields)
        self._is_complete = not content or content.endswith(b"\n")
        if not self._is_complete and self._lines + len(rows) > 1 and len(rows[-1]) < len(expected):
            rows.pop()  # half a line, left by a power failure
        if (not self._lines and rows[:1] != [expected]) or any(
            len(row) != len(expected) for row in rows
        ):
            raise DataError(
                f"{self.path} is not a table with the columns {','.join(expected)}. Correct it, or "
                "delete it to process all slides again."
            )
        for failure in (Failure(*map(unescape_formula, row)) for row in rows[not self._lines :]):
            self._failures.pop(failure[:2], None)
            if failure.cause != RESOLVED:
                self._failures[failure[:2]] = failure
        self._lines += len(rows)


def _format_rows(rows: Iterable[Sequence[str]]) -> bytes:
    return csv_bytes(rows, errors="surrogateescape")


@contextmanager
def record_failure(name: str, failed: dict[str, str]) -> Iterator[None]:
    """Context manager: store an exception raised for one slide or bag as text in `failed`.

    A full disk and an invalid option concern all of them and are raised.

    >>> failed: dict[str, str] = {}
    >>> with record_failure("slide_1", failed):
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
        failed[name] = describe_error(error)
