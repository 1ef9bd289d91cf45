"""What is looked at before a library reads a file that others wrote: bombs, links out of the file, damage that hangs.

The libraries below us refuse most damage themselves. What is here are the cases in which they obey: they fill the memory
because a header says so, open another file because a link leads there, or never return. All limits on what a file may claim
are the constants of this module.
"""

from __future__ import annotations

import csv
import errno
import io
import math
import mmap
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from scmil.errors import DataError
from scmil.core.files import check_regular

# What the readers of numpy, torch and h5py raise, and what a foreign value in a header can cause.
DAMAGE = (
    OSError, ValueError, LookupError, RuntimeError, EOFError, TypeError, AttributeError, MemoryError, ArithmeticError,
    SyntaxError, TokenError, zipfile.BadZipFile, zlib.error, struct.error, csv.Error,
)  # fmt: skip
LARGE_BYTES = 256 * 2**20  # below this a bomb is a puff
MOST_TIMES = 100  # so many times larger than in the file: features shrink to a half at best, tables to a tenth
DENSE_BYTES = 2**30  # of a table that is sparse in its file: TREC9, 3 224 instances of 66 552 features, has 0.9 GB
FARTHEST_PX = 2**40  # of a coordinate from the corner of the slide; the largest scans have 2**19 pixels a side
LARGEST_SIDE_PX = 2**31  # of a slide
LARGEST_TILE_PX = 2**16
EMPTY_ROWS = 2**20  # instances without a feature, which take no byte in a file
FINEST_MPP, COARSEST_MPP = 1e-3, 1e4  # microns per pixel: scanners have 0.1 to 2, a thumbnail some hundred
CELLS = 2**25  # of a sheet, with the empty ones between those that are there
NESTING = 32  # of arrays in a MATLAB file
ATTRIBUTE_BYTES = 2**24  # of one attribute of an HDF5 file
PIECE = 2**20  # bytes that are expanded at a time
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


def inflated(content: bytes | memoryview, most: int) -> bytes:
    """Expand a zlib stream of at most `most` bytes, piece by piece; a longer one raises before it takes more memory.

    >>> inflated(zlib.compress(b"abc"), 3)
    b'abc'
    """
    decoder, pieces, size = zlib.decompressobj(), list[bytes](), 0
    while not decoder.eof:
        try:
            piece = decoder.decompress(content, min(PIECE, most - size + 1))
        except zlib.error as error:
            raise DataError(f"compressed data that is damaged ({error}).") from None
        content, size = decoder.unconsumed_tail, size + len(piece)
        pieces.append(piece)
        if size > most:
            raise DataError(f"compressed data that expands to more than {most} bytes. It was not read further.")
        if not piece and not decoder.eof:
            raise DataError("compressed data that ends too early.")
    return b"".join(pieces)


# ------------------------------------------------------------------------------------------------------------------ files


def open_regular(path: str | Path) -> IO[bytes]:
    """A regular file to read; OSError for a pipe or a device, which a reader would wait for."""
    check_regular(path)
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # replaced in between
        file.close()
        raise OSError(errno.EINVAL, "this is not a file any more", str(path))
    return file


def read_regular(path: str | Path) -> bytes:
    """The content of a regular file; see `open_regular`."""
    with open_regular(path) as file:
        return file.read()


# ---------------------------------------------------------------------------------------------------------------- numbers


def check_xy(xy: NDArray[Any]) -> NDArray[np.int64]:
    """Coordinates (n, 2) in whole level-0 pixels, or the reason why they are not.

    >>> check_xy(np.array([[256.0, 0.0]]))
    array([[256,   0]])
    """
    if xy.ndim != 2 or xy.shape[1] != 2:
        raise DataError(f"coordinates of shape {xy.shape}, but (n, 2) is needed, x and y of each tile.")
    if xy.dtype.kind not in "iu" and not (xy.dtype.kind == "f" and (np.isfinite(xy) & (np.floor(xy) == xy)).all()):
        raise DataError("coordinates with fractions or NaN, but whole pixels of level 0 are needed.")
    if xy.size and not ((low := xy.min()) >= -FARTHEST_PX and (high := xy.max()) <= FARTHEST_PX):
        far = low if low < -FARTHEST_PX else high
        raise DataError(f"a coordinate of {far}, but pixels of level 0 are between {-FARTHEST_PX} and {FARTHEST_PX}.")
    return xy.astype(np.int64)


def check_provenance(known: Mapping[str, Any]) -> None:
    """Raise if what a file says of its tiles is not of the kind or within the bounds that readers of a bag rely on.

    >>> check_provenance({"slide_mpp": 0.25, "slide_size": [30000, 20000], "encoder": "uni"})
    >>> check_provenance({"slide_mpp": "x"})
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: slide_mpp is 'x', but a number from 0.001 to 10000 is needed.
    """
    bounds: dict[str, tuple[float, float]] = {
        "mpp": (FINEST_MPP, COARSEST_MPP),
        "slide_mpp": (FINEST_MPP, COARSEST_MPP),
        "side_level0": (FINEST_MPP, LARGEST_SIDE_PX),
        "size_px": (1, LARGEST_TILE_PX),
        "overlap_px": (0, LARGEST_TILE_PX),
    }
    for name, (low, high) in bounds.items():
        if (value := known.get(name)) is not None:
            check_number(name, value, low, high)
    if (size := known.get("slide_size")) is not None:
        if not isinstance(size, Sequence) or len(size) != 2:
            raise DataError(f"slide_size is {str(size)[:40]!r}, but width and height in pixels are needed.")
        for value in size:
            check_number("slide_size", value, 1, LARGEST_SIDE_PX)
    scales = known.get("scales_mpp")
    if scales is not None and (not isinstance(scales, Sequence) or isinstance(scales, str)):
        raise DataError(f"scales_mpp is {str(scales)[:40]!r}, but a list of numbers is needed.")
    for value in scales or ():
        check_number("scales_mpp", value, FINEST_MPP, COARSEST_MPP)
    for name in ("encoder", "encoder_digest"):
        if not isinstance(value := known.get(name), str | None):
            raise DataError(f"{name} is {str(value)[:40]!r}, but a text is needed.")


def check_number(name: str, value: Any, low: float, high: float) -> float:
    """A finite number within bounds, or the reason why it is not."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not low <= value <= high:
        shown = repr(value) if isinstance(value, float | str) else str(value)
        raise DataError(f"{name} is {shown[:40]}, but a number from {low:g} to {high:g} is needed.")
    return float(value)


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
    claimed, rest = math.prod(shape) * max(dtype.itemsize, 1), size - file.tell()
    if dtype.hasobject:
        raise DataError("it has Python objects, and only arrays of numbers are read.")
    if min(shape, default=0) < 0 or claimed > rest:
        raise DataError(f"an array of shape {shape} has {claimed} bytes, but only {rest} are there.")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def npz_arrays(source: Path | bytes) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz file, or of its content; bombs and objects are refused."""
    with (
        open_regular(source) if isinstance(source, Path) else io.BytesIO(source) as opened,
        zipfile.ZipFile(opened) as archive,
    ):
        check_archive(archive)
        found = {}
        for member in archive.infolist():
            with archive.open(member) as file:
                content = io.BytesIO(file.read(member.file_size + 1))  # no more than it says, and it is checked above
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
    """Raise for lists of variable length, compounds and references, which no tool writes into its attributes.

    Where damage makes a list of a text, the HDF5 library crashes.
    """
    from h5py import h5a, h5t

    for index in range(h5a.get_num_attrs(one.id)):
        attribute = h5a.open(one.id, index=index)
        kind, name = attribute.get_type().get_class(), attribute.name.decode(errors="replace")
        if kind == h5t.VLEN:
            raise DataError(f"the attribute {name!r} is a list of variable length, and numbers or texts are read.")
        if kind not in (h5t.INTEGER, h5t.FLOAT, h5t.STRING, h5t.ENUM):
            raise DataError(f"the attribute {name!r} has an unusual type, and numbers or texts are read.")
        if attribute.get_storage_size() > ATTRIBUTE_BYTES:
            raise DataError(f"the attribute {name!r} has more than {ATTRIBUTE_BYTES} bytes.")


def h5_array(file: Any, name: str) -> NDArray[Any]:
    """An array of numbers of an HDF5 file, in memory."""
    import h5py

    if name not in file:
        raise DataError(f"there is no {name!r}. The file has: {', '.join(file) or 'nothing'}.")
    if not isinstance(values := file[name], h5py.Dataset):
        raise DataError(f"{name!r} {NO_ARRAY}")
    if values.dtype.kind not in "fiub":
        raise DataError(f"{name!r} has values of type {values.dtype}, but numbers are needed.")
    length = os.path.getsize(file.filename)
    stored = min(values.id.get_storage_size(), length)
    check_expansion(math.prod(values.shape) * values.dtype.itemsize, stored, repr(name))
    if values.chunks is None:
        return np.asarray(values[()])
    return _chunked(values, stored, length, name)


# --------------------------------------------------------------------------------------------------------- HDF5 in chunks
# The library inflates a chunk to whatever its stream says, and takes the result for a whole chunk whatever its size is. So
# the filters that are in use are undone here, with the size known before; what is not compressed is read by the library.

DEFLATE, SHUFFLE, FLETCHER32, LZF = 1, 2, 3, 32000  # the numbers of these filters in HDF5
FILTERS = {DEFLATE: "gzip", SHUFFLE: "shuffle", FLETCHER32: "fletcher32", LZF: "lzf"}


def _chunked(values: Any, stored: int, length: int, name: str) -> NDArray[Any]:
    """An array that is stored in chunks, of which each is as large as all are declared to be."""
    chunk_bytes = math.prod(values.chunks) * values.dtype.itemsize
    check_expansion(chunk_bytes, stored, f"a chunk of {name!r}")
    filters = _filters(values, chunk_bytes, name)
    low, high = (1, min(chunk_bytes + chunk_bytes // 100 + 64, length)) if filters else (chunk_bytes, chunk_bytes)
    if wrong := values.id.chunk_iter(lambda chunk: None if low <= chunk.size <= high else chunk):
        raise DataError(f"{name!r} has a chunk of {wrong.size} bytes, but {chunk_bytes} are declared for each.")
    if not filters or LZF in filters:
        return np.asarray(values[()])
    chunks: list[Any] = []
    values.id.chunk_iter(chunks.append)
    _check_plain_type(values, name)
    found = np.full(values.shape, values.fillvalue, values.dtype)
    for chunk in chunks:
        at = tuple(map(int, chunk.chunk_offset))
        _, content = values.id.read_direct_chunk(at)
        whole = _unfiltered(content, filters, chunk.filter_mask, chunk_bytes, values.dtype.itemsize, name)
        place = tuple(slice(start, start + side) for start, side in zip(at, values.chunks, strict=True))
        part = found[place]
        part[...] = np.frombuffer(whole, values.dtype).reshape(values.chunks)[tuple(map(slice, part.shape))]
    return found


def _filters(values: Any, chunk_bytes: int, name: str) -> list[int]:
    """The filters in the order in which they were applied: known ones, each once, and one that compresses at most."""
    properties = values.id.get_create_plist()
    found = [properties.get_filter(index) for index in range(properties.get_nfilters())]
    numbers = [number for number, *_ in found]
    if unknown := [str(number) for number in numbers if number not in FILTERS]:
        raise DataError(f"{name!r} is stored with filter {unknown[0]}, and {', '.join(FILTERS.values())} are read.")
    if len(set(numbers)) != len(numbers) or {DEFLATE, LZF} <= set(numbers):
        used = ", ".join(FILTERS[number] for number in numbers)
        raise DataError(f"{name!r} is stored with the filters {used}: compressed twice, and such data are not read.")
    if any(number == LZF and tuple(options[2:3]) != (chunk_bytes,) for number, _, options, _ in found):
        raise DataError(f"{name!r}: the options of its filter lzf do not fit chunks of {chunk_bytes} bytes.")
    return numbers


def _check_plain_type(values: Any, name: str) -> None:
    from h5py import h5t

    if h5t.py_create(values.dtype, logical=True) != values.id.get_type():
        raise DataError(f"{name!r} is compressed and of an unusual type. Save it as 16, 32 or 64-bit numbers.")


def _unfiltered(
    content: bytes, filters: Sequence[int], skipped: int, chunk_bytes: int, itemsize: int, name: str
) -> bytes | NDArray[np.uint8]:
    """Undo the filters of a chunk, the last one first; bit i of `skipped` says that filter i was not applied."""
    whole: bytes | NDArray[np.uint8] = content
    for index, number in reversed(list(enumerate(filters))):
        if skipped >> index & 1:
            continue
        if number == DEFLATE:
            whole = inflated(bytes(whole), chunk_bytes + 4 * (FLETCHER32 in filters))
        elif number == FLETCHER32:
            whole = _summed(bytes(whole), name)
        elif len(whole) == chunk_bytes:
            whole = np.ascontiguousarray(np.frombuffer(whole, np.uint8).reshape(itemsize, -1).T).reshape(-1)
    if len(whole) != chunk_bytes:
        raise DataError(f"{name!r} has a chunk of {len(whole)} bytes, but {chunk_bytes} are declared for each.")
    return whole


def _summed(content: bytes, name: str) -> bytes:
    """A chunk without its Fletcher checksum of four bytes, which is compared."""
    content, said = content[:-4], content[-4:]
    words = np.frombuffer(content + b"\0" * (len(content) % 2), ">u2").astype(np.uint64)
    weights = np.arange(len(words), 0, -1, dtype=np.uint64) % 65535
    sums = int(words.sum()) % 65535, int((words * weights).sum()) % 65535
    if (int.from_bytes(said[:2], "little") % 65535, int.from_bytes(said[2:], "little") % 65535) != sums:
        raise DataError(f"{name!r} has a chunk whose checksum differs: the file is damaged.")
    return content


# ----------------------------------------------------------------------------------------------------- HDF5: heaps of texts


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
