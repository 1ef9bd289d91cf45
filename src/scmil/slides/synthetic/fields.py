"""Smooth functions of the position on a slide: cubic B-splines on a lattice in microns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
# Of a cubic B-spline in two dimensions whose coefficients have deviation 1, on average.
SPLINE_DEVIATION = 0.48


@dataclass(frozen=True, eq=False)
class Field:
    """A smooth function of x and y in microns, known by its coefficients every `step` microns.

    >>> slope = Field.of(lambda x, y: x + 2 * y, extent=(100, 100), step=10)
    >>> slope.at(np.array([[30.0, 7.0]])).round(3)
    array([44.])
    >>> slope.window(np.array([0.0, 50.0]), np.array([1.0])).round(3)
    array([[ 2., 52.]], dtype=float32)
    """

    coefficients: NDArray[np.float32]  # (rows, columns); the first belongs to -step
    step: float

    @classmethod
    def of(
        cls, function: Callable[[Floats, Floats], Floats], extent: tuple[float, float], step: float
    ) -> Field:
        """The spline that follows a function of x and y; exact where the function is linear."""
        columns, rows = (
            step * np.arange(-1.0, _lattice_points(length, step) - 1, dtype=np.float32)
            for length in extent
        )
        values = np.broadcast_to(
            function(columns[None, :], rows[:, None]), (len(rows), len(columns))
        )
        return cls(values.astype(np.float32), step)

    @classmethod
    def noise(
        cls, generator: np.random.Generator, extent: tuple[float, float], step: float
    ) -> Field:
        """Smooth noise of mean 0 and deviation about 1 that changes within about two steps."""
        shape = _lattice_points(extent[1], step), _lattice_points(extent[0], step)
        return cls((generator.standard_normal(shape) / SPLINE_DEVIATION).astype(np.float32), step)

    def window(self, x: Floats, y: Floats) -> NDArray[np.float32]:
        """Values on the rectangle of all x and y, which ascend."""
        (left, across), (top, down) = self._weights(x, 1), self._weights(y, 0)
        part = self.coefficients[top : top + down.shape[1], left : left + across.shape[1]]
        values = (down @ part @ across.T).astype(np.float32, copy=False)
        return values

    def at(self, xy: Floats) -> Floats:
        """Values at n positions (n, 2)."""
        column, across = self._basis(xy[:, 0], 1)
        row, down = self._basis(xy[:, 1], 0)
        shifts = [(i, j) for i in range(4) for j in range(4)]
        terms = (
            down[:, i] * across[:, j] * self.coefficients[row + i, column + j] for i, j in shifts
        )
        return np.asarray(sum(terms))

    def bounds(self, x: Floats, y: Floats) -> tuple[float, float]:
        """Lower and upper bounds on the rectangle: a spline stays between its coefficients."""
        ends = [self._basis(axis[[0, -1]], dimension)[0] for axis, dimension in ((x, 1), (y, 0))]
        part = self.coefficients[ends[1][0] : ends[1][1] + 4, ends[0][0] : ends[0][1] + 4]
        return float(part.min()), float(part.max())

    def _basis(self, place: Floats, dimension: int) -> tuple[NDArray[np.int64], Floats]:
        """The first of the four coefficients at each position, and their weights."""
        most = self.coefficients.shape[dimension] - 4
        scaled = np.clip(np.asarray(place, dtype=np.float64) / self.step, 0, most + 1 - 1e-6)
        first = scaled.astype(np.int64)
        t = scaled - first
        s = 1 - t
        weights = (s**3, 4 - 3 * t**2 * (1 + s), 4 - 3 * s**2 * (1 + t), t**3)
        return first, np.stack(weights, axis=1) / 6

    def _weights(self, place: Floats, dimension: int) -> tuple[int, NDArray[np.float32]]:
        first, weights = self._basis(place, dimension)
        offset = first - first[0]
        dense = np.zeros((len(place), offset[-1] + 4), np.float32)
        dense[np.arange(len(place))[:, None], offset[:, None] + np.arange(4)] = weights
        return int(first[0]), dense


def _lattice_points(length: float, step: float) -> int:
    return int(length / step) + 4
