"""Atomic file writes: a file has its final name only once it is complete."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write a file under a temporary name, flush it to disk and rename it.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "answer.txt"
    >>> write_atomically(path, b"42")
    >>> path.read_text(), [other.name for other in path.parent.iterdir()]
    ('42', ['answer.txt'])
    """
    with atomic_path(path) as temporary, temporary.open("xb") as file:
        file.write(content)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder and rename it to `path` at the end of the block.

    If the block raises, the temporary file is deleted and an existing file stays as it was.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "answer.txt"
    >>> with atomic_path(path) as temporary:
    ...     _ = temporary.write_text("42")
    >>> path.read_text(), len(list(path.parent.iterdir()))
    ('42', 1)
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Files of `tempfile` can be read by their owner only; this one gets the usual permissions.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
