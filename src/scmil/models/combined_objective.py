"""Several targets in one model: each part has outputs and a loss of its own.

A bag takes part in the losses of the targets that it has a value for. A class is a target only as
such a part; the default task has the cross-entropy of `MILModel`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from scmil.errors import OptionError

if TYPE_CHECKING:
    from scmil.models.objectives import Objective

MOST_CLASSES = 1000
LEAST_SHARE = 0.1  # of bags that have a part
LEAST_LOSS = 1e-3  # of a constant prediction


@dataclass(frozen=True)
class ClassObjective:
    """A class, by a softmax.

    Attributes:
        classes: Number of classes.
        start: Logits of classes, added to the outputs of the model; see `objective_start`.
    """

    classes: int
    start: tuple[float, ...] = ()
    task: ClassVar[str] = "class"
    risk_set: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 2 <= self.classes <= MOST_CLASSES:
            raise OptionError(f"classes = {self.classes}: 2 to {MOST_CLASSES} are expected.")
        if self.start and (
            len(self.start) != self.classes or not all(map(math.isfinite, self.start))
        ):
            raise OptionError(
                f"start = {list(self.start)[:5]}: {self.classes} finite numbers are expected."
            )

    @property
    def numbers(self) -> int:
        """Numbers per bag: a logit for each class."""
        return self.classes

    def losses(self, numbers: Tensor, target: Tensor) -> Tensor:
        """The cross-entropy of each bag."""
        log_p = self._logits(numbers).log_softmax(-1)
        return -log_p.gather(-1, target[..., :1].long()).squeeze(-1)

    def outputs(self, numbers: Tensor) -> Tensor:
        """The probability of each class."""
        return self._logits(numbers).softmax(-1)

    def _logits(self, numbers: Tensor) -> Tensor:
        return numbers + numbers.new_tensor(self.start) if self.start else numbers


@dataclass(frozen=True)
class CombinedObjective:
    """The weighted sum of the losses of several targets, over the parts that a bag has.

    Attributes:
        parts: The objective of each target, which must have a step for each bag.
        weights: The weight of each part; those of `objective_for` make all parts equally important
            whatever their units and however many bags have them.

    >>> from scmil.models.objectives import OrdinalObjective, RegressionObjective
    >>> both = CombinedObjective((RegressionObjective(0.0, 1.0), OrdinalObjective(3)), (1.0, 1.0))
    >>> both.numbers, both.output_widths
    (3, (1, 3))
    >>> both.losses(torch.zeros(3), torch.tensor([math.nan, math.nan]))
    tensor(0.)
    """

    parts: tuple[Objective, ...]
    weights: tuple[float, ...]
    task: ClassVar[str] = "combined"
    risk_set: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if len(self.parts) < 2 or any(
            part.risk_set != 1 or part.task == self.task for part in self.parts
        ):
            raise OptionError(
                "parts: at least two objectives are expected, of other tasks than 'combined' and "
                "without Cox's likelihood, which needs several bags in a step."
            )
        if len(self.weights) != len(self.parts) or not all(
            math.isfinite(weight) and weight > 0 for weight in self.weights
        ):
            raise OptionError(
                f"weights = {list(self.weights)[:5]}: {len(self.parts)} numbers above 0 are "
                "expected."
            )

    @property
    def numbers(self) -> int:
        """Numbers per bag, of all parts."""
        return sum(part.numbers for part in self.parts)

    @property
    def output_widths(self) -> tuple[int, ...]:
        """The number of outputs of each part."""
        return tuple(output_width(part) for part in self.parts)

    def losses(self, numbers: Tensor, target: Tensor) -> Tensor:
        """The weighted sum of the losses of the known parts of each bag."""
        total = numbers.new_zeros(numbers.shape[:-1])
        own_targets = target.split([target_width(part) for part in self.parts], -1)
        own_numbers = numbers.split([part.numbers for part in self.parts], -1)
        for part, weight, own, values in zip(
            self.parts, self.weights, own_numbers, own_targets, strict=True
        ):
            known = ~values.isnan().all(-1)
            # A missing part is replaced by zeros, whose loss is finite and then left out; missing
            # labels beside known ones stay missing.
            filled = torch.where(known[..., None], values, 0.0)
            total = total + weight * torch.where(known, part.losses(own, filled), 0.0)
        return total

    def outputs(self, numbers: Tensor) -> Tensor:
        """The outputs of all parts, one after the other."""
        split = numbers.split([part.numbers for part in self.parts], -1)
        return torch.cat(
            [part.outputs(own) for part, own in zip(self.parts, split, strict=True)], -1
        )

    def slices(self) -> Iterator[tuple[Objective, slice]]:
        """Each part with the columns of its outputs."""
        start = 0
        for part, width in zip(self.parts, self.output_widths, strict=True):
            yield part, slice(start, start + width)
            start += width


def output_width(objective: Objective) -> int:
    """The number of outputs of an objective for each bag."""
    return objective.grades if objective.task == "ordinal" else objective.numbers  # type: ignore[union-attr]


def target_width(objective: Objective) -> int:
    """The number of columns of `Targets.array` of an objective.

    >>> target_width(ClassObjective(4))
    1
    """
    if objective.task == "survival":
        return 2
    return objective.numbers if objective.task == "multilabel" else 1


def part_weights(parts: list[Objective], values: list[Tensor], bags: int) -> tuple[float, ...]:
    """Weights that make parts equally important: that of each is the inverse of its loss for a
    constant prediction, summed over the bags that have it.

    Args:
        parts: Objectives that start at the best constant prediction.
        values: The known values of each part in the training split.
        bags: Number of bags of the training split.

    Returns:
        The weights; of a part that fewer than a tenth of the bags have, the weight is that of a
        tenth, so that single bags do not dominate the steps.
    """
    weights = []
    for part, own in zip(parts, values, strict=True):
        loss = float(part.losses(torch.zeros(len(own), part.numbers), own).mean())
        share = max(len(own) / bags, LEAST_SHARE)
        weights.append(1 / (max(loss, LEAST_LOSS) * share * len(parts)))
    return tuple(weights)
