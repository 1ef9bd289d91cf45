"""What is looked at before a library reads a file that others wrote: bombs, links out of the file, damage that hangs.

The libraries below us refuse most damage themselves. What is here are the cases in which they obey: they fill the memory
because a header says so, open another file because a link leads there, or never return.
"""

from __future__ import annotations

import io
import math
import mmap
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from scmil.errors import DataError
from scmil.files import check_regular

# What the readers of numpy, torch and h5py raise, and what a foreign value in a header can cause.
DAMAGE = (
    OSError, ValueError, LookupError, RuntimeError, EOFError, TypeError, AttributeError, MemoryError, ArithmeticError,
    SyntaxError, TokenError, zipfile.BadZipFile, zlib.error, struct.error,
)  # fmt: skip
LARGE_BYTES = 256 * 2**20  # below this a bomb is a puff
MOST_TIMES = 100  # so many times larger than in the file: features shrink to a half at best, tables to a tenth
NO_ARRAY = "is no array in this file: a group, or a link to another file. Links are not followed."
HEAP, HEAP_HEADER, OBJECT = b"GCOL", 16, struct.Struct("<HHIQ")


def check_expansion(claimed: int, stored: int, what: str) -> None:
    """Refuse what would be a hundred times larger in memory than in the file, unless it is small.

    >>> check_expansion(10**9, 5 * 10**8, "features")
    >>> check_expansion(10**12, 10**4, "it")
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: it: 10000 bytes in the file that would be 1000000000000 in memory. ...
    """
    if claimed > LARGE_BYTES and claimed > MOST_TIMES * stored:
        raise DataError(
            f"{what}: {stored} bytes in the file that would be {claimed} in memory. That is no data, but a bomb or damage, "
            "and was not read."
        )


# ------------------------------------------------------------------------------------------------------------------ NumPy


def npy_array(file: IO[bytes], size: int) -> NDArray[Any]:
    """The array of an .npy file of `size` bytes; one that says that it is larger, or that has objects, is refused.

    >>> content = io.BytesIO()
    >>> np.save(content, np.arange(3))
    >>> npy_array(io.BytesIO(content.getvalue()), len(content.getvalue()))
    array([0, 1, 2])
    """
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise DataError(f"version {version[0]}.{version[1]} of .npy, but 1.0 or 2.0 is needed. Save the array again.")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    claimed, rest = math.prod(shape) * dtype.itemsize, size - file.tell()
    if dtype.hasobject:
        raise DataError("it has Python objects, and only arrays of numbers are read.")
    if min(shape, default=0) < 0 or claimed > rest:
        raise DataError(f"an array of shape {shape} has {claimed} bytes, but only {rest} are there.")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def npz_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz file; bombs and objects are refused."""
    check_regular(path)
    with zipfile.ZipFile(path) as archive:
        check_archive(archive)
        found = {}
        for member in archive.infolist():
            with archive.open(member) as file:
                content = io.BytesIO(file.read())
            found[member.filename.removesuffix(".npy")] = npy_array(content, len(content.getbuffer()))
        return found


def check_archive(archive: zipfile.ZipFile) -> None:
    """Refuse a zip archive whose members together are far larger than itself."""
    members = archive.infolist()
    length = archive.fp.seek(0, os.SEEK_END) if archive.fp else 0
    check_expansion(sum(member.file_size for member in members), length, "the archive")


# ------------------------------------------------------------------------------------------------------------------- HDF5


@contextmanager
def opened_h5(path: str | Path) -> Iterator[Any]:
    """An HDF5 file to read, in which every name is of something in this very file."""
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
    """Refuse lists of variable length, which no tool writes: where damage makes one of a text, the HDF5 library crashes."""
    from h5py import h5a, h5t

    for index in range(h5a.get_num_attrs(one.id)):
        attribute = h5a.open(one.id, index=index)
        if attribute.get_type().get_class() == h5t.VLEN:
            name = attribute.name.decode(errors="replace")
            raise DataError(f"the attribute {name!r} is a list of variable length, and numbers or texts are read.")


def h5_array(file: Any, name: str) -> NDArray[Any]:
    """An array of numbers of an HDF5 file, in memory."""
    import h5py

    if name not in file:
        raise DataError(f"there is no {name!r}. The file has: {', '.join(file) or 'nothing'}.")
    if not isinstance(values := file[name], h5py.Dataset):
        raise DataError(f"{name!r} {NO_ARRAY}")
    if values.dtype.kind not in "fiub":
        raise DataError(f"{name!r} has values of type {values.dtype}, but numbers are needed.")
    stored = min(values.id.get_storage_size(), os.path.getsize(file.filename))
    check_expansion(values.size * values.dtype.itemsize, stored, repr(name))
    return np.asarray(values[()])


def _check_heaps(path: Path, file: Any) -> None:
    """Refuse a damaged heap of texts, on which the HDF5 library up to 2.0 never returns (HDFGroup/hdf5#1707).

    Arrays that lie in one piece are left out of the search, so that a header is not a matter of gigabytes.
    """
    with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for start, end in _outside(_pieces(file), len(content)):
            at = content.find(HEAP, start, end)
            while at >= 0:
                _check_heap(content, at)
                at = content.find(HEAP, at + 1, end)


def _pieces(file: Any) -> list[tuple[int, int]]:
    """Where the arrays lie that are in one piece."""
    import h5py

    found = []
    for one in (file[name] for name in file):
        offset = one.id.get_offset() if isinstance(one, h5py.Dataset) and one.chunks is None else None
        if offset is not None:
            found.append((offset, offset + one.id.get_storage_size()))
    return sorted(found)


def _outside(pieces: list[tuple[int, int]], length: int) -> Iterator[tuple[int, int]]:
    """The rest of a file, beside some pieces.

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
    """Walk through the objects of a heap as the library does, and refuse where it would not get on."""
    if start + HEAP_HEADER > len(content) or content[start + 4] != 1:
        return  # the four letters, and no heap: the library says so itself if it comes here
    end = min(start + int.from_bytes(content[start + 8 : start + 16], "little"), len(content))
    at = start + HEAP_HEADER
    while at + OBJECT.size <= end:
        index, _, _, size = OBJECT.unpack_from(content, at)
        step = size if index == 0 else OBJECT.size + -(-size // 8) * 8
        if step == 0:
            raise DataError("its heap of texts is damaged.")
        at += step
