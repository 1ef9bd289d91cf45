"""TRIDENT: one HDF5 file a slide, with the tiling in the attributes of its coordinates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from scmil.bags.bag import Bag, BagSet
from scmil.errors import DataError
from scmil.bags.formats import register
from scmil.bags.formats.folder import Folder, choose
from scmil.bags.formats.reading import (Array, Labels, SlideMpp, lazy_bags, load_pt, make_bag, mpp_of, naming, open_h5, plain)
from scmil.bags.formats.writing import Dataset, features_of, h5_bytes, known_of, xy_of
from scmil.core.safe_io import h5_array

TILING = re.compile(r"[\d.]+x_\d+px_\d+px_overlap")
MARKS = {"patch_size_level0", "target_magnification"}
BUCKETS = ((0.16, 80), (0.2, 60), (0.3, 40), (0.6, 20), (1.2, 10), (2.4, 5))  # below so many microns a pixel: so many x
TOLERANCE = 0.02


@register("trident", "TRIDENT: features_<encoder>")
class Trident:
    """Features of TRIDENT: the job folder, the folder of a tiling, or the folder `features_<encoder>`.

    A magnification stands for a range of resolutions: slides of 0.2 to 0.3 microns a pixel are all 40x. The resolution of
    the tiles is therefore known only together with the slide's, which is given as `slide_mpp`.
    """

    layout: ClassVar[str] = "20x_256px_0px_overlap/features_<encoder>/<slide>.h5, or one of these folders"

    def looks_like(self, folder: Folder) -> bool:
        """Whether a name or the attributes of the coordinates are those of TRIDENT."""
        if any(map(TILING.fullmatch, folder.folders)):
            return True
        if any((folder / name).stems(suffix) for name in _sets(folder) for suffix in (".h5", ".pt")):
            return True
        named = folder.name.startswith(("features_", "slide_features_"))
        if folder.h5 is None:
            return named and bool(folder.stems(".pt"))
        if "features" not in folder.h5.datasets or "scmil_format" in folder.h5.attributes:
            return False
        return named or bool(MARKS & set(folder.h5.on_coords))

    def read(
        self,
        folder: Folder,
        labels: Labels | None = None,
        key: str | None = None,
        slide_mpp: SlideMpp | None = None,
    ) -> BagSet:
        """The bags of one encoder at one tiling."""
        place = _features_folder(folder, key)
        if place.name.startswith("slide_features_"):
            raise DataError(
                f"{place.path}: one vector a slide, no instances. Open the features of the tiles, features_<encoder>."
            )
        suffixes = {stem: suffix for suffix in (".pt", ".h5") for stem in place.stems(suffix)}

        def files(id: str) -> list[Path]:
            own = place.path / f"{id}{suffixes[id]}"
            return [own, _patches(own, id)] if own.suffix == ".pt" else [own]

        def load(id: str) -> Bag:
            path = files(id)[0]
            with naming(path, "a bag of TRIDENT"):
                return _load(id, path, mpp_of(id, slide_mpp))

        return lazy_bags(sorted(suffixes), load, labels, files=files)

    def place(self, folder: Path, bag: Bag) -> Path:
        """The folder of the bag's tiling and encoder."""
        encoder, size_px, mpp = known_of(bag, "TRIDENT", "encoder", "size_px", "mpp")
        tiling = f"{magnification(mpp)}x_{size_px}px_{bag.provenance.get('overlap_px') or 0}px_overlap"
        return folder / tiling / f"features_{re.sub(r'[^A-Za-z0-9_.-]', '_', encoder).lstrip('.')}"

    def finished(self, place: Path, id: str) -> bool:
        """Whether the features are there, which are written last."""
        return (place / f"{id}.h5").is_file()

    def files(self, bag: Bag, place: Path) -> Iterator[tuple[Path, bytes]]:
        """The coordinates of a slide alone, and its features with their coordinates."""
        xy, parts = xy_of(bag), {}
        if xy is not None:
            coords = Dataset(xy, 1, _attributes(bag, place.parent))
            yield place.parent / "patches" / f"{bag.id}_patches.h5", h5_bytes(coords=coords)
            parts["coords"] = coords
        about = {"name": bag.id, "savetodir": str(place), "encoder": bag.provenance["encoder"]}
        parts["features"] = Dataset(features_of(bag), 1, about)
        yield place / f"{bag.id}.h5", h5_bytes(**parts)


def magnification(mpp: float) -> int:
    """The magnification that TRIDENT calls a resolution by.

    >>> magnification(0.5), magnification(0.21), magnification(0.29)
    (20, 40, 40)
    """
    for bound, times in BUCKETS:
        if mpp < bound:
            return times
    raise DataError(f"mpp = {mpp}: TRIDENT knows resolutions below {BUCKETS[-1][0]} microns a pixel.")


def _sets(folder: Folder) -> list[str]:
    return [name for name in folder.folders if name.startswith(("features_", "slide_features_"))]


def _features_folder(folder: Folder, key: str | None) -> Folder:
    if folder.stems(".h5") or folder.stems(".pt"):
        return choose({folder.name.partition("features_")[2] or folder.name: folder}, key, folder.path)[1]
    tilings = {f"{name}/": folder / name for name in folder.folders if TILING.fullmatch(name)}
    found = {
        prefix + name.partition("features_")[2]: tiling / name
        for prefix, tiling in {"": folder, **tilings}.items()
        for name in _tiles_first(tiling)
    }
    return choose(found, key, folder.path)[1]


def _tiles_first(folder: Folder) -> list[str]:
    """The sets of features of tiles; only where there are none, those of slides, so that they are refused by name."""
    return [name for name in _sets(folder) if name.startswith("features_")] or _sets(folder)


def _patches(features: Path, id: str) -> Path:
    return features.parent.parent / "patches" / f"{id}_patches.h5"


def _load(id: str, path: Path, slide_mpp: float | None) -> Bag:
    features: Array
    coords, about, encoder = None, dict[str, Any](), None
    if path.suffix == ".pt":
        features = load_pt(path)
        if (patches := _patches(path, id)).is_file():
            with open_h5(patches) as file:
                coords, about = h5_array(file, "coords"), _about(file["coords"])
    else:
        with open_h5(path) as file:
            features, encoder = h5_array(file, "features"), plain(file["features"].attrs.get("encoder"))
            if "coords" in file:
                coords, about = h5_array(file, "coords"), _about(file["coords"])
    if encoder in (None, "None", ""):
        encoder = path.parent.name.partition("features_")[2] or None
    slide_mpp = slide_mpp or about.get("slide_mpp")
    size_px, side = about.get("patch_size"), about.get("side_level0") or about.get("patch_size_level0")
    mpp = slide_mpp * side / size_px if slide_mpp and side and size_px else None
    size = about.get("level0_width"), about.get("level0_height")
    return make_bag(
        id,
        path,
        "trident",
        features,
        coords,
        {
            "encoder": encoder,
            "size_px": size_px,
            "mpp": mpp,
            "side_level0": side,
            "slide_mpp": slide_mpp,
            "slide_size": None if None in size else list(size),
            "overlap_px": about.get("overlap"),
            "magnification": about.get("target_magnification"),
        },
        warnings=_mismatch(about.get("target_magnification"), mpp, slide_mpp),
    )


def _about(coords: Any) -> dict[str, Any]:
    return {name: plain(value) for name, value in coords.attrs.items()}


def _mismatch(times: float | None, mpp: float | None, slide_mpp: float | None) -> list[str]:
    """Words about tiles whose true resolution is not the one that their magnification is taken for."""
    if not times or not mpp or abs(mpp * times / 10 - 1) <= TOLERANCE:
        return []
    return [
        f"the tiles are called {times:g}x, which is {10 / times:g} microns a pixel, but on this slide of {slide_mpp:g} "
        f"microns a pixel they are of {mpp:.4g}"
    ]


def _attributes(bag: Bag, tiling: Path) -> dict[str, Any]:
    """The attributes of TRIDENT on the coordinates; its magnifications are coarse, so the true resolution stands beside."""
    told = bag.provenance
    side, slide_mpp, size = told.get("side_level0"), told.get("slide_mpp"), told.get("slide_size") or (None, None)
    if side is None:
        [slide_mpp] = known_of(bag, "TRIDENT", "slide_mpp")
        side = told["size_px"] * told["mpp"] / slide_mpp
    slide_mpp = slide_mpp or told["size_px"] * told["mpp"] / side
    return {
        "patch_size": told["size_px"],
        "patch_size_level0": round(side),
        "level0_magnification": magnification(slide_mpp),
        "target_magnification": magnification(told["mpp"]),
        "overlap": told.get("overlap_px") or 0,
        "name": bag.id,
        "savetodir": str(tiling),
        "level0_width": size[0],
        "level0_height": size[1],
        "slide_mpp": slide_mpp,
        "side_level0": float(side),
    }
