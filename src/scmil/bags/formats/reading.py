"""Arrays out of files that others wrote, and bags out of arrays: what is damaged, foreign or unsafe is refused by name."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scmil.bags.bag import Bag, BagSet
from scmil.errors import DataError, ScmilError
from scmil.core.extras import need
from scmil.core.files import check_regular
from scmil.fingerprint import Mark, mark_files
from scmil.core.safe_io import DAMAGE, check_provenance, check_xy, npy_array, npz_arrays, open_regular, opened_h5
from scmil.bags.labels import slide_id

SlideMpp: TypeAlias = float | Mapping[str, float]
Array: TypeAlias = NDArray[Any] | Tensor


class Labels(Protocol):
    """What is needed of a table of labels."""

    @property
    def classes(self) -> Sequence[str]:
        """The names of the classes."""

    def of(self, id: str) -> tuple[int | None, str | None]:
        """Label and patient of a bag, None where they are not known."""


def lazy_bags(
    ids: Iterable[str],
    load: Callable[[str], Bag],
    labels: Labels | None = None,
    own: Mapping[str, int | None] | None = None,
    classes: Sequence[str] | None = None,
    *,
    files: Callable[[str], Sequence[Path]],
    mark: Callable[[str, Mark | None], Mark] | None = None,
) -> BagSet:
    """A set of bags that `load` reads; labels are from the table if there is one, else the folder's `own`.

    `files` names the file of a bag, and those that may lie beside it: sizes and times of those that exist identify the
    content of the bag, unless the format has a `mark` of its own.

    >>> bags = lazy_bags(["a", "b"], lambda id: Bag(id, torch.zeros(1, 2)), own={"a": 1}, files=lambda id: [])
    >>> bags.labels, bags[0]
    ((1, None), Bag('a', 1 x 2, label=1))
    """
    ids = tuple(ids)
    known = {id: ((own or {}).get(id), None) if labels is None else labels.of(id) for id in ids}
    if labels is not None:
        _check_rows(id for id in ids if known[id] != (None, None))

    def labelled(id: str) -> Bag:
        label, patient = known[id]
        return replace(load(id), label=label, patient=patient)

    of_all, patients = [known[id][0] for id in ids], [known[id][1] for id in ids]
    named = classes if labels is None else labels.classes

    def mark_by_files(id: str, before: Mark | None) -> Mark:
        features, *beside = files(id)
        return mark_files([features, *(path for path in beside if path.is_file())], before)

    return BagSet.lazy(ids, labelled, of_all, patients, named, mark or mark_by_files)


def _check_rows(ids: Iterable[str]) -> None:
    """Reject bags that have one row of the table of labels, as a.pt and a.ome.pt have the row a."""
    first: dict[str, str] = {}
    for id in ids:
        if (other := first.setdefault(slide_id(id), id)) != id:
            raise DataError(
                f"the bags {other!r} and {id!r} have the same row {slide_id(id)!r} in the table of labels. One row is one "
                "slide: rename one of the files, or take it away."
            )


def make_bag(
    id: str,
    file: Path,
    format: str,
    features: Array,
    coords: Array | None = None,
    provenance: Mapping[str, Any] | None = None,
    *,
    instance_labels: Array | None = None,
    warnings: Sequence[str] = (),
) -> Bag:
    """A bag of arrays from a file, with float32 features; what of the provenance is None is not known, and left out.

    >>> make_bag("a", Path("a.pt"), "clam", np.ones((2, 3), np.float16), np.array([[0, 0], [0, 0]])).provenance
    {'format': 'clam', 'file': 'a.pt', 'warnings': ['1 of 2 tiles have the coordinates of another one']}
    """
    said = list(warnings)
    try:
        values = _features(features)
        xy = None if coords is None else whole_xy(coords)
        if xy is not None and (twice := len(xy) - len(torch.unique(xy, dim=0))):
            said.append(f"{twice} of {len(xy)} tiles have the coordinates of another one")
        marks = (
            None
            if instance_labels is None
            else torch.from_numpy(_native(np.asarray(instance_labels))).long().reshape(-1)
        )
        told = {"format": format, "file": file.name}
        told = told | dict(provenance or {}) | told | {"warnings": said or None}
        known = {key: plain(value) for key, value in told.items() if value is not None}
        check_provenance(known)
        return Bag(id, values, instance_labels=marks, xy=xy, provenance=known)
    except DAMAGE as error:  # ours, and what torch says of numbers that it does not have
        raise DataError(f"{file}: {error}") from None


def _features(features: Array) -> Tensor:
    values = features.detach() if isinstance(features, Tensor) else torch.from_numpy(_native(features))
    if not values.is_floating_point() or values.layout != torch.strided:
        raise DataError(f"the features are {values.dtype}, but 16, 32 or 64-bit floating numbers are needed.")
    if values.ndim == 1:
        raise DataError("one vector a slide, no instances. Features of tiles are needed, a matrix (n, p).")
    if values.ndim != 2:
        raise DataError(f"features of shape {tuple(values.shape)}, but a matrix (n, p) is needed.")
    if len(values) and not values.shape[1]:
        raise DataError(f"features of shape {tuple(values.shape)}: {len(values)} instances without a feature.")
    return values.float()


def _native(values: NDArray[Any]) -> NDArray[Any]:
    """An array as torch takes it: numbers, writable, in the byte order of this machine."""
    if values.dtype.kind not in "fiub":
        raise DataError(f"values of type {values.dtype}, but numbers are needed.")
    return np.require(values, values.dtype.newbyteorder("="), ["C", "W"])


def whole_xy(coords: Array) -> Tensor:
    """Coordinates as whole pixels (n, 2); fractions and other shapes are refused.

    >>> whole_xy(np.array([[256.0, 0.0]]))
    tensor([[256, 0]])
    """
    return torch.from_numpy(check_xy(_native(np.asarray(coords))))


def mpp_of(id: str, slide_mpp: SlideMpp | None) -> float | None:
    """The microns a pixel of one slide.

    >>> mpp_of("a", 0.25), mpp_of("a", {"b": 0.25})
    (0.25, None)
    """
    value = slide_mpp.get(id) if isinstance(slide_mpp, Mapping) else slide_mpp
    if value is not None and not (math.isfinite(value) and value > 0):
        raise DataError(f"slide {id!r}: slide_mpp is {value}, but microns per pixel are above 0, such as 0.25.")
    return value


def plain(value: Any) -> Any:
    """An attribute of an HDF5 file as JSON can say it.

    >>> plain(np.int64(256)), plain(b"uni"), plain(np.array([1.0, 2.0]))
    (256, 'uni', [1.0, 2.0])
    """
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


@contextmanager
def open_h5(path: Path) -> Iterator[Any]:
    """An HDF5 file to read; whatever is wrong with it, now or while it is read, is told with its name."""
    need("h5py", "slides")
    with naming(path, "HDF5"), opened_h5(path) as file:
        yield file


def load_npy(path: Path) -> NDArray[Any]:
    """The array of a .npy file; pickled objects in it are refused."""
    with naming(path, ".npy"), open_regular(path) as file:
        return npy_array(file, os.fstat(file.fileno()).st_size)


def load_npz(path: Path, name: str) -> NDArray[Any]:
    """One array of a .npz file; pickled objects in it are refused."""
    with naming(path, ".npz"):
        return npz_arrays(path)[name]


def load_pt(path: Path) -> Array:
    """The tensor or the array of a .pt file, or what it has under `features`; code in it is refused and never run."""
    from scmil.bags.formats.pickles import features_in_pt

    with naming(path, ".pt"), open_regular(path) as file:
        return features_in_pt(file)


@contextmanager
def naming(path: Path, kind: str) -> Iterator[None]:
    """Whatever goes wrong inside is told as a refusal of this file; a pipe or a device is not opened at all."""
    try:
        check_regular(path)
        yield
    except ScmilError as error:
        raise error if str(path) in str(error) else DataError(f"{path}: {error}") from None
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file.") from None
    except OSError as error:
        raise DataError(
            f"{path} cannot be read as {kind}: {error.strerror or error}. Make or copy this file again."
        ) from None
    except DAMAGE as error:
        cause = str(error).strip().partition("\n")[0] or type(error).__name__
        raise DataError(f"{path} cannot be read as {kind}: {cause}. Make or copy this file again.") from None
