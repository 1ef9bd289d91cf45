"""Arrays from files of other tools, and bags from arrays.

Files that are damaged, of another kind or unsafe raise `DataError` with the name of the file.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scmil.bags.bag import Bag, BagSet
from scmil.bags.slide_ids import slide_id
from scmil.core.extras import import_extra
from scmil.core.fingerprint import Mark, mark_files
from scmil.core.regular_files import open_regular, read_regular
from scmil.core.safe_hdf5 import h5_array, opened_h5
from scmil.core.safe_io import DAMAGE, check_provenance, check_xy, naming, npy_array, npz_arrays
from scmil.errors import DataError

SlideMpp: TypeAlias = float | Mapping[str, float]
Array: TypeAlias = NDArray[Any] | Tensor


class LabelTable(Protocol):
    """The part of a table of labels that the readers use."""

    @property
    def classes(self) -> Sequence[str]:
        """Names of the classes."""

    def of(self, bag_id: str) -> tuple[int | None, str | None]:
        """Return label and patient of a bag, each None if unknown."""


def lazy_bags(
    ids: Iterable[str],
    load: Callable[[str], Bag],
    labels: LabelTable | None = None,
    own: Mapping[str, int | None] | None = None,
    classes: Sequence[str] | None = None,
    *,
    files: Callable[[str], Sequence[Path]],
    mark: Callable[[str, Mark | None], Mark] | None = None,
) -> BagSet:
    """Return a set of bags that `load` reads one at a time.

    Labels are those of the table `labels`, or without a table those in `own`. `files` returns the
    file of a bag, then files that may exist beside it. Their sizes and modification times identify
    the content of the bag, unless the format has its own `mark`.

    >>> def load(bag_id):
    ...     return Bag(bag_id, torch.zeros(1, 2))
    >>> bags = lazy_bags(["a", "b"], load, own={"a": 1}, files=lambda bag_id: [])
    >>> bags.labels, bags[0]
    ((1, None), Bag('a', 1 x 2, label=1))
    """
    ids = tuple(ids)
    known = {
        bag_id: ((own or {}).get(bag_id), None) if labels is None else labels.of(bag_id)
        for bag_id in ids
    }
    if labels is not None:
        _check_rows(bag_id for bag_id in ids if known[bag_id] != (None, None))

    def labelled(bag_id: str) -> Bag:
        label, patient = known[bag_id]
        return replace(load(bag_id), label=label, patient=patient)

    of_all, patients = [known[bag_id][0] for bag_id in ids], [known[bag_id][1] for bag_id in ids]
    named = classes if labels is None else labels.classes

    def mark_by_files(bag_id: str, before: Mark | None) -> Mark:
        features, *beside = files(bag_id)
        return mark_files([features, *(path for path in beside if path.is_file())], before)

    return BagSet.lazy(ids, labelled, of_all, patients, named, mark or mark_by_files)


def _check_rows(ids: Iterable[str]) -> None:
    """Raise if two bags share a row of the label table, as a.pt and a.ome.pt share the row a."""
    first: dict[str, str] = {}
    for bag_id in ids:
        if (other := first.setdefault(slide_id(bag_id), bag_id)) != bag_id:
            raise DataError(
                f"the bags {other!r} and {bag_id!r} have the same row {slide_id(bag_id)!r} in the "
                "table of labels. Each row describes one slide: rename or remove one of the files."
            )


def make_bag(
    bag_id: str,
    file: Path,
    format_name: str,
    features: Array,
    coords: Array | None = None,
    provenance: Mapping[str, Any] | None = None,
    *,
    instance_labels: Array | None = None,
    warnings: Sequence[str] = (),
) -> Bag:
    """Return a bag of arrays from a file, with float32 features.

    Entries of `provenance` that are None are unknown and left out.

    >>> features, coords = np.ones((2, 3), np.float16), np.array([[0, 0], [0, 0]])
    >>> make_bag("a", Path("a.pt"), "clam", features, coords).provenance
    {'format': 'clam', 'file': 'a.pt',
     'warnings': ['1 of 2 tiles have the coordinates of another one']}
    """
    notes = list(warnings)
    try:
        values = _check_features(features)
        xy = None if coords is None else whole_xy(coords)
        if xy is not None and (twice := len(xy) - len(torch.unique(xy, dim=0))):
            notes.append(f"{twice} of {len(xy)} tiles have the coordinates of another one")
        labels = (
            None
            if instance_labels is None
            else torch.from_numpy(_native(np.asarray(instance_labels))).long().reshape(-1)
        )
        source = {"format": format_name, "file": file.name}
        entries = source | dict(provenance or {}) | source | {"warnings": notes or None}
        known = {key: json_value(value) for key, value in entries.items() if value is not None}
        check_provenance(known)
        return Bag(bag_id, values, instance_labels=labels, xy=xy, provenance=known)
    except DAMAGE as error:  # of scmil, or of torch for values that cannot be converted
        raise DataError(f"{file}: {error}") from None


def _check_features(features: Array) -> Tensor:
    """Return features as a float32 matrix, or raise."""
    values = (
        features.detach() if isinstance(features, Tensor) else torch.from_numpy(_native(features))
    )
    if not values.is_floating_point() or values.layout != torch.strided:
        raise DataError(
            f"the features are {values.dtype}, but 16, 32 or 64-bit floating-point numbers are "
            "needed. Save them as float32."
        )
    if values.ndim == 1:
        raise DataError(
            "one vector per slide, without instances. Open the features of the tiles, (n, p)."
        )
    if values.ndim != 2:
        raise DataError(f"features of shape {tuple(values.shape)}, but a matrix (n, p) is needed.")
    if len(values) and not values.shape[1]:
        raise DataError(
            f"features of shape {tuple(values.shape)}: {len(values)} instances without a feature."
        )
    return values.float()


def _native(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array that torch accepts: numbers, writable, in the native byte order."""
    if values.dtype.kind not in "fiub":
        raise DataError(f"values of type {values.dtype}, but numbers are needed.")
    return np.require(values, values.dtype.newbyteorder("="), ["C", "W"])


def whole_xy(coords: Array) -> Tensor:
    """Return coordinates as whole pixels (n, 2), or raise.

    >>> whole_xy(np.array([[256.0, 0.0]]))
    tensor([[256, 0]])
    """
    return torch.from_numpy(check_xy(_native(np.asarray(coords))))


def mpp_of(bag_id: str, slide_mpp: SlideMpp | None) -> float | None:
    """Return the microns per pixel of one slide, or None if unknown.

    >>> mpp_of("a", 0.25), mpp_of("a", {"b": 0.25})
    (0.25, None)
    """
    value = slide_mpp.get(bag_id) if isinstance(slide_mpp, Mapping) else slide_mpp
    if value is not None and not (math.isfinite(value) and value > 0):
        raise DataError(
            f"slide {bag_id!r}: slide_mpp is {value}, but microns per pixel are greater than 0, "
            "such as 0.25."
        )
    return value


def json_value(value: Any) -> Any:
    """Return an attribute of an HDF5 file as a JSON value.

    >>> json_value(np.int64(256)), json_value(b"uni"), json_value(np.array([1.0, 2.0]))
    (256, 'uni', [1.0, 2.0])
    """
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def plain_attributes(stored: Any) -> dict[str, Any]:
    """Return the attributes of an HDF5 file, group or data set as JSON values."""
    return {name: json_value(value) for name, value in stored.attrs.items()}


class H5Features(NamedTuple):
    """The features of a slide from an HDF5 file, its coordinates if any, and all attributes."""

    features: NDArray[Any]
    coords: NDArray[Any] | None
    file_attributes: Mapping[str, Any]
    features_attributes: Mapping[str, Any]
    coords_attributes: Mapping[str, Any]


def read_h5_features(path: Path, *names: str) -> H5Features:
    """Read features, under the first of `names` that exists, and the data set `coords`."""
    with open_h5(path) as file:
        name = next((name for name in names if name in file), names[0])
        features = h5_array(file, name)
        known = "coords" in file
        return H5Features(
            features,
            h5_array(file, "coords") if known else None,
            plain_attributes(file),
            plain_attributes(file[name]),
            plain_attributes(file["coords"]) if known else {},
        )


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that contains an object."""
    with naming(path, "JSON"):
        value = json.loads(read_regular(path))
        if not isinstance(value, dict):
            raise DataError(f"a JSON {type(value).__name__}, but a JSON object is needed.")
        return value


@contextmanager
def open_h5(path: Path) -> Iterator[Any]:
    """Open an HDF5 file for reading; errors in the block name the file."""
    import_extra("h5py", "slides")
    with naming(path, "HDF5"), opened_h5(path) as file:
        yield file


def load_npy(path: Path) -> NDArray[Any]:
    """Read the array of a .npy file; pickled objects raise."""
    with naming(path, ".npy"), open_regular(path) as file:
        return npy_array(file, os.fstat(file.fileno()).st_size)


def load_npz(path: Path, name: str) -> NDArray[Any]:
    """Read one array of a .npz file; pickled objects raise."""
    with naming(path, ".npz"):
        return npz_arrays(path)[name]


def load_pt(path: Path) -> Array:
    """Read the tensor or array of a .pt file, or its entry `features`, without running its code."""
    from scmil.bags.formats.pt_files import features_in_pt

    with naming(path, ".pt"), open_regular(path) as file:
        return features_in_pt(file)
