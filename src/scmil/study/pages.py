"""The files of a model folder, and who is told how far the work is."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scmil.errors import ModelFileError
from scmil.files import no_formula, write_atomically
from scmil.limits import read_json

FORMAT = "scmil-study-1"
STUDY = "study.json"
Progress = Callable[[str, int, int], None]  # what is being done, how much of it is done, of how much
Page = dict[str, Any]


def told(progress: Progress | None, what: str, total: int) -> Callable[[int], None] | None:
    """What a loop is given that counts alone: it tells what is being counted, and of how much."""
    return None if progress is None else lambda done: progress(what, done, total)


def read_page(path: Path) -> Page:
    """A JSON file of a model folder."""
    try:
        return dict(read_json(path))
    except (OSError, TypeError, ValueError) as error:
        raise ModelFileError(f"{path}: not readable as JSON ({error}). Copy the folder again, or train anew.") from None


def write_json(path: Path, page: Page) -> None:
    """Write a page for programs that people can read too."""
    write_atomically(path, (json.dumps(page, indent=1) + "\n").encode())


def write_csv(path: Path, rows: Sequence[Page], columns: Sequence[str] | None = None) -> None:
    """Write a table; without rows the columns have to be named."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns or list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: no_formula(value) for key, value in row.items()} for row in rows)
    write_atomically(path, text.getvalue().encode())
