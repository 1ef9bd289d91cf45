"""torchmil: four folders, each with one array per bag."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from scmil.bags.bag import MOST_CLASSES, Bag, BagSet
from scmil.bags.formats import register
from scmil.bags.formats.folder import Folder, choose
from scmil.bags.formats.reading import (
    LabelTable,
    lazy_bags,
    load_npy,
    make_bag,
    open_h5,
    read_json_object,
)
from scmil.bags.formats.writing import features_of, known_of, npy_bytes, xy_of
from scmil.core.safe_hdf5 import h5_array
from scmil.core.safe_io import naming
from scmil.errors import DataError

BESIDE = ("labels", "patch_labels", "coords", "provenance")
SUFFIXES = (".npy", ".h5")


@register("torchmil", "torchmil: features, labels, patch_labels, coords")
class TorchMIL:
    """The folders of torchmil, as it writes them or as in its published data sets.

    Published data sets contain folders such as `patches_512/features/features_UNI`. torchmil treats
    tiles as neighbours if their coordinates differ by less than 1.5, so one unit is the step from
    tile to tile. scmil writes such coordinates, and the step in `provenance/<bag>.json`. If the
    step is unknown, coordinates are left out unless `step` gives the level-0 pixels of a unit; in
    the published data sets the unit is one pixel.
    """

    layout: ClassVar[str] = (
        "features/<bag>.npy (or .h5), and labels/, patch_labels/, coords/ beside it"
    )

    def looks_like(self, folder: Folder) -> bool:
        """Return whether folders of these names are here or in `patches_<size>`."""
        return any(_has_folders(place) for place in _roots(folder).values())

    def read(
        self,
        folder: Folder,
        labels: LabelTable | None = None,
        key: str | None = None,
        step: float | None = None,
    ) -> BagSet:
        """Return the bags, with the labels of the folder unless there is a table."""
        place = choose(_feature_folders(folder), key, folder.path)[1]
        published = place.name.startswith("features_")
        root = place.path.parent.parent if published else place.path.parent
        suffixes = {stem: suffix for suffix in reversed(SUFFIXES) for stem in place.stems(suffix)}
        own, damaged = _read_bag_labels(root, suffixes) if labels is None else ({}, {})
        splits = _read_split_names(root.parent / "splits.csv" if published else root / "splits.csv")
        about = {"encoder": place.name.removeprefix("features_")} if published else {}

        def load(bag_id: str) -> Bag:
            if bag_id in damaged:
                raise DataError(damaged[bag_id])
            path = place.path / f"{bag_id}{suffixes[bag_id]}"
            with naming(path, "a bag of torchmil"):
                stored = root / "provenance" / f"{bag_id}.json"
                provenance = {
                    "split": splits.get(bag_id),
                    **about,
                    **(read_json_object(stored) if stored.is_file() else {}),
                }
                unit = step or provenance.pop("step", None) or (1 if published else None)
                coords, instance_labels = (
                    _read_beside(root / name, bag_id, suffixes[bag_id])
                    for name in ("coords", "patch_labels")
                )
                warnings = list(provenance.pop("warnings", ()))
                if coords is not None and unit is None:
                    warnings.append(
                        "coordinates left out: their unit is not known. Give the level-0 pixels "
                        "of a unit: step=512"
                    )
                xy = (
                    None
                    if coords is None or unit is None
                    else np.rint(np.asarray(coords, np.float64) * unit)
                )
                features = _read_array(path, "features")
                return make_bag(
                    bag_id,
                    path,
                    "torchmil",
                    features,
                    xy,
                    provenance,
                    instance_labels=instance_labels,
                    warnings=warnings,
                )

        def files(bag_id: str) -> list[Path]:
            beside = [
                root / name / f"{bag_id}{suffix}"
                for name in ("coords", "patch_labels")
                for suffix in dict.fromkeys((suffixes[bag_id], *SUFFIXES))
            ]
            return [
                place.path / f"{bag_id}{suffixes[bag_id]}",
                *beside,
                root / "provenance" / f"{bag_id}.json",
            ]

        return lazy_bags(sorted(suffixes), load, labels, own, files=files)

    def place(self, folder: Path, bag: Bag) -> Path:
        """Return the folder itself."""
        return folder

    def finished(self, place: Path, bag_id: str) -> bool:
        """Return whether the features exist, which are written last."""
        return (place / "features" / f"{bag_id}.npy").is_file()

    def files(self, bag: Bag, place: Path) -> Iterator[tuple[Path, bytes]]:
        """Yield the files of a bag, each in its folder."""
        source = ("format", "file")
        provenance = {key: value for key, value in bag.provenance.items() if key not in source}
        arrays: dict[str, NDArray[Any]] = {}
        if (xy := xy_of(bag)) is not None:
            provenance["step"] = _step_px(bag)
            arrays["coords"] = (xy / provenance["step"]).astype(np.float32)
        if bag.label is not None:
            arrays["labels"] = np.array([bag.label])
        if bag.instance_labels is not None:
            arrays["patch_labels"] = bag.instance_labels.detach().cpu().numpy()
        arrays["features"] = features_of(bag)
        content = json.dumps(provenance, sort_keys=True).encode()
        yield place / "provenance" / f"{bag.id}.json", content
        for name, values in arrays.items():
            yield place / name / f"{bag.id}.npy", npy_bytes(values)


def _step_px(bag: Bag) -> float:
    """Return the level-0 pixels from one tile to the next."""
    [side] = known_of(bag, "torchmil", "side_level0")
    if not bag.provenance.get("overlap_px"):
        return float(side)
    [size_px] = known_of(bag, "torchmil", "size_px")
    return float(side) * (1 - bag.provenance["overlap_px"] / size_px)


def _roots(folder: Folder) -> dict[str, Folder]:
    """Return the folders that may contain features: this one, and those of tile sizes in it."""
    return {
        "": folder,
        **{f"{name}/": folder / name for name in folder.folders if name.startswith("patches_")},
    }


def _has_folders(folder: Folder) -> bool:
    return "features" in folder.folders and bool(set(BESIDE) & set(folder.folders))


def _feature_folders(folder: Folder) -> dict[str, Folder]:
    """Return the folders of features by encoder."""
    found: dict[str, Folder] = {}
    for prefix, root in _roots(folder).items():
        if "features" in root.folders:
            features = root / "features"
            encoders = [name for name in features.folders if name.startswith("features_")]
            found |= {prefix + name.removeprefix("features_"): features / name for name in encoders}
            if not encoders:
                found[f"{prefix}features"] = features
    return found


def _read_array(path: Path, *names: str) -> NDArray[Any]:
    """Read a .npy file, or the first of these data sets of an HDF5 file."""
    if path.suffix == ".npy":
        return load_npy(path)
    with open_h5(path) as file:
        return h5_array(file, next((name for name in names if name in file), names[0]))


def _read_beside(folder: Path, bag_id: str, suffix: str) -> NDArray[Any] | None:
    """Read the array of a bag from a folder beside the features, if there is one."""
    paths = [folder / f"{bag_id}{other}" for other in (suffix, *SUFFIXES)]
    path = next((path for path in paths if path.is_file()), None)
    return None if path is None else _read_array(path, folder.name, "inst_labels")


def _read_bag_labels(
    root: Path, suffixes: Mapping[str, str]
) -> tuple[dict[str, int], dict[str, str]]:
    """Read the labels of all bags.

    Errors are returned by bag and raised when the bag is read, so that other bags can be used.
    """
    own: dict[str, int] = {}
    damaged: dict[str, str] = {}
    for bag_id, suffix in suffixes.items():
        try:
            values = _read_beside(root / "labels", bag_id, suffix)
        except DataError as error:
            damaged[bag_id] = str(error)
            continue
        if values is None:
            continue
        if (
            values.size == 1
            and values.dtype.kind in "fiub"
            and 0 <= values.item() < MOST_CLASSES
            and float(values.item()).is_integer()
        ):
            own[bag_id] = int(values.item())
        else:
            damaged[bag_id] = (
                f"{root / 'labels' / bag_id}: the label is {values.tolist()}, but one integer from "
                f"0 to {MOST_CLASSES - 1} is needed."
            )
    return own, damaged


def _read_split_names(path: Path) -> dict[str, str]:
    """Read the split of each bag of a published data set; the names are not used as paths."""
    if not path.is_file():
        return {}
    with naming(path, "a table"), path.open(encoding="utf-8-sig", newline="") as file:
        return {row["bag_name"]: row["split"] for row in csv.DictReader(file)}
