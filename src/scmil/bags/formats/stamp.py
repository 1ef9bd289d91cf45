"""STAMP: one HDF5 file per slide, with 16-bit features and coordinates in microns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from scmil.bags.bag import Bag, BagSet
from scmil.bags.formats import register
from scmil.bags.formats.folder import SOME, Folder, choose, first_peek
from scmil.bags.formats.reading import (
    LabelTable,
    SlideMpp,
    lazy_bags,
    make_bag,
    mpp_of,
    read_h5_features,
)
from scmil.core.safe_io import naming
from scmil.errors import DataError

FEATURES = ("feats", "patch_embeddings")  # histology and multiplex images
# In files without the attribute `unit`, tiles of 256 microns are 224 units wide.
HISTORIC_UM = 256 / 224


@register("stamp", "STAMP: feats, and coordinates in microns")
class Stamp:
    """Features of STAMP: the folder of an extractor, or the folder above it.

    Slides may be in subfolders. Coordinates are converted to pixels if `slide_mpp` gives the
    resolution of the slide, and left out otherwise.
    """

    layout: ClassVar[str] = (
        "<extractor>-<hash>/<slide>.h5 with feats, coords and the attribute stamp_version"
    )

    def looks_like(self, folder: Folder) -> bool:
        """Return whether the first files here or below contain the data sets of STAMP."""
        return _is_stamp(folder) or any(map(_is_stamp, folder.some()))

    def read(
        self,
        folder: Folder,
        labels: LabelTable | None = None,
        key: str | None = None,
        slide_mpp: SlideMpp | None = None,
    ) -> BagSet:
        """Return the bags of one extractor."""
        sets = {name: folder / name for name in folder.folders if _is_extractor(folder / name)}
        if folder.stems(".h5") or not sets:
            sets = {folder.name: folder}
        place = choose(sets, key, folder.path)[1]
        files: dict[str, Path] = {}
        for path in place.below(".h5"):
            if path.stem in files:
                raise DataError(
                    f"{files[path.stem]} and {path} have the same name, which is the id of the "
                    "slide. Rename one of them."
                )
            files[path.stem] = path

        def load(bag_id: str) -> Bag:
            with naming(files[bag_id], "a bag of STAMP"):
                return _load_stamp_bag(bag_id, files[bag_id], mpp_of(bag_id, slide_mpp))

        return lazy_bags(sorted(files), load, labels, files=lambda bag_id: [files[bag_id]])


def _is_stamp(folder: Folder) -> bool:
    peek = folder.h5 or first_peek(folder.below(".h5", deepest=2, widest=SOME))
    return peek is not None and (
        "stamp_version" in peek.attributes or bool(set(FEATURES) & set(peek.datasets))
    )


def _is_extractor(folder: Folder) -> bool:
    """Return whether the folder is named after an extractor and eight digits of a hash."""
    digits = folder.name.rpartition("-")[2]
    return len(digits) == 8 and set(digits) <= set("0123456789abcdef") and _is_stamp(folder)


def _load_stamp_bag(bag_id: str, path: Path, slide_mpp: float | None) -> Bag:
    """Read the bag of a slide, with coordinates in pixels if the resolution is known."""
    features, coords, about, *_ = read_h5_features(path, *FEATURES)
    if about.get("feat_type", "tile") != "tile":
        raise DataError(
            f"one vector per {about['feat_type']}, without instances. Open the features of the "
            "tiles."
        )
    microns, side_um, warnings = _coords_in_microns(coords, about)
    xy = None
    if microns is not None and slide_mpp is None:
        warnings.append(
            "coordinates left out: they are in microns. Give the slide's resolution: slide_mpp=0.25"
        )
    elif microns is not None:
        xy = np.rint(microns / slide_mpp)
    size_px = about.get("tile_size_px")
    return make_bag(
        bag_id,
        path,
        "stamp",
        features,
        xy,
        {
            "encoder": about.get("extractor"),
            "size_px": size_px,
            "mpp": side_um / size_px if side_um and size_px else None,
            "side_level0": side_um / slide_mpp if side_um and slide_mpp else None,
            "slide_mpp": slide_mpp,
        },
        warnings=warnings,
    )


def _coords_in_microns(
    coords: NDArray[Any] | None, about: Mapping[str, Any]
) -> tuple[NDArray[Any] | None, float | None, list[str]]:
    """Return the coordinates and the side of a tile in microns, and warnings about them."""
    side = about.get("tile_size_um", about.get("tile_size"))
    if coords is None:
        return None, side, []
    values = coords.astype(np.float64)
    if about.get("unit") == "um":
        return values, side, []
    if "unit" not in about and _stride(values) == 224:
        return values * HISTORIC_UM, 256.0, []
    unit = about.get("unit", "not stated")
    return None, None, [f"coordinates left out: their unit is {unit}, and microns are needed"]


def _stride(coords: NDArray[np.float64]) -> int | None:
    """Return the smallest distance between two columns or rows of tiles.

    >>> _stride(np.array([[0.0, 0.0], [224.0, 0.0], [672.0, 448.0]]))
    224
    """
    if coords.ndim != 2:
        return None
    gaps = np.concatenate([np.diff(np.unique(column)) for column in coords.T])
    return round(float(gaps.min())) if len(gaps) else None
