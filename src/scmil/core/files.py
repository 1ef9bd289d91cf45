"""Files that appear whole or not at all, and text that stays text where others show it."""

from __future__ import annotations

import csv
import errno
import io
import os
import re
import stat
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SIGNS = "=+\\-@＝＋－＠"  # what a formula begins with; some programs take the full-width forms for the plain ones
BLANKS = r" \0\v\f\x1c-\x1f\x85\xa0\u2000-\u200b\u2028\u2029\u3000\ufeff"  # what is passed over in front of it
# A cell that is calculated, or that begins with a control character; with apostrophes in front, which are ours or were there.
FORMULA = re.compile(rf"['{BLANKS}\t\r\n;]*[{SIGNS}]|'*[\t\r\n\0]")
# Where a program that separates cells by semicolons or tabs, or does not know quotes, begins a new cell within this one.
WITHIN = re.compile(rf"([;\t\r\n])('*)(?=[{BLANKS}]*[{SIGNS}])")
QUOTED_WITHIN = re.compile(rf"([;\t\r\n])'('*)(?=[{BLANKS}]*[{SIGNS}])")
PLAIN_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(inf|nan)", re.ASCII | re.IGNORECASE)
COLUMN = re.compile(r"[\w.#%()-][\w .#%()-]{0,29}|Unnamed: \d{1,4}", re.IGNORECASE)
# Characters that a terminal obeys, or that change the order of what is read: shown as escapes.
OBEYED = re.compile(r"[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


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

    >>> no_formula("=HYPERLINK(1)"), no_formula("tumor_042"), no_formula("-0.5"), no_formula(-1), no_formula("a;=1")
    ("'=HYPERLINK(1)", 'tumor_042', '-0.5', -1, "a;'=1")
    """
    if not isinstance(value, str) or PLAIN_NUMBER.fullmatch(value):
        return value
    text = WITHIN.sub(r"\1'\2", value)
    return f"'{text}" if FORMULA.match(text) else text


def unquoted(cell: str) -> str:
    """What a cell of `no_formula` stands for.

    >>> unquoted("'=HYPERLINK(1)"), unquoted("'quoted'"), unquoted(no_formula("'-x")), unquoted(no_formula("a;'=1"))
    ('=HYPERLINK(1)', "'quoted'", "'-x", "a;'=1")
    """
    text = cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell
    return QUOTED_WITHIN.sub(r"\1\2", text)


def csv_bytes(rows: Iterable[Iterable[Any]], delimiter: str = ",") -> bytes:
    r"""A table as every CSV file of ours is written: no formulas, and names that are not UTF-8 as backslash escapes.

    >>> csv_bytes([["slide", "p"], ["=1", 0.5], ["a\udcff", None]])
    b"slide,p\n'=1,0.5\na\\udcff,\n"
    """
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(map(no_formula, row) for row in rows)
    return utf8(text.getvalue())


def utf8(text: str) -> bytes:
    r"""Text for a file. A name of a file that is not UTF-8 has bytes that are not text: they become backslash escapes.

    In JSON, such an escape is read back as what it was.

    >>> utf8("a \udcff")
    b'a \\udcff'
    """
    return text.encode("utf-8", "backslashreplace")


def column_names(header: Iterable[str]) -> str:
    """The names of a table's columns for a message; only how many there are, if they do not look like names of columns.

    An experiment that somebody else wrote may name any file as its table, such as a key: its first line must not stand in
    a message or a report. Shown are two names or more, each of at most 30 letters, digits, blanks and `_ . - # % ( )`.

    >>> column_names(["case_id", "slide_id", "grade"]), column_names(["root:x:0:0:root:/root:/bin/bash"])
    ('case_id, slide_id, grade', '1 column, not shown since it does not look like the head of a table')
    """
    named = [name for name in header if name]
    if not named:
        return "nothing"
    if len(named) > 1 and all(COLUMN.fullmatch(name) for name in named):
        return ", ".join(named)
    return f"{len(named)} column{'s' * (len(named) != 1)}, not shown since it does not look like the head of a table"


def printable(text: object, lines: bool = False) -> str:
    r"""Text for a terminal: what it would obey (escapes, control characters, other directions of writing) as escapes.

    With `lines`, line feeds stay: for messages of several lines.

    >>> print(printable("a\x1b[2Jb\u202ec\udcff"))
    a\x1b[2Jb\u202ec\udcff
    """

    def escaped(found: re.Match[str]) -> str:
        letter = found[0]
        return letter if lines and letter in "\n\t" else letter.encode("unicode_escape").decode()

    return OBEYED.sub(escaped, str(text))
