"""The pixels of any tile of a synthetic slide, computed independently."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scmil.slides.synthetic.anatomy import Anatomy
from scmil.slides.synthetic.fields import Floats
from scmil.slides.synthetic.pyramid import TILE
from scmil.slides.synthetic.scanners import Scanner
from scmil.slides.synthetic.textures import (
    CLEAR,
    LOOSE,
    LYMPHOID,
    MOST_THICKNESS,
    NECROSIS,
    PERIOD_UM,
    STEPS,
    TUMOUR,
    Codes,
    Materials,
    stain_colours,
)

# Above which level of a field of deviation 1 there are lymphocytes: in 4 or in 38 % of the tissue.
SPARSE, INFLAMED = 1.75, 0.3
WARP_UM, SOFT_UM = 45.0, 5.0
# Transmitted fraction of the light.
PENS = {"blue": (0.35, 0.45, 0.85), "green": (0.3, 0.7, 0.45), "black": (0.22, 0.22, 0.25)}


class Scene:
    """A synthetic slide that is rendered tile by tile."""

    def __init__(
        self,
        anatomy: Anatomy,
        library: Materials,
        size: tuple[int, int],
        mpp: float,
        seed: int,
        pen: str | None,
        scanner: Scanner,
        lymphocytes: float = SPARSE,
    ) -> None:
        self.anatomy, self.library, self.size, self.mpp = anatomy, library, size, mpp
        self.slope, self.lymphocytes = scanner.slope, lymphocytes
        darkest = np.array(scanner.white) - scanner.grain - scanner.slope / 2
        self.colours = stain_colours(seed, darkest, scanner)
        self.pen = None if pen is None else np.array(PENS[pen], np.float32)
        generator = np.random.default_rng([seed, 30])
        self.grain = generator.binomial(scanner.grain * 2, 0.5, (TILE, TILE, 3)).astype(np.uint8)
        self.shake = generator.uniform(size=(TILE, TILE)).astype(np.float32)
        self.things = [
            Things(_sort_by_y(anatomy.glands), library.glands),
            Things(_sort_by_y(anatomy.fat), library.fat),
        ]

    def is_empty(self, x: int, y: int) -> bool:
        """Whether the tile at this pixel shows only background."""
        xs, ys = self._place(x), self._place(y)
        fields = self.anatomy.inside, self.anatomy.pen
        return all(field.bounds(xs, ys)[1] < 0 for field in fields) and not len(
            self._dust_near(xs, ys)
        )

    def light(self, x: int, y: int) -> int:
        """The brightness of the lamp at this tile, in grey levels above the darkest corner."""
        width, height = self.size
        return round(self.slope * (x / width + y / height) / 2)

    def tile(self, x: int, y: int) -> NDArray[np.uint8]:
        """The pixels of the tile whose top left pixel this is, (256, 256, 3)."""
        xs, ys = self._place(x), self._place(y)
        pixels: NDArray[np.uint8]
        if self.anatomy.inside.bounds(xs, ys)[1] < 0:
            pixels = np.broadcast_to(self.colours[:1].view(np.uint8)[:3], (TILE, TILE, 3))
        else:
            index = self._thickness(xs, ys) * (STEPS * STEPS) + self._codes(x, y, xs, ys)
            pixels = self.colours.take(index).view(np.uint8).reshape(TILE, TILE, 4)[..., :3]
        for add_artefact in (self._add_pen, self._add_dust):
            pixels = add_artefact(pixels, xs, ys)
        return pixels + (self.grain + np.uint8(self.light(x, y)))

    def _place(self, pixel: int) -> Floats:
        return (np.arange(pixel, pixel + TILE) + 0.5) * self.mpp

    def _codes(self, x: int, y: int, xs: Floats, ys: Floats) -> NDArray[np.int32]:
        """The stains of each pixel: a warped texture with glands and fat cells on it."""
        size = self.library.size
        column, row = (
            _texture_index(axis.astype(np.float32) + WARP_UM * warp.window(xs, ys), size)
            for axis, warp in zip((xs[None, :], ys[:, None]), self.anatomy.warp, strict=True)
        )
        codes = self.library.textures.take((self._material(xs, ys) * size + row) * size + column)
        for things in self.things:
            things.paste(codes, x, y, self.mpp)
        return codes.astype(np.int32)

    def _material(self, xs: Floats, ys: Floats) -> NDArray[np.int32]:
        """The texture of each pixel."""
        material = np.multiply(self.anatomy.fascicles.window(xs, ys) > 0, LOOSE, dtype=np.int32)
        for field, least, number in (
            (self.anatomy.lymphocytes, self.lymphocytes, LYMPHOID),
            (self.anatomy.inside_tumour, 0.0, TUMOUR),
            (self.anatomy.inside_necrosis, 0.0, NECROSIS),
        ):
            if field.bounds(xs, ys)[1] > least:
                material[field.window(xs, ys) > least] = number
        return material

    def _thickness(self, xs: Floats, ys: Floats) -> NDArray[np.int32]:
        """The thickness of the tissue in 64 steps: 0 outside, doubled in a fold."""
        thickness = 1 + 0.13 * self.anatomy.thickness.window(xs, ys)
        if self.anatomy.folds.bounds(xs, ys)[1] > 0:
            thickness *= 1 + np.clip(self.anatomy.folds.window(xs, ys) / 12, 0, 1)
        if self.anatomy.inside.bounds(xs, ys)[0] < SOFT_UM:
            thickness *= np.clip(self.anatomy.inside.window(xs, ys) / SOFT_UM, 0, 1)
        steps = thickness * ((STEPS - 1) / MOST_THICKNESS) + self.shake * (thickness > 0)
        return np.clip(steps, 0, STEPS - 1).astype(np.int32)

    def _add_pen(self, pixels: NDArray[np.uint8], xs: Floats, ys: Floats) -> NDArray[np.uint8]:
        if self.pen is None or self.anatomy.pen.bounds(xs, ys)[1] < 0:
            return pixels
        ink = np.clip(self.anatomy.pen.window(xs, ys) / 20, 0, 1) * (
            0.85 + 0.1 * self.anatomy.thickness.window(xs, ys)
        )
        return (pixels * (1 - np.clip(ink, 0, 1)[..., None] * (1 - self.pen))).astype(np.uint8)

    def _add_dust(self, pixels: NDArray[np.uint8], xs: Floats, ys: Floats) -> NDArray[np.uint8]:
        for x, y, radius in self._dust_near(xs, ys):
            distance = np.hypot(xs[None, :] - x, ys[:, None] - y)
            # Out of focus: four microns of blur.
            passes = 1 - 0.45 * np.clip((radius - distance) / 4, 0, 1)
            pixels = (pixels * passes[..., None]).astype(np.uint8)
        return pixels

    def _dust_near(self, xs: Floats, ys: Floats) -> NDArray[np.float64]:
        x, y, radius = self.anatomy.dust.T
        inside = (
            (x > xs[0] - radius)
            & (x < xs[-1] + radius)
            & (y > ys[0] - radius)
            & (y < ys[-1] + radius)
        )
        return self.anatomy.dust[inside]


@dataclass(frozen=True, eq=False)
class Things:
    """Glands or fat cells: positions from top to bottom, each with the number of a stamp."""

    places: NDArray[np.float64]  # (n, 3): x, y in microns, choice from 0 to 1
    stamps: list[Codes]

    def paste(self, codes: Codes, x: int, y: int, mpp: float) -> None:
        """Paste those that overlap the tile at this pixel."""
        if not len(self.places):  # and the stamps were not drawn
            return
        reach = len(self.stamps[0]) / 2 + 1
        first, last = np.searchsorted(
            self.places[:, 1], [(y - reach) * mpp, (y + TILE + reach) * mpp]
        )
        for x_um, y_um, choice in self.places[first:last]:
            left, top = round(x_um / mpp - reach) - x, round(y_um / mpp - reach) - y
            stamp = self.stamps[int(choice * len(self.stamps))]
            part = stamp[max(0, -top) : max(0, TILE - top), max(0, -left) : max(0, TILE - left)]
            if part.size:
                below = codes[max(0, top) :, max(0, left) :][: part.shape[0], : part.shape[1]]
                np.copyto(below, part, where=part != CLEAR)


def _sort_by_y(things: NDArray[np.float64]) -> NDArray[np.float64]:
    return things[np.argsort(things[:, 1], kind="stable")]


def _texture_index(place: NDArray[np.float32], size: int) -> NDArray[np.int32]:
    """The pixel of a periodic texture at positions in microns."""
    share = place * np.float32(1 / PERIOD_UM)
    share -= np.floor(share)
    return np.minimum((share * np.float32(size)).astype(np.int32), size - 1)
