"""Tensors in files of torch.save, read without running the code of their pickles."""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from scmil.bags.formats.pickle_records import HeldArray, HeldStorage, HeldTensor
from scmil.bags.formats.pickles import LimitedFile, unpickle
from scmil.core.limits import DEEPEST
from scmil.core.safe_io import check_archive, check_expansion
from scmil.errors import DataError

REMEDY = "Save the features as one tensor: torch.save(torch.as_tensor(features), path)."
MAGIC = 0x1950A86A20F9469CFC6C  # of a .pt file before torch 1.6


def features_in_pt(file: IO[bytes]) -> Tensor | NDArray[Any]:
    """Return the tensor or array of a file of `torch.save`, or its dictionary entry `features`."""
    length = os.fstat(file.fileno()).st_size
    try:
        value, read = _read_file(file, length)
    except DataError as error:
        raise DataError(f"{error} {REMEDY}") from None
    if isinstance(value, Mapping):
        value = value.get("features", value)
    if isinstance(value, HeldArray):
        return value.array()
    if isinstance(value, HeldTensor):
        return value.tensor(read, length)
    has = f"a {type(value).__name__}" + (
        f" with {', '.join(str(key) for key in list(value)[:8])}" if isinstance(value, dict) else ""
    )
    raise DataError(
        f"{has}, but one tensor (n, p) is needed. Save only it: torch.save(features, path)."
    )


def tensors_in_pt(file: IO[bytes]) -> Any:
    """Return the object of a file of `torch.save`, such as a state dict: dictionaries, lists,
    numbers and texts, with tensors in place of their records.
    """
    length = os.fstat(file.fileno()).st_size
    value, read = _read_file(file, length)
    claimed = sum(held.numbers() * held.storage.dtype.itemsize for held in _held_tensors(value))
    check_expansion(claimed, length, "the tensors")
    storages: dict[HeldStorage, NDArray[np.uint8]] = {}

    def read_once(storage: HeldStorage) -> NDArray[np.uint8]:
        if storage not in storages:
            storages[storage] = read(storage)
        return storages[storage]

    def fill(part: Any, depth: int = 0) -> Any:
        if isinstance(part, HeldTensor):
            return part.tensor(read_once, length)
        if isinstance(part, HeldArray):
            return part.array()
        if not isinstance(part, (dict, list, tuple)):
            return part
        if depth == DEEPEST:
            raise DataError(f"its pickle is nested more than {DEEPEST} times. It was not read.")
        if id(part) not in filled:  # a pickle can contain one object many times
            filled[id(part)] = (
                {key: fill(entry, depth + 1) for key, entry in part.items()}
                if isinstance(part, dict)
                else [fill(entry, depth + 1) for entry in part]
            )
        return filled[id(part)]

    filled: dict[int, Any] = {}
    return fill(value)


Reader = Callable[[HeldStorage], NDArray[np.uint8]]


def _read_file(file: IO[bytes], length: int) -> tuple[Any, Reader]:
    """Read the object of a file of either format, and a function that reads storages."""
    zipped = zipfile.is_zipfile(file)
    file.seek(0)
    return _read_archive(file, length) if zipped else _read_legacy(file)


def _held_tensors(value: Any) -> Iterator[HeldTensor]:
    """All records of tensors in an object."""
    waiting, seen = [value], set[int]()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:  # a pickle can contain one object many times, or in itself
            continue
        seen.add(id(part))
        if isinstance(part, HeldTensor):
            part.check_storage()
            yield part
        elif isinstance(part, dict):
            waiting += part.values()
        elif isinstance(part, (list, tuple)):
            waiting += part


def _read_archive(file: IO[bytes], length: int) -> tuple[Any, Reader]:
    """Read a zip archive of torch; return its object, and a function that reads storages."""
    with zipfile.ZipFile(file) as archive:
        check_archive(archive)
        members = {member.filename: member for member in archive.infolist()}
    found = [name for name in members if name.endswith("/data.pkl")]
    if len(found) != 1:
        raise DataError(f"{len(found)} members data.pkl, but archives of torch.save have one.")
    root = found[0].removesuffix("data.pkl")

    def goto(name: str) -> int:
        """Seek to the bytes of a member and return their number."""
        if name not in members:
            raise DataError(f"the archive has no member {name!r}.")
        member = members[name]
        if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
            raise DataError(f"the member {name!r} is compressed, which torch.save never does.")
        file.seek(member.header_offset)
        header = file.read(30)
        if len(header) < 30 or header[:4] != b"PK\3\4":
            raise DataError(f"the header of the member {name!r} is damaged.")
        start = member.header_offset + 30 + sum(struct.unpack_from("<HH", header, 26))
        if start + member.file_size > length:
            raise DataError(f"the member {name!r} is truncated.")
        file.seek(start)
        return member.file_size

    def read(storage: HeldStorage) -> NDArray[np.uint8]:
        needed, there = storage.numbers * storage.dtype.itemsize, goto(f"{root}data/{storage.key}")
        if needed != there:
            raise DataError(
                f"a storage of {storage.numbers} numbers needs {needed} bytes, but has {there}."
            )
        return _read_bytes(file, needed)

    if f"{root}byteorder" in members and file.read(min(goto(f"{root}byteorder"), 8)) != b"little":
        raise DataError("its numbers are not little-endian, which is not supported.")
    return unpickle(LimitedFile(file, goto(found[0]))), read


def _read_legacy(file: IO[bytes]) -> tuple[Any, Reader]:
    """Read a file of torch before 1.6: several pickles, followed by the storages."""
    part = LimitedFile(file)
    if unpickle(part) != MAGIC:
        raise DataError("not a file of torch.save.")
    unpickle(part)
    about, value, keys = unpickle(part), unpickle(part), unpickle(part)
    if (
        not isinstance(about, dict)
        or about.get("little_endian") is not True
        or not isinstance(keys, list)
    ):
        raise DataError("its numbers are not little-endian, which is not supported.")
    starts: dict[Any, int] = {}
    at, end = file.tell(), file.tell() + part.left
    storages = {held.storage.key: held.storage for held in _held_tensors(value)}
    for key in keys:  # each storage follows its number of elements, in this order
        if key not in storages:
            raise DataError(f"a storage {str(key)[:20]!r} that belongs to no tensor.")
        starts[key] = at
        at += 8 + storages[key].numbers * storages[key].dtype.itemsize

    def read(wanted: HeldStorage) -> NDArray[np.uint8]:
        if wanted.key not in starts:
            raise DataError(f"the file has no storage {wanted.key[:20]!r}.")
        needed, left = wanted.numbers * wanted.dtype.itemsize, end - starts[wanted.key] - 8
        file.seek(starts[wanted.key])
        if left < needed or file.read(8) != struct.pack("<q", wanted.numbers):
            raise DataError(
                f"a storage of {wanted.numbers} numbers needs {needed} bytes, but has {left}."
            )
        return _read_bytes(file, needed)

    return value, read


def _read_bytes(file: IO[bytes], size: int) -> NDArray[np.uint8]:
    """Read exactly this many bytes."""
    content = np.empty(size, np.uint8)
    if file.readinto(content) != size:  # type: ignore[attr-defined]
        raise DataError("the file is truncated.")
    return content
