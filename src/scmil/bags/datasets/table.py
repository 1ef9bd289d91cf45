"""Tables of bags: .csv, .npz, .svm and .mat files."""

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
from scmil.core.regular_files import read_regular
from scmil.core.tables import column_names
from scmil.errors import DataError

NAMED_COLUMNS = ("bag", "label", "patient", "instance_label")
MOST_CLASSES = 1000  # a larger number is an error, such as a patient number in the wrong column


@dataclass(frozen=True)
class Table:
    """The instances of all bags in one matrix, with the labels and patients of the bags."""

    features: NDArray[np.float32]  # (n, p)
    bag: NDArray[np.intp]  # (n,) the position of the instance's bag
    labels: Sequence[int | None]  # one per bag, as ids, patients and classes
    ids: Sequence[str] | None = None
    patients: Sequence[str | None] | None = None
    classes: Sequence[str] | None = None
    instance_labels: NDArray[np.int64] | None = None  # (n,)

    def bags(self) -> BagSet:
        """Return the bags of the table; instances keep their order.

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
    """Read a table of bags; the suffix determines the format.

    - `.csv`: a header with `bag` and `label`, optionally `patient` and `instance_label`; every
      other column is a feature.
    - `.npz`: `X` (n, p), `bag` (n,) from 0, `y` (bags,), optionally `ids`, `patients`,
      `instance_labels`.
    - `.svm`: lines `instance:bag:label index:value ...`; a bag is positive if an instance is.
    - `.mat`: a PRTools data set with `ident.milbag`, as from miproblems.org, or `X`, `bag` and `y`.

    Labels that are integers from 0 are kept, -1 and 1 become 0 and 1, words are sorted and
    numbered; their names are in `classes`. An empty label or patient in a CSV is unknown.

    Args:
        path: The file.

    Returns:
        The bags, in the order of their first instances.

    Raises:
        DataError: The file cannot be read, or is not a valid table of bags.

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
    """Read a table by its suffix; error messages do not contain the file name."""
    from scmil.bags.datasets.table_files import read_mat, read_npz, read_svm

    readers: dict[str, Callable[[bytes], Table]] = {
        ".csv": read_csv,
        ".npz": read_npz,
        ".svm": read_svm,
        ".mat": read_mat,
    }
    if path.suffix.lower() not in readers:
        raise DataError(
            f"unknown suffix {path.suffix!r}. Tables of bags have one of the suffixes "
            f"{', '.join(readers)}."
        )
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
        raise DataError(
            "the file is empty. Its first line must name the columns: bag, label, features."
        )
    for name in ("bag", "label"):
        if header.count(name) != 1:
            raise DataError(
                f"{header.count(name)} columns are called {name!r}, but one is needed. Found: "
                f"{column_names(header)}. Separate columns by commas."
            )
    columns = [i for i, name in enumerate(header) if name not in NAMED_COLUMNS]
    if not columns:
        raise DataError(
            f"there is no feature: all columns are among {', '.join(NAMED_COLUMNS)}. Add columns."
        )
    named = {name: header.index(name) for name in NAMED_COLUMNS if name in header}
    features, words = [], {name: list[str]() for name in named}
    for row in filter(None, lines):
        if len(row) != len(header):
            raise DataError(
                f"line {lines.line_num} has {len(row)} values, but the header has {len(header)}. "
                "Correct the line."
            )
        features.append(
            _parse_numbers([row[i] for i in columns], [header[i] for i in columns], lines.line_num)
        )
        for name, column in named.items():
            words[name].append(row[column].strip())
    if not features:
        raise DataError("the table has a header but no rows. Add a row for each instance.")
    ids, bag = positions(words["bag"])
    labels, classes = class_numbers(
        [word or None for word in one_per_bag("label", words["label"], bag, ids)]
    )
    patients = [
        word or None
        for word in one_per_bag("patient", words.get("patient", [""] * len(bag)), bag, ids)
    ]
    marks = _parse_instance_labels(words["instance_label"]) if "instance_label" in words else None
    return Table(np.stack(features), bag, labels, ids, patients, classes, marks)


def as_text(content: bytes) -> str:
    """Decode the text of a file."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"byte {error.start} is not UTF-8. Save the file as UTF-8.") from None


def positions(names: Sequence[Any]) -> tuple[list[str], NDArray[np.intp]]:
    """Return the different names in order of appearance, and the position of each name in them.

    >>> positions(["b", "a", "b"])
    (['b', 'a'], array([0, 1, 0]))
    """
    seen: dict[Any, int] = {}
    found = np.array([seen.setdefault(name, len(seen)) for name in names], dtype=np.intp)
    return [str(name) for name in seen], found


def one_per_bag(
    noun: str, words: Sequence[str], bag: NDArray[np.intp], ids: Sequence[str]
) -> list[str]:
    """Return the value of each bag, or raise if its instances have different values."""
    values: list[str | None] = [None] * len(ids)
    for word, position in zip(words, bag.tolist(), strict=True):
        if values[position] not in (None, word):
            raise DataError(
                f"bag {ids[position]!r} has the {noun}s {values[position]!r} and {word!r}, but a "
                f"bag has one {noun}. Correct the table."
            )
        values[position] = word
    return [word for word in values if word is not None]


def class_numbers(labels: Sequence[str | None]) -> tuple[list[int | None], list[str]]:
    """Return labels as class numbers from 0, and the names of the classes.

    >>> class_numbers(["yes", None, "no"])
    ([1, None, 0], ['no', 'yes'])
    >>> class_numbers(["-1", "1"]), class_numbers(["2.0", "0"])
    (([0, 1], ['0', '1']), ([2, 0], ['0', '1', '2']))
    """
    names = {label for label in labels if label is not None}
    try:
        number = {label: float(label) for label in names}
    except ValueError:
        number = {label: float(position) for position, label in enumerate(sorted(names))}
        return [None if label is None else int(number[label]) for label in labels], sorted(names)
    if -1 in number.values() and set(number.values()) <= {-1, 1}:
        number = {label: max(value, 0) for label, value in number.items()}
    for label, value in number.items():
        if not (0 <= value < MOST_CLASSES and value == int(value)):
            raise DataError(
                f"label {label}: numeric labels must be integers from 0 to {MOST_CLASSES - 1}. Use "
                "words for other labels."
            )
    classes = [str(value) for value in range(int(max(number.values(), default=-1)) + 1)]
    return [None if label is None else int(number[label]) for label in labels], classes


def _parse_numbers(cells: Sequence[str], names: Sequence[str], line: int) -> NDArray[np.float32]:
    """Return the features of a line, or raise and name the column."""
    try:
        with np.errstate(over="ignore"):
            values = np.array([float(cell) for cell in cells]).astype(np.float32)
        if np.isfinite(values).all():
            return values
    except ValueError:
        pass
    cell, name = next(pair for pair in zip(cells, names, strict=True) if not _is_finite(pair[0]))
    raise DataError(
        f"line {line}, column {name!r}: {cell!r}, but a finite 32-bit number is needed."
    )


def _is_finite(cell: str) -> bool:
    try:
        return abs(float(cell)) <= float(np.finfo(np.float32).max)  # false for NaN, too
    except ValueError:
        return False


def _parse_instance_labels(words: Sequence[str]) -> NDArray[np.int64]:
    numbers, _ = class_numbers(words)
    return np.array(numbers, dtype=np.int64)
