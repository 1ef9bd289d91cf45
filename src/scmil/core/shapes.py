"""Shapes as types: `Float[Tensor, "n p"]`. Checked in the tests through jaxtyping, free at run time.

jaxtyping is a development dependency. Where it is not installed, a shape is just its array type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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


__all__ = ["Float"]
