"""What a result was made from: every stage records a fingerprint of its inputs, and checks it before a result is used again.

- A **mark** identifies the content of one bag. Bags that scmil wrote carry a SHA-256 of their content; files of other tools
  are identified by size and time of change. Beside it stand size and times of the files, so that an unchanged file is
  recognised without being opened.
- **Inputs** are the marks of a set of bags with their ids, labels and patients, and one digest of all.
- `sampled_digest` identifies a slide by its size and by blocks that are spread over the whole file.

Nothing is read whole only to be hashed, with one exception: a file that carries the recorded digest, but was written or
copied since, is read once to see whether its content still has that digest.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

EDGE_BYTES, BLOCK_BYTES, BLOCKS = 65_536, 4_096, 62  # of a slide: both ends, and blocks between them at equal distances
NAMED = 3  # so many bags are named where many differ


class Mark(NamedTuple):
    """The content of a bag as a short text, and size, time of content and time of status of its files in nanoseconds."""

    token: str
    stat: tuple[int, ...] = ()


def stat_of(paths: Iterable[str | Path]) -> tuple[int, ...]:
    """Size, time of content and time of status of each file: any write or replacement changes one of them."""
    found = (os.stat(path) for path in paths)
    return tuple(number for one in found for number in (one.st_size, one.st_mtime_ns, one.st_ctime_ns))


def mark_files(
    paths: Sequence[str | Path],
    before: Mark | None = None,
    stored: Callable[[], str | None] | None = None,
    is_whole: Callable[[], bool] | None = None,
) -> Mark:
    """The mark of a bag that lies in files; `before` is the recorded one.

    `stored` reads the digest that the writer left in the file, `is_whole` reads the content and compares it with that digest.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.pt"
    >>> _ = path.write_bytes(b"features")
    >>> before = mark_files([path])
    >>> mark_files([path], before) is before
    True
    >>> _ = path.write_bytes(b"changed!")
    >>> mark_files([path], before).token == before.token
    False
    """
    stat = stat_of(paths)
    if before is not None and before.stat == stat:
        return before
    times = "stat:" + ":".join(f"{size}:{changed}" for size, changed in zip(stat[::3], stat[1::3]))
    digest = stored() if stored else None
    if digest is None:
        return Mark(times, stat)
    token = f"sha256:{digest}"
    if before is not None and before.token == token and is_whole is not None and not is_whole():
        return Mark(f"edited:{times}", stat)
    return Mark(token, stat)


@dataclass(frozen=True)
class Inputs:
    """The bags that a result was made from, and digests of further files, such as a table of splits.

    >>> first = Inputs(("a", "b"), ("tumour", None), (None, "p1"), (Mark("sha256:1"), Mark("sha256:2")))
    >>> other = Inputs(("a",), ("normal",), (None,), (Mark("sha256:3"),))
    >>> other.changes_since(first)
    ['1 bag is gone (b)', 'the features of 1 bag are others (a)', 'the label of 1 bag is another (a)']
    >>> first.digest == Inputs.from_json(first.to_json()).digest, first.digest == other.digest
    (True, False)
    """

    ids: tuple[str, ...]
    labels: tuple[str | None, ...]  # names of classes
    patients: tuple[str | None, ...]
    marks: tuple[Mark, ...]
    files: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """One digest of ids, labels, patients, features and further files."""
        rows = [[id, *rest, mark.token] for id, *rest, mark in zip(self.ids, self.labels, self.patients, self.marks)]
        return sha256_of_json([rows, dict(self.files)])

    @cached_property
    def mark_by_id(self) -> dict[str, Mark]:
        """The mark of each bag."""
        return dict(zip(self.ids, self.marks))

    def changes_since(self, before: Inputs) -> list[str]:
        """What differs from earlier inputs, in words; nothing if both have one digest."""
        old, new = before._facts(), self._facts()
        both = [id for id in new if id in old]
        found = [
            _counted([id for id in old if id not in new], "1 bag is gone", "{} bags are gone"),
            _counted([id for id in new if id not in old], "1 bag is new", "{} bags are new"),
        ]
        for place, what in enumerate(("features", "label", "patient")):
            those = [id for id in both if old[id][place] != new[id][place]]
            verb = ("are others", "are others") if what == "features" else ("is another", "are others")
            noun = what if what == "features" else f"{what}s"
            found.append(_counted(those, f"the {what} of 1 bag {verb[0]}", f"the {noun} of {{}} bags {verb[1]}"))
        names = sorted({*before.files, *self.files})
        found += [f"{name} has changed" for name in names if before.files.get(name) != self.files.get(name)]
        if not any(found) and self.digest != before.digest:
            found.append("the bags are in another order")
        return [words for words in found if words]

    def _facts(self) -> dict[str, tuple[str, str | None, str | None]]:
        rows = zip(self.ids, self.marks, self.labels, self.patients)
        return {id: (mark.token, label, patient) for id, mark, label, patient in rows}

    def to_json(self) -> dict[str, Any]:
        """As JSON; `from_json` reads it."""
        rows = zip(self.ids, self.labels, self.patients, self.marks)
        bags = [[id, label, patient, mark.token, list(mark.stat)] for id, label, patient, mark in rows]
        return {"digest": self.digest, "files": dict(self.files), "bags": bags}

    @classmethod
    def from_json(cls, page: Mapping[str, Any]) -> Inputs:
        """What `to_json` wrote; ValueError, KeyError or TypeError where it is something else."""
        columns = list(zip_longest(*page["bags"])) or [(), (), (), (), ()]
        ids, labels, patients, tokens, stats = columns
        marks = tuple(Mark(str(token), tuple(map(int, stat))) for token, stat in zip(tokens, stats))
        return cls(tuple(map(str, ids)), tuple(labels), tuple(patients), marks, dict(page["files"]))


def _counted(ids: Sequence[str], one: str, many: str) -> str:
    if not ids:
        return ""
    named = ", ".join(ids[:NAMED]) + (", …" if len(ids) > NAMED else "")
    return f"{one if len(ids) == 1 else many.format(len(ids))} ({named})"


def sha256_of_json(value: Any) -> str:
    """The digest of a value that JSON can express; the order of keys does not count."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def sha256_of_file(path: str | Path) -> str:
    """The digest of a whole file, for files that are small or read anyway."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sampled_digest(paths: Sequence[Path]) -> str:
    """The digest of names, sizes and samples of large files: both ends, and blocks at equal distances between them.

    Two scans differ in nearly every byte, and so in every block. The name of a single file does not count.

    >>> import tempfile
    >>> one, other = (Path(tempfile.mkdtemp()) / name for name in ("a.svs", "b.svs"))
    >>> _ = one.write_bytes(bytes(10**6)), other.write_bytes(bytes(10**6))
    >>> sampled_digest([one]) == sampled_digest([other])
    True
    >>> _ = other.write_bytes(bytes(5 * 10**5) + b"tissue" * 1000 + bytes(5 * 10**5 - 6000))
    >>> sampled_digest([one]) == sampled_digest([other])
    False
    """
    found = hashlib.sha256()
    for path in sorted(paths):
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            found.update(f"{path.name if len(paths) > 1 else ''}\0{size}\0".encode("utf-8", "surrogateescape"))
            for start, length in _samples(size):
                file.seek(start)
                found.update(file.read(length))
    return found.hexdigest()


def _samples(size: int) -> list[tuple[int, int]]:
    """Where the blocks of a file of this size begin, and how long they are; a file that is shorter than all is read whole."""
    inner = size - 2 * EDGE_BYTES
    if inner <= BLOCKS * BLOCK_BYTES:
        return [(0, size)]
    step = (inner - BLOCK_BYTES) / (BLOCKS - 1)
    blocks = [(EDGE_BYTES + round(number * step), BLOCK_BYTES) for number in range(BLOCKS)]
    return [(0, EDGE_BYTES), *blocks, (size - EDGE_BYTES, EDGE_BYTES)]
