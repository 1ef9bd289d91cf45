"""Text for files, messages and terminals."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scmil.errors import ScmilError

# Control characters of terminals, and characters that change the direction of text.
CONTROL = re.compile(r"[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def encode_utf8(text: str) -> bytes:
    r"""Encode text for a file; bytes of file names that are not UTF-8 become backslash escapes.

    In JSON, such an escape is read as the original character.

    >>> encode_utf8("a \udcff")
    b'a \\udcff'
    """
    return text.encode("utf-8", "backslashreplace")


def printable(text: object, lines: bool = False) -> str:
    r"""Escape control characters and changes of the text direction, for output on a terminal.

    With `lines`, line feeds and tabs are kept, for messages of several lines.

    >>> print(printable("a\x1b[2Jb\u202ec\udcff"))
    a\x1b[2Jb\u202ec\udcff
    """

    def escape(match: re.Match[str]) -> str:
        letter = match[0]
        return letter if lines and letter in "\n\t" else letter.encode("unicode_escape").decode()

    return CONTROL.sub(escape, str(text))


def describe_error(error: BaseException) -> str:
    """The cause of a failure, for messages and the failure log.

    >>> describe_error(FileNotFoundError(2, "No such file or directory", "a.svs"))
    'No such file or directory: a.svs'
    >>> describe_error(KeyError("features"))
    "KeyError: 'features' (a bug: please report it)"
    """
    if isinstance(error, MemoryError):
        return "not enough memory" + (f": {error}" if str(error) else "")
    if isinstance(error, ScmilError):
        return str(error) or type(error).__name__
    if isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}" if error.strerror else str(error) or type(error).__name__
    return f"{type(error).__name__}: {error} (a bug: please report it)"


def first_names(names: Sequence[str], most: int = 3) -> str:
    """Return the first names of a list, and the number of the others.

    >>> first_names(["a", "b", "c", "d", "e"]), first_names(["a", "b"])
    ('a, b, c and 2 more', 'a, b')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
