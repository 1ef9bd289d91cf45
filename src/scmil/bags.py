"""The bag, where pixels and learning meet: one slide, molecule or picture, as the features of its instances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scmil.shapes import Float


@dataclass(frozen=True, eq=False)
class Bag:
    """The features of all instances of one thing that has one label.

    >>> Bag("molecule 1", torch.zeros(4, 166), label=1)
    Bag('molecule 1', 4 x 166, label=1)
    """

    id: str
    features: Float[Tensor, "n p"]
    label: int | None = None

    def __repr__(self) -> str:
        n, p = self.features.shape
        return f"Bag({self.id!r}, {n} x {p}, label={self.label})"


def standardise(train: Sequence[Bag], *others: Sequence[Bag]) -> list[list[Bag]]:
    """Bring every feature to zero mean and unit variance on the instances of `train`; others with the same numbers.

    A feature that is constant in `train` stays zero there.

    >>> [bags] = standardise([Bag("a", torch.tensor([[1.0, 5.0], [3.0, 5.0]]))])
    >>> bags[0].features
    tensor([[-1.,  0.], [ 1.,  0.]])
    """
    instances = torch.cat([bag.features for bag in train]).double()
    mean, deviation = instances.mean(0), instances.std(0, correction=0)
    deviation[deviation == 0] = 1
    return [
        [Bag(bag.id, ((bag.features - mean) / deviation).to(bag.features.dtype), bag.label) for bag in bags]
        for bags in (train, *others)
    ]
