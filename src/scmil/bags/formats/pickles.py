"""Pickles without their power: arrays and tensors come out of them as inert records, anything else is refused unrun.

No object of numpy or torch is made by a pickle. Where it asks for one, it gets a record of what it said: a shape, the name
of a type, some bytes. These are compared with each other before an array is made of them.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import re
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scmil.errors import DataError
from scmil.core.safe_io import check_archive, check_expansion

REMEDY = "Save the features as one tensor: torch.save(torch.as_tensor(features), path)."
PLAIN = re.compile(r"[<>=|]?(f[248]|[iu][1248]|b1)")  # the types of arrays that are made
SHORTEST_READS, BYTES_A_READ = 10**6, 16  # a pickle of arrays needs few steps for its length
MOST_AXES, LARGEST_AXIS = 32, 2**48
MAGIC = 0x1950A86A20F9469CFC6C  # of a .pt file before torch 1.6
STORAGES = {
    "FloatStorage": torch.float32, "DoubleStorage": torch.float64, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
}  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------- records


@dataclass
class HeldType:
    """What a pickle says of a type of numpy."""

    name: Any
    order: Any = "="

    def set_state(self, state: Any) -> None:
        """Take the byte order; types with fields and such are refused when an array is made of them."""
        self.order = state[1]
        if tuple(state[2:5]) != (None, None, None):
            self.name = "with fields"

    def dtype(self) -> np.dtype[Any]:
        """The type, if it is one of plain numbers."""
        name = f"{self.order}{self.name}" if isinstance(self.name, str) and isinstance(self.order, str) else ""
        if not PLAIN.fullmatch(name):
            raise DataError(f"values of type {str(self.name)[:20]!r}, but plain numbers are needed.")
        return np.dtype(name)


@dataclass
class HeldArray:
    """What a pickle says of an array of numpy."""

    kind: Any = None
    shape: Any = None
    content: Any = None
    fortran: bool = False

    def set_state(self, state: Any) -> None:
        """Take shape, type, order and bytes."""
        _, self.shape, self.kind, fortran, self.content = state
        self.fortran = bool(fortran)

    def array(self) -> NDArray[Any]:
        """The array, if shape, type and bytes fit together; it shares the bytes."""
        if not isinstance(self.kind, HeldType) or not isinstance(self.content, bytes | bytearray):
            raise DataError("an array without a type or without values.")
        dtype, shape = self.kind.dtype(), _axes(self.shape, "shape")
        if (needed := math.prod(shape) * dtype.itemsize) != len(self.content):
            raise DataError(f"an array of shape {shape} has {needed} bytes, but {len(self.content)} are there.")
        return np.frombuffer(self.content, dtype).reshape(shape, order="F" if self.fortran else "C")


class HeldStorage(NamedTuple):
    """What a pickle says of a storage of torch: its type, its name in the file, how many numbers it has."""

    dtype: torch.dtype
    key: str
    numbers: int


@dataclass(frozen=True)
class HeldTensor:
    """What a pickle says of a tensor."""

    storage: Any
    offset: Any
    shape: Any
    strides: Any

    def tensor(self, read: Callable[[HeldStorage], NDArray[np.uint8]], length: int) -> Tensor:
        """The tensor, if it lies within its storage, which `read` gets from a file of `length` bytes."""
        if not isinstance(self.storage, HeldStorage):
            raise DataError("a tensor without a storage.")
        shape, strides = _axes(self.shape, "shape"), _axes(self.strides, "strides")
        [offset] = _axes((self.offset,), "offset")
        last = offset + sum((side - 1) * stride for side, stride in zip(shape, strides, strict=True))
        if math.prod(shape) and last >= self.storage.numbers:
            raise DataError(
                f"a tensor of shape {shape} with strides {strides} at {offset}, but its storage has "
                f"{self.storage.numbers} numbers."
            )
        check_expansion(math.prod(shape) * self.storage.dtype.itemsize, length, "the tensor")
        if not math.prod(shape):
            return torch.empty(shape, dtype=self.storage.dtype)
        return torch.from_numpy(read(self.storage)).view(self.storage.dtype).as_strided(shape, strides, offset)


def _axes(values: Any, what: str) -> tuple[int, ...]:
    """Some whole numbers from 0 on, or the reason why they are not."""
    if (
        not isinstance(values, tuple)
        or len(values) > MOST_AXES
        or not all(type(value) is int and 0 <= value <= LARGEST_AXIS for value in values)
    ):
        raise DataError(f"the {what} of an array is not some whole numbers from 0 to {LARGEST_AXIS}.")
    return values


# -------------------------------------------------------------------------------------------------------------- unpickler


class _Call(NamedTuple):
    """What a pickle may call; nothing else is ever called."""

    make: Callable[..., Any]


def _no_entries(entries: Any = ()) -> dict[Any, Any]:
    if len(entries):
        raise DataError("a dictionary that is made of a list.")
    return {}


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> HeldTensor:
    if len(rest) > 2 and rest[2]:
        raise DataError("a tensor with metadata.")
    return HeldTensor(storage, offset, shape, strides)


# What arrays and tensors are pickled with; the private modules of numpy were renamed in version 2.
CALLS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): lambda name, *_: HeldType(name),
    ("collections", "OrderedDict"): _no_entries,
    ("__builtin__", "bytes"): lambda: b"",  # of an array without values, in protocol 2
    ("torch", "Size"): lambda axes: axes,
    ("torch", "device"): lambda kind, *_: kind,
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
}
for _core in ("numpy.core", "numpy._core"):
    CALLS[f"{_core}.multiarray", "_reconstruct"] = lambda *_: HeldArray()
    CALLS[f"{_core}.multiarray", "scalar"] = lambda kind, content=None: HeldArray(kind, (), content)
    CALLS[f"{_core}.numeric", "_frombuffer"] = lambda content, kind, shape, order: HeldArray(
        kind, shape, content, order == "F"
    )
# What stands for itself: a name, which cannot be called and has no state.
NAMES = {("numpy", "ndarray"): "ndarray"} | {("torch", name): name for name in STORAGES}
NOT_FOR_ARRAYS = (
    pickle.INST, pickle.OBJ, pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.PERSID,
    pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER,
)  # fmt: skip


class ArrayUnpickler(pickle._Unpickler):
    """An unpickler that knows arrays, tensors and builtin containers, and makes records of the former.

    It is the one in Python: that in C takes gigabytes for its notes if a few bytes of a pickle say so.
    """

    append: Any
    read: Any
    stack: list[Any]
    pop_mark: Callable[[], list[Any]]
    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def __init__(self, file: _Limited) -> None:
        super().__init__(file)
        self._encodable = file.left

    def load_bytearray8(self) -> None:
        """Read bytes as they come; Python's own way takes the memory for as many as are announced first."""
        [size] = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(size)))

    def load_frame(self) -> None:
        """Pass over the size of a frame: it only says how far to read ahead."""
        self.read(8)

    def load_reduce(self) -> None:
        """Call one of the functions that are admitted."""
        arguments, call = self.stack.pop(), self.stack.pop()
        if not isinstance(call, _Call) or not isinstance(arguments, tuple):
            raise DataError("its pickle calls what is not a function. It was not run.")
        self.append(call.make(*arguments))

    def load_build(self) -> None:
        """Hand a record its state. That of a dictionary, such as the versions in a state_dict, is passed over."""
        state, record = self.stack.pop(), self.stack[-1]
        if isinstance(record, HeldArray | HeldType) and isinstance(state, tuple):
            record.set_state(state)
        elif type(record) is not dict:
            raise DataError("its pickle sets a state, which arrays do not need. It was not run.")

    def load_setitem(self) -> None:
        """Fill one place of a dictionary."""
        items = self.stack[-2:]
        del self.stack[-2:]
        self._fill(self.stack[-1], items)

    def load_setitems(self) -> None:
        """Fill places of a dictionary."""
        items = self.pop_mark()
        self._fill(self.stack[-1], items)

    def load_dict(self) -> None:
        """Make a dictionary."""
        items = self.pop_mark()
        self.append({})
        self._fill(self.stack[-1], items)

    def load_forbidden(self) -> None:
        """Nothing that arrays need."""
        raise DataError("its pickle has a step that arrays do not need. It was not run.")

    dispatch |= {
        pickle.BYTEARRAY8[0]: load_bytearray8, pickle.FRAME[0]: load_frame, pickle.REDUCE[0]: load_reduce,
        pickle.BUILD[0]: load_build, pickle.SETITEM[0]: load_setitem, pickle.SETITEMS[0]: load_setitems,
        pickle.DICT[0]: load_dict, **dict.fromkeys((opcode[0] for opcode in NOT_FOR_ARRAYS), load_forbidden),
    }  # fmt: skip

    @staticmethod
    def _fill(place: Any, items: list[Any]) -> None:
        """Texts and small numbers only: Python crashes over the hash of a tuple that is nested deeply."""
        if type(place) is not dict or len(items) % 2:
            raise DataError("its pickle fills what is not a dictionary.")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) is not str and not (type(key) is int and abs(key) < 2**63):
                raise DataError("its pickle has a dictionary with other keys than texts and numbers.")
            place[key] = value

    def find_class(self, module: str, name: str) -> Any:
        """The record or function that stands for what a pickle asks for, if it is admitted."""
        if (module, name) == ("_codecs", "encode"):
            return _Call(self._encode)
        if (module, name) in CALLS:
            return _Call(CALLS[module, name])
        if (module, name) in NAMES:
            return NAMES[module, name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return name
        raise DataError(f"its pickle asks for {module}.{name}, which arrays do not need. It was not run.")

    def _encode(self, text: Any, encoding: Any) -> bytes:
        """Bytes that were pickled as a text; together they are never more than the pickle has."""
        if encoding != "latin1" or not isinstance(text, str):
            raise DataError(
                f"its pickle asks for the encoding {str(encoding)[:20]!r}, and bytes are written in latin1."
            )
        self._encodable -= len(text)
        if self._encodable < 0:
            raise DataError("its pickle makes more bytes than it has. It was not read further.")
        return text.encode("latin1")

    def persistent_load(self, pid: Any) -> HeldStorage:
        """The record of a storage of torch."""
        if (
            not isinstance(pid, tuple)
            or len(pid) < 5
            or pid[0] != "storage"
            or any(part is not None for part in pid[5:])
        ):
            raise DataError("its pickle names something else than a storage of torch.")
        _, kind, key, _, numbers = pid[:5]
        if kind not in STORAGES or not isinstance(key, str):
            raise DataError(f"a storage of type {str(kind)[:20]!r}, and these are read: {', '.join(STORAGES)}.")
        [numbers] = _axes((numbers,), "size")
        return HeldStorage(STORAGES[kind], key, numbers)


class _Limited:
    """A part of a file of which nobody can ask for more than it has, nor for countless steps."""

    def __init__(self, file: IO[bytes], length: int | None = None) -> None:
        at = file.tell()
        self.left = file.seek(0, io.SEEK_END) - at if length is None else length
        file.seek(at)
        self._file = file
        self._reads = SHORTEST_READS + self.left // BYTES_A_READ

    def read(self, size: int) -> bytes:
        """So many bytes, if there are as many."""
        if not 0 <= size <= self.left:
            raise EOFError(f"{size} bytes are announced, and {self.left} are left")
        self._reads -= 1
        if self._reads < 0:
            raise DataError("its pickle has far more steps than arrays need. It was not read further.")
        self.left -= size
        return self._file.read(size)

    def readline(self) -> bytes:
        """A line."""
        line = self._file.readline(self.left)
        self.left -= len(line)
        return line


def load_arrays(file: IO[bytes]) -> Any:
    """Unpickle containers, with a `HeldArray` where an array is.

    >>> load_arrays(io.BytesIO(pickle.dumps({"a": [1.5]})))
    {'a': [1.5]}
    >>> load_arrays(io.BytesIO(pickle.dumps(np.arange(3)))).array()
    array([0, 1, 2])
    >>> load_arrays(io.BytesIO(pickle.dumps(len)))
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: its pickle asks for builtins.len, which arrays do not need. It was not run.
    """
    return _load(_Limited(file))


def _load(part: _Limited) -> Any:
    try:
        return ArrayUnpickler(part).load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle raises whatever its bytes happen to mean
        raise DataError(f"no pickle of arrays: {type(error).__name__}, {str(error)[:200]}.") from None


# --------------------------------------------------------------------------------------------------------------- .pt files


def features_in_pt(file: IO[bytes]) -> Tensor | NDArray[Any]:
    """The tensor or the array in a file of `torch.save`, or what a dictionary there has under `features`."""
    length = os.fstat(file.fileno()).st_size
    zipped = zipfile.is_zipfile(file)
    file.seek(0)
    try:
        value, read = _zipped(file, length) if zipped else _legacy(file)
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
    raise DataError(f"{has}, but one tensor (n, p) is needed. Save it alone: torch.save(features, path).")


Reader = Callable[[HeldStorage], NDArray[np.uint8]]


def _zipped(file: IO[bytes], length: int) -> tuple[Any, Reader]:
    """What is in an archive of torch, and how its storages are read."""
    with zipfile.ZipFile(file) as archive:
        check_archive(archive)
        members = {member.filename: member for member in archive.infolist()}
    found = [name for name in members if name.endswith("/data.pkl")]
    if len(found) != 1:
        raise DataError(f"{len(found)} members data.pkl, but an archive of torch.save has one.")
    root = found[0].removesuffix("data.pkl")

    def goto(name: str) -> int:
        """Go to where the bytes of a member are; how many they are."""
        if name not in members:
            raise DataError(f"there is no member {name!r} in it.")
        member = members[name]
        if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
            raise DataError(f"the member {name!r} is compressed, which torch.save does not do.")
        file.seek(member.header_offset)
        header = file.read(30)
        if len(header) < 30 or header[:4] != b"PK\3\4":
            raise DataError(f"the member {name!r} is not where it should be.")
        start = member.header_offset + 30 + sum(struct.unpack_from("<HH", header, 26))
        if start + member.file_size > length:
            raise DataError(f"the member {name!r} is cut short.")
        file.seek(start)
        return member.file_size

    def read(storage: HeldStorage) -> NDArray[np.uint8]:
        needed, there = storage.numbers * storage.dtype.itemsize, goto(f"{root}data/{storage.key}")
        if needed != there:
            raise DataError(f"a storage of {storage.numbers} numbers has {needed} bytes, but {there} are there.")
        return _bytes(file, needed)

    if f"{root}byteorder" in members and file.read(min(goto(f"{root}byteorder"), 8)) != b"little":
        raise DataError("its numbers are not in the byte order little, and such files are not read.")
    return _load(_Limited(file, goto(found[0]))), read


def _legacy(file: IO[bytes]) -> tuple[Any, Reader]:
    """What is in a file of torch before 1.6: pickles one after the other, and then the storages in a row."""
    part = _Limited(file)
    if _load(part) != MAGIC:
        raise DataError("not a file of torch.save.")
    _load(part)
    about, value, keys = _load(part), _load(part), _load(part)
    if not isinstance(about, dict) or about.get("little_endian") is not True or not isinstance(keys, list):
        raise DataError("its numbers are not in the byte order little, and such files are not read.")
    first = file.tell()

    def read(wanted: HeldStorage) -> NDArray[np.uint8]:
        if keys != [wanted.key]:
            raise DataError(f"{len(keys)} storages in a file of torch before 1.6, but one tensor alone is needed.")
        file.seek(first)
        needed, left = wanted.numbers * wanted.dtype.itemsize, part.left - 8
        if left < needed or file.read(8) != struct.pack("<q", wanted.numbers):
            raise DataError(f"a storage of {wanted.numbers} numbers has {needed} bytes, but {left} are there.")
        return _bytes(file, needed)

    return value, read


def _bytes(file: IO[bytes], size: int) -> NDArray[np.uint8]:
    content = np.empty(size, np.uint8)
    if file.readinto(content) != size:  # type: ignore[attr-defined]
        raise DataError("the file is cut short.")
    return content
