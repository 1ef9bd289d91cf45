"""Pickles without their power: arrays of numpy in lists and dictionaries come out, anything else is refused unrun."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from pathlib import Path
from typing import IO, Any, ClassVar

from scmil.errors import DataError
from scmil.guards import check_archive

# What numpy's arrays and numbers are pickled with; its private modules were renamed in version 2.
ADMITTED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
    ("collections", "OrderedDict"),
    *(
        (f"numpy.{core}.{module}", name)
        for core in ("core", "_core")
        for module, name in (("multiarray", "_reconstruct"), ("multiarray", "scalar"), ("numeric", "_frombuffer"))
    ),
}


class ArrayUnpickler(pickle._Unpickler):
    """An unpickler that knows numpy's arrays and builtin containers, and no other name.

    It is the one in Python: that in C takes gigabytes for its notes if a few bytes of a pickle say so.
    """

    append: Any
    read: Any
    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def load_bytearray8(self) -> None:
        """Read bytes as they come; Python's own way takes the memory for as many as are announced first."""
        [size] = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(size)))

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8

    def find_class(self, module: str, name: str) -> Any:
        """Look up what a pickle asks for, if it is admitted."""
        if (module, name) not in ADMITTED:
            raise DataError(f"its pickle asks for {module}.{name}, which arrays do not need. It was not run.")
        if module.startswith("numpy.core"):
            import numpy

            module = module.replace("numpy.core", "numpy._core" if hasattr(numpy, "_core") else "numpy.core")
        return super().find_class(module, name)


class _Limited:
    """A file of which nobody can ask for more than it has."""

    def __init__(self, file: IO[bytes]) -> None:
        at = file.tell()
        self._left = file.seek(0, io.SEEK_END) - at
        file.seek(at)
        self._file = file

    def read(self, size: int) -> bytes:
        """So many bytes, if there are as many."""
        if not 0 <= size <= self._left:
            raise EOFError(f"{size} bytes are announced, and {self._left} are left")
        self._left -= size
        return self._file.read(size)

    def readline(self) -> bytes:
        """A line."""
        line = self._file.readline()
        self._left -= len(line)
        return line


def load_arrays(file: IO[bytes]) -> Any:
    """Unpickle arrays in containers.

    >>> load_arrays(io.BytesIO(pickle.dumps({"a": [1.5]})))
    {'a': [1.5]}
    >>> load_arrays(io.BytesIO(pickle.dumps(len)))
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: its pickle asks for builtins.len, which arrays do not need. It was not run.
    """
    try:
        return ArrayUnpickler(_Limited(file)).load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle raises whatever its bytes happen to mean
        raise DataError(f"no pickle of arrays: {type(error).__name__}, {error}.") from None


def array_in_pt(path: Path) -> Any:
    """The array of numpy that `torch.save` has put into a file: pickled in the archive, without storages of torch."""
    remedy = "Save the features as one tensor: torch.save(torch.as_tensor(features), path)."
    if not zipfile.is_zipfile(path):
        raise DataError(f"no tensor that torch loads without running code. {remedy}")
    with zipfile.ZipFile(path) as archive:
        check_archive(archive)
        names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        content = archive.read(names[0]) if names else b""
    try:
        return load_arrays(io.BytesIO(content))
    except DataError as error:
        raise DataError(f"{error} {remedy}") from None
