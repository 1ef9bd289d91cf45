"""Textures of synthetic tissue: periodic stroma and tumour, single glands and fat cells.

Everything is drawn in microns and sampled at the requested resolution, so that nuclei have the same
size at every mpp. A pixel is a code: six bits for haematoxylin, six for eosin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scmil.slides.synthetic.scanners import SCANNERS, Scanner

Array = NDArray[np.float32]
Codes = NDArray[np.uint16]

PERIOD_UM = 512.0
FREQUENCIES = 512  # of the noise: up to one wave in 2 microns
STEPS = 64  # of a stain, and of the thickness
MOST_HAEMATOXYLIN, MOST_EOSIN, MOST_THICKNESS = 1.8, 1.2, 2.6
CLEAR = np.uint16(0xFFFF)  # in a stamp: what lies below stays visible
VARIANTS = 12
STROMA, LOOSE, LYMPHOID, TUMOUR, NECROSIS = range(5)


class Canvas:
    """A periodic square with two stains, of a size in microns and an approximate resolution."""

    def __init__(self, period_um: float, mpp: float) -> None:
        self.size = round(period_um / mpp)
        self.period_um, self.mpp = period_um, period_um / self.size
        self.haematoxylin = np.zeros((self.size, self.size), np.float32)
        self.eosin = np.zeros((self.size, self.size), np.float32)

    def noise(self, generator: np.random.Generator, wave_um: float, stretch: float = 1.0) -> Array:
        """Noise of deviation 1 with waves of about this length, `stretch` times longer in x."""
        ky = np.fft.fftfreq(FREQUENCIES, 1 / FREQUENCIES)[:, None]
        kx = np.arange(FREQUENCIES // 2)[None, :]
        waves = np.hypot(kx * stretch, ky) * wave_um / self.period_um
        spectrum = generator.standard_normal((2, FREQUENCIES, FREQUENCIES // 2))
        spectrum = (spectrum[0] + 1j * spectrum[1]) * np.exp(-2 * (waves - 1) ** 2) * (waves > 0)
        spectrum[:, 0] = 0
        spectrum /= np.sqrt(2 * np.sum(np.abs(spectrum) ** 2))
        half = min(FREQUENCIES, self.size) // 2
        whole = np.zeros((self.size, self.size // 2 + 1), np.complex64)
        whole[:half, :half] = spectrum[:half, :half]
        whole[-half + 1 :, :half] = spectrum[-half + 1 :, :half]
        return np.fft.irfft2(whole, (self.size, self.size)).astype(np.float32) * self.size**2

    def sample(self, values: Array, xy: NDArray[np.float64]) -> Array:
        """The values at positions in microns."""
        column, row = (xy / self.mpp).astype(int).T % self.size
        return values[row, column]

    def nuclei(
        self,
        generator: np.random.Generator,
        xy: NDArray[np.float64],
        length_um: tuple[float, float],
        roundness: tuple[float, float],
        irregular: float,
        dark: tuple[float, float],
        angle: NDArray[np.floating] | None = None,
    ) -> None:
        """Draw nuclei at these positions; length, aspect ratio and darkness are random."""
        count = len(xy)
        long, ratio, depth = (
            generator.uniform(*bounds, count) for bounds in (length_um, roundness, dark)
        )
        turn = generator.uniform(0, 2 * np.pi, count) if angle is None else angle
        phase = generator.uniform(0, 2 * np.pi, count)
        parameters = np.stack(
            [*xy.T, long / 2, long / 2 * ratio, turn, phase, depth], axis=1
        ).astype(np.float32)
        width = int(np.ceil(length_um[1] * (1 + irregular) / self.mpp)) + 3
        for batch in np.array_split(parameters, count * width**2 // 1_000_000 + 1):
            self._stain(batch, width, irregular)

    def _stain(self, nuclei: Array, width: int, irregular: float) -> None:
        x, y, long, short, turn, phase, depth = (column[:, None, None] for column in nuclei.T)
        pixel = np.arange(width, dtype=np.float32) - width // 2
        columns, rows = (
            np.floor(x / self.mpp) + pixel[None, None, :],
            np.floor(y / self.mpp) + pixel[None, :, None],
        )
        dx, dy = (columns + 0.5) * self.mpp - x, (rows + 0.5) * self.mpp - y
        along = (dx * np.cos(turn) + dy * np.sin(turn)) / long
        across = (dy * np.cos(turn) - dx * np.sin(turn)) / short
        distance = np.hypot(along, across)
        edge = 1 + irregular * np.cos(3 * np.arctan2(across, along) + phase)
        cover = np.clip((edge - distance) * short / self.mpp + 0.5, 0, 1)
        # Chromatin lies at the rim.
        stain = depth * cover * (0.72 + 0.28 * np.minimum(distance, 1) ** 2)
        place = (rows.astype(np.int64) % self.size) * self.size + columns.astype(
            np.int64
        ) % self.size
        np.maximum.at(self.haematoxylin.reshape(-1), place.ravel(), stain.ravel())

    def codes(self, generator: np.random.Generator) -> Codes:
        """The stains in 64 steps each, dithered to avoid visible bands."""
        shake = generator.uniform(size=(2, self.size, self.size)).astype(np.float32)
        steps = [
            np.clip(stain * ((STEPS - 1) / most) + share, 0, STEPS - 1).astype(np.uint16)
            for stain, most, share in zip(
                (self.haematoxylin, self.eosin), (MOST_HAEMATOXYLIN, MOST_EOSIN), shake, strict=True
            )
        ]
        return steps[0] * np.uint16(STEPS) + steps[1]


class Needed(NamedTuple):
    """What a slide has, beside stroma and lymphocytes."""

    tumour: bool = True
    necrosis: bool = False
    glands: bool = True
    fat: bool = True


@dataclass(frozen=True, eq=False)
class Materials:
    """The textures and stamps of one slide, at its resolution."""

    size: int  # of a texture, in pixels
    textures: Codes  # all textures, one after the other, flat
    glands: list[Codes]
    fat: list[Codes]


def draw_materials(mpp: float, seed: int, needed: Needed) -> Materials:
    """Draw the textures and the stamps of a slide; those that it does not need are left empty.

    Each has its own stream of random numbers, so the others do not depend on what is needed.
    """
    materials: dict[int, Callable[[Canvas, np.random.Generator], None]] = {
        STROMA: _stroma,
        LOOSE: _loose_stroma,
        LYMPHOID: _lymphoid,
        TUMOUR: _tumour,
    }
    if needed.necrosis:
        materials[NECROSIS] = _necrosis
    textures = []
    for number, draw in sorted(materials.items()):
        canvas = Canvas(PERIOD_UM, mpp)
        if number == TUMOUR and not needed.tumour:
            textures.append(np.zeros(canvas.size**2, np.uint16))
            continue
        draw(canvas, np.random.default_rng([seed, 10, number]))
        textures.append(canvas.codes(np.random.default_rng([seed, 11, number])).ravel())
    stamps = [
        [draw(mpp, np.random.default_rng([seed, 12, variant])) for variant in range(VARIANTS)]
        if is_needed
        else []
        for draw, is_needed in ((_gland, needed.glands), (_fat_cell, needed.fat))
    ]
    return Materials(canvas.size, np.concatenate(textures), *stamps)


def stain_colours(
    seed: int, white: NDArray[np.float64], scanner: Scanner = SCANNERS["a"]
) -> NDArray[np.uint32]:
    """The colour of each thickness and stain code by the law of Beer and Lambert, as RGB0 bytes.

    The staining varies between slides: the amounts by a fifth, the hues slightly.
    """
    generator = np.random.default_rng([seed, 20])
    vectors = np.array([scanner.haematoxylin, scanner.eosin])
    vectors += generator.normal(0, 0.025, (2, 3))
    vectors *= generator.uniform(0.85, 1.2, (2, 1)) / np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors *= scanner.amount
    share = np.linspace(0, 1, STEPS)
    thickness, haematoxylin, eosin = (
        MOST_THICKNESS * share,
        MOST_HAEMATOXYLIN * share,
        MOST_EOSIN * share,
    )
    # (64, 64, 3).
    density = haematoxylin[:, None, None] * vectors[0] + eosin[None, :, None] * vectors[1]
    light = white * np.exp(-np.log(10) * thickness[:, None, None, None] * density)
    pixels = np.zeros((*light.shape[:3], 4), np.uint8)
    pixels[..., :3] = np.round(light)
    return pixels.reshape(-1, 4).view(np.uint32).ravel()


def _jittered_lattice(
    generator: np.random.Generator, step_um: float, shake: float
) -> NDArray[np.float64]:
    """Positions about `step_um` apart, each moved by up to `shake` steps."""
    count = round(PERIOD_UM / step_um)
    x, y = np.meshgrid(np.arange(count) + 0.25, np.arange(count) + 0.25)
    x[1::2] += 0.5
    xy = np.stack([x.ravel(), y.ravel()], axis=1)
    return (xy + generator.uniform(-shake, shake, xy.shape)) * (PERIOD_UM / count)


def _fibres(canvas: Canvas, generator: np.random.Generator, wave_um: float) -> tuple[Array, Array]:
    """Wavy strands along x, of deviation 1, and the direction in which they run."""
    strands = canvas.noise(generator, wave_um, stretch=7.0)
    bend = 12 * canvas.noise(generator, 170.0)
    rows = np.arange(canvas.size)[:, None] + np.round(bend / canvas.mpp).astype(int)
    slope = (np.roll(bend, -1, axis=1) - bend) / canvas.mpp
    return strands[rows % canvas.size, np.arange(canvas.size)[None, :]], np.arctan(-slope)


def _stroma(canvas: Canvas, generator: np.random.Generator) -> None:
    strands, direction = _fibres(canvas, generator, 11.0)
    fine = canvas.noise(generator, 4.0, stretch=4.0)
    canvas.eosin = np.clip(0.28 + 0.065 * strands + 0.03 * fine, 0.03, 1)
    canvas.haematoxylin = np.clip(0.05 + 0.02 * strands, 0, 1)
    xy = _jittered_lattice(generator, 25.0, 0.5)
    canvas.nuclei(
        generator, xy, (7.0, 15.0), (0.25, 0.5), 0.1, (0.5, 0.95), canvas.sample(direction, xy)
    )


def _loose_stroma(canvas: Canvas, generator: np.random.Generator) -> None:
    strands, direction = _fibres(canvas, generator, 16.0)
    fine = canvas.noise(generator, 4.0, stretch=4.0)
    canvas.eosin = np.clip(0.23 + 0.08 * strands + 0.03 * fine, 0.02, 1).T.copy()
    canvas.haematoxylin = np.clip(0.04 + 0.02 * canvas.noise(generator, 30.0), 0, 1)
    xy = _jittered_lattice(generator, 21.0, 0.5)
    turn = np.pi / 2 - canvas.sample(direction.T, xy)
    canvas.nuclei(generator, xy, (6.0, 11.0), (0.4, 0.9), 0.12, (0.5, 0.9), turn)


def _lymphoid(canvas: Canvas, generator: np.random.Generator) -> None:
    canvas.eosin = np.clip(0.20 + 0.05 * canvas.noise(generator, 8.0), 0, 1)
    canvas.haematoxylin = np.clip(0.12 + 0.04 * canvas.noise(generator, 20.0), 0, 1)
    canvas.nuclei(
        generator,
        _jittered_lattice(generator, 8.6, 0.28),
        (5.3, 6.9),
        (0.85, 1.0),
        0.04,
        (0.85, 1.15),
    )


def _tumour(canvas: Canvas, generator: np.random.Generator) -> None:
    """Nests of large, dark, crowded, irregular nuclei between thin septa."""
    nests, grain = canvas.noise(generator, 170.0), canvas.noise(generator, 7.0)
    septum = np.exp(-((nests / 0.13) ** 2))
    canvas.eosin = np.clip(0.24 + 0.04 * grain + 0.22 * septum, 0, 1)
    canvas.haematoxylin = np.clip((0.22 + 0.05 * grain) * (1 - 0.7 * septum), 0, 1)
    xy = _jittered_lattice(generator, 14.2, 0.3)
    xy = xy[canvas.sample(septum, xy) < 0.35]
    canvas.nuclei(generator, xy, (9.5, 16.0), (0.65, 0.95), 0.1, (0.6, 1.15))
    specks = xy + generator.uniform(-2, 2, xy.shape)
    canvas.nuclei(generator, specks, (1.8, 3.0), (0.8, 1.0), 0.0, (1.1, 1.5))


def _necrosis(canvas: Canvas, generator: np.random.Generator) -> None:
    """Pale pink, granular debris with few dark fragments of nuclei."""
    grain, clouds = canvas.noise(generator, 5.0), canvas.noise(generator, 60.0)
    canvas.eosin = np.clip(0.42 + 0.06 * grain + 0.05 * clouds, 0, 1)
    canvas.haematoxylin = np.clip(0.04 + 0.015 * grain, 0, 1)
    xy = _jittered_lattice(generator, 24.0, 0.5)
    canvas.nuclei(generator, xy, (1.5, 3.2), (0.6, 1.0), 0.1, (0.5, 1.0))


def _polar(canvas: Canvas) -> tuple[Array, Array]:
    """Distance in microns from the centre of a canvas, and the angle."""
    place = ((np.arange(canvas.size) + 0.5 - canvas.size / 2) * canvas.mpp).astype(np.float32)
    return np.hypot(place[None, :], place[:, None]), np.arctan2(place[:, None], place[None, :])


def _wobble(
    generator: np.random.Generator, angle: NDArray[np.floating], strength: float
) -> NDArray[np.floating]:
    phase, size = generator.uniform(0, 2 * np.pi, 3), generator.uniform(0.3, 1, 3) * strength
    return 1 + sum(size[i] * np.cos((i + 2) * angle + phase[i]) for i in range(3))


def _gland(mpp: float, generator: np.random.Generator) -> Codes:
    """A ring of epithelium around a lumen, 50 to 100 microns wide, with nuclei on the outside."""
    radius = generator.uniform(25.0, 48.0)
    shape = generator.integers(2**31)

    def edge(angle: NDArray[np.floating]) -> NDArray[np.floating]:
        return radius * _wobble(np.random.default_rng(shape), angle, 0.07)

    canvas = Canvas(120.0, mpp)
    distance, angle = _polar(canvas)
    outer = edge(angle)
    height = min(19.0, 0.55 * radius)
    # 0 in the lumen, 1 in the epithelium.
    inner = np.clip((distance - (outer - height)) / 1.5, 0, 1)
    canvas.eosin = (0.04 + 0.28 * inner + 0.2 * np.exp(-(((distance - outer) / 1.5) ** 2))).astype(
        np.float32
    )
    canvas.haematoxylin = (0.01 + 0.16 * inner).astype(np.float32)
    count = int(2 * np.pi * radius / 6.8)
    turn = 2 * np.pi * (np.arange(count) + generator.uniform(-0.2, 0.2, count)) / count
    reach = edge(turn) - generator.uniform(5.0, 8.5, count)
    xy = canvas.period_um / 2 + reach[:, None] * np.stack([np.cos(turn), np.sin(turn)], axis=1)
    canvas.nuclei(generator, xy, (7.5, 9.5), (0.6, 0.75), 0.05, (0.65, 0.95), turn)
    return np.where(distance > outer + 1, CLEAR, canvas.codes(generator))


def _fat_cell(mpp: float, generator: np.random.Generator) -> Codes:
    """An empty circle of 60 to 80 microns with a thin rim, sometimes with a flat nucleus."""
    canvas = Canvas(88.0, mpp)
    distance, angle = _polar(canvas)
    outer = generator.uniform(31.0, 38.0) * _wobble(generator, angle, 0.03)
    rim = np.exp(-(((distance - outer + 1) / max(1.1, 0.5 * mpp)) ** 2))
    canvas.eosin = (0.32 * rim).astype(np.float32)
    canvas.haematoxylin = (0.07 * rim).astype(np.float32)
    if generator.uniform() < 0.4:
        turn = generator.uniform(0, 2 * np.pi, 1)
        xy = canvas.period_um / 2 + 33.0 * np.stack([np.cos(turn), np.sin(turn)], axis=1)
        canvas.nuclei(generator, xy, (8.0, 10.0), (0.25, 0.35), 0.0, (0.7, 0.9), turn + np.pi / 2)
    return np.where(distance > outer, CLEAR, canvas.codes(generator))
