"""Pickles without their power: arrays of numpy in lists and dictionaries come out, anything else is refused unrun."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import IO, Any

from scmil.errors import DataError

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


class ArrayUnpickler(pickle.Unpickler):
    """An unpickler that knows numpy's arrays and builtin containers, and no other name."""

    def find_class(self, module: str, name: str) -> Any:
        """Look up what a pickle asks for, if it is admitted."""
        if (module, name) not in ADMITTED:
            raise DataError(f"its pickle asks for {module}.{name}, which arrays do not need. It was not run.")
        if module.startswith("numpy.core"):
            import numpy

            module = module.replace("numpy.core", "numpy._core" if hasattr(numpy, "_core") else "numpy.core")
        return super().find_class(module, name)


def load_arrays(file: IO[bytes]) -> Any:
    """Unpickle arrays in containers.

    >>> load_arrays(io.BytesIO(pickle.dumps({"a": [1.5]})))
    {'a': [1.5]}
    >>> load_arrays(io.BytesIO(pickle.dumps(print)))
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: its pickle asks for builtins.print, which arrays do not need. It was not run.
    """
    try:
        return ArrayUnpickler(file).load()
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
        names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        content = archive.read(names[0]) if names else b""
    try:
        return load_arrays(io.BytesIO(content))
    except DataError as error:
        raise DataError(f"{error} {remedy}") from None
