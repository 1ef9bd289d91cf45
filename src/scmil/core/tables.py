"""The one writer of CSV files and the JSON files of the package.

Every CSV file is written by `csv_bytes`, which escapes cells that a spreadsheet would evaluate as a
formula: names of slides, patients and classes come from other people.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scmil.core.atomic import write_atomically
from scmil.core.limits import LARGEST_JSON, nested_too_deeply
from scmil.core.regular_files import check_regular
from scmil.errors import DataError

# Characters that start a formula; some programs accept the full-width forms as well.
SIGNS = "=+\\-@＝＋－＠"
# Characters that spreadsheets skip in front of a formula.
BLANKS = r" \0\v\f\x1c-\x1f\x85\xa0\u2000-\u200b\u2028\u2029\u3000\ufeff"
# A cell that is evaluated or that starts with a control character, with any number of apostrophes
# in front of it.
FORMULA = re.compile(rf"['{BLANKS}\t\r\n;]*[{SIGNS}]|'*[\t\r\n\0]")
# Positions inside a cell where a program that separates cells by semicolons or tabs, or that does
# not support quoted cells, starts a new cell.
WITHIN = re.compile(rf"([;\t\r\n])('*)(?=[{BLANKS}]*[{SIGNS}])")
QUOTED_WITHIN = re.compile(rf"([;\t\r\n])'('*)(?=[{BLANKS}]*[{SIGNS}])")
PLAIN_NUMBER = re.compile(
    r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(inf|nan)", re.ASCII | re.IGNORECASE
)
COLUMN = re.compile(r"[\w.#%()-][\w .#%()-]{0,29}|Unnamed: \d{1,4}", re.IGNORECASE)


# ---------------------------------------------------------------------------------------------- CSV


def csv_bytes(
    rows: Iterable[Iterable[Any]], delimiter: str = ",", errors: str = "backslashreplace"
) -> bytes:
    r"""Format rows as a CSV file in UTF-8, with formulas escaped.

    Bytes of file names that are not UTF-8 become backslash escapes; with
    `errors="surrogateescape"` they are written as they are, for files that scmil reads again.

    >>> csv_bytes([["slide", "p"], ["=1", 0.5], ["a\udcff", None]])
    b"slide,p\n'=1,0.5\na\\udcff,\n"
    >>> csv_bytes([["a\udcff"]], errors="surrogateescape")
    b'a\xff\n'
    """
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(
        map(escape_formula, row) for row in rows
    )
    return text.getvalue().encode("utf-8", errors)


def records_csv(
    records: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None
) -> bytes:
    """Format records as a CSV file with a header; missing values become empty cells.

    Without `columns`, the keys of the first record are the columns.

    >>> records_csv([{"slide": "a", "p": 0.5}, {"slide": "b"}])
    b'slide,p\\na,0.5\\nb,\\n'
    """
    records = list(records)
    columns = columns or list(records[0])
    return csv_bytes([columns, *([record.get(name) for name in columns] for record in records)])


def escape_formula(value: Any) -> Any:
    """Prefix text that a spreadsheet would evaluate with an apostrophe; numbers stay as they are.

    `unescape_formula` is the inverse.

    >>> [escape_formula(value) for value in ("=HYPERLINK(1)", "tumor_042", "-0.5", -1, "a;=1")]
    ["'=HYPERLINK(1)", 'tumor_042', '-0.5', -1, "a;'=1"]
    """
    if not isinstance(value, str) or PLAIN_NUMBER.fullmatch(value):
        return value
    text = WITHIN.sub(r"\1'\2", value)
    return f"'{text}" if FORMULA.match(text) else text


def unescape_formula(cell: str) -> str:
    """Return the text that `escape_formula` escaped.

    >>> unescape_formula("'=HYPERLINK(1)"), unescape_formula("'quoted'")
    ('=HYPERLINK(1)', "'quoted'")
    >>> [unescape_formula(escape_formula(text)) for text in ("'-x", "a;'=1")]
    ["'-x", "a;'=1"]
    """
    text = cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell
    return QUOTED_WITHIN.sub(r"\1\2", text)


def column_names(header: Iterable[str]) -> str:
    """List the columns of a table for a message, or only count them if they do not look like names.

    The experiment config of somebody else may name any file as its table, such as a private key;
    its first line must not appear in a message or a report. Names are shown if there are at least
    two, each of at most 30 letters, digits, blanks and `_ . - # % ( )`.

    >>> column_names(["case_id", "slide_id", "grade"])
    'case_id, slide_id, grade'
    >>> column_names(["root:x:0:0:root:/root:/bin/bash"])
    '1 column, not shown because it does not look like a table header'
    """
    names = [name for name in header if name]
    if not names:
        return "nothing"
    if len(names) > 1 and all(COLUMN.fullmatch(name) for name in names):
        return ", ".join(names)
    count = "1 column" if len(names) == 1 else f"{len(names)} columns"
    return f"{count}, not shown because it does not look like a table header"


# --------------------------------------------------------------------------------------------- JSON


def write_json(path: Path, value: Any, indent: int = 1) -> None:
    """Write a value as an indented JSON file, atomically."""
    write_atomically(path, (json.dumps(value, indent=indent) + "\n").encode())


def read_json(path: str | Path, largest: int = LARGEST_JSON) -> Any:
    """Read a JSON file from any source.

    Raises:
        DataError: The file is larger than `largest` bytes or nested too deeply.
        ValueError: The file is not valid JSON.
        OSError: The file cannot be read or is not a regular file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "page.json"
    >>> _ = path.write_text("[" * 100_000)
    >>> read_json(path)
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: ...page.json is nested too deeply.
    """
    if (size := check_regular(path)) > largest:
        raise DataError(f"{path} has {size} bytes; at most {largest} bytes are read.")
    try:
        value = json.loads(Path(path).read_bytes())
    except RecursionError:
        raise DataError(f"{path} is nested too deeply.") from None
    if nested_too_deeply(value):
        raise DataError(f"{path} is nested too deeply.")
    return value
