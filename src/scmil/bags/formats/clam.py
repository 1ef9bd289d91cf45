"""CLAM: an HDF5 file with features and coordinates, and a .pt file, for each slide."""

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
from scmil.bags.formats.reading import (
    Array,
    LabelTable,
    SlideMpp,
    lazy_bags,
    load_pt,
    make_bag,
    mpp_of,
    open_h5,
    plain_attributes,
    read_h5_features,
)
from scmil.bags.formats.writing import Dataset, features_of, h5_bytes, pt_bytes, xy_of
from scmil.core.safe_hdf5 import h5_array

FOLDERS = ("h5_files", "pt_files")
OLD = (
    "coordinates left out: the old pipeline of CLAM stores them in pixels of the patch level, and "
    "this file does not say that it is level 0"
)


@register("clam", "CLAM: h5_files and pt_files")
class Clam:
    """Features of CLAM: the folder that contains `h5_files` and `pt_files`, or one of the two.

    The feature files contain level-0 coordinates and no other metadata. The tile size is in
    `patches/<slide>.h5` of the previous step, which is read if it is here or one folder up.
    """

    layout: ClassVar[str] = (
        "h5_files/<slide>.h5 with features and coords, pt_files/<slide>.pt, or one of these folders"
    )

    def looks_like(self, folder: Folder) -> bool:
        """Return whether the folders of CLAM are here, or HDF5 files without other tools' marks."""
        if set(FOLDERS) & set(folder.folders) or (
            folder.name == "pt_files" and folder.stems(".pt")
        ):
            return True
        if (
            folder.h5 is None
            or "features" not in folder.h5.datasets
            or "scmil_format" in folder.h5.attributes
        ):
            return False
        return not folder.h5.on_coords and not folder.name.startswith(
            ("features_", "slide_features_")
        )

    def read(
        self, folder: Folder, labels: LabelTable | None = None, slide_mpp: SlideMpp | None = None
    ) -> BagSet:
        """Return the bags of all slides in the folders.

        HDF5 files are preferred, because they contain the coordinates.
        """
        root = folder.path.parent if folder.name in FOLDERS else folder.path
        h5, pt = (Folder(root / name) if (root / name).is_dir() else None for name in FOLDERS)
        if not (h5 or pt):
            h5 = folder
        of_h5 = set(h5.stems(".h5")) if h5 else set()
        of_pt = set(pt.stems(".pt")) if pt else set()
        ids = {"h5_files": of_h5, "pt_files": of_pt}.get(folder.name, of_h5 | of_pt)

        def files(bag_id: str) -> list[Path]:
            own = (
                root / "pt_files" / f"{bag_id}.pt"
                if h5 is None or bag_id not in of_h5
                else h5.path / f"{bag_id}.h5"
            )
            return [own, *_patch_files(root, bag_id)]

        def load(bag_id: str) -> Bag:
            features: Array
            coords: NDArray[Any] | None = None
            path = files(bag_id)[0]
            if path.suffix == ".pt":
                features = load_pt(path)
            else:
                features, coords, *_ = read_h5_features(path, "features")
            patches = _read_patches(root, bag_id, features, coords)
            known = patches.provenance(mpp_of(bag_id, slide_mpp))
            return make_bag(
                bag_id, path, "clam", features, patches.coords, known, warnings=patches.warnings
            )

        return lazy_bags(sorted(ids), load, labels, files=files)

    def place(self, folder: Path, bag: Bag) -> Path:
        """Return the folder itself."""
        return folder

    def finished(self, place: Path, bag_id: str) -> bool:
        """Return whether the .pt file exists, which is written last."""
        return (place / "pt_files" / f"{bag_id}.pt").is_file()

    def files(self, bag: Bag, place: Path) -> Iterator[tuple[Path, bytes]]:
        """Yield the two files of a slide."""
        features, xy = features_of(bag), xy_of(bag)
        parts = {"features": Dataset(features, 32, {})}
        if xy is not None:
            parts["coords"] = Dataset(xy.astype(np.int32), 32, {})
        yield place / "h5_files" / f"{bag.id}.h5", h5_bytes(**parts)
        yield place / "pt_files" / f"{bag.id}.pt", pt_bytes(features)


@dataclass(frozen=True)
class _Patches:
    """The coordinates of a slide, if they are in level-0 pixels, and its tiling, if known."""

    coords: NDArray[Any] | None
    warnings: Sequence[str] = ()
    size_px: int | None = None  # at the level of the patches
    downsample: float | None = None
    slide_size: Any = None

    def provenance(self, slide_mpp: float | None) -> dict[str, Any]:
        """Return the tiling; the resolution of the tiles requires that of the slide."""
        side = self.size_px * self.downsample if self.size_px and self.downsample else None
        mpp = slide_mpp * self.downsample if slide_mpp and self.downsample else None
        return {
            "size_px": self.size_px,
            "mpp": mpp,
            "side_level0": side,
            "slide_mpp": slide_mpp,
            "slide_size": self.slide_size,
        }


def _patch_files(root: Path, bag_id: str) -> list[Path]:
    return [above / "patches" / f"{bag_id}.h5" for above in (root, root.parent)]


def _read_patches(
    root: Path, bag_id: str, features: Array, coords: NDArray[Any] | None
) -> _Patches:
    """Read `patches/<slide>.h5`, if it describes the tiles of these features."""
    path = next((path for path in _patch_files(root, bag_id) if path.is_file()), None)
    if path is None:
        return _Patches(coords)
    with open_h5(path) as file:
        cut, old = h5_array(file, "coords"), "imgs" in file
        known = plain_attributes(file["imgs" if old else "coords"])
        if cut.shape[:1] != features.shape[:1] or (
            coords is not None and not np.array_equal(cut, coords)
        ):
            return _Patches(
                coords, [f"patches/{bag_id}.h5 has other tiles than the features: not used"]
            )
        if old:
            return _Patches(cut) if known.get("patch_level") == 0 else _Patches(None, [OLD])
        if "downsample" not in known or "patch_size" not in known:
            return _Patches(cut)
        downsample = float(np.ravel(known["downsample"])[0]) * float(
            known.get("custom_downsample", 1)
        )
        size = known.get("level_dim") if known.get("patch_level") == 0 else None
        return _Patches(cut, (), int(known["patch_size"]), downsample, size)
