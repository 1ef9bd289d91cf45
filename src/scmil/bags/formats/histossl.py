"""HistoSSL: a folder per slide, with an array whose first three columns are the tile address."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from scmil.bags.bag import Bag, BagSet
from scmil.bags.formats import register
from scmil.bags.formats.folder import Folder
from scmil.bags.formats.reading import LabelTable, lazy_bags, load_npy, make_bag
from scmil.errors import DataError

ADDRESS = 3  # DeepZoom level, column, row


@register("histossl", "HistoSSL: features.npy with addresses of tiles")
class HistoSSL:
    """Features of HistoSSL: level, column and row of each tile in a DeepZoom pyramid first.

    The address is removed and not converted to coordinates: that would need the slide's size and
    the tile overlap, which the files do not contain.
    """

    layout: ClassVar[str] = (
        "<slide>/features.npy of shape (n, 3 + p), perhaps with coords.npy (n, 3)"
    )

    def looks_like(self, folder: Folder) -> bool:
        """Return whether the first subfolders contain such an array."""
        return any("features.npy" in slide.files for slide in folder.some())

    def read(self, folder: Folder, labels: LabelTable | None = None) -> BagSet:
        """Return the bags of all subfolders, or of all arrays here if there are none."""
        files = {name: folder.path / name / "features.npy" for name in folder.folders}
        files = {bag_id: path for bag_id, path in files.items() if path.is_file()}
        files = files or {stem: folder.path / f"{stem}.npy" for stem in folder.stems(".npy")}
        return lazy_bags(
            sorted(files),
            lambda bag_id: _load_without_addresses(bag_id, files[bag_id]),
            labels,
            files=lambda bag_id: [files[bag_id], files[bag_id].with_name("coords.npy")],
        )


def _load_without_addresses(bag_id: str, path: Path) -> Bag:
    """Read the bag of a slide and remove the tile addresses."""
    values, beside = load_npy(path), path.with_name("coords.npy")
    if values.ndim != 2 or values.dtype.kind != "f":
        raise DataError(
            f"{path}: {values.dtype} of shape {values.shape}, but floating-point numbers "
            "(n, 3 + p) are needed."
        )
    address = values[:, :ADDRESS]
    if beside.is_file():
        coords = load_npy(beside)
        if coords.shape != (len(values), ADDRESS):
            raise DataError(
                f"{beside}: addresses of shape {coords.shape}, but {(len(values), ADDRESS)} is "
                "needed."
            )
        # The array does not contain the addresses.
        if not np.array_equal(coords.astype(values.dtype), address):
            return make_bag(bag_id, path, "histossl", values)
    if values.shape[1] <= ADDRESS or not ((address >= 0) & (address == np.floor(address))).all():
        raise DataError(
            f"{path}: the first three columns are not tile addresses (level, column, row). "
            "Read features without addresses with format='arrays'."
        )
    return make_bag(bag_id, path, "histossl", values[:, ADDRESS:])
