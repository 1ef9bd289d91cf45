"""The contents of all responses: slides and tiles are identified by numbers, never by a path."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from scmil.errors import DataError
from scmil.slides.annotations.isolated import Outlines
from scmil.viz.drawing.colour_scale import COLOURS, SIGNED
from scmil.viz.viewer.library import Library
from scmil.viz.viewer.pixels import (
    TILE_PX,
    Cache,
    OpenSlides,
    as_jpeg,
    cut,
    depth,
    identity,
    picture,
)

JPEG, PNG = "image/jpeg", "image/png"
BLANK = np.full((TILE_PX, TILE_PX, 3), 235, np.uint8)


class Responses:
    """The contents of all responses of the viewer, as functions of numbers."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.cache, self.open_slides, self.annotations = Cache(), OpenSlides(), Outlines()

    def slides(self) -> dict[str, Any]:
        """The list of slides, and the colours of the scale."""
        return {**self.library.page(), "colours": COLOURS.tolist(), "signed": SIGNED.tolist()}

    def slide(self, slide: int, model: int) -> dict[str, Any]:
        """The size of a slide, and its tiles."""
        listed = self.library.slides[slide]
        size, mpp = self.library.extent(slide)
        if listed.path:
            with self.open_slides.use(listed.path, mpp) as opened:
                size = opened.size
                mpp = opened.known_mpp if opened.mpp_source != "given" else mpp
        if size is None:
            raise KeyError(slide)
        return {"size": size, "mpp": mpp, "levels": depth(size), **self.library.tiles(model, slide)}

    def pyramid(self, slide: int, level: int, column: int, row: int) -> bytes:
        """A tile of the image pyramid; plain grey if the slide has no file."""
        return self._read_image(slide, cut, level, column, row)

    def tile(self, slide: int, model: int, tile: int) -> bytes:
        """The image of one tile of a model."""
        scores = self.library.scores(model, slide)
        if tile >= len(scores):
            raise KeyError(tile)
        x, y = scores.xy[tile].tolist()
        return self._read_image(slide, picture, (x, y), scores.side)

    def atom_picture(self, model: int, atom: int, number: int) -> tuple[bytes, str]:
        """An image of the atlas and its media type; without a file it is cut from the slide."""
        image = self.library.atom_picture(model, atom, number)
        if isinstance(image, Path):
            return image.read_bytes(), PNG if image.suffix.lower() == ".png" else JPEG
        slide = self.library.index(str(image["slide"]))
        if slide is None:
            raise KeyError(image["slide"])
        try:
            x, y, side = int(image["x"]), int(image["y"]), float(image["side"])
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"tile {number} of atom {atom} has no valid position in the atlas: {error}. "
                "Run scmil atlas again."
            ) from None
        if not 0 < side < math.inf:
            raise DataError(
                f"tile {number} of atom {atom} has a side of {side} pixels in the atlas, expected "
                "a positive number. Run scmil atlas again."
            )
        return self._read_image(slide, picture, (x, y), side), JPEG

    def _read_image(self, slide: int, read: Callable[..., Any], *position: Any) -> bytes:
        """Read an image from a slide, or from the cache; plain grey if the slide has no file."""
        path = self.library.slides[slide].path
        if path is None:
            return self.cache.get("blank", lambda: as_jpeg(BLANK))

        def make() -> bytes:
            with self.open_slides.use(path) as opened:
                return as_jpeg(read(opened, *position))

        return self.cache.get((read.__name__, identity(path), *position), make)

    def outlines(self, slide: int) -> list[list[float]]:
        """The annotated outlines including holes: x, y, x, y, …; read in a separate process."""
        path = self.library.annotation(slide)
        return [] if path is None else self.annotations.read(path)

    def close(self) -> None:
        """Close all slides; no other thread may use one."""
        self.annotations.stop()
        self.open_slides.close()
