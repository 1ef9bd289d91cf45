"""Shapes as types: `Float[Tensor, "n p"]`, checked in the tests by jaxtyping.

jaxtyping is a development dependency. Without it, `Float[Tensor, "n p"]` is `Tensor`.
`Numbers` is any array of double precision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from jaxtyping import Float as Float
else:
    try:
        from jaxtyping import Float
    except ImportError:

        class Float:
            """Stand-in: `Float[Tensor, "n p"]` is `Tensor`."""

            def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
                return item[0]


Numbers: TypeAlias = NDArray[np.float64]

__all__ = ["Float", "Numbers"]
