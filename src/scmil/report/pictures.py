"""Pictures beside the numbers: what a run put into its folder `pictures/`, inside the page itself.

`pictures.json` is a list of `{"words": …, "pictures": [{"file": …, "caption": …}, …]}`; a file is a JPEG or PNG beside it.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from scmil.errors import DataError
from scmil.report.markup import Markup, element, join

KINDS = {".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png"}


def section(run: Path) -> Markup | None:
    """All pictures of a run, or None if it has none."""
    index = run / "pictures" / "pictures.json"
    if not index.is_file():
        return None
    try:
        rows = json.loads(index.read_text(encoding="utf-8"))
        return join(*(_row(index.parent, row) for row in rows))
    except (OSError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{index} cannot be shown: {type(error).__name__} {error}. Delete it, or make it again."
        ) from None


def _row(folder: Path, row: dict[str, Any]) -> Markup:
    figures = [
        element("figure", _picture(folder, str(each["file"])), element("figcaption", str(each["caption"])))
        for each in row["pictures"]
    ]
    words = element("p", str(row["words"])) if row["words"] else None
    return join(words, element("div", *figures, class_="panels"))


def _picture(folder: Path, name: str) -> Markup:
    path = folder / name
    if path.suffix.lower() not in KINDS or path.name != name:
        raise DataError(f"{folder}: {name!r} is no picture of this folder. JPEG and PNG files are shown.")
    data = base64.b64encode(path.read_bytes()).decode()
    return Markup(f'<img src="data:{KINDS[path.suffix.lower()]};base64,{data}" alt="">')
