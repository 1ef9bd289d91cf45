"""One HDF5 file a bag: features, coordinates, and where both come from.

The two data sets have the names that CLAM and TRIDENT use, so that their readers, and h5py in a line, read our files too:

    features  (n, p)  float16 or float32, contiguous
    coords    (n, 2)  int64, level-0 pixels of the top-left corners; absent if they are not known
    root attributes   scmil_format, id, provenance (JSON)
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scmil.bags import Bag
from scmil.errors import DataError, OptionError, ScmilError
from scmil.files import write_atomically
from scmil.guards import DAMAGE, EMPTY_ROWS, check_provenance, check_xy, h5_array, opened_h5

FORMAT = "scmil-bag-1"
BLOCK_ROWS = 4096
LARGEST_NUMBERS = 2**28  # 1 GiB of float32: a slide of 60 000 pixels a side has a tenth of it
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
    with h5py.File(content, "w") as file:
        features = file.create_dataset("features", tuple(bag.features.shape), dtype)
        for start in range(0, len(bag.features), BLOCK_ROWS):  # never a second whole copy
            rows = bag.features[start : start + BLOCK_ROWS].detach().cpu()
            features[start : start + len(rows)] = rounded(rows, dtype, bag.id).numpy()
        if bag.xy is not None:
            file["coords"] = bag.xy.detach().cpu().to(torch.int64).numpy()
        if bag.instance_labels is not None:
            file["instance_labels"] = bag.instance_labels.detach().cpu().numpy()
        file.attrs.update(scmil_format=FORMAT, provenance=json.dumps(dict(bag.provenance), sort_keys=True))
        id = bag.id.encode("utf-8", "surrogateescape")  # ids are file names, and those may have bytes that are no text
        file.attrs.create("id", id, dtype=h5py.string_dtype())
    write_atomically(Path(path), content.getbuffer())


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
        parts = {name: h5_array(file, name) for name in ("coords", "instance_labels") if name in file}
        xy, marks = parts.get("coords"), parts.get("instance_labels")
        return Bag(
            id=str(file.attrs["id"]),
            features=torch.from_numpy(map_features(path))
            if mapped
            else torch.from_numpy(h5_array(file, "features")).float(),
            label=label,
            patient=patient,
            instance_labels=None if marks is None else torch.from_numpy(marks),
            xy=None if xy is None else torch.from_numpy(check_xy(xy)),
            provenance=_provenance(file.attrs),
        )


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
