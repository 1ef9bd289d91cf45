"""DTFD-MIL: all slides in one pickle, which is opened only on request, and then only for arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from scmil.bags.bag import BagSet
from scmil.errors import DataError
from scmil.bags.formats import register
from scmil.bags.formats.folder import Folder
from scmil.bags.formats.pickles import HeldArray, load_arrays
from scmil.bags.formats.reading import Labels, lazy_bags, make_bag, naming
from scmil.core.safe_io import check_expansion, open_regular

CLASSES = ("normal", "tumor")


@register("dtfd", "DTFD-MIL: pickled features, only with trust_pickle")
class Dtfd:
    """Features of DTFD-MIL: `{slide: [{"feature": array (p,)}, ...]}`. A slide's name starts with its class.

    A pickle can run any code. This one is read by an unpickler that knows numpy's arrays and nothing else, and still only
    if `trust_pickle` says so.
    """

    layout: ClassVar[str] = "<name>.pkl with {slide: [{'feature': array}, ...]}"

    def looks_like(self, folder: Folder) -> bool:
        """Whether there is a pickle."""
        return bool(folder.stems(".pkl"))

    def read(self, folder: Folder, labels: Labels | None = None, trust_pickle: bool = False) -> BagSet:
        """The bags of all pickles here; a pickle is read whole."""
        paths = [folder.path / f"{stem}.pkl" for stem in folder.stems(".pkl")]
        if not trust_pickle:
            raise DataError(
                f"{folder.path} has pickles ({', '.join(path.name for path in paths[:3])}), and a pickle can run any code. "
                "If you know who made them: trust_pickle=True. Arrays are read then, and nothing is run."
            )
        slides: dict[str, tuple[Path, Any]] = {}
        for path in paths:
            for id, tiles in _slides(path).items():
                if id in slides:
                    raise DataError(f"slide {id!r} is in both {slides[id][0]} and {path}. Keep one of them.")
                slides[id] = path, tiles
        own = {id: CLASSES.index(name) for id in slides for name in CLASSES if id.lower().startswith(name)}
        named = CLASSES if own else None
        return lazy_bags(
            slides,
            lambda id: make_bag(id, slides[id][0], "dtfd", _rows(id, *slides[id])),
            labels,
            own,
            named,
            files=lambda id: [slides[id][0]],
        )


def _slides(path: Path) -> dict[str, Any]:
    with naming(path, "a pickle"), open_regular(path) as file:
        slides = load_arrays(file)
        if not isinstance(slides, dict) or not all(isinstance(id, str) for id in slides):
            raise DataError(f"a {type(slides).__name__}, but a dictionary from slides to lists of tiles is needed.")
        return slides


def _rows(id: str, path: Path, tiles: Any) -> NDArray[Any]:
    try:
        rows = [_row(tile["feature"]) for tile in tiles]
        check_expansion(
            sum(row.nbytes for row in rows), path.stat().st_size, "the tiles"
        )  # one can be there many times
        return np.stack(rows)
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise DataError(
            f"{path}, slide {id!r}: no list of tiles with a 'feature' of one length each ({error})."
        ) from None


def _row(feature: Any) -> NDArray[Any]:
    """The features of a tile: an array, or a list of numbers; lists of lists could grow without end."""
    if isinstance(feature, HeldArray):
        return feature.array()
    if not isinstance(feature, list) or not all(isinstance(value, int | float) for value in feature):
        raise TypeError(f"a {type(feature).__name__} instead of an array")
    return np.array(feature, np.float64)
