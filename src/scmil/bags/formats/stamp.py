"""STAMP: one HDF5 file a slide, with 16-bit features and coordinates in microns."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from scmil.bags.bag import Bag, BagSet
from scmil.errors import DataError
from scmil.bags.formats import register
from scmil.bags.formats.folder import SOME, Folder, choose, first_peek
from scmil.bags.formats.reading import Labels, SlideMpp, lazy_bags, make_bag, mpp_of, naming, open_h5, plain
from scmil.core.safe_io import h5_array

FEATURES = ("feats", "patch_embeddings")  # of histology, of multiplex images
HISTORIC_UM = 256 / 224  # before there was an attribute for the unit, tiles of 256 microns were 224 units wide


@register("stamp", "STAMP: feats, and coordinates in microns")
class Stamp:
    """Features of STAMP: the folder of an extractor, or the folder above; slides may lie in folders of their own.

    Coordinates become pixels if the slide's resolution is given as `slide_mpp`; without it they are left out.
    """

    layout: ClassVar[str] = "<extractor>-<hash>/<slide>.h5 with feats, coords and the attribute stamp_version"

    def looks_like(self, folder: Folder) -> bool:
        """Whether the first files here or below have the names of STAMP."""
        return _is_stamp(folder) or any(map(_is_stamp, folder.some()))

    def read(
        self,
        folder: Folder,
        labels: Labels | None = None,
        key: str | None = None,
        slide_mpp: SlideMpp | None = None,
    ) -> BagSet:
        """The bags of one extractor."""
        sets = {name: folder / name for name in folder.folders if _is_extractor(folder / name)}
        if folder.stems(".h5") or not sets:
            sets = {folder.name: folder}
        place = choose(sets, key, folder.path)[1]
        files: dict[str, Path] = {}
        for path in place.below(".h5"):
            if path.stem in files:
                raise DataError(f"{files[path.stem]} and {path} have one name: a slide's id is the name of its file.")
            files[path.stem] = path

        def load(id: str) -> Bag:
            with naming(files[id], "a bag of STAMP"):
                return _load(id, files[id], mpp_of(id, slide_mpp))

        return lazy_bags(sorted(files), load, labels, files=lambda id: [files[id]])


def _is_stamp(folder: Folder) -> bool:
    peek = folder.h5 or first_peek(folder.below(".h5", deepest=2, widest=SOME))
    return peek is not None and ("stamp_version" in peek.attributes or bool(set(FEATURES) & set(peek.datasets)))


def _is_extractor(folder: Folder) -> bool:
    """Whether the folder is named after an extractor and the first eight digits of its code's hash."""
    digits = folder.name.rpartition("-")[2]
    return len(digits) == 8 and set(digits) <= set("0123456789abcdef") and _is_stamp(folder)


def _load(id: str, path: Path, slide_mpp: float | None) -> Bag:
    with open_h5(path) as file:
        about = {name: plain(value) for name, value in file.attrs.items()}
        if about.get("feat_type", "tile") != "tile":
            raise DataError(f"one vector a {about['feat_type']}, no instances. Open the features of the tiles.")
        name = next((name for name in FEATURES if name in file), FEATURES[0])
        features = h5_array(file, name)
        coords = h5_array(file, "coords") if "coords" in file else None
    microns, side_um, warnings = _microns(coords, about)
    xy = None
    if microns is not None and slide_mpp is None:
        warnings.append("coordinates left out: they are in microns. Give the slide's resolution: slide_mpp=0.25")
    elif microns is not None:
        xy = np.rint(microns / slide_mpp)
    size_px = about.get("tile_size_px")
    return make_bag(
        id,
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


def _microns(coords: NDArray[Any] | None, about: dict[str, Any]) -> tuple[NDArray[Any] | None, float | None, list[str]]:
    """The coordinates in microns, the side of a tile in microns, and what is to be said of both."""
    side = about.get("tile_size_um", about.get("tile_size"))
    if coords is None:
        return None, side, []
    values = coords.astype(np.float64)
    if about.get("unit") == "um":
        return values, side, []
    if "unit" not in about and _stride(values) == 224:
        return values * HISTORIC_UM, 256.0, []
    return (
        None,
        None,
        [f"coordinates left out: their unit is {about.get('unit', 'not stated')}, and microns are needed"],
    )


def _stride(coords: NDArray[np.float64]) -> int | None:
    """The smallest distance of two columns or rows of tiles.

    >>> _stride(np.array([[0.0, 0.0], [224.0, 0.0], [672.0, 448.0]]))
    224
    """
    if coords.ndim != 2:
        return None
    gaps = np.concatenate([np.diff(np.unique(column)) for column in coords.T])
    return round(float(gaps.min())) if len(gaps) else None
