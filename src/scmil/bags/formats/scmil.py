"""scmil bags: one HDF5 file per slide, in `bags/<encoder>/` of a work folder."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from scmil.bags.bag import Bag, BagSet
from scmil.bags.formats import register
from scmil.bags.formats.folder import Folder, choose
from scmil.bags.formats.reading import LabelTable, lazy_bags
from scmil.bags.hdf5 import mark_bag, read_bag, read_header
from scmil.core.safe_io import naming
from scmil.errors import DataError


@register("scmil", "bags that scmil encoded")
class Scmil:
    """Bags that scmil encoded: the folder of an encoder, `bags/`, or the work folder."""

    layout: ClassVar[str] = "<slide>.h5 with the attribute scmil_format; also in bags/<encoder>/"

    def looks_like(self, folder: Folder) -> bool:
        """Return whether a file here, or in the folder of an encoder, is a bag of scmil."""
        encoders = _encoders_folder(folder).some()
        return _has_scmil_bags(folder) or any(_has_scmil_bags(place) for place in encoders)

    def read(
        self, folder: Folder, labels: LabelTable | None = None, key: str | None = None
    ) -> BagSet:
        """Return the bags of one encoder."""
        above, sets = _encoders_folder(folder), {folder.name: folder}
        if not folder.stems(".h5"):
            sets = {name: above / name for name in above.folders if _has_scmil_bags(above / name)}
        place = choose(sets, key, folder.path)[1]
        files = {
            _bag_id(path): path
            for path in (place.path / f"{stem}.h5" for stem in place.stems(".h5"))
        }

        def load(bag_id: str) -> Bag:
            path = files[bag_id]
            with naming(path, "a bag of scmil"):
                bag = read_bag(path)
                if bag.id != bag_id:
                    raise DataError(
                        f"the file contains the bag {bag.id!r}, but is named after another one. "
                        "Rename it."
                    )
                return replace(
                    bag, provenance={**bag.provenance, "format": "scmil", "file": path.name}
                )

        return lazy_bags(
            files,
            load,
            labels,
            files=lambda bag_id: [files[bag_id]],
            mark=lambda bag_id, before: mark_bag(files[bag_id], before),
        )


def _bag_id(path: Path) -> str:
    """Return the id of a bag: its file name, unless the id has characters that were escaped."""
    stem = path.stem
    if "%" in stem:
        with suppress(DataError):  # damaged: reported when the bag is read
            return read_header(path).id
    return stem


def _has_scmil_bags(folder: Folder) -> bool:
    return folder.h5 is not None and "scmil_format" in folder.h5.attributes


def _encoders_folder(folder: Folder) -> Folder:
    """Return the folder that contains one folder per encoder."""
    return folder / "bags" if "bags" in folder.folders else folder
