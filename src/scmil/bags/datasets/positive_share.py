"""Targets from the share of positive instances of each bag."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scmil.bags.bag import BagSet
from scmil.bags.targets import Target, Targets, Value
from scmil.core.shapes import Numbers
from scmil.errors import DataError


def positive_shares(bags: BagSet) -> Numbers:
    """The share of positive instances of each bag.

    Raises:
        DataError: If a bag has no labels of instances.

    >>> from scmil.bags.datasets import load_dataset
    >>> positive_shares(load_dataset("synthetic:bags=4,witness=1")).tolist()
    [0.0, 1.0, 0.0, 1.0]
    """
    shares = []
    for bag in bags:
        if bag.instance_labels is None:
            raise DataError(
                f"bag {bag.id!r} has no labels of instances, which the share of positive ones "
                "needs. Load the data set by its name."
            )
        shares.append(float(bag.instance_labels.double().mean()))
    return np.array(shares)


def bag_targets(bags: BagSet, target: Target, values: Sequence[Value | None]) -> Targets:
    """The values of the bags of a data set, with their patients."""
    patients = tuple(bag.patient for bag in bags)
    return Targets(target, tuple(bags.ids), tuple(values), patients)
