"""Scaling of features to zero mean and unit variance.

Every command that scales features uses `Scaling`: it is fitted on training bags only, by `moments`
in memory or by `streamed_moments` one bag at a time, and applied to all bags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scmil.bags.bag import Bag, BagSet

BLOCK = 65_536  # instances in double precision at once


class Scaling(NamedTuple):
    """The mean and the standard deviation of each feature, in double precision.

    >>> bags = BagSet([Bag("a", torch.tensor([[1.0, 5.0], [3.0, 5.0]]))])
    >>> scaling = moments(bags)
    >>> scaling.apply(torch.tensor([[5.0, 7.0]])), scaling.apply_to_bags(bags)[0].features
    (tensor([[3., 2.]]), tensor([[-1.,  0.], [ 1.,  0.]]))
    """

    mean: Tensor
    deviation: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """Return the scaled features, in the precision of `x`."""
        return (x - self.mean.to(x.dtype)) / self.deviation.to(x.dtype)

    def apply_to_bag(self, bag: Bag) -> Bag:
        """Return the bag with scaled features."""
        return replace(bag, features=self.apply(bag.features))

    def apply_to_bags(self, bags: BagSet) -> BagSet:
        """Return the same bags, each scaled when it is read."""
        positions = {bag_id: position for position, bag_id in enumerate(bags.ids)}

        def load(bag_id: str) -> Bag:
            return self.apply_to_bag(bags[positions[bag_id]])

        return bags.with_loader(load)

    def to_json(self) -> dict[str, list[float]]:
        """Return the scaling as it is stored in `study.json`."""
        return {"mean": self.mean.tolist(), "deviation": self.deviation.tolist()}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Scaling:
        """Return the scaling that `to_json` wrote.

        >>> Scaling.from_json({"mean": [1.0], "deviation": [2.0]}).apply(torch.tensor([[5.0]]))
        tensor([[2.]])
        """
        mean, deviation = (
            torch.tensor(record[key], dtype=torch.float64) for key in ("mean", "deviation")
        )
        return cls(mean, deviation)


def scale_as_recorded(bag: Bag, record: Mapping[str, Any] | None) -> Bag:
    """Return the bag scaled as a trained model records it; unchanged if there is no scaling.

    >>> bag = Bag("a", torch.tensor([[5.0]]))
    >>> scale_as_recorded(bag, {"mean": [1.0], "deviation": [2.0]}).features
    tensor([[2.]])
    >>> scale_as_recorded(bag, None) is bag
    True
    """
    return bag if record is None else Scaling.from_json(record).apply_to_bag(bag)


def moments(bags: Sequence[Bag]) -> Scaling:
    """Return mean and standard deviation of each feature over the instances of all bags.

    All features are held in memory. The deviation of a constant feature is 1.

    >>> moments([Bag("a", torch.tensor([[1.0, 5.0], [3.0, 5.0]]))]).mean
    tensor([2., 5.], dtype=torch.float64)
    """
    instances = torch.cat([bag.features for bag in bags]).double()
    deviation = instances.std(0, correction=0)
    # Rounding would give a tiny deviation, and huge features.
    deviation[instances.amax(0) == instances.amin(0)] = 1
    return Scaling(instances.mean(0), deviation)


def streamed_moments(bags: BagSet) -> Scaling:
    """Return what `moments` returns, up to rounding, with one bag in memory at a time.

    >>> bags = [Bag("a", torch.tensor([[1.0, 5.0]])), Bag("b", torch.tensor([[3.0, 5.0]]))]
    >>> streamed_moments(BagSet(bags)).deviation
    tensor([1., 1.], dtype=torch.float64)
    """
    # Differences from one instance, because the squares of large values lose precision.
    count, shift = 0, bags[0].features[0].double()
    total, squares = torch.zeros_like(shift), torch.zeros_like(shift)
    low, high = shift.clone(), shift.clone()
    for block in (block for bag in bags for block in bag.features.split(BLOCK)):
        x = block.double() - shift
        count += len(x)
        total, squares = total + x.sum(0), squares + x.square().sum(0)
        low, high = torch.minimum(low, x.amin(0) + shift), torch.maximum(high, x.amax(0) + shift)
    mean = total / count
    deviation = (squares / count - mean.square()).clamp(min=0).sqrt()
    deviation[low == high] = 1
    return Scaling(mean + shift, deviation)
