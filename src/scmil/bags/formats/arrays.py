"""Plain arrays: a folder with one feature matrix per bag, without metadata."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from scmil.bags.bag import BagSet
from scmil.bags.formats import register
from scmil.bags.formats.folder import Folder
from scmil.bags.formats.reading import (
    Array,
    LabelTable,
    lazy_bags,
    load_npy,
    load_pt,
    make_bag,
)
from scmil.core.regular_files import check_regular
from scmil.core.safe_io import naming
from scmil.errors import DataError

SUFFIXES = (".npy", ".pt", ".safetensors")


@register("arrays", "bare .npy, .pt or .safetensors files")
class Arrays:
    """One matrix (n, p) per file: `.npy`, `.pt` or `.safetensors`.

    A `.safetensors` file contains one tensor, or one named features.
    """

    layout: ClassVar[str] = "<bag>.npy, .pt or .safetensors, each a matrix (n, p)"
    last_resort: ClassVar[bool] = True

    def looks_like(self, folder: Folder) -> bool:
        """Return whether there is a file with one of the suffixes."""
        return any(folder.stems(suffix) for suffix in SUFFIXES)

    def read(self, folder: Folder, labels: LabelTable | None = None) -> BagSet:
        """Return the bags of all such files."""
        files: dict[str, Path] = {}
        for path in (
            folder.path / f"{stem}{suffix}" for suffix in SUFFIXES for stem in folder.stems(suffix)
        ):
            if path.stem in files:
                raise DataError(
                    f"{files[path.stem]} and {path} are files of the same bag. Remove one of them."
                )
            files[path.stem] = path
        return lazy_bags(
            sorted(files),
            lambda bag_id: make_bag(bag_id, files[bag_id], "arrays", _read_matrix(files[bag_id])),
            labels,
            files=lambda bag_id: [files[bag_id]],
        )


def _read_matrix(path: Path) -> Array:
    """Read the features of a file."""
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    return load_npy(path) if path.suffix == ".npy" else load_pt(path)


def _read_safetensors(path: Path) -> Array:
    """Read the only tensor of a file, or the one named features."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    with naming(path, ".safetensors"):
        check_regular(path)
        try:
            tensors = load_file(path)
        except SafetensorError as error:
            raise DataError(f"{error}.") from None
        name = "features" if "features" in tensors else next(iter(tensors), "")
        if len(tensors) != 1 and name != "features":
            raise DataError(
                f"tensors {', '.join(tensors) or 'none'}, but one tensor is needed, or one named "
                "features."
            )
        return tensors[name]
