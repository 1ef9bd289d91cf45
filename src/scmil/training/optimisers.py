"""The optimisers of the recipes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from scmil.training.recipes import Recipe


def make_optimiser(
    recipe: Recipe, parameters: Iterable[tuple[Tensor, bool]]
) -> torch.optim.Optimizer:
    """The optimiser of a recipe, for pairs of a parameter and whether it is a weight; a recipe may
    exclude other parameters, such as biases, from weight decay.
    """
    parts: dict[bool, list[Tensor]] = {True: [], False: []}
    for tensor, is_weight in parameters:
        parts[is_weight or not recipe.decay_weights_only].append(tensor)
    groups = [
        {"params": tensors, "weight_decay": recipe.weight_decay if decayed else 0.0}
        for decayed, tensors in parts.items()
        if tensors
    ]
    beta1, beta2 = recipe.betas
    if recipe.optimiser in ("sgd", "sgd-momentum"):
        nesterov = recipe.optimiser == "sgd"
        return torch.optim.SGD(groups, lr=recipe.learning_rate, momentum=beta1, nesterov=nesterov)
    if recipe.optimiser.startswith("lookahead-radam"):
        zhang = recipe.optimiser == "lookahead-radam-zhang"
        return (Lookahead if zhang else TransMILLookahead)(
            groups, lr=recipe.learning_rate, betas=(beta1, beta2), decoupled_weight_decay=True
        )
    kind = torch.optim.AdamW if recipe.optimiser == "adamw" else torch.optim.Adam
    return kind(groups, lr=recipe.learning_rate, betas=(beta1, beta2), fused=True)


class Lookahead(torch.optim.RAdam):
    """RAdam that moves, after every sixth step, half way back to the weights of six steps before
    (Zhang et al., 2019).
    """

    every, fraction = 6, 0.5
    slow_from_start = True

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step; steps are counted per tensor, as tensors without a gradient take none."""
        moved = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        new = [p for p in moved if self.slow_from_start and p not in self.state]
        start = {p: p.detach().clone() for p in new}
        result = super().step(closure)
        for p, slow in start.items():
            self.state[p]["slow"] = slow
        for p in moved:
            if int(self.state[p]["step"]) % self.every == 0:
                with torch.no_grad():
                    slow = self.state[p].setdefault("slow", p.detach().clone())
                    p.copy_(slow.lerp_(p, self.fraction))
        return result


class TransMILLookahead(Lookahead):
    """Lookahead as in TransMIL's code, which takes the slow weights at the first synchronisation,
    so that the first six steps are RAdam alone.
    """

    slow_from_start = False


def clip_each(modules: Sequence[Sequence[Tensor]], limit: float) -> None:
    """Clip the gradient norm of each module separately, as the authors of DTFD do."""
    for parameters in modules:
        torch.nn.utils.clip_grad_norm_(list(parameters), limit)
