"""Records of the arrays and tensors that a pickle describes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scmil.core.safe_io import check_expansion
from scmil.errors import DataError

PLAIN = re.compile(r"[<>=|]?(f[248]|[iu][1248]|b1)")  # the types of arrays that are made
MOST_AXES, LARGEST_AXIS = 32, 2**48


@dataclass
class HeldType:
    """A numpy type as described by a pickle."""

    name: Any
    order: Any = "="

    def set_state(self, state: Any) -> None:
        """Set the byte order; types with fields raise when an array is made of them."""
        self.order = state[1]
        if tuple(state[2:5]) != (None, None, None):
            self.name = "with fields"

    def dtype(self) -> np.dtype[Any]:
        """Return the type, or raise if it is not a plain number."""
        name = (
            f"{self.order}{self.name}"
            if isinstance(self.name, str) and isinstance(self.order, str)
            else ""
        )
        if not PLAIN.fullmatch(name):
            raise DataError(
                f"values of type {str(self.name)[:20]!r}, but plain numbers are needed."
            )
        return np.dtype(name)


@dataclass
class HeldArray:
    """A numpy array as described by a pickle."""

    kind: Any = None
    shape: Any = None
    content: Any = None
    fortran: bool = False

    def set_state(self, state: Any) -> None:
        """Set shape, type, order and bytes."""
        _, self.shape, self.kind, fortran, self.content = state
        self.fortran = bool(fortran)

    def array(self) -> NDArray[Any]:
        """Return the array, which shares the bytes, or raise if shape, type and bytes differ."""
        if not isinstance(self.kind, HeldType) or not isinstance(self.content, bytes | bytearray):
            raise DataError("its pickle contains an array without a type or without values.")
        dtype, shape = self.kind.dtype(), check_axes(self.shape, "shape")
        if (needed := math.prod(shape) * dtype.itemsize) != len(self.content):
            raise DataError(
                f"an array of shape {shape} needs {needed} bytes, but has {len(self.content)}."
            )
        return np.frombuffer(self.content, dtype).reshape(shape, order="F" if self.fortran else "C")


class HeldStorage(NamedTuple):
    """A torch storage as described by a pickle: type, name in the file, number of elements."""

    dtype: torch.dtype
    key: str
    numbers: int


@dataclass(frozen=True)
class HeldTensor:
    """A tensor as described by a pickle."""

    storage: Any
    offset: Any
    shape: Any
    strides: Any

    def tensor(self, read: Callable[[HeldStorage], NDArray[np.uint8]], length: int) -> Tensor:
        """Return the tensor, or raise if it exceeds its storage.

        `read` returns a storage from a file of `length` bytes.
        """
        self.check_storage()
        shape, strides = check_axes(self.shape, "shape"), check_axes(self.strides, "strides")
        [offset] = check_axes((self.offset,), "offset")
        last = offset + sum(
            (side - 1) * stride for side, stride in zip(shape, strides, strict=True)
        )
        if math.prod(shape) and last >= self.storage.numbers:
            raise DataError(
                f"a tensor of shape {shape} with strides {strides} at {offset}, but its storage "
                f"has only {self.storage.numbers} numbers."
            )
        check_expansion(math.prod(shape) * self.storage.dtype.itemsize, length, "the tensor")
        if not math.prod(shape):
            return torch.empty(shape, dtype=self.storage.dtype)
        return (
            torch.from_numpy(read(self.storage))
            .view(self.storage.dtype)
            .as_strided(shape, strides, offset)
        )

    def check_storage(self) -> None:
        """Raise if the pickle describes a tensor without a storage."""
        if not isinstance(self.storage, HeldStorage):
            raise DataError("its pickle contains a tensor without a storage.")

    def numbers(self) -> int:
        """The number of elements."""
        return math.prod(check_axes(self.shape, "shape"))


def check_axes(values: Any, what: str) -> tuple[int, ...]:
    """Return a tuple of non-negative integers, or raise."""
    if (
        not isinstance(values, tuple)
        or len(values) > MOST_AXES
        or not all(type(value) is int and 0 <= value <= LARGEST_AXIS for value in values)
    ):
        raise DataError(
            f"the {what} of an array is not a tuple of integers from 0 to {LARGEST_AXIS}."
        )
    return values
