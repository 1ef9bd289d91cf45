"""The pictures in the folder `pictures/` of a run directory, embedded in the page.

`pictures.json` is a list of `{"words": …, "pictures": [{"file": …, "caption": …}, …]}`; the files
are JPEG or PNG. A row may have a `heading`, and a size: `small` (tiles), `half` (two large
pictures) or `wide` (one).
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from scmil.core.regular_files import check_regular
from scmil.core.tables import read_json
from scmil.errors import DataError
from scmil.report.html.markup import Markup, element, join

LARGEST_BYTES = 64 * 2**20
KINDS = {".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png"}


def section(run: Path) -> Markup | None:
    """All pictures of a run directory, or None if there are none."""
    index = run / "pictures" / "pictures.json"
    if not index.is_file():
        return None
    try:
        if not index.resolve().is_relative_to(run.resolve()):
            raise DataError(
                f"{index} is a link to a file outside of {run}, which is not shown. "
                "Copy the pictures instead of linking them."
            )
        rows = read_json(index)
        return join(*(_picture_row(index.parent, row) for row in rows))
    except (OSError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"Cannot read {index}: {type(error).__name__} {error}. Delete it, or create it again."
        ) from None


def _picture_row(folder: Path, row: dict[str, Any]) -> Markup:
    figures = [
        element(
            "figure",
            _embed_picture(folder, str(each["file"])),
            element("figcaption", str(each["caption"])),
        )
        for each in row["pictures"]
    ]
    heading = element("h3", str(row["heading"])) if row.get("heading") else None
    words = element("p", str(row["words"])) if row["words"] else None
    kind = next((name for name in ("small", "half", "wide") if row.get(name)), "")
    return join(heading, words, element("div", *figures, class_=f"panels {kind}".strip()))


def _embed_picture(folder: Path, name: str) -> Markup:
    path = folder / name
    if path.suffix.lower() not in KINDS or path.name != name:
        raise DataError(
            f"{folder}: {name!r} is not a JPEG or PNG file in this folder. Fix its entry in "
            "pictures.json."
        )
    home = folder.parent.resolve()
    if not path.resolve().is_relative_to(home):
        raise DataError(
            f"{path} is a link to a file outside of {folder.parent}, which is not shown. "
            "Copy the picture instead of linking it."
        )
    if check_regular(path) > LARGEST_BYTES:
        raise DataError(
            f"{path} has more than {LARGEST_BYTES} bytes, the largest size that is embedded. "
            "Make the picture smaller."
        )
    data = base64.b64encode(path.read_bytes()).decode()
    return Markup(f'<img src="data:{KINDS[path.suffix.lower()]};base64,{data}" alt="">')
