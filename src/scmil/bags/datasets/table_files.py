"""The binary and sparse tables of bags: .npz, .svm and .mat. None of them can carry code that is run."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scmil.datasets.matlab import read_variables
from scmil.bags.datasets.table import MOST_CLASSES, Table, as_text, class_numbers, one_each, positions
from scmil.errors import DataError
from scmil.core.safe_io import DENSE_BYTES, npz_arrays

LARGEST_INDEX = 1_000_000  # of a feature in a sparse file; a slip of the pen must not fill the memory


def read_npz(content: bytes) -> Table:
    """Read `X` (n, p), `bag` (n,) from 0 and `y`, one a bag, as `numpy.savez` writes them."""
    if not zipfile.is_zipfile(io.BytesIO(content)):
        raise DataError("not a .npz file. Save X, bag and y with numpy.savez.")
    try:
        arrays = npz_arrays(content)
    except Exception as error:  # numpy raises many kinds for a damaged file
        raise DataError(f"not plain arrays ({error}). Save numbers and words; pickled objects are refused.") from None
    return arrays_to_table(arrays)


def arrays_to_table(arrays: Mapping[str, Any], first: int = 0) -> Table:
    """Check arrays that were read and make a table of them; bags are counted from `first`."""
    if missing := [name for name in ("X", "bag", "y") if name not in arrays]:
        raise DataError(f"no array {missing[0]!r}: X (n, p), bag (n,) and y (bags,) are needed. Met: {list(arrays)}.")
    features, bag = check_features(arrays["X"]), check_whole("bag", arrays["bag"]) - first
    labels = np.atleast_1d(np.squeeze(arrays["y"]))
    if len(bag) != len(features):
        raise DataError(f"X has {len(features)} instances, but bag has {len(bag)} entries; one each is needed.")
    empty = sorted(set(range(len(labels))) - set(bag.tolist()))
    if len(bag) == 0 or bag.min() < 0 or bag.max() >= len(labels) or empty:
        reason = f"bag {empty[0] + first} has no instance" if empty else f"bag goes from {bag.min()} to {bag.max()}"
        raise DataError(f"{reason}, but y has {len(labels)} labels: bags are counted from {first} without gaps.")
    numbers, classes = class_numbers([str(label) for label in labels.tolist()])
    ids = _one_a_bag("ids", arrays, len(labels))
    patients = [word or None for word in _one_a_bag("patients", arrays, len(labels)) or []] or None
    marks = check_whole("instance_labels", arrays["instance_labels"]) if "instance_labels" in arrays else None
    if marks is not None and len(marks) != len(features):
        raise DataError(f"X has {len(features)} instances, but there are {len(marks)} instance_labels.")
    return Table(features, bag, numbers, ids, patients, classes, None if marks is None else marks.astype(np.int64))


def check_features(values: Any) -> NDArray[np.float32]:
    """A matrix of finite 32-bit numbers, or the reason why it is none."""
    values = np.asarray(values)
    if values.ndim != 2 or 0 in values.shape or values.dtype.kind not in "fiub":
        raise DataError(f"X has the shape {values.shape} and type {values.dtype}, but numbers (n, p) are needed.")
    with np.errstate(over="ignore"):
        features = np.ascontiguousarray(values, dtype=np.float32)
    if not (finite := np.isfinite(features)).all():
        row, column = np.argwhere(~finite)[0].tolist()
        raise DataError(f"X[{row}, {column}] is {values[row, column]}, but a finite 32-bit number is needed.")
    return features


def check_whole(name: str, values: Any) -> NDArray[np.intp]:
    """A vector of whole numbers, or the reason why it is none."""
    values = np.atleast_1d(np.squeeze(np.asarray(values)))
    if (
        values.ndim != 1
        or values.dtype.kind not in "fiub"
        or not (np.isfinite(values) & (np.trunc(values) == values)).all()
    ):
        raise DataError(f"{name} has the shape {values.shape} and type {values.dtype}; whole numbers (n,) are needed.")
    return values.astype(np.intp)


def _one_a_bag(name: str, arrays: Mapping[str, Any], bags: int) -> list[str] | None:
    if name not in arrays:
        return None
    words = [str(word) for word in np.atleast_1d(np.squeeze(arrays[name])).tolist()]
    if len(words) != bags:
        raise DataError(f"y has {bags} labels, but there are {len(words)} {name}; one a bag is needed.")
    return words


def read_svm(content: bytes) -> Table:
    """Read lines `instance:bag:label index:value ...`, indices from 1; the classical benchmarks came so."""
    names, labels, rows = [], [], []
    for number, line in enumerate(as_text(content).splitlines(), start=1):
        head, *cells = line.partition("#")[0].split() or [""]
        if not head:
            continue
        try:
            _, name, label = head.split(":")
            row = {int(index): float(value) for index, _, value in (cell.partition(":") for cell in cells)}
            labels.append(int(float(label)))
        except (ValueError, OverflowError):
            raise DataError(
                f"line {number}: instance:bag:label index:value ... is needed, met {line[:40]!r}."
            ) from None
        if row and not 1 <= min(row) <= max(row) <= LARGEST_INDEX:
            raise DataError(f"line {number}: features are counted from 1 to {LARGEST_INDEX}.")
        if abs(labels[-1]) >= MOST_CLASSES:
            raise DataError(f"line {number}: label {label[:40]}, but classes are counted from 0 to {MOST_CLASSES - 1}.")
        names.append(name)
        rows.append(row)
    if not any(rows):
        raise DataError("there is no instance with a feature in it.")
    width = max(map(max, filter(None, rows)))
    if (needed := 4 * len(rows) * width) > DENSE_BYTES:
        raise DataError(
            f"{len(rows)} instances with features up to {width} have {needed} bytes in memory, and at most {DENSE_BYTES} "
            "are read. Leave out the features that no instance has, or save the table as .npz."
        )
    features = np.zeros((len(rows), width), np.float32)
    with np.errstate(over="ignore"):
        for position, row in enumerate(rows):
            features[position, [index - 1 for index in row]] = list(row.values())
    ids, bag = positions(names)
    highest = np.full(len(ids), min(labels))
    np.maximum.at(highest, bag, labels)
    if min(labels) == -1:  # bags of one class only would else hide that -1 is the negative class
        highest = np.maximum(highest, 0)
    numbers, classes = class_numbers([str(label) for label in highest.tolist()])
    return Table(check_features(features), bag, numbers, ids, classes=classes)


def read_mat(content: bytes) -> Table:
    """Read a MATLAB file: a PRTools data set of bags under any name, or `X`, `bag` (from 1 or from 0) and `y`."""
    variables = read_variables(content)
    for value in variables.values():
        if {"data", "nlab", "ident"} <= _fields(value):
            return _prtools(value)
    bag = np.asarray(variables.get("bag", 0))
    one_based = bag.dtype.kind in "fiub" and np.min(bag, initial=1) == 1 and "bag" in variables
    return arrays_to_table(variables, first=int(one_based))


def _prtools(dataset: Any) -> Table:
    """The positive class is the one that is called so; without names it is the second."""
    features, number = check_features(dataset["data"]), check_whole("nlab", dataset["nlab"])
    ident = dataset["ident"]
    if "milbag" not in _fields(ident):
        raise DataError("a PRTools data set without ident.milbag: its instances are in no bags.")
    names = np.atleast_1d(np.squeeze(ident["milbag"]))
    ids, bag = positions(_words(names) if names.dtype.kind == "O" else check_whole("milbag", names).tolist())
    if not len(features) == len(number) == len(bag):
        raise DataError(f"{len(features)} instances, {len(number)} labels in nlab, {len(bag)} bags in ident.milbag.")
    classes = [word.strip() for word in _words(dataset["lablist"])] if "lablist" in _fields(dataset) else []
    positive = classes.index("positive") + 1 if "positive" in classes else 2
    labels = one_each("label", [str(int(value == positive)) for value in number.tolist()], bag, ids)
    return Table(features, bag, [int(label) for label in labels], ids, classes=("0", "1"))


def _fields(value: Any) -> set[str]:
    return set(value) if isinstance(value, dict) else set()


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):  # a structure of words
        return [word for part in value.values() for word in _words(part)]
    return [word for part in np.ravel(value).tolist() for word in _words(part)] if isinstance(value, np.ndarray) else []
