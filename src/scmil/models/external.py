"""Sparse coding in front of aggregators of other packages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from scmil.core.shapes import Float
from scmil.errors import OptionError
from scmil.models.aggregators import Embedding, Prediction
from scmil.models.aggregators.heads import as_logits
from scmil.models.model import MILModel
from scmil.sparse_coding.layer import SparseCoding


def plug_into(
    module: nn.Module,
    dim: int,
    atoms: int = 256,
    *,
    call: Mapping[str, Any] | None = None,
    attention: str = "softmax",
    positions: str | None = None,
    own_loss: Callable[[Prediction, Tensor], Tensor] | None = None,
    **sparse_coding: Any,
) -> MILModel:
    """Put sparse coding in front of an aggregator of another package.

    Args:
        module: A module for embeddings of `atoms` dimensions. It maps `(n, d)` or `(1, n, d)`,
            which is tested with two small bags, to logits, or to logits and attention. A single
            logit stands for two classes.
        dim: Dimension of the features.
        atoms: Number of atoms.
        call: Further arguments of the module's forward, such as `{"return_att": True}`.
        attention: `"softmax"` if the module returns scores before the softmax, `"weights"` if they
            already sum to one.
        positions: Name of the argument of the module's forward that takes the positions (n, 2) of
            the tiles, as in `Bag.xy`; with a batch axis if the features have one.
        own_loss: A loss beside that of the bag: a function of the `Prediction` and the label, a
            tensor (). `Prediction.extras` holds the tensors that the module returns after the
            logits, in order.
        **sparse_coding: Options of `SparseCoding`.

    Returns:
        A model with the module as aggregator; its attention is NaN if the module returns none. A
        module that follows the interface of scmil's aggregators (`scmil.aggregators`) is used as it
        is.

    Raises:
        OptionError: If `attention` is unknown, the module returns no logits for a bag, or an
            aggregator of scmil gets options for modules of other packages.

    >>> class Mean(nn.Module):
    ...     def __init__(self): super().__init__(); self.head = nn.Linear(256, 3)
    ...     def forward(self, bags): return self.head(bags.mean(1))
    >>> plug_into(Mean(), dim=512)(torch.randn(9, 512)).logits.shape
    torch.Size([3])
    """
    if attention not in ("softmax", "weights"):
        raise OptionError(f"attention = {attention!r}. Known: softmax, weights.")
    aggregate: nn.Module
    if hasattr(module, "permutation_invariant") and hasattr(module, "embedding"):
        if call or positions or own_loss:
            raise OptionError(
                f"{type(module).__name__} is an aggregator of scmil, so call, positions and "
                "own_loss do not apply: its class declares them. Leave them out."
            )
        aggregate = module
    else:
        aggregate = ExternalAggregator(
            module, atoms, attention, dict(call or {}), positions=positions, own_loss=own_loss
        )
    return MILModel(nn.Identity(), SparseCoding(dim, atoms, **sparse_coding), aggregate, dim)


class ExternalAggregator(nn.Module):
    """Adapter: exposes a third-party module as an scmil aggregator."""

    permutation_invariant = False  # not known
    embedding = Embedding()

    def __init__(
        self,
        module: nn.Module,
        dim: int,
        attention: str,
        call: dict[str, Any],
        *,
        positions: str | None = None,
        own_loss: Callable[[Prediction, Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.module, self.attention, self.call = module, attention, call
        self.positions, self.uses_positions = positions, positions is not None
        self.own_loss = own_loss
        self.batched = self._takes_a_batch(dim)

    def _takes_a_batch(self, dim: int) -> bool:
        """Try both forms on bags of two and three instances: the shape of the logits must not
        depend on the size of the bag.
        """
        weight = next(self.module.parameters(), torch.empty(0))
        training, problems = self.module.training, []
        self.module.eval()
        try:
            for batched in (True, False):
                bags = [
                    torch.ones(n, dim, dtype=weight.dtype, device=weight.device) for n in (2, 3)
                ]
                shape = f"({'1, ' if batched else ''}n, {dim})"
                try:
                    with torch.no_grad():
                        two, three = (
                            _logits_of(self._call(bag, _corners(bag), batched)).shape
                            for bag in bags
                        )
                except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
                    problems.append(
                        f"{shape} raised {type(error).__name__}: {str(error).splitlines()[0]}"
                    )
                    continue
                if two == three and (len(two) <= 1 or (len(two) == 2 and two[0] == 1)):
                    return batched
                problems.append(
                    f"{shape} gave logits {tuple(two)} for two instances "
                    f"and {tuple(three)} for three"
                )
        finally:
            self.module.train(training)
        raise OptionError(
            f"{type(self.module).__name__} gives no logits for a bag. {'; '.join(problems)}. "
            f"Build it for {dim}-dimensional embeddings, the number of atoms, "
            "and let it pool the instances."
        )

    def _call(self, h: Tensor, xy: Tensor | None, batched: bool) -> Any:
        """The output of the module for a bag."""
        given = dict(self.call)
        if self.positions is not None and xy is not None:
            given[self.positions] = xy[None] if batched else xy
        return self.module(h[None] if batched else h, **given)

    def forward(self, h: Float[Tensor, "n d"], xy: Tensor | None = None) -> Prediction:
        """Call the module, and read logits and attention from its output."""
        output = self._call(h, xy, self.batched)
        logits = as_logits(_logits_of(output).reshape(-1))
        scores = output[1] if isinstance(output, tuple | list) and len(output) > 1 else None
        if not isinstance(scores, Tensor) or scores.numel() % len(h):
            # Unknown: NaN cannot be mistaken for attention.
            weights = h.new_full((len(h),), math.nan)
            return Prediction(logits, weights, extras=self._extras(output))
        axis = max(i for i, size in enumerate(scores.shape) if size == len(h))
        scores = scores.movedim(axis, -1).reshape(-1, len(h))  # one row per head
        weights = torch.softmax(scores, dim=1) if self.attention == "softmax" else scores
        return Prediction(logits, weights.mean(0), extras=self._extras(output))

    def _extras(self, output: Any) -> tuple[Tensor, ...]:
        """The tensors after the logits, for the own loss; dictionaries are searched too."""
        if self.own_loss is None or not isinstance(output, tuple | list):
            return ()
        values = [
            value
            for part in output[1:]
            for value in (part.values() if isinstance(part, Mapping) else [part])
        ]
        return tuple(value for value in values if isinstance(value, Tensor))


def _corners(bag: Tensor) -> Tensor:
    """Positions in a row, to try a module."""
    x = 256 * torch.arange(len(bag), device=bag.device)
    return torch.stack([x, torch.zeros_like(x)], 1)


def _logits_of(output: Any) -> Tensor:
    """The logits in the output of a module."""
    logits = output[0] if isinstance(output, tuple | list) else output
    if not isinstance(logits, Tensor):
        raise TypeError(f"returned {type(logits).__name__}, not a tensor of logits")
    return logits
