"""CLAM: features of each slide as HDF5 with coordinates, and as a bare tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from scmil.bags.bag import Bag, BagSet
from scmil.bags.formats import register
from scmil.bags.formats.folder import Folder
from scmil.bags.formats.reading import (Array, Labels, SlideMpp, lazy_bags, load_pt, make_bag, mpp_of, open_h5, plain)
from scmil.bags.formats.writing import Dataset, features_of, h5_bytes, pt_bytes, xy_of
from scmil.core.safe_io import h5_array

FOLDERS = ("h5_files", "pt_files")
OLD = (
    "coordinates left out: the old pipeline of CLAM counts them in pixels of the patch's level, and this file does not say "
    "that it is level 0"
)


@register("clam", "CLAM: h5_files and pt_files")
class Clam:
    """Features of CLAM: the folder above `h5_files` and `pt_files`, or one of the two.

    The features' files have level-0 coordinates and nothing else. How large the tiles are stands in `patches/<slide>.h5`
    of the step before, which is read if it lies here or one folder up.
    """

    layout: ClassVar[str] = "h5_files/<slide>.h5 with features and coords, pt_files/<slide>.pt, or one of these folders"

    def looks_like(self, folder: Folder) -> bool:
        """Whether the folders of CLAM are here, or HDF5 files without the marks of the other tools."""
        if set(FOLDERS) & set(folder.folders) or (folder.name == "pt_files" and folder.stems(".pt")):
            return True
        if folder.h5 is None or "features" not in folder.h5.datasets or "scmil_format" in folder.h5.attributes:
            return False
        return not folder.h5.on_coords and not folder.name.startswith(("features_", "slide_features_"))

    def read(self, folder: Folder, labels: Labels | None = None, slide_mpp: SlideMpp | None = None) -> BagSet:
        """The bags of all slides that are in one of the folders; HDF5 first, because it has the coordinates."""
        root = folder.path.parent if folder.name in FOLDERS else folder.path
        h5, pt = (Folder(root / name) if (root / name).is_dir() else None for name in FOLDERS)
        if not (h5 or pt):
            h5 = folder
        of_h5 = set(h5.stems(".h5")) if h5 else set()
        of_pt = set(pt.stems(".pt")) if pt else set()
        ids = {"h5_files": of_h5, "pt_files": of_pt}.get(folder.name, of_h5 | of_pt)

        def files(id: str) -> list[Path]:
            own = root / "pt_files" / f"{id}.pt" if h5 is None or id not in of_h5 else h5.path / f"{id}.h5"
            return [own, *_patch_files(root, id)]

        def load(id: str) -> Bag:
            features: Array
            coords: NDArray[Any] | None = None
            path = files(id)[0]
            if path.suffix == ".pt":
                features = load_pt(path)
            else:
                with open_h5(path) as file:
                    features = h5_array(file, "features")
                    coords = h5_array(file, "coords") if "coords" in file else None
            patches = _patches(root, id, features, coords)
            known = patches.provenance(mpp_of(id, slide_mpp))
            return make_bag(id, path, "clam", features, patches.coords, known, warnings=patches.warnings)

        return lazy_bags(sorted(ids), load, labels, files=files)

    def place(self, folder: Path, bag: Bag) -> Path:
        """The folder itself."""
        return folder

    def finished(self, place: Path, id: str) -> bool:
        """Whether the tensor is there, which is written last."""
        return (place / "pt_files" / f"{id}.pt").is_file()

    def files(self, bag: Bag, place: Path) -> Iterator[tuple[Path, bytes]]:
        """The two files of a slide."""
        features, xy = features_of(bag), xy_of(bag)
        parts = {"features": Dataset(features, 32, {})}
        if xy is not None:
            parts["coords"] = Dataset(xy.astype(np.int32), 32, {})
        yield place / "h5_files" / f"{bag.id}.h5", h5_bytes(**parts)
        yield place / "pt_files" / f"{bag.id}.pt", pt_bytes(features)


@dataclass(frozen=True)
class _Patches:
    """The coordinates of a slide if they are in level-0 pixels, and how its tiles were cut if that is known."""

    coords: NDArray[Any] | None
    warnings: Sequence[str] = ()
    size_px: int | None = None  # at the level of the patches
    downsample: float | None = None
    slide_size: Any = None

    def provenance(self, slide_mpp: float | None) -> dict[str, Any]:
        """What is known of the tiles; their resolution only together with the slide's."""
        side = self.size_px * self.downsample if self.size_px and self.downsample else None
        mpp = slide_mpp * self.downsample if slide_mpp and self.downsample else None
        told = {"size_px": self.size_px, "mpp": mpp, "side_level0": side}
        return {**told, "slide_mpp": slide_mpp, "slide_size": self.slide_size}


def _patch_files(root: Path, id: str) -> list[Path]:
    return [above / "patches" / f"{id}.h5" for above in (root, root.parent)]


def _patches(root: Path, id: str, features: Array, coords: NDArray[Any] | None) -> _Patches:
    """What `patches/<slide>.h5` says of the tiles whose features and perhaps coordinates were read."""
    path = next((path for path in _patch_files(root, id) if path.is_file()), None)
    if path is None:
        return _Patches(coords)
    with open_h5(path) as file:
        cut, old = h5_array(file, "coords"), "imgs" in file
        told = {key: plain(value) for key, value in file["imgs" if old else "coords"].attrs.items()}
        if cut.shape[:1] != features.shape[:1] or (coords is not None and not np.array_equal(cut, coords)):
            return _Patches(coords, [f"patches/{id}.h5 has other tiles than the features: not used"])
        if old:
            return _Patches(cut) if told.get("patch_level") == 0 else _Patches(None, [OLD])
        if "downsample" not in told or "patch_size" not in told:
            return _Patches(cut)
        downsample = float(np.ravel(told["downsample"])[0]) * float(told.get("custom_downsample", 1))
        size = told.get("level_dim") if told.get("patch_level") == 0 else None
        return _Patches(cut, (), int(told["patch_size"]), downsample, size)
