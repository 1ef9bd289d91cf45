"""torchmil: four folders side by side, one array of each for every bag."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from scmil.bags.bag import MOST_CLASSES, Bag, BagSet
from scmil.errors import DataError
from scmil.bags.formats import register
from scmil.bags.formats.folder import Folder, choose
from scmil.bags.formats.reading import Labels, lazy_bags, load_npy, make_bag, naming, open_h5
from scmil.bags.formats.writing import features_of, known_of, npy_bytes, xy_of
from scmil.core.safe_io import h5_array, read_regular

BESIDE = ("labels", "patch_labels", "coords", "provenance")
SUFFIXES = (".npy", ".h5")


@register("torchmil", "torchmil: features, labels, patch_labels, coords")
class TorchMIL:
    """The folders of torchmil, alone or as its published data sets have them: `patches_512/features/features_UNI`.

    torchmil takes tiles for neighbours whose coordinates differ by less than 1.5, so a unit is one step from tile to tile.
    We write that, with the step in `provenance/<bag>.json`. Where no step is known, coordinates are left out unless `step`
    says how many level-0 pixels a unit is; in the published data sets they are pixels already.
    """

    layout: ClassVar[str] = "features/<bag>.npy (or .h5), and labels/, patch_labels/, coords/ beside it"

    def looks_like(self, folder: Folder) -> bool:
        """Whether folders of the four names are here or in `patches_<size>`."""
        return any(_has_folders(place) for place in _roots(folder).values())

    def read(
        self, folder: Folder, labels: Labels | None = None, key: str | None = None, step: float | None = None
    ) -> BagSet:
        """The bags, with the labels of the folder unless there is a table."""
        place = choose(_features(folder), key, folder.path)[1]
        published = place.name.startswith("features_")
        root = place.path.parent.parent if published else place.path.parent
        suffixes = {stem: suffix for suffix in reversed(SUFFIXES) for stem in place.stems(suffix)}
        own, damaged = _labels(root, suffixes) if labels is None else ({}, {})
        splits = _splits(root.parent / "splits.csv" if published else root / "splits.csv")
        about = {"encoder": place.name.removeprefix("features_")} if published else {}

        def load(id: str) -> Bag:
            if id in damaged:
                raise DataError(damaged[id])
            path = place.path / f"{id}{suffixes[id]}"
            with naming(path, "a bag of torchmil"):
                told = {"split": splits.get(id), **about, **_told(root / "provenance" / f"{id}.json")}
                unit = step or told.pop("step", None) or (1 if published else None)
                coords, marks = (_array(root / name, id, suffixes[id]) for name in ("coords", "patch_labels"))
                warnings = list(told.pop("warnings", ()))
                if coords is not None and unit is None:
                    warnings.append(
                        "coordinates left out: their unit is not known. Give level-0 pixels a unit: step=512"
                    )
                xy = None if coords is None or unit is None else np.rint(np.asarray(coords, np.float64) * unit)
                features = _read(path, "features")
                return make_bag(id, path, "torchmil", features, xy, told, instance_labels=marks, warnings=warnings)

        def files(id: str) -> list[Path]:
            beside = [
                root / name / f"{id}{suffix}"
                for name in ("coords", "patch_labels")
                for suffix in dict.fromkeys((suffixes[id], *SUFFIXES))
            ]
            return [place.path / f"{id}{suffixes[id]}", *beside, root / "provenance" / f"{id}.json"]

        return lazy_bags(sorted(suffixes), load, labels, own, files=files)

    def place(self, folder: Path, bag: Bag) -> Path:
        """The folder itself."""
        return folder

    def finished(self, place: Path, id: str) -> bool:
        """Whether the features are there, which are written last."""
        return (place / "features" / f"{id}.npy").is_file()

    def files(self, bag: Bag, place: Path) -> Iterator[tuple[Path, bytes]]:
        """What is known of a bag, each in its folder."""
        told, xy = {key: value for key, value in bag.provenance.items() if key not in ("format", "file")}, xy_of(bag)
        parts: dict[str, NDArray[Any]] = {}
        if xy is not None:
            told["step"] = _step(bag)
            parts["coords"] = (xy / told["step"]).astype(np.float32)
        if bag.label is not None:
            parts["labels"] = np.array([bag.label])
        if bag.instance_labels is not None:
            parts["patch_labels"] = bag.instance_labels.detach().cpu().numpy()
        parts["features"] = features_of(bag)
        yield place / "provenance" / f"{bag.id}.json", json.dumps(told, sort_keys=True).encode()
        for name, values in parts.items():
            yield place / name / f"{bag.id}.npy", npy_bytes(values)


def _step(bag: Bag) -> float:
    """The level-0 pixels from one tile to the next."""
    [side] = known_of(bag, "torchmil", "side_level0")
    if not bag.provenance.get("overlap_px"):
        return float(side)
    [size_px] = known_of(bag, "torchmil", "size_px")
    return float(side) * (1 - bag.provenance["overlap_px"] / size_px)


def _roots(folder: Folder) -> dict[str, Folder]:
    """The folders that may have the four: this one, and those of published tile sizes in it."""
    return {"": folder, **{f"{name}/": folder / name for name in folder.folders if name.startswith("patches_")}}


def _has_folders(folder: Folder) -> bool:
    return "features" in folder.folders and bool(set(BESIDE) & set(folder.folders))


def _features(folder: Folder) -> dict[str, Folder]:
    found: dict[str, Folder] = {}
    for prefix, root in _roots(folder).items():
        if "features" in root.folders:
            features = root / "features"
            encoders = [name for name in features.folders if name.startswith("features_")]
            found |= {prefix + name.removeprefix("features_"): features / name for name in encoders}
            if not encoders:
                found[f"{prefix}features"] = features
    return found


def _read(path: Path, *names: str) -> NDArray[Any]:
    if path.suffix == ".npy":
        return load_npy(path)
    with open_h5(path) as file:
        return h5_array(file, next((name for name in names if name in file), names[0]))


def _array(folder: Path, id: str, suffix: str) -> NDArray[Any] | None:
    """The array of a bag in one of the folders beside the features, if there is one."""
    paths = [folder / f"{id}{other}" for other in (suffix, *SUFFIXES)]
    path = next((path for path in paths if path.is_file()), None)
    return None if path is None else _read(path, folder.name, "inst_labels")


def _labels(root: Path, suffixes: Mapping[str, str]) -> tuple[dict[str, int], dict[str, str]]:
    """The labels of all bags, and why one cannot be read: told when that bag is asked for, so that others can be used."""
    own: dict[str, int] = {}
    damaged: dict[str, str] = {}
    for id, suffix in suffixes.items():
        try:
            values = _array(root / "labels", id, suffix)
        except DataError as error:
            damaged[id] = str(error)
            continue
        if values is None:
            continue
        if (
            values.size == 1
            and values.dtype.kind in "fiub"
            and 0 <= values.item() < MOST_CLASSES
            and float(values.item()).is_integer()
        ):
            own[id] = int(values.item())
        else:
            damaged[id] = (
                f"{root / 'labels' / id}: the label is {values.tolist()}, but one whole number from 0 to "
                f"{MOST_CLASSES - 1} is needed."
            )
    return own, damaged


def _told(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    with naming(path, "JSON"):
        told = json.loads(read_regular(path))
        if not isinstance(told, dict):
            raise DataError("a JSON object is needed.")
        return told


def _splits(path: Path) -> dict[str, str]:
    """The part that each bag of a published data set belongs to; the names are compared with files and never opened."""
    if not path.is_file():
        return {}
    with naming(path, "a table"), path.open(encoding="utf-8-sig", newline="") as file:
        return {row["bag_name"]: row["split"] for row in csv.DictReader(file)}
