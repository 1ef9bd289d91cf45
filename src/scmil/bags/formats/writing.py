"""Contents of files for other tools: HDF5 with chunks and attributes, .npy and .pt."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from scmil.bags.bag import Bag
from scmil.core.extras import import_extra
from scmil.errors import DataError


class Dataset(NamedTuple):
    """An array for an HDF5 file, the rows per chunk, and its attributes."""

    values: NDArray[Any]
    chunk_rows: int
    attributes: Mapping[str, Any]


def h5_bytes(**datasets: Dataset) -> bytes:
    """Return an HDF5 file with resizable data sets, as CLAM and TRIDENT write them."""
    h5py = import_extra("h5py", "slides")
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        for name, (values, rows, attributes) in datasets.items():
            width = values.shape[1:]
            place = file.create_dataset(
                name, data=values, chunks=(rows, *width), maxshape=(None, *width)
            )
            place.attrs.update(
                {key: value for key, value in attributes.items() if value is not None}
            )
    return content.getvalue()


def npy_bytes(values: NDArray[Any]) -> bytes:
    """Return the content of a .npy file.

    >>> np.load(io.BytesIO(npy_bytes(np.arange(3))))
    array([0, 1, 2])
    """
    content = io.BytesIO()
    np.save(content, values, allow_pickle=False)
    return content.getvalue()


def pt_bytes(values: NDArray[Any]) -> bytes:
    """Return the content of a .pt file with one tensor."""
    content = io.BytesIO()
    torch.save(torch.from_numpy(values), content)
    return content.getvalue()


def features_of(bag: Bag) -> NDArray[np.float32]:
    """Return a copy of the features in 32 bits, as other tools expect them."""
    return bag.features.detach().to("cpu", torch.float32, copy=True).contiguous().numpy()


def xy_of(bag: Bag) -> NDArray[np.int64] | None:
    """Return the coordinates as a numpy array, or None if they are unknown."""
    return None if bag.xy is None else bag.xy.detach().cpu().to(torch.int64).numpy()


def known_of(bag: Bag, tool: str, *names: str) -> list[Any]:
    """Return these entries of the bag's provenance, or raise with all that are missing.

    >>> known_of(Bag("a", torch.zeros(1, 2), provenance={"mpp": 0.5}), "TRIDENT", "mpp", "size_px")
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: the provenance of bag 'a' lacks size_px, which TRIDENT's files contain.
    Add it: export_bags(..., known={'size_px': ...}).
    """
    missing = [name for name in names if bag.provenance.get(name) is None]
    if missing:
        example = ", ".join(f"{name!r}: ..." for name in missing)
        raise DataError(
            f"the provenance of bag {bag.id!r} lacks {', '.join(missing)}, which {tool}'s files "
            "contain. "
            f"Add it: export_bags(..., known={{{example}}})."
        )
    return [bag.provenance[name] for name in names]
