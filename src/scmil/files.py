"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import stat
import uuid
from pathlib import Path
from typing import Any

FORMULA = re.compile(
    r"'*[=+\-@\t\r]"
)  # what a spreadsheet calculates; with apostrophes in front, which are ours or were there


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write under a temporary name and rename, so that no half file ever has the final name.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "answer.txt"
    >>> write_atomically(path, b"42")
    >>> path.read_text(), [other.name for other in path.parent.iterdir()]
    ('42', ['answer.txt'])
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")  # not tempfile's: others may read the final file
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def check_regular(path: str | Path) -> int:
    """The size of a file in bytes; OSError if there is none, or a pipe or a device, for which a reader would wait for ever.

    >>> check_regular("/dev/null")
    Traceback (most recent call last):
    ...
    OSError: [Errno 22] this is not a file, but a pipe, a device or a folder: '/dev/null'
    """
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "this is not a file, but a pipe, a device or a folder", str(path))
    return found.st_size


def no_formula(value: Any) -> Any:
    """A cell for a CSV file that a spreadsheet shows and does not calculate: an apostrophe is put in front of a formula.

    Names of slides, patients and classes come from others. Numbers stay as they are, and `unquoted` gives the name back.

    >>> no_formula("=HYPERLINK(1)"), no_formula("tumor_042"), no_formula("-0.5"), no_formula(-1)
    ("'=HYPERLINK(1)", 'tumor_042', '-0.5', -1)
    """
    if not isinstance(value, str) or not FORMULA.match(value):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def unquoted(cell: str) -> str:
    """What a cell of `no_formula` stands for.

    >>> unquoted("'=HYPERLINK(1)"), unquoted("'quoted'"), unquoted(no_formula("'-x"))
    ('=HYPERLINK(1)', "'quoted'", "'-x")
    """
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell
