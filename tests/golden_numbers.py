"""The golden numbers of tests/data/golden: inputs, weights, outputs, differences."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GOLDEN = Path(__file__).parent / "data" / "golden"
MIX = ((16, 0x7FEB352D), (15, 0x846CA68B))


def uniform(name: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Numbers in (-1, 1) from a name: the rule in the README of the golden numbers."""
    with np.errstate(over="ignore"):
        h = np.arange(int(np.prod(shape)), dtype=np.uint32) + np.uint32(zlib.crc32(name.encode()))
        for shift, factor in MIX:
            h = (h ^ (h >> np.uint32(shift))) * np.uint32(factor)
        h ^= h >> np.uint32(16)
    return (2 * ((h.astype(np.float64) + 0.5) / 2**32) - 1).reshape(shape)


def weight(name: str, shape: tuple[int, ...]) -> Tensor:
    """The weight of this name and shape."""
    v = uniform(name, shape)
    if len(shape) > 1:
        return torch.tensor(np.sqrt(3 / np.prod(shape[1:])) * v, dtype=torch.float32)
    return torch.tensor(0.1 * v + name.endswith("weight"), dtype=torch.float32)


class Entries(dict[str, NDArray[Any]]):
    """The arrays of a file; it remembers which were read."""

    def __init__(self, arrays: dict[str, NDArray[Any]]) -> None:
        super().__init__(arrays)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> NDArray[Any]:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


class Golden:
    """One file of golden numbers."""

    def __init__(self, name: str) -> None:
        with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
            self.arrays = Entries({key: file[key] for key in file.files})
        self.name = name
        self.meta: dict[str, Any] = json.loads(str(self.arrays["meta"]))

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """All weights by the authors' names."""
        return {
            name: (
                torch.tensor(self.arrays[f"w/{name}"])
                if f"w/{name}" in self.arrays
                else weight(name, shape)
            )
            for name, shape in zip(self.names, self.shapes, strict=True)
        }

    @property
    def names(self) -> list[str]:
        return [str(name) for name in self.arrays["weight_names"]]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        texts = map(str, self.arrays["weight_shapes"])
        return [tuple(map(int, text.split("x"))) if text else () for text in texts]

    @property
    def bags(self) -> range:
        return range(len([key for key in self.arrays if key.startswith("logits_")]) or self._codes)

    @property
    def _codes(self) -> int:
        starts = ("codes_", "probability_", "output_")
        keys = [key for key in self.arrays if key.startswith(starts)]
        return len([key for key in keys if key.count("_") == 1])

    def x(self, bag: int) -> Tensor:
        """The features of a bag."""
        if f"x_{bag}" in self.arrays:
            return torch.tensor(self.arrays[f"x_{bag}"])
        shape = tuple(map(int, self.arrays[f"x_{bag}_shape"]))
        v = np.sqrt(3) * uniform(str(self.arrays["x_names"][bag]), shape)
        return torch.tensor(v, dtype=torch.float32)

    def xy(self, bag: int) -> Tensor:
        """The positions of the tiles. Without any, so far apart that no tile has a neighbour;
        `attrimil_rank_loss` has a grid six wide.
        """
        if f"xy_{bag}" in self.arrays:
            return torch.tensor(self.arrays[f"xy_{bag}"])
        tiles = torch.arange(len(self.x(bag)))
        if "nearest" in self.arrays:
            return torch.stack([tiles % 6, tiles // 6], 1)
        return torch.stack([tiles, 10 * tiles**2], 1)

    def label(self, bag: int) -> int:
        if "labels" in self.arrays:
            return int(self.arrays["labels"][bag])
        return int(self.arrays.get(f"label_{bag}", 1))

    def get(self, what: str, bag: int) -> Tensor | None:
        array = self.arrays.get(f"{what}_{bag}")
        return None if array is None else torch.tensor(array)


SMALL_OUTPUT = 0.1  # a smaller largest magnitude counts as this
SMALL_GRADIENT = 0.01  # of the largest gradient of the bag, which is added to the own norm


@dataclass
class Differences:
    """The largest differences. Outputs: relative to the largest magnitude of the output, at least
    0.1; a loss that is a sum of many terms relative to their norm, because rounding errors of the
    terms do not cancel where the terms do. Gradients: relative to the norm of the gradient of the
    tensor plus 0.01 of the largest such norm of the bag, as gradients that are zero in theory are
    rounding errors of the others.
    """

    outputs: float = 0.0
    gradients: float = 0.0
    unread: set[str] = field(default_factory=set)  # entries of the file that were not compared

    def add_output(self, actual: Tensor, expected: Tensor, least_scale: float = 0.0) -> None:
        assert actual.shape == expected.shape, (actual.shape, expected.shape)
        scale = max(expected.abs().max().item(), SMALL_OUTPUT, least_scale)
        self.outputs = max(self.outputs, (actual - expected).abs().max().item() / scale)

    def add_gradient(self, actual: Tensor, expected: Tensor, own: float, largest: float) -> None:
        assert actual.shape == expected.shape, (actual.shape, expected.shape)
        difference = (actual.double() - expected.double()).abs().max().item()
        scale = own + SMALL_GRADIENT * largest
        self.gradients = max(self.gradients, difference / scale)
