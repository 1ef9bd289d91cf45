"""Who trains and who tests: stratified folds from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scmil.errors import SplitError


class Split(NamedTuple):
    """Positions of the bags to train on and to test on."""

    train: tuple[int, ...]
    test: tuple[int, ...]


def stratified_folds(labels: Sequence[int], folds: int, seed: int) -> list[Split]:
    """Deal the bags of each class to the folds in turn, in an order drawn from the seed: every bag is tested once.

    >>> [split.test for split in stratified_folds([0, 0, 1, 1], folds=2, seed=0)]
    [(0, 2), (1, 3)]
    """
    values = np.asarray(labels)
    rarest = int(np.unique(values, return_counts=True)[1].min())
    if not 2 <= folds <= rarest:
        raise SplitError(f"folds = {folds}: at least 2, and at most {rarest}, the number of bags of the rarest class.")
    generator = np.random.default_rng(seed)
    order = np.concatenate([generator.permutation(np.flatnonzero(values == value)) for value in np.unique(values)])
    parts = [sorted(order[fold::folds].tolist()) for fold in range(folds)]
    everyone = set(range(len(values)))
    return [Split(tuple(sorted(everyone - set(part))), tuple(part)) for part in parts]
