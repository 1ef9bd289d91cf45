"""DTFD-MIL: all slides in one pickle, which is read only on request, and only for arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from scmil.bags.bag import BagSet
from scmil.bags.formats import register
from scmil.bags.formats.folder import Folder
from scmil.bags.formats.pickle_records import HeldArray
from scmil.bags.formats.pickles import load_arrays
from scmil.bags.formats.reading import LabelTable, lazy_bags, make_bag
from scmil.core.regular_files import open_regular
from scmil.core.safe_io import check_expansion, naming
from scmil.errors import DataError

CLASSES = ("normal", "tumor")


@register("dtfd", "DTFD-MIL: pickled features, only with trust_pickle")
class Dtfd:
    """Features of DTFD-MIL: `{slide: [{"feature": array (p,)}, ...]}`.

    The name of a slide starts with its class. A pickle can run any code. This reader uses an
    unpickler that supports numpy arrays and nothing else, and requires `trust_pickle`.
    """

    layout: ClassVar[str] = "<name>.pkl with {slide: [{'feature': array}, ...]}"

    def looks_like(self, folder: Folder) -> bool:
        """Return whether there is a pickle."""
        return bool(folder.stems(".pkl"))

    def read(
        self, folder: Folder, labels: LabelTable | None = None, trust_pickle: bool = False
    ) -> BagSet:
        """Return the bags of all pickles; each pickle is read completely."""
        paths = [folder.path / f"{stem}.pkl" for stem in folder.stems(".pkl")]
        if not trust_pickle:
            raise DataError(
                f"{folder.path} has pickles ({', '.join(path.name for path in paths[:3])}), and a "
                "pickle can run any code. If you trust their source: trust_pickle=True, which "
                "reads arrays and runs nothing."
            )
        slides: dict[str, tuple[Path, Any]] = {}
        for path in paths:
            for bag_id, tiles in _read_slides(path).items():
                if bag_id in slides:
                    raise DataError(
                        f"slide {bag_id!r} is in both {slides[bag_id][0]} and {path}. Keep one of "
                        "them."
                    )
                slides[bag_id] = path, tiles
        own = {
            bag_id: CLASSES.index(name)
            for bag_id in slides
            for name in CLASSES
            if bag_id.lower().startswith(name)
        }
        named = CLASSES if own else None
        return lazy_bags(
            slides,
            lambda bag_id: make_bag(
                bag_id, slides[bag_id][0], "dtfd", _stack_tiles(bag_id, *slides[bag_id])
            ),
            labels,
            own,
            named,
            files=lambda bag_id: [slides[bag_id][0]],
        )


def _read_slides(path: Path) -> dict[str, Any]:
    """Read the dictionary of slides of a pickle."""
    with naming(path, "a pickle"), open_regular(path) as file:
        slides = load_arrays(file)
        if not isinstance(slides, dict) or not all(isinstance(bag_id, str) for bag_id in slides):
            raise DataError(
                f"a {type(slides).__name__}, but a dictionary of slides with lists of tiles is "
                "needed."
            )
        return slides


def _stack_tiles(bag_id: str, path: Path, tiles: Any) -> NDArray[Any]:
    """Return the features of all tiles of a slide as a matrix."""
    try:
        rows = [_tile_features(tile["feature"]) for tile in tiles]
        # A pickle can refer to the same array many times.
        check_expansion(sum(row.nbytes for row in rows), path.stat().st_size, "the tiles")
        return np.stack(rows)
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise DataError(
            f"{path}, slide {bag_id!r}: a list of tiles is needed, each with a 'feature' of the "
            f"same length ({error})."
        ) from None


def _tile_features(feature: Any) -> NDArray[Any]:
    """Return the features of a tile: an array, or a list of numbers, not of lists."""
    if isinstance(feature, HeldArray):
        return feature.array()
    if not isinstance(feature, list) or not all(
        isinstance(value, int | float) for value in feature
    ):
        raise TypeError(f"a {type(feature).__name__} instead of an array")
    return np.array(feature, np.float64)
