"""A reader of MATLAB files of version 5 to 7.

The reader of scipy crashes on damaged files, and allocates any size that a file states. Numbers
become arrays, texts and cells become arrays of objects, structures become dictionaries. Functions,
objects of newer classes and sparse arrays are ignored.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scmil.core.extras import import_extra
from scmil.core.safe_io import LARGE_BYTES, MOST_TIMES, NESTING, inflated
from scmil.errors import DataError

MATRIX, COMPRESSED = 14, 15
# Of the data types of elements.
TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
TEXTS = {1: "latin1", 2: "latin1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
CELL, STRUCTURE, OBJECT, TEXT = 1, 2, 3, 4  # classes of arrays; those of numbers are:
NUMBERS = dict(enumerate(("f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"), start=6))
COMPLEX = 0x800


def read_variables(content: bytes) -> dict[str, Any]:
    """Return the variables of a MATLAB file by name.

    >>> from scipy.io import savemat
    >>> file = io.BytesIO()
    >>> savemat(file, {"X": np.eye(2), "about": {"by": "me"}}, do_compression=True)
    >>> read_variables(file.getvalue())
    {'X': array([[1., 0.], [0., 1.]]), 'about': {'by': array(['me'], dtype=object)}}
    """
    if len(content) >= 4 and 0 in content[:4]:
        return _read_version_4(content)
    mark = content[126:128]
    if mark not in (b"IM", b"MI"):
        raise DataError("not a MATLAB file (there is no header of version 5).")
    order = "<" if mark == b"IM" else ">"
    if struct.unpack_from(f"{order}H", content, 124) == (0x200,):
        raise DataError("a MATLAB file of version 7.3. Save it with save(..., '-v7').")
    most, found = max(LARGE_BYTES, MOST_TIMES * len(content)), dict[str, Any]()
    for kind, body in _elements(memoryview(content)[128:], order, aligned=False):
        if kind == COMPRESSED:
            expanded = inflated(body, most)
            most -= len(expanded)
            parts = list(_elements(memoryview(expanded), order))
        else:
            parts = [(kind, body)]
        found.update(
            _read_mat_array(part, order, NESTING)
            for number, part in parts
            if number == MATRIX and len(part)
        )
    return found


def _read_version_4(content: bytes) -> dict[str, Any]:
    """Read version 4 with scipy.

    It has neither compression nor nesting, and scipy's reader of it is written in Python.
    """
    try:
        found = import_extra("scipy.io", "statistics").loadmat(io.BytesIO(content))
    except Exception as error:  # scipy raises many kinds for a damaged file
        raise DataError(f"not a MATLAB file ({error}).") from None
    return {name: value for name, value in found.items() if not name.startswith("__")}


def _elements(
    view: memoryview, order: str, aligned: bool = True
) -> Iterator[tuple[int, memoryview]]:
    """Yield type and bytes of each element; up to four bytes are in the tag itself."""
    at = 0
    while at + 8 <= len(view):
        kind, size = struct.unpack_from(f"{order}II", view, at)
        start = at + 8
        if kind >> 16:
            kind, size, start = kind & 0xFFFF, min(kind >> 16, 4), at + 4
        if start + size > len(view):
            raise DataError("not a MATLAB file (an element is truncated).")
        yield kind, view[start : start + size]
        at = (
            at + 8
            if start == at + 4
            else start + size + (-size % 8 if aligned or kind != COMPRESSED else 0)
        )


def _read_mat_array(body: memoryview, order: str, depth: int) -> tuple[str, Any]:
    """Return name and value of an array."""
    if not depth:
        raise DataError(
            f"arrays are nested more than {NESTING} levels deep, which is not supported."
        )
    elements = _elements(body, order)
    flags = _next_numbers(elements, order, "u4")
    kind = int(flags[0]) & 255 if len(flags) else 0
    if kind not in (CELL, STRUCTURE, OBJECT, TEXT, *NUMBERS):
        return "", None
    shape = tuple(_next_numbers(elements, order, "i4").tolist())
    name = bytes(next(elements, (0, b""))[1]).decode("latin1")
    if len(shape) > NESTING or min(shape, default=0) < 0 or math.prod(shape) > len(body):
        raise DataError(
            f"an array of {' x '.join(map(str, shape[:8]))} entries, but it has {len(body)} bytes."
        )
    if kind == TEXT:
        return name, _read_text(elements, order, shape)
    if kind in NUMBERS:
        values = _read_numbers(elements, order, shape, NUMBERS[kind])
        if flags[0] & COMPLEX:
            with np.errstate(all="ignore"):
                values = values + 1j * _read_numbers(elements, order, shape, NUMBERS[kind])
        return name, values
    fields = [""] if kind == CELL else _field_names(elements, order, kind)
    parts = [
        _read_mat_array(part, order, depth - 1)[1] if len(part) else None
        for number, part in elements
        if number == MATRIX
    ]
    if len(parts) != math.prod(shape) * len(fields):
        raise DataError(
            f"an array has {len(parts)} entries, but its header states "
            f"{math.prod(shape) * len(fields)}."
        )
    return name, _object_array(parts) if kind == CELL else dict(zip(fields, parts, strict=False))


def _next_numbers(
    elements: Iterator[tuple[int, memoryview]], order: str, needed: str | None = None
) -> NDArray[Any]:
    """Return the numbers of the next element."""
    kind, body = next(elements, (0, memoryview(b"")))
    if kind not in TYPES or (needed and TYPES[kind] != needed) or len(body) % int(TYPES[kind][1]):
        raise DataError(f"not a MATLAB file (an element of type {kind} in the wrong place).")
    return np.frombuffer(body, order + TYPES[kind])


def _read_numbers(
    elements: Iterator[tuple[int, memoryview]], order: str, shape: tuple[int, ...], dtype: str
) -> NDArray[Any]:
    values = _next_numbers(elements, order) if math.prod(shape) else np.zeros(0)
    if len(values) != math.prod(shape):
        raise DataError(
            f"an array of {' x '.join(map(str, shape))} entries, but it has {len(values)} numbers."
        )
    with np.errstate(invalid="ignore", over="ignore"):
        return values.astype(dtype).reshape(shape, order="F")


def _read_text(
    elements: Iterator[tuple[int, memoryview]], order: str, shape: tuple[int, ...]
) -> NDArray[np.object_]:
    """Return the rows of a text."""
    kind, body = next(elements, (0, memoryview(b""))) if math.prod(shape) else (1, memoryview(b""))
    if kind not in TEXTS:
        raise DataError(f"not a MATLAB file (a text of type {kind}).")
    ends = {"<": "-le", ">": "-be"}[order] if TEXTS[kind].startswith("utf-") and kind != 16 else ""
    letters = bytes(body).decode(TEXTS[kind] + ends, "replace")
    if len(letters) != math.prod(shape):
        raise DataError(
            f"a text of {' x '.join(map(str, shape))} letters, but it has {len(letters)}."
        )
    rows = shape[0] if letters else 0
    return _object_array([letters[row::rows] for row in range(rows)])


def _field_names(elements: Iterator[tuple[int, memoryview]], order: str, kind: int) -> list[str]:
    if kind == OBJECT:
        next(elements, None)  # the name of its class
    width = int(_next_numbers(elements, order, "i4").max(initial=0))
    names = bytes(next(elements, (0, b""))[1])
    if width < 1:
        return []
    return [
        names[at : at + width].split(b"\0")[0].decode("latin1")
        for at in range(0, len(names), width)
    ]


def _object_array(values: list[Any]) -> NDArray[np.object_]:
    array = np.empty(len(values), object)
    for position, value in enumerate(values):
        array[position] = value
    return array
