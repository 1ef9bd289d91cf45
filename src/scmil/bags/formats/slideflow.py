"""slideflow: a tensor for each slide, and one description of the extraction."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from scmil.bags.bag import Bag, BagSet
from scmil.bags.formats import register
from scmil.bags.formats.folder import Folder
from scmil.bags.formats.reading import (
    LabelTable,
    lazy_bags,
    load_npz,
    load_pt,
    make_bag,
    read_json_object,
)
from scmil.errors import DataError

CONFIG = "bags_config.json"


@register("slideflow", "slideflow: .pt, .index.npz and bags_config.json")
class Slideflow:
    """Bags of slideflow.

    Tile locations are left out, because the files do not state whether they are corners or centres.
    """

    layout: ClassVar[str] = "<slide>.pt, <slide>.index.npz and bags_config.json"

    def looks_like(self, folder: Folder) -> bool:
        """Return whether the description is here, or tile locations beside the tensors."""
        return bool(folder.stems(".pt")) and (
            CONFIG in folder.files or bool(folder.stems(".index.npz"))
        )

    def read(self, folder: Folder, labels: LabelTable | None = None) -> BagSet:
        """Return the bags of all tensors."""
        about = _read_config(folder)

        def files(bag_id: str) -> list[Path]:
            return [folder.path / f"{bag_id}.pt", folder.path / f"{bag_id}.index.npz"]

        def load(bag_id: str) -> Bag:
            path, index = files(bag_id)
            features, warnings = load_pt(path), []
            if index.is_file():
                tiles = load_npz(index, "arr_0")
                if tiles.shape[:1] != features.shape[:1]:
                    raise DataError(
                        f"{index}: locations of shape {tiles.shape}, but features of shape "
                        f"{tuple(features.shape)}. Extract the features of this slide again."
                    )
                warnings.append(
                    "coordinates left out: slideflow does not state whether they are corners or "
                    "centres"
                )
            return make_bag(bag_id, path, "slideflow", features, None, about, warnings=warnings)

        return lazy_bags(folder.stems(".pt"), load, labels, files=files)


def _read_config(folder: Folder) -> dict[str, Any]:
    """Read encoder and tiling from the description of the extraction, if there is one."""
    if CONFIG not in folder.files:
        return {}
    config = read_json_object(folder.path / CONFIG)
    extractor, size_px = config.get("extractor"), config.get("tile_px")
    side_um, mpp = config.get("tile_um"), None
    # tile_um can also be a magnification such as "20x".
    if isinstance(side_um, int | float) and isinstance(size_px, int) and size_px > 0:
        mpp = side_um / size_px
    return {
        "encoder": extractor.get("class") if isinstance(extractor, dict) else extractor,
        "size_px": size_px,
        "mpp": mpp,
    }
