"""How the sparse coding layer is conditioned and trained, apart from its equations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from scmil.core.limits import Bound

SCALES = ("auto", "none", "gain", "unit")
_BOUNDS = {"rate": Bound(1e-6, 1e6), "reconstruction": Bound(0, 1e6)}
_WARMUP = Bound(0, 100_000, whole=True)


@dataclass(frozen=True)
class Learning:
    """How a `SparseCoding` layer is trained.

    Args:
        unit_norm: Scale the atoms to unit norm after each step. The scale of an atom and that of
            its coefficients are exchangeable, so that without a constraint the optimiser may
            change one for the other; classical dictionary learning has this constraint.
        scale: The scale of the codes that the aggregator gets. `"gain"`: a learned factor, which
            starts at the value that gives the codes of the training bags a root mean square of 1;
            the codes of a dictionary with |D|^2 much larger than 1 are small, and an aggregator
            learns slowly from them. `"unit"`: each code is divided by its own root mean square, so
            that all instances have the same weight. `"none"`: codes as they are. `"auto"`: `"gain"`
            for a dictionary from data, else `"none"`.
        rate: Factor of the learning rate of the layer's parameters. Codes depend on the dictionary
            through several layers, and a start from data should move more slowly than weights that
            start at random.
        reconstruction: Weight of the mean of 1/2 (D alpha - x)^2 over all entries, which is added
            to the loss in training. The label of a bag alone does not require that codes represent
            their instances; with this term the dictionary stays a dictionary of the data. The
            recorded losses do not contain it, and class weights do not multiply it.
        warmup: Number of epochs before a dictionary from data is computed, so that the embedding
            is trained by then; with 0 it is computed before the first step.

    Raises:
        ValueError: If a value is unknown or out of range.

    >>> Learning(unit_norm=True, rate=0.1).scale
    'auto'
    """

    unit_norm: bool = False
    scale: str = "auto"
    rate: float = 1.0
    reconstruction: float = 0.0
    warmup: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.unit_norm, bool):
            raise ValueError(f"unit_norm = {self.unit_norm!r}: True or False is needed.")
        if self.scale not in SCALES:
            raise ValueError(f"scale = {self.scale!r}. Known: {', '.join(SCALES)}.")
        for name, bound in (*_BOUNDS.items(), ("warmup", _WARMUP)):
            if not bound.holds(value := getattr(self, name)):
                raise ValueError(f"{name} = {value!r}: {bound} is needed.")

    @classmethod
    def of(cls, options: Mapping[str, Any] | Learning | None) -> Learning:
        """The settings of a mapping; raises ValueError for unknown keys.

        >>> Learning.of({"rat": 0.1})
        Traceback (most recent call last):
        ...
        ValueError: learning: unknown 'rat'. Known: unit_norm, scale, rate, reconstruction, warmup.
        """
        if isinstance(options, Learning):
            return options
        if not isinstance(options, Mapping | None):
            raise ValueError(f"learning = {options!r}: a mapping with options is needed.")
        known = [field.name for field in fields(cls)]
        for key in options or {}:
            if key not in known:
                raise ValueError(f"learning: unknown {key!r}. Known: {', '.join(known)}.")
        return cls(**(options or {}))


class AddLoss(Function):
    """Returns `codes` unchanged; `loss` takes part in the backward pass as if it were added to the
    loss of the model.

    So the term needs no path through the aggregator, and acts in the same way on a whole bag, on
    blocks of a large one that are recomputed, and on stacked models.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(codes: Tensor, loss: Tensor) -> Tensor:
        """Return the codes."""
        return codes.view_as(codes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Keep the shape of the loss."""
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient of the codes, and that of the loss, which is 1."""
        (loss,) = ctx.saved_tensors
        return g, torch.ones_like(loss)
