"""One HDF5 file per bag: features, coordinates and provenance.

The two data sets have the names that CLAM and TRIDENT use, so that their readers can read the files
too:

- `features` (n, p): float16 or float32, contiguous;
- `coords` (n, 2): int64, level-0 pixels of the top-left corners; absent if unknown;
- root attributes: scmil_format, id, provenance (JSON), and digest, the SHA-256 of all the others,
  in the first bytes of the file.

The first time that a process reads a bag, it compares the content with the digest. Features that
another program has edited are therefore rejected, and `stored_digest` identifies the input of a
result without opening the file as HDF5.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scmil.bags.bag import Bag
from scmil.core.atomic import write_atomically
from scmil.core.fingerprint import Mark, mark_files, stat_of
from scmil.core.regular_files import open_regular
from scmil.core.safe_hdf5 import h5_array, opened_h5
from scmil.core.safe_io import EMPTY_ROWS, check_provenance, check_xy, naming
from scmil.errors import DataError, OptionError

FORMAT = "scmil-bag-1"
BLOCK_ROWS = 4096
LARGEST_NUMBERS = 2**28  # 1 GiB of float32, ten times a slide of 60 000 x 60 000 pixels
DIGEST = re.compile(rb"scmil-sha256:([0-9a-f]{64})")
ARRAYS = ("features", "coords", "instance_labels")
HEAD_BYTES = 4096  # the digest is the first attribute, and lies in the header of the file's root
DTYPES = {"float16": torch.float16, "float32": torch.float32}


class Header(NamedTuple):
    """Metadata of a bag file, without its features."""

    id: str
    instances: int
    dim: int
    provenance: dict[str, Any]


def write_bag(bag: Bag, path: str | Path, dtype: str = "float16") -> None:
    """Write a bag to an HDF5 file; its label and patient are not stored.

    Args:
        bag: The bag.
        path: The file, which is replaced atomically if it exists.
        dtype: float16 or float32. float16 halves the file size, with rounding errors far below the
            difference between two scans of a slide.

    Raises:
        OptionError: `dtype` is not supported.
        DataError: A feature is too large for `dtype`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "slide.h5"
    >>> write_bag(Bag("slide", torch.eye(3), provenance={"encoder": "resnet18"}), path)
    >>> read_bag(path, label=1)
    Bag('slide', 3 x 3, label=1)
    >>> read_header(path)
    Header(id='slide', instances=3, dim=3, provenance={'encoder': 'resnet18'})
    """
    import h5py

    check_dtype(dtype)
    content = io.BytesIO()
    about = json.dumps(dict(bag.provenance), sort_keys=True)
    # Ids are file names, which may contain bytes that are not UTF-8.
    bag_id = bag.id.encode("utf-8", "surrogateescape")
    found = ContentDigest(bag_id, about)
    with h5py.File(content, "w") as file:
        # Reserves its place in the file; the value is set at the end.
        file.attrs["digest"] = np.bytes_(found.text())
        features = file.create_dataset("features", tuple(bag.features.shape), dtype)
        found.begin("features", features)
        for start in range(0, len(bag.features), BLOCK_ROWS):  # never a second whole copy
            rows = rounded(
                bag.features[start : start + BLOCK_ROWS].detach().cpu(), dtype, bag.id
            ).numpy()
            features[start : start + len(rows)] = rows
            found.add(rows)
        further = {
            "coords": bag.xy if bag.xy is None else bag.xy.to(torch.int64),
            "instance_labels": bag.instance_labels,
        }
        for name, values in further.items():
            if values is not None:
                array = values.detach().cpu().numpy()
                found.begin(name, file.create_dataset(name, data=array))
                found.add(array)
        file.attrs.update(scmil_format=FORMAT, provenance=about)
        file.attrs.create("id", bag_id, dtype=h5py.string_dtype())
        file.attrs.modify("digest", np.bytes_(found.text()))
    write_atomically(Path(path), content.getbuffer())


class ContentDigest:
    """SHA-256 of a bag file: id and provenance, then name, type, shape and bytes of each array."""

    def __init__(self, bag_id: bytes, provenance: str) -> None:
        self._found = hashlib.sha256(bag_id + b"\0" + provenance.encode() + b"\0")

    def begin(self, name: str, dataset: Any) -> None:
        """Start an array, or a data set of an HDF5 file."""
        self._found.update(f"{name} {dataset.dtype.str} {tuple(dataset.shape)}".encode())

    def add(self, array: np.ndarray[Any, Any]) -> None:
        """Add the next rows of the array."""
        if array.size:
            self._found.update(np.ascontiguousarray(array).data.cast("B"))

    def text(self) -> str:
        """Return the digest as it is stored in the file."""
        return f"scmil-sha256:{self._found.hexdigest()}"


def stored_digest(path: str | Path) -> str | None:
    """Return the digest that `write_bag` stored; None for files of earlier versions.

    >>> import tempfile
    >>> one, other = (Path(tempfile.mkdtemp()) / "slide.h5" for _ in range(2))
    >>> write_bag(Bag("slide", torch.eye(3)), one), write_bag(Bag("slide", torch.eye(3)), other)
    (None, None)
    >>> len(stored_digest(one)), stored_digest(one) == stored_digest(other)
    (64, True)
    """
    with open_regular(path) as file:
        found = DIGEST.search(file.read(HEAD_BYTES))
    return found[1].decode() if found else None


def mark_bag(path: str | Path, before: Mark | None = None) -> Mark:
    """Return the identity of a bag file's content, see `scmil.fingerprint`."""

    def is_whole() -> bool:
        try:
            with _open_bag_file(path) as file:
                _check_digest(path, file)
            return True
        except DataError:
            return False

    return mark_files([path], before, lambda: stored_digest(path), is_whole)


def rounded(rows: Tensor, dtype: str, bag_id: str) -> Tensor:
    """Return features in the stored precision, or raise if a value is too large for it.

    >>> rounded(torch.tensor([1 / 3]), "float16", "slide")
    tensor([0.3333], dtype=torch.float16)
    """
    written = rows.to(DTYPES[dtype])
    if not torch.isfinite(written).all() and torch.isfinite(rows).all():
        largest = float(rows.abs().max())
        raise DataError(
            f"bag {bag_id!r}: features up to {largest:g} do not fit into {dtype}. Use float32."
        )
    return written


def check_dtype(dtype: str) -> None:
    """Raise if features cannot be stored in this type."""
    if dtype not in DTYPES:
        raise OptionError(f"dtype {dtype!r} is not supported. Use {' or '.join(DTYPES)}.")


def read_bag(path: str | Path, label: int | None = None, patient: str | None = None) -> Bag:
    """Read a bag that `write_bag` wrote, with float32 features.

    Features of more than 1 GiB are memory-mapped in the stored precision instead of being read.

    Args:
        path: The file.
        label: Number of the class, which the file does not contain.
        patient: Patient of the slide, which the file does not contain.

    Returns:
        The bag.

    Raises:
        DataError: The file does not exist, is damaged, was edited by another program, or is not a
            bag of scmil.
    """
    with _open_bag_file(path) as file:
        stored = file["features"]
        mapped = stored.size > LARGEST_NUMBERS and stored.id.get_offset() is not None
        arrays = {
            name: h5_array(file, name)
            for name in ARRAYS
            if name in file and not (mapped and name == "features")
        }
        parts = {name: torch.from_numpy(array) for name, array in arrays.items()}
        bag = Bag(
            id=str(file.attrs["id"]),
            features=torch.from_numpy(map_features(path)) if mapped else parts["features"].float(),
            label=label,
            patient=patient,
            instance_labels=parts.get("instance_labels"),
            xy=torch.from_numpy(check_xy(arrays["coords"])) if "coords" in arrays else None,
            provenance=_read_provenance(file.attrs),
        )
        if not mapped:
            _check_digest(path, file, arrays)
        return bag


def read_header(path: str | Path) -> Header:
    """Read the metadata of a bag file, without its features."""
    with _open_bag_file(path) as file:
        instances, dim = file["features"].shape
        return Header(str(file.attrs["id"]), instances, dim, _read_provenance(file.attrs))


def map_features(path: str | Path) -> np.memmap[Any, np.dtype[Any]]:
    """Return the features (n, p) of a bag as a memory map: only accessed rows are read.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "slide.h5"
    >>> write_bag(Bag("slide", torch.eye(3)), path)
    >>> map_features(path)[1:].tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    with _open_bag_file(path) as file:
        features = file["features"]
        if not features.size:
            raise DataError(f"{path}: the bag is empty and cannot be mapped. Use read_bag.")
        offset = features.id.get_offset()
        if offset is None:
            raise DataError(
                f"{path}: the features are compressed or chunked and cannot be mapped. Use "
                "read_bag."
            )
        # "c" (copy on write), because torch does not accept read-only arrays.
        return np.memmap(path, features.dtype, "c", offset, features.shape)


# Files whose content this process has compared with their digest.
_compared: dict[str, tuple[int, ...]] = {}


def _check_digest(
    path: str | Path, file: Any, arrays: Mapping[str, np.ndarray[Any, Any]] | None = None
) -> None:
    """Raise if the content differs from the digest.

    A file is compared once, unless its size or modification time changes.
    """
    stat = stat_of([path])
    if "digest" not in file.attrs or _compared.get(str(path)) == stat:
        return
    bag_id, provenance = file.attrs["id"], file.attrs["provenance"]
    found = ContentDigest(bag_id.encode("utf-8", "surrogateescape"), provenance)
    for name in (name for name in ARRAYS if name in file):
        found.begin(name, file[name])
        found.add(arrays[name] if arrays else h5_array(file, name))
    if file.attrs["digest"] != found.text().encode():
        raise DataError(
            f"{path}: the content is not what scmil wrote: another program has edited the file, or "
            "it is damaged. Encode this slide again, or write edited features with scmil.write_bag."
        )
    _compared[str(path)] = stat


def _read_provenance(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the provenance of a bag file, or raise if it is not a JSON object."""
    known = json.loads(attributes["provenance"])
    if not isinstance(known, dict):
        raise DataError(f"the provenance is a {type(known).__name__}, but a JSON object is needed.")
    check_provenance(known)
    return known


@contextmanager
def _open_bag_file(path: str | Path) -> Iterator[Any]:
    """Open a bag file for reading; errors in the block name the file."""
    with naming(path, "a bag of scmil", "Encode this slide again."), opened_h5(path) as file:
        shape: tuple[int, ...] = getattr(file.get("features"), "shape", None) or ()
        actual = file.attrs.get("scmil_format")
        if len(shape) == 2 and shape[0] > EMPTY_ROWS and not shape[1]:
            raise DataError(f"features of shape {shape}: {shape[0]} instances without a feature.")
        if actual != FORMAT or len(shape) != 2:
            raise DataError(
                f"{path} is not a bag of scmil: its format is {actual!r}, but {FORMAT!r} with "
                "features is needed. Open its folder with scmil.open_bags."
            )
        yield file
