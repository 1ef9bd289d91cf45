"""HistoSSL: a folder for each slide, with an array whose first three columns are the address of the tile."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from scmil.bags.bag import Bag, BagSet
from scmil.errors import DataError
from scmil.bags.formats import register
from scmil.bags.formats.folder import Folder
from scmil.bags.formats.reading import Labels, lazy_bags, load_npy, make_bag

ADDRESS = 3  # DeepZoom level, column, row


@register("histossl", "HistoSSL: features.npy with addresses of tiles")
class HistoSSL:
    """Features of HistoSSL: level, column and row of each tile in DeepZoom's pyramid, then the features.

    The address is taken off. It becomes no coordinate: pixels need the slide's size and the overlap, which are not stated.
    """

    layout: ClassVar[str] = "<slide>/features.npy of shape (n, 3 + p), perhaps with coords.npy (n, 3)"

    def looks_like(self, folder: Folder) -> bool:
        """Whether the first folders have such an array."""
        return any("features.npy" in slide.files for slide in folder.some())

    def read(self, folder: Folder, labels: Labels | None = None) -> BagSet:
        """The bags of all folders; if there are none, of all arrays here."""
        files = {name: folder.path / name / "features.npy" for name in folder.folders}
        files = {id: path for id, path in files.items() if path.is_file()}
        files = files or {stem: folder.path / f"{stem}.npy" for stem in folder.stems(".npy")}
        return lazy_bags(
            sorted(files),
            lambda id: _load(id, files[id]),
            labels,
            files=lambda id: [files[id], files[id].with_name("coords.npy")],
        )


def _load(id: str, path: Path) -> Bag:
    values, beside = load_npy(path), path.with_name("coords.npy")
    if values.ndim != 2 or values.dtype.kind != "f":
        raise DataError(f"{path}: {values.dtype} of shape {values.shape}, but numbers (n, 3 + p) are needed.")
    address = values[:, :ADDRESS]
    if beside.is_file():
        coords = load_npy(beside)
        if coords.shape != (len(values), ADDRESS):
            raise DataError(f"{beside}: addresses of shape {coords.shape}, but {(len(values), ADDRESS)} is needed.")
        if not np.array_equal(coords.astype(values.dtype), address):  # the array has no addresses of its own
            return make_bag(id, path, "histossl", values)
    if values.shape[1] <= ADDRESS or not ((address >= 0) & (address == np.floor(address))).all():
        raise DataError(
            f"{path}: the first three columns are no addresses, level, column and row of each tile. "
            "Features without them are read with format='arrays'."
        )
    return make_bag(id, path, "histossl", values[:, ADDRESS:])
