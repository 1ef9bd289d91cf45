"""Tables of bags in .npz, .svm and .mat files; no code in them is run."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scmil.bags.datasets.matlab import read_variables
from scmil.bags.datasets.table import (
    MOST_CLASSES,
    Table,
    as_text,
    class_numbers,
    one_per_bag,
    positions,
)
from scmil.core.safe_io import DENSE_BYTES, npz_arrays
from scmil.errors import DataError

# Of a feature in a sparse file; a typing error must not fill the memory.
LARGEST_INDEX = 1_000_000


def read_npz(content: bytes) -> Table:
    """Read `X` (n, p), `bag` (n,) from 0 and `y` (bags,), as written by `numpy.savez`."""
    if not zipfile.is_zipfile(io.BytesIO(content)):
        raise DataError("not a .npz file. Save X, bag and y with numpy.savez.")
    try:
        arrays = npz_arrays(content)
    except Exception as error:  # numpy raises many kinds for a damaged file
        raise DataError(
            f"not plain arrays ({error}). Save numbers and words; pickled objects are rejected."
        ) from None
    return arrays_to_table(arrays)


def arrays_to_table(arrays: Mapping[str, Any], first: int = 0) -> Table:
    """Check arrays and return them as a table; bags are numbered from `first`."""
    if missing := [name for name in ("X", "bag", "y") if name not in arrays]:
        raise DataError(
            f"no array {missing[0]!r}. X (n, p), bag (n,) and y (bags,) are needed; found: "
            f"{', '.join(arrays) or 'none'}."
        )
    features, bag = check_features(arrays["X"]), check_integers("bag", arrays["bag"]) - first
    labels = np.atleast_1d(np.squeeze(arrays["y"]))
    if len(bag) != len(features):
        raise DataError(
            f"X has {len(features)} instances, but bag has {len(bag)} entries. Give the bag of "
            "each instance."
        )
    empty = sorted(set(range(len(labels))) - set(bag.tolist()))
    if len(bag) == 0 or bag.min() < 0 or bag.max() >= len(labels) or empty:
        reason = (
            f"bag {empty[0] + first} has no instance"
            if empty
            else f"bag has values from {bag.min()} to {bag.max()}"
        )
        raise DataError(
            f"{reason}, but y has {len(labels)} labels. Number the bags from {first} without gaps."
        )
    numbers, classes = class_numbers([str(label) for label in labels.tolist()])
    ids = _words_per_bag("ids", arrays, len(labels))
    patients = [
        word or None for word in _words_per_bag("patients", arrays, len(labels)) or []
    ] or None
    instance_labels = (
        check_integers("instance_labels", arrays["instance_labels"])
        if "instance_labels" in arrays
        else None
    )
    if instance_labels is not None and len(instance_labels) != len(features):
        raise DataError(
            f"X has {len(features)} instances, but there are {len(instance_labels)} "
            "instance_labels. Give one for each instance."
        )
    return Table(
        features,
        bag,
        numbers,
        ids,
        patients,
        classes,
        None if instance_labels is None else instance_labels.astype(np.int64),
    )


def check_features(values: Any) -> NDArray[np.float32]:
    """Return a matrix of finite 32-bit numbers, or raise."""
    values = np.asarray(values)
    if values.ndim != 2 or 0 in values.shape or values.dtype.kind not in "fiub":
        raise DataError(
            f"X has the shape {values.shape} and type {values.dtype}, but must be a numeric matrix "
            "(n, p)."
        )
    with np.errstate(over="ignore"):
        features = np.ascontiguousarray(values, dtype=np.float32)
    if not (finite := np.isfinite(features)).all():
        row, column = np.argwhere(~finite)[0].tolist()
        raise DataError(
            f"X[{row}, {column}] is {values[row, column]}, but a finite 32-bit number is needed."
        )
    return features


def check_integers(name: str, values: Any) -> NDArray[np.intp]:
    """Return a vector of integers, or raise."""
    values = np.atleast_1d(np.squeeze(np.asarray(values)))
    if (
        values.ndim != 1
        or values.dtype.kind not in "fiub"
        or not (np.isfinite(values) & (np.trunc(values) == values)).all()
    ):
        raise DataError(
            f"{name} has the shape {values.shape} and type {values.dtype}, but must be a vector of "
            "integers (n,)."
        )
    return values.astype(np.intp)


def _words_per_bag(name: str, arrays: Mapping[str, Any], bags: int) -> list[str] | None:
    if name not in arrays:
        return None
    words = [str(word) for word in np.atleast_1d(np.squeeze(arrays[name])).tolist()]
    if len(words) != bags:
        raise DataError(
            f"y has {bags} labels, but there are {len(words)} {name}. Give one for each bag."
        )
    return words


def read_svm(content: bytes) -> Table:
    """Read lines `instance:bag:label index:value ...`, with indices from 1."""
    names, labels, rows = [], [], []
    for number, line in enumerate(as_text(content).splitlines(), start=1):
        head, *cells = line.partition("#")[0].split() or [""]
        if not head:
            continue
        try:
            _, name, label = head.split(":")
            row = {
                int(index): float(value)
                for index, _, value in (cell.partition(":") for cell in cells)
            }
            labels.append(int(float(label)))
        except (ValueError, OverflowError):
            raise DataError(
                f"line {number}: {line[:40]!r}, but instance:bag:label index:value ... is needed."
            ) from None
        if row and not 1 <= min(row) <= max(row) <= LARGEST_INDEX:
            raise DataError(
                f"line {number}: the index of a feature must be from 1 to {LARGEST_INDEX}."
            )
        if abs(labels[-1]) >= MOST_CLASSES:
            raise DataError(
                f"line {number}: label {label[:40]}, but labels are class numbers from 0 to "
                f"{MOST_CLASSES - 1}."
            )
        names.append(name)
        rows.append(row)
    if not any(rows):
        raise DataError("no instance has a feature. Check that this is the right file.")
    width = max(map(max, filter(None, rows)))
    if (needed := 4 * len(rows) * width) > DENSE_BYTES:
        raise DataError(
            f"{len(rows)} instances with features up to {width} need {needed} bytes of memory, but "
            f"at most {DENSE_BYTES} are allowed. Leave out unused features, or save the table as "
            ".npz."
        )
    features = np.zeros((len(rows), width), np.float32)
    with np.errstate(over="ignore"):
        for position, row in enumerate(rows):
            features[position, [index - 1 for index in row]] = list(row.values())
    ids, bag = positions(names)
    highest = np.full(len(ids), min(labels))
    np.maximum.at(highest, bag, labels)
    if min(labels) == -1:  # otherwise a file of positive bags only would have other classes
        highest = np.maximum(highest, 0)
    numbers, classes = class_numbers([str(label) for label in highest.tolist()])
    return Table(check_features(features), bag, numbers, ids, classes=classes)


def read_mat(content: bytes) -> Table:
    """Read a MATLAB file: a PRTools data set of bags, or `X`, `bag` (from 1 or 0) and `y`."""
    variables = read_variables(content)
    for value in variables.values():
        if {"data", "nlab", "ident"} <= _fields(value):
            return _read_prtools(value)
    bag = np.asarray(variables.get("bag", 0))
    one_based = bag.dtype.kind in "fiub" and np.min(bag, initial=1) == 1 and "bag" in variables
    return arrays_to_table(variables, first=int(one_based))


def _read_prtools(dataset: Any) -> Table:
    """Read a PRTools data set; the positive class is named so, or is the second one."""
    features, number = check_features(dataset["data"]), check_integers("nlab", dataset["nlab"])
    ident = dataset["ident"]
    if "milbag" not in _fields(ident):
        raise DataError(
            "a PRTools data set without ident.milbag, which assigns instances to bags. Save it as "
            "a multiple instance data set."
        )
    names = np.atleast_1d(np.squeeze(ident["milbag"]))
    ids, bag = positions(
        _words(names) if names.dtype.kind == "O" else check_integers("milbag", names).tolist()
    )
    if not len(features) == len(number) == len(bag):
        raise DataError(
            f"{len(features)} instances, {len(number)} labels in nlab, {len(bag)} bags in "
            "ident.milbag; their numbers must be equal."
        )
    classes = (
        [word.strip() for word in _words(dataset["lablist"])]
        if "lablist" in _fields(dataset)
        else []
    )
    positive = classes.index("positive") + 1 if "positive" in classes else 2
    labels = one_per_bag(
        "label", [str(int(value == positive)) for value in number.tolist()], bag, ids
    )
    return Table(features, bag, [int(label) for label in labels], ids, classes=("0", "1"))


def _fields(value: Any) -> set[str]:
    """Return the names of the fields of a structure."""
    return set(value) if isinstance(value, dict) else set()


def _words(value: Any) -> list[str]:
    """Return all texts in a value, its cells or fields."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):  # a MATLAB structure
        return [word for part in value.values() for word in _words(part)]
    return (
        [word for part in np.ravel(value).tolist() for word in _words(part)]
        if isinstance(value, np.ndarray)
        else []
    )
