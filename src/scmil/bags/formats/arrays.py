"""Bare arrays: a folder with one matrix of features for each bag, and nothing else known."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from scmil.bags.bag import BagSet
from scmil.errors import DataError
from scmil.core.files import check_regular
from scmil.bags.formats import register
from scmil.bags.formats.folder import Folder
from scmil.bags.formats.reading import Array, Labels, lazy_bags, load_npy, load_pt, make_bag, naming

SUFFIXES = (".npy", ".pt", ".safetensors")


@register("arrays", "bare .npy, .pt or .safetensors files")
class Arrays:
    """A matrix (n, p) a file: `.npy`, `.pt` with a tensor, `.safetensors` with one tensor or one called features."""

    layout: ClassVar[str] = "<bag>.npy, .pt or .safetensors, each a matrix (n, p)"
    last_resort: ClassVar[bool] = True

    def looks_like(self, folder: Folder) -> bool:
        """Whether there is a file of such a kind."""
        return any(folder.stems(suffix) for suffix in SUFFIXES)

    def read(self, folder: Folder, labels: Labels | None = None) -> BagSet:
        """The bags of all such files."""
        files: dict[str, Path] = {}
        for path in (folder.path / f"{stem}{suffix}" for suffix in SUFFIXES for stem in folder.stems(suffix)):
            if path.stem in files:
                raise DataError(f"{files[path.stem]} and {path} are of one bag. Keep one of them in this folder.")
            files[path.stem] = path
        return lazy_bags(
            sorted(files),
            lambda id: make_bag(id, files[id], "arrays", _matrix(files[id])),
            labels,
            files=lambda id: [files[id]],
        )


def _matrix(path: Path) -> Array:
    if path.suffix == ".safetensors":
        return _safetensors(path)
    return load_npy(path) if path.suffix == ".npy" else load_pt(path)


def _safetensors(path: Path) -> Array:
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
            raise DataError(f"tensors {', '.join(tensors) or 'none'}, but one is needed, or one called features.")
        return tensors[name]
