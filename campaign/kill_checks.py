"""Comparison of folders: what differs, and which finished work was lost."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from timeless import timeless

UNITS = re.compile(
    r".*(/bags/.*\.h5|/tiles/.*\.h5|/slides/.*\.svs|/cells/.*/result\.json|/study\.json)"
)  # the last file of each unit of work


def content_of(folder: Path) -> dict[str, bytes]:
    """All files under final names; hidden ones are locks and incomplete files."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    found = {str(path.relative_to(folder)): path for path in paths}
    return {
        name: path.read_bytes()
        for name, path in found.items()
        if not any(p.startswith(".") for p in Path(name).parts)
    }


def differences(expected: dict[str, bytes], actual: dict[str, bytes]) -> list[str]:
    """Files that are missing, unexpected, or differ by more than measurements.

    >>> expected = {"a.json": b'{"seconds": 1.5}', "b": b""}
    >>> differences(expected, {"a.json": b'{"seconds": 2}', "c": b""})
    ['b is missing', 'c is unexpected']
    """
    found = [f"{name} is missing" for name in expected.keys() - actual.keys()]
    found += [f"{name} is unexpected" for name in actual.keys() - expected.keys()]
    both = sorted(expected.keys() & actual.keys())
    return found + [
        f"{name} differs"
        for name in both
        if timeless(name, expected[name]) != timeless(name, actual[name])
    ]


def units(out: Path, changing: Sequence[str] = ()) -> dict[str, Any]:
    """The completed work: the inode of each completed file, and the epoch of each checkpoint.

    Files of slides in `changing` may be written again and are left out.
    """
    found: dict[str, Any] = {}
    for path in out.rglob("*") if out.is_dir() else ():
        if path.stem in changing:
            continue
        if UNITS.fullmatch(str(path)) and not path.name.startswith("."):
            found[str(path)] = path.stat().st_ino
        elif path.name == "checkpoint.safetensors":
            found[str(path)] = _epoch(path)
    return found


def _epoch(path: Path) -> int:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return -int(json.loads(file.metadata()["scmil"])["epoch"])


def lost(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Completed work that is missing, was written again, or went back.

    >>> lost({"a.h5": 7, "checkpoint.safetensors": -3}, {"a.h5": 8, "checkpoint.safetensors": -2})
    ['a.h5 was written again', 'checkpoint.safetensors went back from epoch 3 to 2']
    """
    found = []
    for name, old in before.items():
        new = after.get(name)
        if name.endswith("checkpoint.safetensors"):
            if new is not None and new > old:
                found.append(f"{name} went back from epoch {-old} to {-new}")
        elif new != old:
            found.append(f"{name} is missing" if new is None else f"{name} was written again")
    return found
