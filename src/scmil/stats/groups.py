"""Groups of observations that are not independent, such as the slides of one patient."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

Group = TypeVar("Group", bound=Hashable)


def group_positions(groups: Iterable[Group | None]) -> dict[Group | tuple[None, int], list[int]]:
    """Return the positions of each group, in order of first appearance.

    Args:
        groups: The group of each observation. None is an unknown group: each such observation is a
            group of its own, with the key `(None, position)`.

    Returns:
        The positions of the observations of each group.

    >>> group_positions(["p1", "p2", "p1", None])
    {'p1': [0, 2], 'p2': [1], (None, 3): [3]}
    """
    positions: dict[Group | tuple[None, int], list[int]] = {}
    for position, group in enumerate(groups):
        positions.setdefault((None, position) if group is None else group, []).append(position)
    return positions
