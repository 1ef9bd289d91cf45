"""TRIDENT: one HDF5 file per slide, with the tiling in the attributes of its coordinates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from scmil.bags.bag import Bag, BagSet
from scmil.bags.formats import register
from scmil.bags.formats.folder import Folder, choose
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
from scmil.bags.formats.writing import Dataset, features_of, h5_bytes, known_of, xy_of
from scmil.core.safe_hdf5 import h5_array
from scmil.core.safe_io import naming
from scmil.errors import DataError

TILING = re.compile(r"[\d.]+x_\d+px_\d+px_overlap")
MARKS = {"patch_size_level0", "target_magnification"}
# Upper bounds of the resolution in microns per pixel, and the magnification of each.
BUCKETS = ((0.16, 80), (0.2, 60), (0.3, 40), (0.6, 20), (1.2, 10), (2.4, 5))
TOLERANCE = 0.02


@register("trident", "TRIDENT: features_<encoder>")
class Trident:
    """Features of TRIDENT: the job folder, the folder of a tiling, or `features_<encoder>`.

    A magnification stands for a range of resolutions: slides of 0.2 to 0.3 microns per pixel are
    all 40x. The resolution of the tiles is therefore known only with that of the slide,
    `slide_mpp`.
    """

    layout: ClassVar[str] = (
        "20x_256px_0px_overlap/features_<encoder>/<slide>.h5, or one of these folders"
    )

    def looks_like(self, folder: Folder) -> bool:
        """Return whether folder names or attributes of the coordinates are those of TRIDENT."""
        if any(map(TILING.fullmatch, folder.folders)):
            return True
        if any(
            (folder / name).stems(suffix)
            for name in _feature_sets(folder)
            for suffix in (".h5", ".pt")
        ):
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
        labels: LabelTable | None = None,
        key: str | None = None,
        slide_mpp: SlideMpp | None = None,
    ) -> BagSet:
        """Return the bags of one encoder and one tiling."""
        place = _features_folder(folder, key)
        if place.name.startswith("slide_features_"):
            raise DataError(
                f"{place.path}: one vector per slide, without instances. Open the features of the "
                "tiles, features_<encoder>."
            )
        suffixes = {stem: suffix for suffix in (".pt", ".h5") for stem in place.stems(suffix)}

        def files(bag_id: str) -> list[Path]:
            own = place.path / f"{bag_id}{suffixes[bag_id]}"
            return [own, _patch_file(own, bag_id)] if own.suffix == ".pt" else [own]

        def load(bag_id: str) -> Bag:
            path = files(bag_id)[0]
            with naming(path, "a bag of TRIDENT"):
                return _load_trident_bag(bag_id, path, mpp_of(bag_id, slide_mpp))

        return lazy_bags(sorted(suffixes), load, labels, files=files)

    def place(self, folder: Path, bag: Bag) -> Path:
        """Return the folder of the bag's tiling and encoder."""
        encoder, size_px, mpp = known_of(bag, "TRIDENT", "encoder", "size_px", "mpp")
        tiling = (
            f"{magnification(mpp)}x_{size_px}px_{bag.provenance.get('overlap_px') or 0}px_overlap"
        )
        return folder / tiling / f"features_{re.sub(r'[^A-Za-z0-9_.-]', '_', encoder).lstrip('.')}"

    def finished(self, place: Path, bag_id: str) -> bool:
        """Return whether the features exist, which are written last."""
        return (place / f"{bag_id}.h5").is_file()

    def files(self, bag: Bag, place: Path) -> Iterator[tuple[Path, bytes]]:
        """Yield a file of the coordinates, and a file of features and coordinates."""
        xy, parts = xy_of(bag), {}
        if xy is not None:
            coords = Dataset(xy, 1, _attributes(bag, place.parent))
            yield place.parent / "patches" / f"{bag.id}_patches.h5", h5_bytes(coords=coords)
            parts["coords"] = coords
        about = {"name": bag.id, "savetodir": str(place), "encoder": bag.provenance["encoder"]}
        parts["features"] = Dataset(features_of(bag), 1, about)
        yield place / f"{bag.id}.h5", h5_bytes(**parts)


def magnification(mpp: float) -> int:
    """Return the magnification that TRIDENT assigns to a resolution.

    >>> magnification(0.5), magnification(0.21), magnification(0.29)
    (20, 40, 40)
    """
    for bound, times in BUCKETS:
        if mpp < bound:
            return times
    raise DataError(
        f"mpp = {mpp}: TRIDENT supports resolutions below {BUCKETS[-1][0]} microns per pixel. "
        "Export to another format."
    )


def _feature_sets(folder: Folder) -> list[str]:
    """Return the names of the subfolders with features of tiles or slides."""
    return [name for name in folder.folders if name.startswith(("features_", "slide_features_"))]


def _features_folder(folder: Folder, key: str | None) -> Folder:
    if folder.stems(".h5") or folder.stems(".pt"):
        return choose(
            {folder.name.partition("features_")[2] or folder.name: folder}, key, folder.path
        )[1]
    tilings = {f"{name}/": folder / name for name in folder.folders if TILING.fullmatch(name)}
    found = {
        prefix + name.partition("features_")[2]: tiling / name
        for prefix, tiling in {"": folder, **tilings}.items()
        for name in _tile_feature_sets(tiling)
    }
    return choose(found, key, folder.path)[1]


def _tile_feature_sets(folder: Folder) -> list[str]:
    """Return the sets of tile features, or if there are none those of slides, which raise later."""
    found = _feature_sets(folder)
    return [name for name in found if name.startswith("features_")] or found


def _patch_file(features: Path, bag_id: str) -> Path:
    return features.parent.parent / "patches" / f"{bag_id}_patches.h5"


def _load_trident_bag(bag_id: str, path: Path, slide_mpp: float | None) -> Bag:
    """Read the bag of a slide; for .pt files the coordinates are in a second file."""
    features: Array
    coords, encoder = None, None
    about: Mapping[str, Any] = {}
    if path.suffix == ".pt":
        features = load_pt(path)
        if (patches := _patch_file(path, bag_id)).is_file():
            with open_h5(patches) as file:
                coords, about = h5_array(file, "coords"), plain_attributes(file["coords"])
    else:
        features, coords, _, on_features, about = read_h5_features(path, "features")
        encoder = on_features.get("encoder")
    if encoder in (None, "None", ""):
        encoder = path.parent.name.partition("features_")[2] or None
    slide_mpp = slide_mpp or about.get("slide_mpp")
    size_px, side = (
        about.get("patch_size"),
        about.get("side_level0") or about.get("patch_size_level0"),
    )
    mpp = slide_mpp * side / size_px if slide_mpp and side and size_px else None
    size = about.get("level0_width"), about.get("level0_height")
    return make_bag(
        bag_id,
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
        warnings=_magnification_warnings(about.get("target_magnification"), mpp, slide_mpp),
    )


def _magnification_warnings(
    times: float | None, mpp: float | None, slide_mpp: float | None
) -> list[str]:
    """Return a warning if the resolution of tiles differs from that of their magnification."""
    if not times or not mpp or abs(mpp * times / 10 - 1) <= TOLERANCE:
        return []
    return [
        f"the tiles are called {times:g}x, which is {10 / times:g} microns per pixel, but on this "
        f"slide of {slide_mpp:g} microns per pixel they have {mpp:.4g}"
    ]


def _attributes(bag: Bag, tiling: Path) -> dict[str, Any]:
    """Return TRIDENT's attributes of the coordinates, and the exact resolution beside them."""
    known = bag.provenance
    side, slide_mpp = known.get("side_level0"), known.get("slide_mpp")
    size = known.get("slide_size") or (None, None)
    if side is None:
        [slide_mpp] = known_of(bag, "TRIDENT", "slide_mpp")
        side = known["size_px"] * known["mpp"] / slide_mpp
    slide_mpp = slide_mpp or known["size_px"] * known["mpp"] / side
    return {
        "patch_size": known["size_px"],
        "patch_size_level0": round(side),
        "level0_magnification": magnification(slide_mpp),
        "target_magnification": magnification(known["mpp"]),
        "overlap": known.get("overlap_px") or 0,
        "name": bag.id,
        "savetodir": str(tiling),
        "level0_width": size[0],
        "level0_height": size[1],
        "slide_mpp": slide_mpp,
        "side_level0": float(side),
    }
