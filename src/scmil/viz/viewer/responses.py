"""What the viewer answers, without the web: slides and tiles by their numbers, never by a path."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from scmil.errors import DataError
from scmil.slides.apart import Outlines
from scmil.viz.drawing.tiles import COLOURS
from scmil.viz.viewer.library import Library
from scmil.viz.viewer.pixels import TILE_PX, Cache, OpenSlides, as_jpeg, cut, depth, identity, picture

JPEG, PNG = "image/jpeg", "image/png"
BLANK = np.full((TILE_PX, TILE_PX, 3), 235, np.uint8)


class Answers:
    """All answers of the viewer, as plain functions of numbers."""

    def __init__(self, library: Library) -> None:
        self.library, self.cache, self.open, self.outlines = library, Cache(), OpenSlides(), Outlines()

    def slides(self) -> dict[str, Any]:
        """The list, and the colours of the scale."""
        return {**self.library.page(), "colours": COLOURS.tolist()}

    def slide(self, slide: int, model: int) -> dict[str, Any]:
        """The size of a slide, and the tiles of a model on it."""
        shown = self.library.slides[slide]
        size, mpp = self.library.extent(slide)
        if shown.path:
            with self.open.use(shown.path, mpp) as opened:
                size = opened.size
                mpp = opened.known_mpp if opened.mpp_source != "given" else mpp
        if size is None:
            raise KeyError(slide)
        return {"size": size, "mpp": mpp, "levels": depth(size), **self.library.tiles(model, slide)}

    def pyramid(self, slide: int, level: int, column: int, row: int) -> bytes:
        """A tile of the deep zoom; plain grey if there is no file of the slide."""
        shown = self.library.slides[slide]
        if shown.path is None:
            return self.cache.get("blank", lambda: as_jpeg(BLANK))
        return self._cut(slide, cut, level, column, row)

    def tile(self, slide: int, model: int, tile: int) -> bytes:
        """The picture of one tile of a model."""
        scores = self.library.scores(model, slide)
        if tile >= len(scores):
            raise KeyError(tile)
        x, y = scores.xy[tile].tolist()
        return self._picture(slide, (x, y), scores.side)

    def atom_picture(self, model: int, atom: int, number: int) -> tuple[bytes, str]:
        """A picture of the atlas and its kind; if its file is not there, it is cut from the slide."""
        found = self.library.atom_picture(model, atom, number)
        if isinstance(found, Path):
            return found.read_bytes(), PNG if found.suffix.lower() == ".png" else JPEG
        slide = self.library.index(str(found["slide"]))
        if slide is None:
            raise KeyError(found["slide"])
        try:
            x, y, side = int(found["x"]), int(found["y"]), float(found["side"])
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"tile {number} of atom {atom} has no place in the atlas: {error}. Make it again."
            ) from None
        if not 0 < side < math.inf:
            raise DataError(
                f"tile {number} of atom {atom} has the side {side} in the atlas. Make it again: scmil atlas"
            )
        return self._picture(slide, (x, y), side), JPEG

    def _picture(self, slide: int, xy: tuple[int, int], side: float) -> bytes:
        if self.library.slides[slide].path is None:
            return self.cache.get("blank", lambda: as_jpeg(BLANK))
        return self._cut(slide, picture, xy, side)

    def _cut(self, slide: int, how: Callable[..., Any], *where: Any) -> bytes:
        path = self.library.slides[slide].path
        if path is None:
            raise KeyError(slide)

        def make() -> bytes:
            with self.open.use(path) as opened:
                return as_jpeg(how(opened, *where))

        return self.cache.get((how.__name__, identity(path), *where), make)

    def truth(self, slide: int) -> list[list[float]]:
        """The outlines that people drew, holes included: x, y, x, y, …; read in a process of its own."""
        path = self.library.annotation(slide)
        return [] if path is None else self.outlines.read(path)

    def close(self) -> None:
        """Let go of all slides; nobody may be reading one."""
        self.outlines.stop()
        self.open.close()
