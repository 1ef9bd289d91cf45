"""Groups of observations that are not independent, such as the slides of one patient."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

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


def pool_slides(p: NDArray[np.float64], mode: str = "mean") -> NDArray[np.float64]:
    """The class probabilities of a patient from those of the slides (k, c).

    Args:
        p: Class probabilities of each slide.
        mode: "mean", or "max": of two classes the largest probability of the second, of more the
            largest of each, scaled to a sum of one.

    Returns:
        The probabilities (c,).

    >>> pool_slides(np.array([[0.9, 0.1], [0.3, 0.7]]), "max").round(6).tolist()
    [0.3, 0.7]
    >>> pool_slides(np.array([[0.9, 0.1], [0.3, 0.7]])).round(6).tolist()
    [0.6, 0.4]
    """
    if mode == "mean":
        return np.asarray(p.mean(0))
    highest = p.max(0)
    if len(highest) == 2:
        return np.array([1 - highest[1], highest[1]])
    return np.asarray(highest / highest.sum())
