"""One HDF5 file a bag: features, coordinates, and where both come from.

The two data sets have the names that CLAM and TRIDENT use, so that their readers, and h5py in a line, read our files too:

    features  (n, p)  float16 or float32, contiguous
    coords    (n, 2)  int64, level-0 pixels of the top-left corners; absent if they are not known
    root attributes   scmil_format, id, provenance (JSON), digest (SHA-256 of all the others, in the first bytes of the file)

A bag is compared with its digest when a process reads it for the first time. So features that another program has edited in
place are rejected, and `stored_digest` identifies what a result was made from without opening the file as HDF5.
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
from scmil.errors import DataError, OptionError, ScmilError
from scmil.core.files import write_atomically
from scmil.fingerprint import Mark, mark_files, stat_of
from scmil.core.safe_io import DAMAGE, EMPTY_ROWS, check_provenance, check_xy, h5_array, open_regular, opened_h5

FORMAT = "scmil-bag-1"
BLOCK_ROWS = 4096
LARGEST_NUMBERS = 2**28  # 1 GiB of float32: a slide of 60 000 pixels a side has a tenth of it
DIGEST = re.compile(rb"scmil-sha256:([0-9a-f]{64})")
ARRAYS = ("features", "coords", "instance_labels")
HEAD_BYTES = 4096  # the digest is the first attribute, and lies in the header of the file's root
DTYPES = {"float16": torch.float16, "float32": torch.float32}


class Header(NamedTuple):
    """What is known of a bag without reading its features."""

    id: str
    instances: int
    dim: int
    provenance: dict[str, Any]


def write_bag(bag: Bag, path: str | Path, dtype: str = "float16") -> None:
    """Write a bag; float16 halves the file, and its rounding is far below what differs between two scans.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "slide.h5"
    >>> write_bag(Bag("slide", torch.eye(3), xy=torch.zeros(3, 2), provenance={"encoder": "resnet18"}), path)
    >>> read_bag(path, label=1), read_header(path)
    (Bag('slide', 3 x 3, label=1), Header(id='slide', instances=3, dim=3, provenance={'encoder': 'resnet18'}))
    """
    import h5py

    check_dtype(dtype)
    content = io.BytesIO()
    about = json.dumps(dict(bag.provenance), sort_keys=True)
    id = bag.id.encode("utf-8", "surrogateescape")  # ids are file names, and those may have bytes that are not UTF-8
    found = ContentDigest(id, about)
    with h5py.File(content, "w") as file:
        file.attrs["digest"] = np.bytes_(found.text())  # its place in the file; the value follows at the end
        features = file.create_dataset("features", tuple(bag.features.shape), dtype)
        found.begin("features", features)
        for start in range(0, len(bag.features), BLOCK_ROWS):  # never a second whole copy
            rows = rounded(bag.features[start : start + BLOCK_ROWS].detach().cpu(), dtype, bag.id).numpy()
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
        file.attrs.create("id", id, dtype=h5py.string_dtype())
        file.attrs.modify("digest", np.bytes_(found.text()))
    write_atomically(Path(path), content.getbuffer())


class ContentDigest:
    """The SHA-256 of a bag as it is written: its id and provenance, then name, type, shape and bytes of each array."""

    def __init__(self, id: bytes, provenance: str) -> None:
        self._found = hashlib.sha256(id + b"\0" + provenance.encode() + b"\0")

    def begin(self, name: str, dataset: Any) -> None:
        """Begin an array, or a data set of an HDF5 file."""
        self._found.update(f"{name} {dataset.dtype.str} {tuple(dataset.shape)}".encode())

    def add(self, array: np.ndarray[Any, Any]) -> None:
        """Take the next rows of the array in."""
        if array.size:
            self._found.update(np.ascontiguousarray(array).data.cast("B"))

    def text(self) -> str:
        """As it stands in the file."""
        return f"scmil-sha256:{self._found.hexdigest()}"


def stored_digest(path: str | Path) -> str | None:
    """The digest that `write_bag` left in a file; None in files of earlier versions.

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
    """What identifies the content of a bag file, see `scmil.fingerprint`."""

    def is_whole() -> bool:
        try:
            with _opened(path) as file:
                _check_digest(path, file)
            return True
        except DataError:
            return False

    return mark_files([path], before, lambda: stored_digest(path), is_whole)


def rounded(rows: Tensor, dtype: str, id: str) -> Tensor:
    """Features as they are written; what is too large for that is refused.

    >>> rounded(torch.tensor([1 / 3]), "float16", "slide")
    tensor([0.3333], dtype=torch.float16)
    """
    written = rows.to(DTYPES[dtype])
    if not torch.isfinite(written).all() and torch.isfinite(rows).all():
        largest = float(rows.abs().max())
        raise DataError(f"bag {id!r}: features up to {largest:g} do not fit into {dtype}. Write float32.")
    return written


def check_dtype(dtype: str) -> None:
    """Refuse what features are not written in, before hours of work are lost on it."""
    if dtype not in DTYPES:
        raise OptionError(f"dtype {dtype!r} is not known: features are written in {' or '.join(DTYPES)}.")


def read_bag(path: str | Path, label: int | None = None, patient: str | None = None) -> Bag:
    """Read a bag back, with float32 features; label and patient come from a table and not from the file.

    Those of a bag that would fill the memory stay in the file, as they are, until rows of them are looked at.
    """
    with _opened(path) as file:
        stored = file["features"]
        mapped = stored.size > LARGEST_NUMBERS and stored.id.get_offset() is not None
        arrays = {name: h5_array(file, name) for name in ARRAYS if name in file and not (mapped and name == "features")}
        parts = {name: torch.from_numpy(array) for name, array in arrays.items()}
        bag = Bag(
            id=str(file.attrs["id"]),
            features=torch.from_numpy(map_features(path)) if mapped else parts["features"].float(),
            label=label,
            patient=patient,
            instance_labels=parts.get("instance_labels"),
            xy=torch.from_numpy(check_xy(arrays["coords"])) if "coords" in arrays else None,
            provenance=_provenance(file.attrs),
        )
        if not mapped:
            _check_digest(path, file, arrays)
        return bag


def read_header(path: str | Path) -> Header:
    """What a file holds, without its features."""
    with _opened(path) as file:
        instances, dim = file["features"].shape
        return Header(str(file.attrs["id"]), instances, dim, _provenance(file.attrs))


def map_features(path: str | Path) -> np.memmap[Any, np.dtype[Any]]:
    """The features (n, p) of a bag as they lie in the file: only the rows that are looked at are read.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "slide.h5"
    >>> write_bag(Bag("slide", torch.eye(3)), path)
    >>> map_features(path)[1:].tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    with _opened(path) as file:
        features = file["features"]
        if not features.size:
            raise DataError(f"{path}: the bag is empty, and there is nothing to map.")
        offset = features.id.get_offset()
        if offset is None:
            raise DataError(
                f"{path}: the features are compressed or in pieces, and cannot be mapped. Read it with read_bag."
            )
        # "c": what is written there would stay in memory; torch takes no arrays that cannot be written.
        return np.memmap(path, features.dtype, "c", offset, features.shape)


_compared: dict[str, tuple[int, ...]] = {}  # files whose content was compared with their digest in this process


def _check_digest(path: str | Path, file: Any, arrays: Mapping[str, np.ndarray[Any, Any]] | None = None) -> None:
    """Reject content that is not what was written; a file is compared once, unless its size or times change."""
    stat = stat_of([path])
    if "digest" not in file.attrs or _compared.get(str(path)) == stat:
        return
    id, provenance = file.attrs["id"], file.attrs["provenance"]
    found = ContentDigest(id.encode("utf-8", "surrogateescape"), provenance)
    for name in (name for name in ARRAYS if name in file):
        found.begin(name, file[name])
        found.add(arrays[name] if arrays else h5_array(file, name))
    if file.attrs["digest"] != found.text().encode():
        raise DataError(
            f"{path}: its content is not what scmil wrote: another program has edited the file, or it is damaged. Encode "
            "this slide again, or write edited features with scmil.write_bag."
        )
    _compared[str(path)] = stat


def _provenance(attributes: Mapping[str, Any]) -> dict[str, Any]:
    known = json.loads(attributes["provenance"])
    if not isinstance(known, dict):
        raise DataError(f"the provenance is a {type(known).__name__}, but a JSON object is needed.")
    check_provenance(known)
    return known


@contextmanager
def _opened(path: str | Path) -> Iterator[Any]:
    try:
        with opened_h5(path) as file:
            shape: tuple[int, ...] = getattr(file.get("features"), "shape", None) or ()
            met = file.attrs.get("scmil_format")
            if len(shape) == 2 and shape[0] > EMPTY_ROWS and not shape[1]:
                raise DataError(f"features of shape {shape}: {shape[0]} instances without a feature.")
            if met != FORMAT or len(shape) != 2:
                raise DataError(
                    f"{path} is no bag of scmil: its format is {met!r}, and {FORMAT!r} with features is needed."
                )
            yield file
    except ScmilError as error:
        raise error if str(path) in str(error) else DataError(f"{path}: {error}") from None
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read as HDF5: {error}. Encode this slide again.") from None
    except DAMAGE as error:
        raise DataError(f"{path} is damaged: {error}. Encode this slide again.") from None
