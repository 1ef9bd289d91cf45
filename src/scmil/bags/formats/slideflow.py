"""slideflow: a tensor for each slide, and one description of how all were made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from scmil.bags.bag import Bag, BagSet
from scmil.errors import DataError
from scmil.bags.formats import register
from scmil.bags.formats.folder import Folder
from scmil.bags.formats.reading import Labels, lazy_bags, load_npz, load_pt, make_bag, naming
from scmil.core.safe_io import read_regular

CONFIG = "bags_config.json"


@register("slideflow", "slideflow: .pt, .index.npz and bags_config.json")
class Slideflow:
    """Bags of slideflow. The locations of the tiles are left out: whether they are corners or centres is not stated."""

    layout: ClassVar[str] = "<slide>.pt, <slide>.index.npz and bags_config.json"

    def looks_like(self, folder: Folder) -> bool:
        """Whether the description is here, or the locations of tiles beside the tensors."""
        return bool(folder.stems(".pt")) and (CONFIG in folder.files or bool(folder.stems(".index.npz")))

    def read(self, folder: Folder, labels: Labels | None = None) -> BagSet:
        """The bags of all tensors."""
        about = _about(folder)

        def files(id: str) -> list[Path]:
            return [folder.path / f"{id}.pt", folder.path / f"{id}.index.npz"]

        def load(id: str) -> Bag:
            path, index = files(id)
            features, warnings = load_pt(path), []
            if index.is_file():
                tiles = load_npz(index, "arr_0")
                if tiles.shape[:1] != features.shape[:1]:
                    raise DataError(
                        f"{index}: locations of shape {tiles.shape}, but the features are of shape {tuple(features.shape)}."
                    )
                warnings.append("coordinates left out: slideflow does not state whether they are corners or centres")
            return make_bag(id, path, "slideflow", features, None, about, warnings=warnings)

        return lazy_bags(folder.stems(".pt"), load, labels, files=files)


def _about(folder: Folder) -> dict[str, Any]:
    if CONFIG not in folder.files:
        return {}
    path = folder.path / CONFIG
    with naming(path, "JSON"):
        told = json.loads(read_regular(path))
        if not isinstance(told, dict):
            raise DataError("a JSON object is needed.")
    extractor, size_px, side_um = told.get("extractor"), told.get("tile_px"), told.get("tile_um")
    mpp = None
    if isinstance(side_um, int | float) and isinstance(size_px, int) and size_px > 0:  # tile_um can be "20x", too
        mpp = side_um / size_px
    return {
        "encoder": extractor.get("class") if isinstance(extractor, dict) else extractor,
        "size_px": size_px,
        "mpp": mpp,
    }
