"""Checks of files from other people before a library reads them.

Most damage is rejected by the libraries themselves. The checks here cover cases in which they would
exhaust the memory because of a header, open another file because of a link, or never return. The
constants of this module are the limits.
"""

from __future__ import annotations

import csv
import io
import math
import os
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

from scmil.core.regular_files import check_regular, open_regular
from scmil.errors import DataError, ScmilError

# Exceptions of the readers of numpy, torch and h5py for damaged files.
DAMAGE = (
    OSError,
    ValueError,
    LookupError,
    RuntimeError,
    EOFError,
    TypeError,
    AttributeError,
    MemoryError,
    ArithmeticError,
    SyntaxError,
    TokenError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    csv.Error,
)
LARGE_BYTES = 256 * 2**20  # smaller sizes are not checked
# Size in memory relative to the file; features compress to a half at best, tables to a tenth.
MOST_TIMES = 100
# Of a sparse table in memory; TREC9, 3 224 instances of 66 552 features, has 0.9 GB.
DENSE_BYTES = 2**30
# Largest coordinate of a tile; the largest scans are 2**19 pixels wide.
FARTHEST_PX = 2**40
LARGEST_SIDE_PX = 2**31  # of a slide
LARGEST_TILE_PX = 2**16
EMPTY_ROWS = 2**20  # instances without features, which need no byte in a file
# Microns per pixel; scanners have 0.1 to 2, a thumbnail some hundred.
FINEST_MPP, COARSEST_MPP = 1e-3, 1e4
CELLS = 2**25  # of a spreadsheet, with empty cells
NESTING = 32  # levels of arrays in a MATLAB file
PIECE = 2**20  # bytes that are decompressed at a time


def check_expansion(claimed: int, stored: int, what: str) -> None:
    """Raise if data would be a hundred times larger in memory than in the file, unless small.

    >>> check_expansion(10**9, 5 * 10**8, "features")
    >>> check_expansion(10**12, 10**4, "it")
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: it: 10000 bytes in the file would be 1000000000000 bytes in memory. ...
    """
    if claimed > LARGE_BYTES and claimed > MOST_TIMES * stored:
        raise DataError(
            f"{what}: {stored} bytes in the file would be {claimed} bytes in memory. The file is "
            "damaged or a decompression bomb, and was not read."
        )


def inflated(content: bytes | memoryview, most: int) -> bytes:
    """Decompress a zlib stream in pieces; raise DataError if it has more than `most` bytes.

    >>> inflated(zlib.compress(b"abc"), 3)
    b'abc'
    """
    decoder, pieces, size = zlib.decompressobj(), list[bytes](), 0
    while not decoder.eof:
        try:
            piece = decoder.decompress(content, min(PIECE, most - size + 1))
        except zlib.error as error:
            raise DataError(f"compressed data are damaged ({error}).") from None
        content, size = decoder.unconsumed_tail, size + len(piece)
        pieces.append(piece)
        if size > most:
            raise DataError(
                f"compressed data expand to more than {most} bytes, and were not read further."
            )
        if not piece and not decoder.eof:
            raise DataError("compressed data end too early.")
    return b"".join(pieces)


# ------------------------------------------------------------------------------------------ numbers


def check_xy(xy: NDArray[Any]) -> NDArray[np.int64]:
    """Return coordinates (n, 2) as whole level-0 pixels; raise DataError if they are not.

    >>> check_xy(np.array([[256.0, 0.0]]))
    array([[256,   0]])
    """
    if xy.ndim != 2 or xy.shape[1] != 2:
        raise DataError(f"coordinates of shape {xy.shape}; expected (n, 2), x and y of each tile.")
    if xy.dtype.kind not in "iu" and not (
        xy.dtype.kind == "f" and (np.isfinite(xy) & (np.floor(xy) == xy)).all()
    ):
        raise DataError("coordinates with fractions or NaN; expected whole pixels of level 0.")
    if xy.size and not ((low := xy.min()) >= -FARTHEST_PX and (high := xy.max()) <= FARTHEST_PX):
        actual = low if low < -FARTHEST_PX else high
        raise DataError(
            f"a coordinate of {actual}; expected pixels of level 0 between {-FARTHEST_PX} and "
            f"{FARTHEST_PX}."
        )
    return xy.astype(np.int64)


def check_provenance(provenance: Mapping[str, Any]) -> None:
    """Raise DataError if the provenance of a bag has values of a wrong type or beyond bounds.

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
        if (value := provenance.get(name)) is not None:
            check_number(name, value, low, high)
    if (size := provenance.get("slide_size")) is not None:
        if not isinstance(size, Sequence) or len(size) != 2:
            raise DataError(
                f"slide_size is {str(size)[:40]!r}, but width and height in pixels are needed."
            )
        for value in size:
            check_number("slide_size", value, 1, LARGEST_SIDE_PX)
    scales = provenance.get("scales_mpp")
    if scales is not None and (not isinstance(scales, Sequence) or isinstance(scales, str)):
        raise DataError(f"scales_mpp is {str(scales)[:40]!r}, but a list of numbers is needed.")
    for value in scales or ():
        check_number("scales_mpp", value, FINEST_MPP, COARSEST_MPP)
    for name in ("encoder", "encoder_digest"):
        if not isinstance(value := provenance.get(name), str | None):
            raise DataError(f"{name} is {str(value)[:40]!r}, but a text is needed.")


def check_number(name: str, value: Any, low: float, high: float) -> float:
    """Return a number within bounds as float; raise DataError if it is not."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float | np.number)
        or not low <= value <= high
    ):
        shown = repr(value) if isinstance(value, float | str) else str(value)
        raise DataError(f"{name} is {shown[:40]}, but a number from {low:g} to {high:g} is needed.")
    return float(value)


# -------------------------------------------------------------------------------------------- NumPy


def npy_array(file: IO[bytes], size: int) -> NDArray[Any]:
    """Read the array of an .npy file of `size` bytes.

    Raises:
        DataError: If the header claims more bytes than the file has, or Python objects.

    >>> content = io.BytesIO()
    >>> np.save(content, np.arange(3))
    >>> npy_array(io.BytesIO(content.getvalue()), len(content.getvalue()))
    array([0, 1, 2])
    """
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise DataError(
            f"version {version[0]}.{version[1]} of .npy; expected 1.0 or 2.0. Save the array again."
        )
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read(file)
    claimed, rest = math.prod(shape) * max(dtype.itemsize, 1), size - file.tell()
    if dtype.hasobject:
        raise DataError("it contains Python objects; only arrays of numbers are read.")
    if min(shape, default=0) < 0 or claimed > rest:
        raise DataError(
            f"an array of shape {shape} has {claimed} bytes, but the file has only {rest}."
        )
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def npz_arrays(source: Path | bytes) -> dict[str, NDArray[Any]]:
    """Read all arrays of an .npz file, given as path or content.

    Raises:
        DataError: If the arrays are far larger than the file, or contain Python objects.
    """
    with (
        open_regular(source) if isinstance(source, Path) else io.BytesIO(source) as opened,
        zipfile.ZipFile(opened) as archive,
    ):
        check_archive(archive)
        arrays = {}
        for member in archive.infolist():
            with archive.open(member) as file:
                # At most the declared size, which is checked above.
                content = io.BytesIO(file.read(member.file_size + 1))
            arrays[member.filename.removesuffix(".npy")] = npy_array(
                content, len(content.getbuffer())
            )
        return arrays


def check_archive(archive: zipfile.ZipFile) -> None:
    """Raise DataError if the members of a zip archive are far larger than the archive."""
    members = archive.infolist()
    length = archive.fp.seek(0, os.SEEK_END) if archive.fp else 0
    check_expansion(sum(member.file_size for member in members), length, "the archive")


@contextmanager
def naming(
    path: str | Path, kind: str, remedy: str = "Create or copy this file again."
) -> Iterator[None]:
    """Raise every error of the block as a `DataError` that names the file.

    Pipes and devices raise before they are opened. `kind` describes a valid file.
    """
    try:
        check_regular(path)
        yield
    except ScmilError as error:
        raise error if str(path) in str(error) else DataError(f"{path}: {error}") from None
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file.") from None
    except OSError as error:
        raise DataError(
            f"{path} cannot be read as {kind}: {error.strerror or error}. {remedy}"
        ) from None
    except DAMAGE as error:
        cause = str(error).strip().partition("\n")[0] or type(error).__name__
        raise DataError(f"{path} cannot be read as {kind}: {cause}. {remedy}") from None
