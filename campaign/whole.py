"""Validate output files: each kind is read completely by a strict reader."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path


def what_is_wrong(folder: Path) -> list[str]:
    """The files under final names that are incomplete, and why.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp())
    >>> for name, text in {"good.json": "{}", "half.json": '{"a": 1', ".hidden.json": ""}.items():
    ...     _ = (place / name).write_text(text)
    >>> what_is_wrong(place)
    ["half.json is incomplete: JSONDecodeError: Expecting ',' delimiter: line 1 column 8 (char 7)"]
    """
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if not path.is_file() or any(part.startswith(".") for part in name.parts):
            continue
        try:
            CHECKS[path.suffix](path)
        except Exception as error:
            found.append(f"{name} is incomplete: {type(error).__name__}: {error}")
    return found


def _json(path: Path) -> None:
    json.loads(path.read_bytes())


def _table(path: Path) -> None:
    text = path.read_bytes().decode()
    rows = list(csv.reader(text.splitlines()))
    if not text.endswith("\n") or len({len(row) for row in rows}) != 1:
        raise ValueError("a line is truncated")


def _h5(path: Path) -> None:
    import h5py

    with h5py.File(path, "r") as file:
        for name in file:
            file[name][()]


def _safetensors(path: Path) -> None:
    from safetensors.torch import load_file

    load_file(path)


def _npz(path: Path) -> None:
    import numpy as np

    with np.load(path, allow_pickle=False) as file:
        for name in file.files:
            file[name]


def _picture(path: Path) -> None:
    from PIL import Image

    with Image.open(path) as image:
        image.load()


def _slide(path: Path) -> None:
    from scmil.slides import open_slide

    with open_slide(path, mpp=0.5) as slide:
        slide.region(0, (0, 0), slide.size)


def _digest(path: Path) -> None:
    if path.name != "data" or not re.fullmatch(r"[0-9a-f]{64}", path.read_text()):
        raise ValueError("a file without a suffix has to be the digest of the data of a checkpoint")


def _ending(*words: str) -> Callable[[Path], None]:
    def check(path: Path) -> None:
        if not path.read_text().rstrip().endswith(words):
            raise ValueError(f"it does not end with {' or '.join(words)}")

    return check


def _xml(path: Path) -> None:
    from scmil.slides.annotations.asap import read_asap

    read_asap(path)


CHECKS: dict[str, Callable[[Path], None]] = {
    ".json": _json,
    ".geojson": _json,
    ".csv": _table,
    ".h5": _h5,
    ".safetensors": _safetensors,
    ".npz": _npz,
    ".png": _picture,
    ".jpg": _picture,
    ".tiff": _slide,
    ".svs": _slide,
    ".xml": _xml,
    ".html": _ending("</html>"),
    ".svg": _ending("</svg>"),
    ".tex": _ending("\\end{table}", "\\end{tabular}", "}"),
    ".md": _ending(""),
    ".log": _ending(""),
    ".txt": _ending(""),
    ".toml": _ending(""),
    "": _digest,
}
