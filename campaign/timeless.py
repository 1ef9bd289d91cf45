"""The content of output files without times, durations and memory, which differ between runs."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any

# Measurements, which differ between runs.
MEASURED = {
    "seconds",
    "date",
    "when",
    "started",
    "finished",
    "time",
    "times",
    "created",
    "peak_mib",
    "rss_mib",
    "memory_mib",
}
# The section of a report that prints them.
COST_IN_TEXT = re.compile(rb"^## Cost\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
COST_ON_PAGE = re.compile(rb'<section id="cost">.*?</section>', re.DOTALL)
PICTURE = re.compile(rb"data:image/png;base64,([A-Za-z0-9+/=]+)")


def timeless(name: str, content: bytes) -> bytes:
    r"""The content of a file without measurements; pictures are represented by their pixels.

    >>> timeless("result.json", b'{"seconds": 1.5, "rows": [{"auc": 0.9, "memory_mib": 3}]}')
    b'{"rows": [{"auc": 0.9}]}'
    >>> timeless("results.csv", b"cell,auc,seconds\na,0.9,1.5\n")
    b'cell,auc\r\na,0.9\r\n'
    >>> timeless("report.md", b"# Tiny\n\n## Cost\n\n| 3 |\n\n## More\n")
    b'# Tiny\n\n## More\n'
    >>> timeless("bag.h5", b"as it is")
    b'as it is'
    """
    rule = RULES.get(Path(name).suffix)
    return rule(content) if rule else content


def _json(content: bytes) -> bytes:
    return json.dumps(_without(json.loads(content))).encode()


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without(part) for key, part in value.items() if key not in MEASURED}
    return [_without(part) for part in value] if isinstance(value, list) else value


def _table(content: bytes) -> bytes:
    rows = list(csv.reader(io.StringIO(content.decode(), newline="")))
    columns = [i for i, name in enumerate(rows[0]) if name not in MEASURED] if rows else []
    csv.writer(out := io.StringIO()).writerows([row[i] for i in columns] for row in rows)
    return out.getvalue().encode()


def _page(content: bytes) -> bytes:
    content = PICTURE.sub(lambda found: _pixels(base64.b64decode(found[1])), content)
    return COST_ON_PAGE.sub(b"", content)


def _text(content: bytes) -> bytes:
    return COST_IN_TEXT.sub(b"", content)


def _pixels(content: bytes) -> bytes:
    """The metadata of a picture contain the times of the files that it was made of."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as picture:
        digest = hashlib.sha256(picture.tobytes()).hexdigest()
        return f"{picture.size} {picture.mode} {digest}".encode()


RULES = {".json": _json, ".csv": _table, ".html": _page, ".md": _text, ".png": _pixels}
