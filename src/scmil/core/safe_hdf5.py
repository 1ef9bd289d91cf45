"""A reader of HDF5 files from other people: no links, no decompression bombs, no endless loops."""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scmil.core.regular_files import check_regular
from scmil.core.safe_io import check_expansion, inflated
from scmil.errors import DataError

ATTRIBUTE_BYTES = 2**24  # of one attribute
NO_ARRAY = "is not an array, but a group or a link to another file. Links are not followed."
HEAP, HEAP_HEADER, OBJECT = b"GCOL", 16, struct.Struct("<HHIQ")


@contextmanager
def opened_h5(path: str | Path) -> Iterator[Any]:
    """Open an HDF5 file to read; raise DataError if it has links to other files."""
    import h5py

    check_regular(path)
    with h5py.File(path, "r") as file:
        for name in file:
            if not isinstance(file.get(name, getlink=True), h5py.HardLink):
                raise DataError(f"{name!r} {NO_ARRAY}")
            if isinstance(one := file[name], h5py.Dataset) and (one.external or one.is_virtual):
                raise DataError(f"{name!r} {NO_ARRAY}")
        for one in (file, *(file[name] for name in file)):
            _check_attributes(one)
        _check_heaps(Path(path), file)
        yield file


def _check_attributes(one: Any) -> None:
    """Raise for attributes that are lists of variable length, compounds or references.

    No tool writes them. If a damaged text has the type of such a list, the HDF5 library crashes.
    """
    from h5py import h5a, h5t

    for index in range(h5a.get_num_attrs(one.id)):
        attribute = h5a.open(one.id, index=index)
        kind, name = attribute.get_type().get_class(), attribute.name.decode(errors="replace")
        if kind == h5t.VLEN:
            raise DataError(
                f"the attribute {name!r} is a list of variable length; expected a number or text."
            )
        if kind not in (h5t.INTEGER, h5t.FLOAT, h5t.STRING, h5t.ENUM):
            raise DataError(
                f"the attribute {name!r} has an unusual type; expected a number or text."
            )
        if attribute.get_storage_size() > ATTRIBUTE_BYTES:
            raise DataError(f"the attribute {name!r} has more than {ATTRIBUTE_BYTES} bytes.")


def h5_array(file: Any, name: str) -> NDArray[Any]:
    """Read an array of numbers of an HDF5 file."""
    import h5py

    if name not in file:
        raise DataError(f"there is no {name!r}. The file has: {', '.join(file) or 'nothing'}.")
    if not isinstance(values := file[name], h5py.Dataset):
        raise DataError(f"{name!r} {NO_ARRAY}")
    if values.dtype.kind not in "fiub":
        raise DataError(f"{name!r} has values of type {values.dtype}; expected numbers.")
    length = os.path.getsize(file.filename)
    stored = min(values.id.get_storage_size(), length)
    check_expansion(math.prod(values.shape) * values.dtype.itemsize, stored, repr(name))
    if values.chunks is None:
        return np.asarray(values[()])
    return _read_chunks(values, stored, length, name)


# ----------------------------------------------------------------------------------- HDF5 in chunks
# The library decompresses a chunk to any size that its stream has, and uses the result as a whole
# chunk. The common filters are therefore reversed here, with a known size; data without compression
# are read by the library.

DEFLATE, SHUFFLE, FLETCHER32, LZF = 1, 2, 3, 32000  # the numbers of these filters in HDF5
FILTERS = {DEFLATE: "gzip", SHUFFLE: "shuffle", FLETCHER32: "fletcher32", LZF: "lzf"}


def _read_chunks(values: Any, stored: int, length: int, name: str) -> NDArray[Any]:
    """Read an array that is stored in chunks, and check the size of each."""
    chunk_bytes = math.prod(values.chunks) * values.dtype.itemsize
    check_expansion(chunk_bytes, stored, f"a chunk of {name!r}")
    filters = _filters(values, chunk_bytes, name)
    low, high = (
        (1, min(chunk_bytes + chunk_bytes // 100 + 64, length))
        if filters
        else (chunk_bytes, chunk_bytes)
    )
    if wrong := values.id.chunk_iter(lambda chunk: None if low <= chunk.size <= high else chunk):
        raise DataError(
            f"{name!r} has a chunk of {wrong.size} bytes, but {chunk_bytes} are declared for each."
        )
    if not filters or LZF in filters:
        return np.asarray(values[()])
    chunks: list[Any] = []
    values.id.chunk_iter(chunks.append)
    _check_plain_type(values, name)
    array = np.full(values.shape, values.fillvalue, values.dtype)
    for chunk in chunks:
        at = tuple(map(int, chunk.chunk_offset))
        _, content = values.id.read_direct_chunk(at)
        whole = _reverse_filters(
            content, filters, chunk.filter_mask, chunk_bytes, values.dtype.itemsize, name
        )
        window = tuple(
            slice(start, start + side) for start, side in zip(at, values.chunks, strict=True)
        )
        part = array[window]
        part[...] = np.frombuffer(whole, values.dtype).reshape(values.chunks)[
            tuple(map(slice, part.shape))
        ]
    return array


def _filters(values: Any, chunk_bytes: int, name: str) -> list[int]:
    """The filters in the order of their application; raise if they are unknown or repeated."""
    properties = values.id.get_create_plist()
    filters = [properties.get_filter(index) for index in range(properties.get_nfilters())]
    numbers = [number for number, *_ in filters]
    if unknown := [str(number) for number in numbers if number not in FILTERS]:
        raise DataError(
            f"{name!r} is stored with filter {unknown[0]}; supported are "
            f"{', '.join(FILTERS.values())}."
        )
    if len(set(numbers)) != len(numbers) or {DEFLATE, LZF} <= set(numbers):
        used = ", ".join(FILTERS[number] for number in numbers)
        raise DataError(
            f"{name!r} is stored with the filters {used}; data that are compressed twice are not "
            "supported."
        )
    if any(
        number == LZF and tuple(options[2:3]) != (chunk_bytes,) for number, _, options, _ in filters
    ):
        raise DataError(
            f"{name!r}: the options of its filter lzf do not match chunks of {chunk_bytes} bytes."
        )
    return numbers


def _check_plain_type(values: Any, name: str) -> None:
    from h5py import h5t

    if h5t.py_create(values.dtype, logical=True) != values.id.get_type():
        raise DataError(
            f"{name!r} is compressed and has an unusual type. Save it as 16, 32 or 64-bit numbers."
        )


def _reverse_filters(
    content: bytes, filters: Sequence[int], skipped: int, chunk_bytes: int, itemsize: int, name: str
) -> bytes | NDArray[np.uint8]:
    """Reverse the filters of a chunk, the last one first; bit i of `skipped`: i was not applied."""
    whole: bytes | NDArray[np.uint8] = content
    for index, number in reversed(list(enumerate(filters))):
        if skipped >> index & 1:
            continue
        if number == DEFLATE:
            whole = inflated(bytes(whole), chunk_bytes + 4 * (FLETCHER32 in filters))
        elif number == FLETCHER32:
            whole = _check_sum(bytes(whole), name)
        elif len(whole) == chunk_bytes:
            whole = np.ascontiguousarray(
                np.frombuffer(whole, np.uint8).reshape(itemsize, -1).T
            ).reshape(-1)
    if len(whole) != chunk_bytes:
        raise DataError(
            f"{name!r} has a chunk of {len(whole)} bytes, but {chunk_bytes} are declared for each."
        )
    return whole


def _check_sum(content: bytes, name: str) -> bytes:
    """Check the Fletcher checksum in the last four bytes of a chunk, and return the rest."""
    content, stored = content[:-4], content[-4:]
    words = np.frombuffer(content + b"\0" * (len(content) % 2), ">u2").astype(np.uint64)
    weights = np.arange(len(words), 0, -1, dtype=np.uint64) % 65535
    sums = int(words.sum()) % 65535, int((words * weights).sum()) % 65535
    if (
        int.from_bytes(stored[:2], "little") % 65535,
        int.from_bytes(stored[2:], "little") % 65535,
    ) != sums:
        raise DataError(f"{name!r} has a chunk whose checksum differs: the file is damaged.")
    return content


# ----------------------------------------------------------------------------- HDF5: heaps of texts


def _check_heaps(path: Path, file: Any) -> None:
    """Raise for a damaged heap of texts, which the HDF5 library up to 2.0 reads forever.

    See HDFGroup/hdf5#1707. Contiguous arrays are not searched, so that the check is fast.
    """
    with (
        path.open("rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        for start, end in _outside(_contiguous_arrays(file), len(content)):
            at = content.find(HEAP, start, end)
            while at >= 0:
                _check_heap(content, at)
                at = content.find(HEAP, at + 1, end)


def _contiguous_arrays(file: Any) -> list[tuple[int, int]]:
    """Start and end of the arrays that are stored without chunks."""
    import h5py

    ranges = []
    for one in (file[name] for name in file):
        offset = (
            one.id.get_offset() if isinstance(one, h5py.Dataset) and one.chunks is None else None
        )
        if offset is not None:
            ranges.append((offset, offset + one.id.get_storage_size()))
    return sorted(ranges)


def _outside(pieces: list[tuple[int, int]], length: int) -> Iterator[tuple[int, int]]:
    """The ranges of a file between some pieces.

    >>> list(_outside([(10, 20), (30, 90)], 100))
    [(0, 10), (20, 30), (90, 100)]
    """
    at = 0
    for start, end in pieces:
        if start > at:
            yield at, min(start, length)
        at = max(at, end)
    if at < length:
        yield at, length


def _check_heap(content: mmap.mmap, start: int) -> None:
    """Iterate over the objects of a heap as the library does; raise where it would not advance."""
    if start + HEAP_HEADER > len(content) or content[start + 4] != 1:
        return  # not a heap, although it starts like one; the library reports this
    end = min(start + int.from_bytes(content[start + 8 : start + 16], "little"), len(content))
    at = start + HEAP_HEADER
    while at + OBJECT.size <= end:
        index, _, _, size = OBJECT.unpack_from(content, at)
        step = size if index == 0 else OBJECT.size + -(-size // 8) * 8
        if step == 0:
            raise DataError("its heap of texts is damaged.")
        at += step
