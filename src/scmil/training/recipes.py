"""How a model is trained, by name: the paper's recipe, and what the authors of each aggregator published."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scmil.models import aggregators
from scmil.errors import OptionError
from scmil.limits import BOUNDS, Bound
from scmil.core.registry import Registry

OPTIMISERS = ("adam", "sgd", "lookahead-radam")
SCHEDULES = ("cosine", "constant", "time-decay", "steps")


@dataclass(frozen=True)
class Recipe:
    """Everything about training that is not the model. The defaults are the paper's (Sec. III-C3), one bag a step.

    `optimiser` is `adam` (coupled l2 decay), `sgd` (Nesterov momentum, `betas[0]`) or `lookahead-radam`. `schedule` is
    `cosine` down to `final_rate`, `constant`, `time-decay` (rate / (1 + 1e-4 steps), as Keras does) or `steps` (a fifth
    from half of the epochs on). `decay_weights_only` spares biases and other vectors. `clip` bounds the norm of each
    module's gradient. `patience` ends a training whose best epoch on the validation part is so many epochs ago.

    >>> Recipe().rate(epoch=0, step=0), round(Recipe().rate(epoch=20, step=0), 8)
    (0.0001, 5e-05)
    """

    epochs: int = 40
    learning_rate: float = 1e-4
    weight_decay: float = 5e-3
    betas: tuple[float, float] = (0.9, 0.999)
    optimiser: str = "adam"
    schedule: str = "cosine"
    final_rate: float = 0.0
    decay_weights_only: bool = False
    clip: float | None = None
    patience: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.betas, list):  # where a TOML file gave it
            object.__setattr__(self, "betas", tuple(self.betas))
        problems = [
            f"{name} = {value!r}: {wanted}"
            for name, value, good, wanted in (
                ("epochs", self.epochs, BOUNDS["epochs"].holds(self.epochs), BOUNDS["epochs"]),
                *((name, getattr(self, name), BOUNDS[name].holds(getattr(self, name)), BOUNDS[name])
                  for name in ("learning_rate", "weight_decay", "final_rate")),
                *((name, value, value is None or BOUNDS[name].holds(value), BOUNDS[name])
                  for name, value in (("clip", self.clip), ("patience", self.patience))),
                ("betas", self.betas, _are_betas(self.betas), "two numbers from 0 to below 1"),
                ("optimiser", self.optimiser, self.optimiser in OPTIMISERS, f"one of {', '.join(OPTIMISERS)}"),
                ("schedule", self.schedule, self.schedule in SCHEDULES, f"one of {', '.join(SCHEDULES)}"),
            )
            if not good
        ]  # fmt: skip
        if problems:
            raise OptionError("; ".join(problems) + ".")

    def rate(self, epoch: int, step: int) -> float:
        """The learning rate in an epoch, or, for `time-decay`, at a step; both count from 0."""
        if self.schedule == "cosine":
            fall = (1 + math.cos(math.pi * epoch / self.epochs)) / 2
            return self.final_rate + (self.learning_rate - self.final_rate) * fall
        if self.schedule == "time-decay":
            return self.learning_rate / (1 + 1e-4 * step)
        if self.schedule == "steps" and 2 * epoch >= self.epochs:
            return self.learning_rate / 5
        return self.learning_rate


def _are_betas(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(Bound(0, 1).holds(beta) and beta < 1 for beta in value)


# ------------------------------------------------------------------------------------------------------------ by name

registry: Registry[Recipe] = Registry("recipe")


def recipe(name: str, **changes: Any) -> Recipe:
    """A recipe by name, with changes.

    >>> recipe("dsmil").betas, recipe("paper", epochs=3).epochs
    ((0.5, 0.9), 3)
    """
    return registry.build(name, **changes)


def _named(name: str, summary: str, **settings: Any) -> None:
    registry.register(name, summary, **settings)(Recipe)


_named("paper", "Adam, 40 epochs at 1e-4 along a cosine, decay 5e-3 (Sec. III-C3)")
_named("paper-slides", "the paper's for slides: 200 epochs, decay 1e-4", epochs=200, weight_decay=1e-4)
_named(
    "mi-net", "Nesterov SGD at 5e-4 with Keras' decay, 50 epochs, l2 on weights only (Wang et al., MUSK1 and TIGER)",
    optimiser="sgd", schedule="time-decay", epochs=50, learning_rate=5e-4, weight_decay=0.01, decay_weights_only=True,
)  # fmt: skip
_named(
    "abmil", "Adam at 5e-4, decay 1e-4, 20 epochs, no schedule (Ilse et al., released code)",
    schedule="constant", epochs=20, learning_rate=5e-4, weight_decay=1e-4,
)  # fmt: skip
_named(
    "abmil-slides", "Adam at 1e-4, decay 1e-4, 200 epochs, no schedule (usual for slides; Ilse et al. published none)",
    schedule="constant", epochs=200, weight_decay=1e-4,
)  # fmt: skip
_named(
    "dsmil", "Adam at 2e-4, betas 0.5 and 0.9, decay 5e-3, cosine, 40 epochs (Li et al., classical script)",
    learning_rate=2e-4, betas=(0.5, 0.9),
)  # fmt: skip
_named(
    "dsmil-slides", "Adam at 1e-4, betas 0.5 and 0.9, decay 1e-3, cosine to 5e-6, 50 epochs (Li et al., slides)",
    epochs=50, betas=(0.5, 0.9), weight_decay=1e-3, final_rate=5e-6,
)  # fmt: skip
_named(
    "transmil", "Lookahead over RAdam at 2e-4, decay 1e-5 on weights only, 200 epochs (Shao et al.)",
    optimiser="lookahead-radam", schedule="constant", epochs=200, learning_rate=2e-4, weight_decay=1e-5,
    decay_weights_only=True,
)  # fmt: skip
_named(
    "dtfd", "Adam at 1e-4, decay 1e-4, a fifth of it from half way on, gradients of each module clipped at 5 (Zhang et al.)",
    schedule="steps", epochs=200, weight_decay=1e-4, clip=5.0,
)  # fmt: skip
_named("ilra", "Adam at 1e-4 without decay, cosine, 100 epochs (Xiang and Zhang)", epochs=100, weight_decay=0.0)

# The aggregators whose authors published a recipe, with its name here.
OFFICIAL = {
    "mean": "abmil-slides",  # the baselines beside ABMIL, trained as it is
    "max": "abmil-slides",
    "abmil": "abmil-slides",
    "abmil-gated": "abmil-slides",
    "mi-net-instance": "mi-net",
    "mi-net": "mi-net",
    "mi-net-ds": "mi-net",
    "mi-net-rc": "mi-net",
    "dsmil": "dsmil-slides",
    "transmil": "transmil",
    "dtfd-afs": "dtfd",
    "dtfd-maxmin": "dtfd",
    "ilra": "ilra",
}


def official(aggregator: str) -> Recipe:
    """The recipe with which an aggregator's authors train on slides, or the paper's for slides where they published none.

    The rest of an official training is the aggregator's own: DSMIL's two losses half and half, DTFD's two tiers that learn
    apart (`docs/decisions/0009-bags-of-any-size.md`).

    >>> official("dsmil").betas, official("dtfd-afs").clip, official("nlmil") == recipe("paper-slides")
    ((0.5, 0.9), 5.0, True)
    """
    aggregators.entry(aggregator)  # refuses a name that nobody has
    return recipe(OFFICIAL.get(aggregator, "paper-slides"))


# --------------------------------------------------------------------------------------------------------- optimisers


def make_optimiser(recipe: Recipe, parameters: Iterable[tuple[Tensor, bool]]) -> torch.optim.Optimizer:
    """The recipe's optimiser for parameters, each with the word whether it is a weight (biases may be spared of decay)."""
    parts: dict[bool, list[Tensor]] = {True: [], False: []}
    for tensor, is_weight in parameters:
        parts[is_weight or not recipe.decay_weights_only].append(tensor)
    groups = [
        {"params": tensors, "weight_decay": recipe.weight_decay if decayed else 0.0}
        for decayed, tensors in parts.items()
        if tensors
    ]
    beta1, beta2 = recipe.betas
    if recipe.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=recipe.learning_rate, momentum=beta1, nesterov=True)
    if recipe.optimiser == "lookahead-radam":
        return Lookahead(groups, lr=recipe.learning_rate, betas=(beta1, beta2), decoupled_weight_decay=True)
    return torch.optim.Adam(groups, lr=recipe.learning_rate, betas=(beta1, beta2), fused=True)


class Lookahead(torch.optim.RAdam):
    """RAdam whose every sixth step goes only half of the way from where it was six steps before (Zhang et al., 2019)."""

    every, share = 6, 0.5

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step of RAdam; each tensor counts its own, as one without a gradient takes none."""
        moved = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        start = {p: p.detach().clone() for p in moved if p not in self.state}
        result = super().step(closure)
        for p in moved:
            slow = self.state[p].setdefault("slow", start.get(p))
            if int(self.state[p]["step"]) % self.every == 0:
                with torch.no_grad():
                    p.copy_(slow.lerp_(p, self.share))
        return result


def clip_each(modules: Sequence[Sequence[Tensor]], limit: float) -> None:
    """Bound the norm of each module's gradient, as DTFD's authors do, and not that of all together."""
    for parameters in modules:
        torch.nn.utils.clip_grad_norm_(list(parameters), limit)
