"""An unpickler for arrays and tensors only; anything else raises and is not run.

No object of numpy or torch is created by the pickle. Instead it creates records (`pickle_records`)
of a shape, the name of a type and bytes, which are checked before an array is made of them.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable
from typing import IO, Any, ClassVar, NamedTuple

import torch

from scmil.bags.formats.pickle_records import (
    HeldArray,
    HeldStorage,
    HeldTensor,
    HeldType,
    check_axes,
)
from scmil.errors import DataError

LEAST_READS, BYTES_PER_READ = 10**6, 16  # a pickle of arrays needs few steps for its length
STORAGES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


class _Call(NamedTuple):
    """A function that a pickle may call; no other function is ever called."""

    make: Callable[..., Any]


def _make_dict(entries: Any = ()) -> dict[Any, Any]:
    """Return an empty dictionary; one made of a list raises."""
    if len(entries):
        raise DataError("its pickle makes a dictionary of a list, which arrays do not need.")
    return {}


def _make_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> HeldTensor:
    if len(rest) > 2 and rest[2]:
        raise DataError("its pickle contains a tensor with metadata, which is not supported.")
    return HeldTensor(storage, offset, shape, strides)


# The functions in pickles of arrays and tensors; numpy 2 renamed its private modules.
CALLS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "dtype"): lambda name, *_: HeldType(name),
    ("collections", "OrderedDict"): _make_dict,
    ("__builtin__", "bytes"): lambda: b"",  # an array without values, in protocol 2
    ("torch", "Size"): lambda axes: axes,
    ("torch", "device"): lambda kind, *_: kind,
    ("torch._utils", "_rebuild_tensor"): _make_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _make_tensor,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
}
for _core in ("numpy.core", "numpy._core"):
    CALLS[f"{_core}.multiarray", "_reconstruct"] = lambda *_: HeldArray()
    CALLS[f"{_core}.multiarray", "scalar"] = lambda kind, content=None: HeldArray(kind, (), content)
    CALLS[f"{_core}.numeric", "_frombuffer"] = lambda content, kind, shape, order: HeldArray(
        kind, shape, content, order == "F"
    )
# Classes that are represented by their name, which cannot be called and has no state.
NAMES = {("numpy", "ndarray"): "ndarray"} | {("torch", name): name for name in STORAGES}
NOT_FOR_ARRAYS = (
    pickle.INST, pickle.OBJ, pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.EXT1, pickle.EXT2,
    pickle.EXT4, pickle.PERSID, pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET,
    pickle.NEXT_BUFFER, pickle.READONLY_BUFFER,
)  # fmt: skip


class ArrayUnpickler(pickle._Unpickler):
    """An unpickler of builtin containers, and of arrays and tensors as records.

    It is based on the Python implementation: the C implementation allocates gigabytes for its memo
    if a few bytes of a pickle request it.
    """

    append: Any
    read: Any
    stack: list[Any]
    pop_mark: Callable[[], list[Any]]
    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def __init__(self, file: LimitedFile) -> None:
        super().__init__(file)
        self._encodable = file.left

    def load_bytearray8(self) -> None:
        """Read bytes as available; Python's method first allocates as many as are announced."""
        [size] = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(size)))

    def load_frame(self) -> None:
        """Skip the size of a frame, which is only a hint for reading ahead."""
        self.read(8)

    def load_reduce(self) -> None:
        """Call one of the allowed functions."""
        arguments, call = self.stack.pop(), self.stack.pop()
        if not isinstance(call, _Call) or not isinstance(arguments, tuple):
            raise DataError("its pickle calls an object that is not a function. It was not run.")
        self.append(call.make(*arguments))

    def load_build(self) -> None:
        """Set the state of a record; that of a dictionary, as in a state_dict, is ignored."""
        state, record = self.stack.pop(), self.stack[-1]
        if isinstance(record, HeldArray | HeldType) and isinstance(state, tuple):
            record.set_state(state)
        elif type(record) is not dict:
            raise DataError("its pickle sets a state, which arrays do not need. It was not run.")

    def load_setitem(self) -> None:
        """Set one entry of a dictionary."""
        items = self.stack[-2:]
        del self.stack[-2:]
        self._fill(self.stack[-1], items)

    def load_setitems(self) -> None:
        """Set several entries of a dictionary."""
        items = self.pop_mark()
        self._fill(self.stack[-1], items)

    def load_dict(self) -> None:
        """Create a dictionary."""
        items = self.pop_mark()
        self.append({})
        self._fill(self.stack[-1], items)

    def load_forbidden(self) -> None:
        """Raise for an opcode that arrays do not need."""
        raise DataError("its pickle has an opcode that arrays do not need. It was not run.")

    dispatch |= {
        pickle.BYTEARRAY8[0]: load_bytearray8,
        pickle.FRAME[0]: load_frame,
        pickle.REDUCE[0]: load_reduce,
        pickle.BUILD[0]: load_build,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
        pickle.DICT[0]: load_dict,
        **dict.fromkeys((opcode[0] for opcode in NOT_FOR_ARRAYS), load_forbidden),
    }

    @staticmethod
    def _fill(place: Any, items: list[Any]) -> None:
        """Set entries whose keys are texts or small numbers.

        Python crashes when it hashes a deeply nested tuple, so tuples raise.
        """
        if type(place) is not dict or len(items) % 2:
            raise DataError("its pickle sets entries of an object that is not a dictionary.")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) is not str and not (type(key) is int and abs(key) < 2**63):
                raise DataError(
                    "its pickle has a dictionary with keys other than texts and numbers."
                )
            place[key] = value

    def find_class(self, module: str, name: str) -> Any:
        """Return the record or function for a class or function that a pickle requests."""
        if (module, name) == ("_codecs", "encode"):
            return _Call(self._encode)
        if (module, name) in CALLS:
            return _Call(CALLS[module, name])
        if (module, name) in NAMES:
            return NAMES[module, name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return name
        raise DataError(
            f"its pickle requests {module}.{name}, which arrays do not need. It was not run."
        )

    def _encode(self, text: Any, encoding: Any) -> bytes:
        """Return bytes that were pickled as a text; in total at most the size of the pickle."""
        if encoding != "latin1" or not isinstance(text, str):
            raise DataError(
                f"its pickle requests the encoding {str(encoding)[:20]!r}, but only latin1 is "
                "supported."
            )
        self._encodable -= len(text)
        if self._encodable < 0:
            raise DataError("its pickle creates more bytes than it has. Reading was stopped.")
        return text.encode("latin1")

    def persistent_load(self, pid: Any) -> HeldStorage:
        """Return the record of a torch storage."""
        if (
            not isinstance(pid, tuple)
            or len(pid) < 5
            or pid[0] != "storage"
            or any(part is not None for part in pid[5:])
        ):
            raise DataError("its pickle refers to an object that is not a torch storage.")
        _, kind, key, _, numbers = pid[:5]
        if kind not in STORAGES or not isinstance(key, str):
            raise DataError(
                f"a storage of type {str(kind)[:20]!r}, but only these are supported: "
                f"{', '.join(STORAGES)}."
            )
        [numbers] = check_axes((numbers,), "size")
        return HeldStorage(STORAGES[kind], key, numbers)


class LimitedFile:
    """A part of a file that limits the number of bytes and of reads."""

    def __init__(self, file: IO[bytes], length: int | None = None) -> None:
        at = file.tell()
        self.left = file.seek(0, io.SEEK_END) - at if length is None else length
        file.seek(at)
        self._file = file
        self._reads = LEAST_READS + self.left // BYTES_PER_READ

    def read(self, size: int) -> bytes:
        """Read this many bytes, or raise if there are fewer."""
        if not 0 <= size <= self.left:
            raise EOFError(f"{size} bytes are announced, but {self.left} are left")
        self._reads -= 1
        if self._reads < 0:
            raise DataError(
                "its pickle has far more opcodes than arrays need. Reading was stopped."
            )
        self.left -= size
        return self._file.read(size)

    def readline(self) -> bytes:
        """Read a line."""
        line = self._file.readline(self.left)
        self.left -= len(line)
        return line


def load_arrays(file: IO[bytes]) -> Any:
    """Unpickle containers, with a `HeldArray` in place of each array.

    >>> import numpy as np
    >>> load_arrays(io.BytesIO(pickle.dumps({"a": [1.5]})))
    {'a': [1.5]}
    >>> load_arrays(io.BytesIO(pickle.dumps(np.arange(3)))).array()
    array([0, 1, 2])
    >>> load_arrays(io.BytesIO(pickle.dumps(len)))
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: its pickle requests builtins.len, which arrays do not need. It was
    not run.
    """
    return unpickle(LimitedFile(file))


def unpickle(part: LimitedFile) -> Any:
    """Unpickle one object, with records in place of arrays; damage is a `DataError`."""
    try:
        return ArrayUnpickler(part).load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle raises whatever its bytes happen to mean
        raise DataError(
            f"not a pickle of arrays ({type(error).__name__}: {str(error)[:200]})."
        ) from None
