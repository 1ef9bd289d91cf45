"""Any table of bags: CSV, .npz, .svm and .mat files become a `BagSet`."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scmil.bags.bag import Bag, BagSet
from scmil.errors import DataError
from scmil.core.files import column_names
from scmil.core.safe_io import read_regular

NAMED_COLUMNS = ("bag", "label", "patient", "instance_label")
MOST_CLASSES = 1000  # a larger number is a mistake, such as a patient's number in the wrong column


@dataclass(frozen=True)
class Table:
    """The instances of all bags below each other, with what is known of each bag."""

    features: NDArray[np.float32]  # (n, p)
    bag: NDArray[np.intp]  # (n,) the position of the instance's bag
    labels: Sequence[int | None]  # one a bag, as all that follow
    ids: Sequence[str] | None = None
    patients: Sequence[str | None] | None = None
    classes: Sequence[str] | None = None
    instance_labels: NDArray[np.int64] | None = None  # (n,)

    def bags(self) -> BagSet:
        """Cut the table into its bags; instances keep their order.

        >>> table = Table(np.eye(3, dtype=np.float32), np.array([1, 0, 1]), labels=[0, 1])
        >>> [bag.features.tolist() for bag in table.bags()]
        [[[0.0, 1.0, 0.0]], [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]]
        """
        order = np.argsort(self.bag, kind="stable")
        sizes = np.bincount(self.bag, minlength=len(self.labels)).tolist()
        features = torch.from_numpy(self.features[order]).split(sizes)
        known: Sequence[torch.Tensor | None] = [None] * len(sizes)
        if self.instance_labels is not None:
            known = torch.from_numpy(self.instance_labels[order]).split(sizes)
        ids = self.ids or [str(position) for position in range(len(sizes))]
        patients = self.patients or [None] * len(sizes)
        return BagSet(map(Bag, ids, features, self.labels, patients, known), self.classes)


def read_bags(path: str | Path) -> BagSet:
    """Read a table of bags; the suffix of the file says how.

    - `.csv`: a header with `bag` and `label`, perhaps `patient` and `instance_label`; every other column is a feature.
    - `.npz`: `X` (n, p), `bag` (n,) from 0, `y` (bags,), perhaps `ids`, `patients`, `instance_labels`.
    - `.svm`: lines `instance:bag:label index:value ...`; a bag is positive if one of its instances is.
    - `.mat`: a PRTools data set with `ident.milbag` as from miproblems.org, or `X`, `bag` and `y` as above.

    Labels that are whole numbers from 0 stay as they are, -1 and 1 become 0 and 1, words are sorted and counted; their
    names are in `classes`. An empty label or patient in a CSV is an unknown one.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "bags.csv"
    >>> _ = path.write_text("bag,label,x,y\\na,tumour,0.5,1\\na,tumour,2,3\\nb,normal,4,5\\n")
    >>> read_bags(path), read_bags(path)[0]
    (BagSet(2 bags, 1/1 of class normal/tumour), Bag('a', 2 x 2, label=1))
    """
    try:
        return read_table(Path(path)).bags()
    except DataError as error:
        raise error if str(path) in str(error) else DataError(f"{path}: {error}") from None


def read_table(path: Path) -> Table:
    """Read a table as its suffix says; a reason to refuse it is without the file's name."""
    from scmil.bags.datasets.table_files import read_mat, read_npz, read_svm

    readers: dict[str, Callable[[bytes], Table]] = {
        ".csv": read_csv,
        ".npz": read_npz,
        ".svm": read_svm,
        ".mat": read_mat,
    }
    if path.suffix.lower() not in readers:
        raise DataError(f"a table of bags has one of the suffixes {', '.join(readers)}.")
    try:
        content = read_regular(path)
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror}).") from None
    return readers[path.suffix.lower()](content)


def read_csv(content: bytes) -> Table:
    """Read the bags of a CSV file; see `read_bags`."""
    try:
        return _read_csv(content)
    except csv.Error as error:
        raise DataError(f"not a table ({error}).") from None


def _read_csv(content: bytes) -> Table:
    lines = csv.reader(io.StringIO(as_text(content), newline=""))
    header = [name.strip() for name in next(lines, [])]
    if not any(header):
        raise DataError("the file is empty. The first line names the columns: bag, label, then the features.")
    for name in ("bag", "label"):
        if header.count(name) != 1:
            raise DataError(
                f"{header.count(name)} columns are called {name!r}; one is needed. Met: {column_names(header)}. "
                "Columns are separated by commas."
            )
    columns = [i for i, name in enumerate(header) if name not in NAMED_COLUMNS]
    if not columns:
        raise DataError(f"there is no feature: all columns are among {', '.join(NAMED_COLUMNS)}.")
    named = {name: header.index(name) for name in NAMED_COLUMNS if name in header}
    features, words = [], {name: list[str]() for name in named}
    for row in filter(None, lines):
        if len(row) != len(header):
            raise DataError(f"line {lines.line_num} has {len(row)} values, but the header has {len(header)}.")
        features.append(_numbers([row[i] for i in columns], [header[i] for i in columns], lines.line_num))
        for name, column in named.items():
            words[name].append(row[column].strip())
    if not features:
        raise DataError("there is a header, but no instance below it.")
    ids, bag = positions(words["bag"])
    labels, classes = class_numbers([word or None for word in one_each("label", words["label"], bag, ids)])
    patients = [word or None for word in one_each("patient", words.get("patient", [""] * len(bag)), bag, ids)]
    marks = _instance_labels(words["instance_label"]) if "instance_label" in words else None
    return Table(np.stack(features), bag, labels, ids, patients, classes, marks)


def as_text(content: bytes) -> str:
    """The text of a file."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"byte {error.start} is not UTF-8. Save the file as UTF-8.") from None


def positions(names: Sequence[Any]) -> tuple[list[str], NDArray[np.intp]]:
    """The different names in the order in which they are met, and where each one is among them.

    >>> positions(["b", "a", "b"])
    (['b', 'a'], array([0, 1, 0]))
    """
    seen: dict[Any, int] = {}
    found = np.array([seen.setdefault(name, len(seen)) for name in names], dtype=np.intp)
    return [str(name) for name in seen], found


def one_each(what: str, words: Sequence[str], bag: NDArray[np.intp], ids: Sequence[str]) -> list[str]:
    """What all instances of a bag say; instances of one bag that disagree are refused."""
    said: list[str | None] = [None] * len(ids)
    for word, position in zip(words, bag.tolist(), strict=True):
        if said[position] not in (None, word):
            raise DataError(f"bag {ids[position]!r} has the {what}s {said[position]!r} and {word!r}; one is needed.")
        said[position] = word
    return [word for word in said if word is not None]


def class_numbers(labels: Sequence[str | None]) -> tuple[list[int | None], list[str]]:
    """Labels as numbers from 0, and the names of the classes.

    >>> class_numbers(["yes", None, "no"])
    ([1, None, 0], ['no', 'yes'])
    >>> class_numbers(["-1", "1"]), class_numbers(["2.0", "0"])
    (([0, 1], ['0', '1']), ([2, 0], ['0', '1', '2']))
    """
    met = {label for label in labels if label is not None}
    try:
        number = {label: float(label) for label in met}
    except ValueError:
        number = {label: float(position) for position, label in enumerate(sorted(met))}
        return [None if label is None else int(number[label]) for label in labels], sorted(met)
    if -1 in number.values() and set(number.values()) <= {-1, 1}:
        number = {label: max(value, 0) for label, value in number.items()}
    for label, value in number.items():
        if not (0 <= value < MOST_CLASSES and value == int(value)):
            raise DataError(f"label {label}: numbers count the classes from 0 to {MOST_CLASSES - 1}; else use words.")
    classes = [str(value) for value in range(int(max(number.values(), default=-1)) + 1)]
    return [None if label is None else int(number[label]) for label in labels], classes


def _numbers(cells: Sequence[str], names: Sequence[str], line: int) -> NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):
            values = np.array([float(cell) for cell in cells]).astype(np.float32)
        if np.isfinite(values).all():
            return values
    except ValueError:
        pass
    cell, name = next(pair for pair in zip(cells, names, strict=True) if not _is_finite(pair[0]))
    raise DataError(f"line {line}, column {name!r}: {cell!r}, but a finite 32-bit number is needed.")


def _is_finite(cell: str) -> bool:
    try:
        return abs(float(cell)) <= float(np.finfo(np.float32).max)  # false for NaN, too
    except ValueError:
        return False


def _instance_labels(words: Sequence[str]) -> NDArray[np.int64]:
    numbers, _ = class_numbers(words)
    return np.array(numbers, dtype=np.int64)
