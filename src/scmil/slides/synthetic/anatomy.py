"""The layout of a synthetic slide in microns: tissue, tumours, fat, glands, folds, pen and dust."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scmil.errors import SlideError
from scmil.slides.synthetic.fields import Field, Floats

CORNERS = 360  # of an outline
HARMONICS = np.arange(2, 25)
GLAND_STEP_UM, FAT_STEP_UM = 118.0, 64.0
ATTEMPTS = 400
NECROTIC = 0.6  # size of the necrotic centre of a tumour, relative to the tumour
EDGE_UM = 12.0  # the roughness of every border, so the outlines hold to about this


@dataclass(frozen=True, eq=False)
class Outline:
    """A star-shaped closed curve: the radius at each of 360 degrees around its centre."""

    centre: NDArray[np.float64]
    radius: NDArray[np.float64]

    @property
    def points(self) -> NDArray[np.float64]:
        """The corners, (360, 2)."""
        angle = 2 * np.pi * np.arange(CORNERS) / CORNERS
        return self.centre + self.radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)

    @property
    def area(self) -> float:
        """The area of the polygon: the sum of its triangles."""
        return float(
            np.sum(self.radius * np.roll(self.radius, -1)) * np.sin(2 * np.pi / CORNERS) / 2
        )

    def depth(self, x: Floats, y: Floats) -> Floats:
        """The distance to the curve along the ray from the centre; negative outside."""
        dx, dy = x - self.centre[0], y - self.centre[1]
        degree = np.arctan2(dy, dx) * (CORNERS / (2 * np.pi))
        return np.interp(degree, np.arange(CORNERS), self.radius, period=CORNERS) - np.hypot(dx, dy)

    def scaled(self, factor: float) -> Outline:
        """The same shape about the same centre, larger or smaller."""
        return Outline(self.centre, self.radius * factor)


@dataclass(frozen=True, eq=False)
class Anatomy:
    """The content of a slide, independent of its resolution."""

    tissue: tuple[Outline, ...]
    tumours: tuple[Outline, ...]
    inside: Field  # microns inside the tissue
    inside_tumour: Field
    inside_necrosis: Field
    warp: tuple[Field, Field]  # displacement of textures, which hides their repetition
    thickness: Field
    fascicles: Field  # which of the two stromas
    lymphocytes: Field
    folds: Field  # microns inside a fold
    pen: Field  # microns inside a stroke
    # (n, 3): x, y of the centre and a number from 0 to 1 that chooses the variant.
    glands: NDArray[np.float64]
    fat: NDArray[np.float64]
    dust: NDArray[np.float64]  # (n, 3): x, y, radius


def anatomy(
    extent: tuple[float, float],
    seed: int,
    tumours: int,
    tumour_area: float,
    pieces: int,
    folds: int,
    pen: bool,
    necrosis: bool = False,
) -> Anatomy:
    """Generate the content of a slide of this extent in microns."""
    shapes, noises, things, creases, ink = (
        np.random.default_rng([seed, stream]) for stream in range(5)
    )
    tissue = _place_pieces(shapes, extent, pieces)
    grown = _tumours(shapes, tissue, tumours, tumour_area)
    step = max(8.0, max(extent) / 768)
    rough = Field.noise(noises, extent, max(12.0, step))

    def depth(outlines: Sequence[Outline]) -> Field:
        def deepest(x: Floats, y: Floats) -> Floats:
            depths = [outline.depth(x, y) for outline in outlines]
            return np.max(depths, axis=0) + EDGE_UM / 3 * rough.window(x.ravel(), y.ravel())

        return Field.of(deepest if outlines else _empty_field, extent, step)

    inside, inside_tumour = depth(tissue), depth(grown)
    centres = [tumour.scaled(NECROTIC) for tumour in grown] if necrosis else []
    organs = Field.noise(noises, extent, 450.0)
    narrow = min(60.0, min(extent) / 60)
    return Anatomy(
        tissue,
        grown,
        inside,
        inside_tumour,
        depth(centres),
        warp=(Field.noise(noises, extent, 350.0), Field.noise(noises, extent, 350.0)),
        thickness=Field.noise(noises, extent, 220.0),
        fascicles=Field.noise(noises, extent, 130.0),
        lymphocytes=Field.noise(noises, extent, 110.0),
        folds=Field.of(
            _strokes([_fold(creases, tissue) for _ in range(folds)], narrow), extent, step
        ),
        pen=Field.of(_strokes(_pen(ink, extent) if pen else [], min(extent) / 40), extent, step),
        glands=_things(
            things,
            extent,
            GLAND_STEP_UM,
            0.17,
            inside,
            inside_tumour,
            lambda xy: organs.at(xy) < -0.35,
        ),
        fat=_things(
            things, extent, FAT_STEP_UM, 0.09, inside, inside_tumour, lambda xy: organs.at(xy) > 0.9
        ),
        dust=_dust(things, extent),
    )


def _outline(generator: np.random.Generator, roughness: float, aspect: float = 1.0) -> Outline:
    """A random shape of area 1 at the origin: a lobed ellipse, `aspect` times as wide as high."""
    angle = 2 * np.pi * np.arange(CORNERS) / CORNERS
    strength = roughness * generator.standard_normal(len(HARMONICS)) / HARMONICS**1.1
    phase = generator.uniform(0, 2 * np.pi, len(HARMONICS))
    wobble = np.sum(strength * np.cos(np.outer(angle, HARMONICS) + phase), axis=1)
    ellipse = 1 / np.hypot(np.cos(angle), np.sin(angle) * aspect)
    shape = Outline(np.zeros(2), ellipse * np.maximum(1 + wobble, 0.3))
    return shape.scaled(shape.area**-0.5)


def _place_pieces(
    generator: np.random.Generator, extent: tuple[float, float], pieces: int
) -> tuple[Outline, ...]:
    """Place the pieces of tissue side by side along the longer side."""
    long = int(extent[1] > extent[0])
    slot = np.array(extent, dtype=np.float64)
    slot[long] /= pieces
    placed = []
    for number in range(pieces):
        shape = _outline(generator, 0.24, aspect=float(np.clip(slot[0] / slot[1], 0.5, 2)))
        points = shape.points
        low, high = points.min(axis=0), points.max(axis=0)
        factor = float(np.min(slot / (high - low))) * generator.uniform(0.78, 0.9)
        centre = slot / 2 - factor * (low + high) / 2
        centre[long] += number * slot[long]
        placed.append(Outline(centre, shape.radius * factor))
    return tuple(placed)


def _tumours(
    generator: np.random.Generator, tissue: Sequence[Outline], number: int, share: float
) -> tuple[Outline, ...]:
    """Place tumours with this total fraction of the tissue: inside the tissue, without contact."""
    total = share * sum(piece.area for piece in tissue)
    grown: list[Outline] = []
    for part in sorted(generator.dirichlet(np.full(number, 6.0)) if number else [], reverse=True):
        for patience in np.linspace(1, 0, ATTEMPTS):
            tumour = _candidate(generator, tissue, part * total, patience, first=not grown)
            if _fits(tumour, tissue, grown):
                break
        else:
            raise SlideError(
                f"there is no space for {number} tumours with {share:.0%} of the tissue in "
                f"{len(tissue)} pieces of tissue. Use a smaller tumour_area, or one tumour in one "
                "piece: tumour=1, pieces=1."
            )
        grown.append(tumour)
    return tuple(grown)


def _candidate(
    generator: np.random.Generator,
    tissue: Sequence[Outline],
    area: float,
    patience: float,
    first: bool,
) -> Outline:
    """A random tumour of this area.

    With decreasing patience it becomes round, and the first one a small copy of its piece.
    """
    share = np.array([piece.area for piece in tissue]) / sum(piece.area for piece in tissue)
    piece = tissue[int(generator.choice(len(tissue), p=share))]
    away = generator.uniform(-1, 1, 2) * piece.radius.max()
    drawn, plain = (
        _outline(generator, 0.35),
        piece.scaled(piece.area**-0.5).radius if first else np.pi**-0.5,
    )
    centre = piece.centre + away * (patience if first else 1)
    shape = Outline(centre, patience * drawn.radius + (1 - patience) * plain)
    return shape.scaled((area / shape.area) ** 0.5)


def _fits(tumour: Outline, tissue: Sequence[Outline], others: Sequence[Outline]) -> bool:
    points = tumour.points
    if max(piece.depth(*points.T).min() for piece in tissue) < EDGE_UM:
        return False
    return all(
        other.depth(*points.T).max() < -EDGE_UM and tumour.depth(*other.points.T).max() < -EDGE_UM
        for other in others
    )


def _empty_field(x: Floats, y: Floats) -> Floats:
    return np.full((1, 1), -1e6)


def _strokes(paths: Sequence[Floats], width: float) -> Callable[[Floats, Floats], Floats]:
    """The distance to the border of the nearest stroke with this half width; paths are (k, 2)."""

    def inside(x: Floats, y: Floats) -> Floats:
        nearest = np.full((y.size, x.size), 1e12, np.float32)
        for px, py in np.concatenate(paths):
            np.minimum(nearest, (x - px) ** 2 + (y - py) ** 2, out=nearest)
        return width - np.sqrt(nearest)

    return inside if paths else _empty_field


def _fold(generator: np.random.Generator, tissue: Sequence[Outline]) -> Floats:
    """A gentle curve across a piece of tissue."""
    piece = tissue[int(generator.integers(len(tissue)))]
    size = piece.radius.min()
    middle = piece.centre + generator.uniform(-0.5, 0.5, 2) * size
    t = np.linspace(-1, 1, 60)[:, None]
    along = generator.uniform(0, np.pi)
    direction, across = (
        np.array([np.cos(along), np.sin(along)]),
        np.array([-np.sin(along), np.cos(along)]),
    )
    return middle + size * generator.uniform(0.25, 0.55) * (
        t * direction + generator.uniform(-0.4, 0.4) * t**2 * across
    )


def _pen(generator: np.random.Generator, extent: tuple[float, float]) -> list[Floats]:
    """An arc around a corner of the slide, and a short dash."""
    corner = np.array(extent) * generator.integers(0, 2, 2)
    angle = np.linspace(0, 2 * np.pi, 240)[:, None]
    wobble = 1 + 0.05 * np.sin(3 * angle + generator.uniform(0, 6))
    arc = corner + 0.3 * min(extent) * wobble * np.concatenate(
        [np.cos(angle), np.sin(angle)], axis=1
    )
    start = generator.uniform(0.1, 0.7, 2) * extent
    return [
        arc,
        start + np.linspace(0, 1, 30)[:, None] * 0.15 * min(extent) * np.array([1.0, 0.25]),
    ]


def _things(
    generator: np.random.Generator,
    extent: tuple[float, float],
    step: float,
    shake: float,
    inside: Field,
    inside_tumour: Field,
    wanted: Callable[[Floats], NDArray[np.bool_]],
) -> NDArray[np.float64]:
    """Positions on a hexagonal lattice inside the tissue, each moved by up to `shake` steps."""
    x, y = np.meshgrid(np.arange(0, extent[0], step), np.arange(0, extent[1], 0.87 * step))
    x[1::2] += step / 2
    xy = np.stack([x.ravel(), y.ravel()], axis=1)
    xy += generator.uniform(-shake, shake, xy.shape) * step
    variant = generator.uniform(size=(len(xy), 1))
    kept = (inside.at(xy) > 0.55 * step) & (inside_tumour.at(xy) < -0.6 * step) & wanted(xy)
    return np.concatenate([xy, variant], axis=1)[kept]


def _dust(generator: np.random.Generator, extent: tuple[float, float]) -> NDArray[np.float64]:
    number = min(60, 4 + int(extent[0] * extent[1] / 3e6))
    return np.concatenate(
        [generator.uniform(size=(number, 2)) * extent, generator.uniform(2, 7, (number, 1))], axis=1
    )
