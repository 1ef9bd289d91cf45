"""Fingerprints of inputs: every stage records them, and compares them before it reuses a result.

- A **mark** identifies the content of one bag. Bags that scmil wrote contain a SHA-256 of their
  content; files of other tools are identified by size and modification time. The mark also has the
  size and times of the files, so that an unchanged file is recognised without being opened.
- **Inputs** are the marks of a set of bags with their ids, labels and patients, and one digest of
  all.
- `sampled_digest` identifies a slide by its size and by blocks spread over the whole file.

Files are not read completely only to compute a digest, with one exception: a file that contains the
recorded digest, but was written or copied since, is read once to check that its content still has
that digest.
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

# Samples of a slide: both ends, and blocks at equal distances between them.
EDGE_BYTES, BLOCK_BYTES, BLOCKS = 65_536, 4_096, 62
NAMED = 3  # bags named in a message about many


class Mark(NamedTuple):
    """A token for the content of a bag; size, modification and status time of its files in ns."""

    token: str
    stat: tuple[int, ...] = ()


def stat_of(paths: Iterable[str | Path]) -> tuple[int, ...]:
    """Size, modification time and status time of each file; a write or replacement changes one."""
    stats = map(os.stat, paths)
    return tuple(
        number for stat in stats for number in (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    )


def mark_files(
    paths: Sequence[str | Path],
    before: Mark | None = None,
    stored: Callable[[], str | None] | None = None,
    is_whole: Callable[[], bool] | None = None,
) -> Mark:
    """The mark of a bag that is stored in files.

    Args:
        paths: The files.
        before: The recorded mark, returned if the files have not changed.
        stored: Reads the digest that the files contain, if any.
        is_whole: Reads the content and compares it with this digest.

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
    """The bags that a result was made from, and digests of further files, such as split tables.

    >>> marks = Mark("sha256:1"), Mark("sha256:2")
    >>> first = Inputs(("a", "b"), ("tumour", None), (None, "p1"), marks)
    >>> other = Inputs(("a",), ("normal",), (None,), (Mark("sha256:3"),))
    >>> other.changes_since(first)
    ['1 bag was removed (b)', 'the features of 1 bag changed (a)', 'the label of 1 bag changed (a)']
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
        rows = [
            [bag_id, *rest, mark.token]
            for bag_id, *rest, mark in zip(self.ids, self.labels, self.patients, self.marks)
        ]
        return sha256_of_json([rows, dict(self.files)])

    @cached_property
    def mark_by_id(self) -> dict[str, Mark]:
        """The mark of each bag."""
        return dict(zip(self.ids, self.marks))

    def changes_since(self, before: Inputs) -> list[str]:
        """Describe the differences from earlier inputs; empty if both have the same digest."""
        old, new = before._facts(), self._facts()
        removed = [bag_id for bag_id in old if bag_id not in new]
        added = [bag_id for bag_id in new if bag_id not in old]
        changes = [
            _count_bags(removed, "1 bag was removed", "{} bags were removed"),
            _count_bags(added, "1 bag is new", "{} bags are new"),
        ]
        in_both = [bag_id for bag_id in new if bag_id in old]
        nouns = (("features", "features"), ("label", "labels"), ("patient", "patients"))
        for index, (one, many) in enumerate(nouns):
            changed = [bag_id for bag_id in in_both if old[bag_id][index] != new[bag_id][index]]
            changes.append(
                _count_bags(
                    changed, f"the {one} of 1 bag changed", f"the {many} of {{}} bags changed"
                )
            )
        names = sorted({*before.files, *self.files})
        changes += [
            f"{name} has changed"
            for name in names
            if before.files.get(name) != self.files.get(name)
        ]
        if not any(changes) and self.digest != before.digest:
            changes.append("the order of the bags changed")
        return [change for change in changes if change]

    def _facts(self) -> dict[str, tuple[str, str | None, str | None]]:
        rows = zip(self.ids, self.marks, self.labels, self.patients)
        return {bag_id: (mark.token, label, patient) for bag_id, mark, label, patient in rows}

    def to_json(self) -> dict[str, Any]:
        """The inputs as JSON; `from_json` reads it."""
        rows = zip(self.ids, self.labels, self.patients, self.marks)
        bags = [
            [bag_id, label, patient, mark.token, list(mark.stat)]
            for bag_id, label, patient, mark in rows
        ]
        return {"digest": self.digest, "files": dict(self.files), "bags": bags}

    @classmethod
    def from_json(cls, page: Mapping[str, Any]) -> Inputs:
        """Read what `to_json` returned.

        Raises:
            ValueError, KeyError, TypeError: If it is something else.
        """
        columns = list(zip_longest(*page["bags"])) or [(), (), (), (), ()]
        ids, labels, patients, tokens, stats = columns
        marks = tuple(Mark(str(token), tuple(map(int, stat))) for token, stat in zip(tokens, stats))
        return cls(tuple(map(str, ids)), tuple(labels), tuple(patients), marks, dict(page["files"]))


def _count_bags(ids: Sequence[str], one: str, many: str) -> str:
    if not ids:
        return ""
    names = ", ".join(ids[:NAMED]) + (", …" if len(ids) > NAMED else "")
    return f"{one if len(ids) == 1 else many.format(len(ids))} ({names})"


def sha256_of_json(value: Any) -> str:
    """The SHA-256 of a value as JSON; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def sha256_of_file(path: str | Path) -> str:
    """The SHA-256 of a whole file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "empty"
    >>> path.touch()
    >>> sha256_of_file(path)[:8]
    'e3b0c442'
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sampled_digest(paths: Sequence[Path]) -> str:
    """The SHA-256 of the names, sizes and samples of large files.

    Samples are both ends of a file and blocks at equal distances between them; two scans differ in
    nearly every byte, and therefore in every block. The name of a single file is not used.

    >>> import tempfile
    >>> one, other = (Path(tempfile.mkdtemp()) / name for name in ("a.svs", "b.svs"))
    >>> _ = one.write_bytes(bytes(10**6)), other.write_bytes(bytes(10**6))
    >>> sampled_digest([one]) == sampled_digest([other])
    True
    >>> _ = other.write_bytes(bytes(5 * 10**5) + b"tissue" * 1000 + bytes(5 * 10**5 - 6000))
    >>> sampled_digest([one]) == sampled_digest([other])
    False
    """
    digest = hashlib.sha256()
    for path in sorted(paths):
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            digest.update(
                f"{path.name if len(paths) > 1 else ''}\0{size}\0".encode(
                    "utf-8", "surrogateescape"
                )
            )
            for start, length in _samples(size):
                file.seek(start)
                digest.update(file.read(length))
    return digest.hexdigest()


def _samples(size: int) -> list[tuple[int, int]]:
    """Start and length of the samples of a file of this size; a short file is read completely."""
    inner = size - 2 * EDGE_BYTES
    if inner <= BLOCKS * BLOCK_BYTES:
        return [(0, size)]
    step = (inner - BLOCK_BYTES) / (BLOCKS - 1)
    blocks = [(EDGE_BYTES + round(number * step), BLOCK_BYTES) for number in range(BLOCKS)]
    return [(0, EDGE_BYTES), *blocks, (size - EDGE_BYTES, EDGE_BYTES)]
