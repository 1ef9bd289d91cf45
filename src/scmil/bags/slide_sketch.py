"""A sketch of a bag, by which the same slide is recognised under another name.

For each of 64 fixed directions in feature space, the tile that lies farthest in that direction is
kept, as 8 numbers: its position along 8 further directions. Two copies of a slide have the same
farthest tiles, also if the features were rounded to 16 bits or have a little noise, or if the order
of the tiles differs; of a copy with a part of the tiles, about this part of the farthest tiles is
the same. Different slides agree in a tile only by chance or if it is blank.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from scmil.bags.scaling import BLOCK, Scaling
from scmil.core.limits import PIXELS
from scmil.core.shapes import Numbers
from scmil.errors import DataError

DIRECTIONS = 64  # for each one, the farthest tile is kept
CODES = 8  # numbers that describe a tile
UNIT = 1000  # positions are stored as whole numbers, in thousandths
TOLERANCE = 0.1  # largest difference of two copies of a tile, in standard deviations of all tiles
LEAST_TILES = 3  # a blank tile may occur in many slides
SEED = b"scmil slide sketch 1"

Codes = NDArray[np.int64]


@dataclass(frozen=True)
class Sketch:
    """The farthest tiles of a bag: `codes` (tiles, 8), and the tile of each direction (64,)."""

    codes: Codes
    farthest: Codes

    @property
    def rows(self) -> Codes:
        """The code of the farthest tile of each direction (64, 8)."""
        return self.codes[self.farthest]

    def to_json(self) -> dict[str, Any]:
        """The sketch as JSON; `from_json` reads it."""
        return {"codes": self.codes.tolist(), "farthest": self.farthest.tolist()}

    @classmethod
    def from_json(cls, page: Mapping[str, Any]) -> Sketch:
        """Read what `to_json` returned.

        Raises:
            DataError: If it is something else.
        """
        codes, farthest = page["codes"], page["farthest"]
        whole = [number for row in codes for number in row]
        if not codes or any(len(row) != CODES for row in codes) or len(farthest) != DIRECTIONS:
            raise DataError(f"a sketch is not {DIRECTIONS} tiles of {CODES} numbers")
        if not all(map(PIXELS.holds, whole)) or not all(
            isinstance(tile, int) and 0 <= tile < len(codes) for tile in farthest
        ):
            raise DataError("a sketch has a number outside of its range")
        return cls(np.array(codes, np.int64), np.array(farthest, np.int64))


class Sketcher:
    """Makes the sketches of bags, and measures how far their tiles are apart.

    >>> import torch
    >>> x = torch.randn(20, 8, generator=torch.Generator().manual_seed(0)).double()
    >>> sketcher = Sketcher(Scaling(torch.zeros(8), torch.ones(8)))
    >>> one, copy = sketcher.sketch(x), sketcher.sketch(x.half().flip(0))
    >>> other = sketcher.sketch(x.roll(1, dims=1))
    >>> scale = sketcher.deviation()
    >>> matching_tiles(copy, stack_rows([one, other]), scale).tolist(), len(copy.codes)
    ([13, 0], 13)
    """

    def __init__(self, scaling: Scaling) -> None:
        self.scaling = scaling
        self._signs = _signs(len(scaling.mean))
        self._count, self._total, self._squares = 0, np.zeros(CODES), np.zeros(CODES)

    def sketch(self, features: Tensor) -> Sketch:
        """Return the sketch of the features (n, p) of a bag with n > 0."""
        best = np.full(DIRECTIONS, -np.inf)
        rows = np.zeros((DIRECTIONS, CODES))
        for block in features.detach().cpu().split(BLOCK):
            scaled = self.scaling.apply(block.float()).numpy()
            places = scaled @ self._signs  # (n, 64 + 8)
            seen, codes = places[:, :DIRECTIONS], places[:, DIRECTIONS:].astype(np.float64)
            first = seen.argmax(0)
            values = seen[first, np.arange(DIRECTIONS)]
            better = values > best
            best[better], rows[better] = values[better], codes[first[better]]
            self._count += len(codes)
            self._total += codes.sum(0)
            self._squares += (codes**2).sum(0)
        limit = PIXELS.high / 2
        whole = np.clip(np.rint(rows * UNIT), -limit, limit).astype(np.int64)
        distinct, farthest = np.unique(whole, axis=0, return_inverse=True)
        return Sketch(distinct, farthest.reshape(-1).astype(np.int64))

    def deviation(self) -> Numbers:
        """The standard deviation (8,) of the codes of all tiles so far; at least 1 unit."""
        mean = self._total / max(self._count, 1)
        variance = self._squares / max(self._count, 1) - mean**2
        return np.maximum(np.sqrt(np.maximum(variance, 0)) * UNIT, 1.0)


def stack_rows(sketches: Sequence[Sketch]) -> Codes:
    """Return the codes of several sketches (bags, 64, 8), for `matching_tiles`."""
    rows = [sketch.rows for sketch in sketches]
    return np.stack(rows) if rows else np.zeros((0, DIRECTIONS, CODES), np.int64)


def matching_tiles(one: Sketch, rows: Codes, deviation: Numbers) -> Codes:
    """Return the number of different tiles that a bag has in common with each of several others.

    Tiles of the bag that are nearly equal, such as blank ones, count once.
    """
    limit = TOLERANCE * deviation
    equal = (np.abs(rows - one.rows) <= limit).all(2)
    kind = _number_kinds(one.codes, limit)[one.farthest]
    found = [np.any(equal[:, kind == number], axis=1) for number in np.unique(kind)]
    return np.sum(found, axis=0, dtype=np.int64)


def is_copy(matching: int, one: Sketch, other: Sketch, deviation: Numbers, typical: int) -> bool:
    """Whether two bags are of one slide.

    They have at least three tiles in common, or all of them if they are fewer, and more than twice
    as many as bags of different patients of the same cohort typically have.
    """
    if matching <= 2 * typical or not matching:
        return False
    limit = TOLERANCE * deviation
    sizes = {len(np.unique(_number_kinds(each.codes, limit))) for each in (one, other)}
    return matching >= LEAST_TILES or sizes == {matching}


def typical_matches(
    sketches: Sequence[Sketch],
    patients: Sequence[str | None],
    deviation: Numbers,
    most: int = 200,
) -> int:
    """Return the median, over at most `most` bags, of the largest number of tiles in common with a
    bag of another patient: 0, unless features are discrete or have few dimensions.
    """
    chosen = np.unique(np.linspace(0, len(sketches) - 1, min(most, len(sketches))).astype(int))
    largest, rows = [], stack_rows(sketches)
    for position in chosen.tolist():
        matching = matching_tiles(sketches[position], rows, deviation)
        own = patients[position]
        same = [i == position or (own is not None and own == p) for i, p in enumerate(patients)]
        others = matching[~np.array(same)]
        largest.append(int(others.max()) if len(others) else 0)
    return int(np.median(largest)) if largest else 0


def _number_kinds(codes: Codes, limit: Numbers) -> Codes:
    """Number the tiles; a tile within the tolerance of an earlier one has the number of that."""
    equal = (np.abs(codes[:, None] - codes[None]) <= limit).all(2)
    return equal.argmax(1).astype(np.int64)


@lru_cache(maxsize=4)
def _signs(dim: int) -> NDArray[np.float32]:
    """Fixed directions (dim, 64 + 8), the same on every computer."""
    columns = DIRECTIONS + CODES
    bits = np.frombuffer(hashlib.shake_256(SEED).digest((dim * columns + 7) // 8), np.uint8)
    signs = np.unpackbits(bits)[: dim * columns].reshape(dim, columns)
    return ((2 * signs.astype(np.float32) - 1) / np.sqrt(dim)).astype(np.float32)
