"""Pictures beside the numbers: what a run put into its folder `pictures/`, inside the page itself.

`pictures.json` is a list of `{"words": …, "pictures": [{"file": …, "caption": …}, …]}`; files are JPEG or PNG in it. A row
may have a `heading`, and be `small` (tiles), `half` (two large ones) or `wide` (one).
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from scmil.errors import DataError
from scmil.core.files import check_regular
from scmil.limits import read_json
from scmil.report.html.markup import Markup, element, join

LARGEST_BYTES = 64 * 2**20
KINDS = {".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png"}


def section(run: Path) -> Markup | None:
    """All pictures of a run, or None if it has none."""
    index = run / "pictures" / "pictures.json"
    if not index.is_file():
        return None
    try:
        if not index.resolve().is_relative_to(run.resolve()):
            raise DataError(f"{index} is a link out of {run}, and is not shown. Copy the pictures themselves.")
        rows = read_json(index)
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
    heading = element("h3", str(row["heading"])) if row.get("heading") else None
    words = element("p", str(row["words"])) if row["words"] else None
    kind = next((name for name in ("small", "half", "wide") if row.get(name)), "")
    return join(heading, words, element("div", *figures, class_=f"panels {kind}".strip()))


def _picture(folder: Path, name: str) -> Markup:
    path = folder / name
    if path.suffix.lower() not in KINDS or path.name != name:
        raise DataError(f"{folder}: {name!r} is no picture of this folder. JPEG and PNG files are shown.")
    home = folder.parent.resolve()
    if not path.resolve().is_relative_to(home):
        raise DataError(f"{path} is a link out of {folder.parent}, and is not shown. Copy the picture itself.")
    if check_regular(path) > LARGEST_BYTES:
        raise DataError(f"{path} has more than {LARGEST_BYTES} bytes, and is not shown. Make the picture smaller.")
    data = base64.b64encode(path.read_bytes()).decode()
    return Markup(f'<img src="data:{KINDS[path.suffix.lower()]};base64,{data}" alt="">')
