"""Our own bags: one HDF5 file a slide, in `bags/<encoder>/` of a working folder."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from scmil.bags.hdf5 import mark_bag, read_bag, read_header
from scmil.bags.bag import Bag, BagSet
from scmil.errors import DataError
from scmil.bags.formats import register
from scmil.bags.formats.folder import Folder, choose
from scmil.bags.formats.reading import Labels, lazy_bags, naming


@register("scmil", "bags that scmil encoded")
class Scmil:
    """Bags that scmil encoded: the folder of an encoder, `bags/` with some of them, or the working folder above."""

    layout: ClassVar[str] = "<slide>.h5 with the attribute scmil_format; also in bags/<encoder>/"

    def looks_like(self, folder: Folder) -> bool:
        """Whether a file here, or in a folder of an encoder below, has our mark."""
        return _is_ours(folder) or any(_is_ours(place) for place in _above(folder).some())

    def read(self, folder: Folder, labels: Labels | None = None, key: str | None = None) -> BagSet:
        """The bags of one encoder."""
        above, sets = _above(folder), {folder.name: folder}
        if not folder.stems(".h5"):
            sets = {name: above / name for name in above.folders if _is_ours(above / name)}
        place = choose(sets, key, folder.path)[1]
        files = {_id(path): path for path in (place.path / f"{stem}.h5" for stem in place.stems(".h5"))}

        def load(id: str) -> Bag:
            path = files[id]
            with naming(path, "a bag of scmil"):
                bag = read_bag(path)
                if bag.id != id:
                    raise DataError(f"the file holds the bag {bag.id!r}, and is named after another. Rename it.")
                return replace(bag, provenance={**bag.provenance, "format": "scmil", "file": path.name})

        return lazy_bags(
            files, load, labels, files=lambda id: [files[id]], mark=lambda id, before: mark_bag(files[id], before)
        )


def _id(path: Path) -> str:
    """The id of a bag is its file's name, unless letters that no file name can have were written in another way."""
    stem = path.stem
    if "%" in stem:
        with suppress(DataError):  # damaged: told when the bag is asked for
            return read_header(path).id
    return stem


def _is_ours(folder: Folder) -> bool:
    return folder.h5 is not None and "scmil_format" in folder.h5.attributes


def _above(folder: Folder) -> Folder:
    """The folder that has one folder for every encoder."""
    return folder / "bags" if "bags" in folder.folders else folder
