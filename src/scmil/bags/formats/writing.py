"""Files that other tools read, as bytes: an HDF5 file with their chunks and attributes, a .npy file, a .pt file."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from scmil.bags.bag import Bag
from scmil.errors import DataError
from scmil.core.extras import need


class Dataset(NamedTuple):
    """An array for an HDF5 file, the rows of one chunk, and its attributes."""

    values: NDArray[Any]
    chunk_rows: int
    attributes: Mapping[str, Any]


def h5_bytes(**datasets: Dataset) -> bytes:
    """An HDF5 file whose data sets can grow, as those of CLAM and TRIDENT can."""
    h5py = need("h5py", "slides")
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        for name, (values, rows, attributes) in datasets.items():
            width = values.shape[1:]
            place = file.create_dataset(name, data=values, chunks=(rows, *width), maxshape=(None, *width))
            place.attrs.update({key: value for key, value in attributes.items() if value is not None})
    return content.getvalue()


def npy_bytes(values: NDArray[Any]) -> bytes:
    """A .npy file.

    >>> np.load(io.BytesIO(npy_bytes(np.arange(3))))
    array([0, 1, 2])
    """
    content = io.BytesIO()
    np.save(content, values, allow_pickle=False)
    return content.getvalue()


def pt_bytes(values: NDArray[Any]) -> bytes:
    """A .pt file with one tensor."""
    content = io.BytesIO()
    torch.save(torch.from_numpy(values), content)
    return content.getvalue()


def features_of(bag: Bag) -> NDArray[np.float32]:
    """The features as every tool expects them: 32-bit, in memory of their own."""
    return bag.features.detach().to("cpu", torch.float32, copy=True).contiguous().numpy()


def xy_of(bag: Bag) -> NDArray[np.int64] | None:
    """The coordinates as numbers of numpy, if they are known."""
    return None if bag.xy is None else bag.xy.detach().cpu().to(torch.int64).numpy()


def known_of(bag: Bag, tool: str, *names: str) -> list[Any]:
    """What the bag's provenance says under these names; all that are missing are told at once.

    >>> known_of(Bag("a", torch.zeros(1, 2), provenance={"mpp": 0.5}), "TRIDENT", "mpp", "size_px")
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: bag 'a' does not say its size_px, which TRIDENT's files state.
    Add it: export(..., known={'size_px': ...}).
    """
    missing = [name for name in names if bag.provenance.get(name) is None]
    if missing:
        example = ", ".join(f"{name!r}: ..." for name in missing)
        raise DataError(
            f"bag {bag.id!r} does not say its {', '.join(missing)}, which {tool}'s files state. "
            f"Add it: export(..., known={{{example}}})."
        )
    return [bag.provenance[name] for name in names]
