"""Training hyper-parameters by name: those of the paper, and those published with aggregators."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from scmil.core.limits import BOUNDS, Bound
from scmil.core.registry import Registry
from scmil.errors import OptionError
from scmil.models import aggregators
from scmil.training.regularisation import Regularisation

OPTIMISERS = ("adam", "adamw", "sgd", "sgd-momentum", "lookahead-radam", "lookahead-radam-zhang")
SCHEDULES = ("cosine", "constant", "time-decay", "steps", "one-cycle")


@dataclass(frozen=True)
class Recipe:
    """The hyper-parameters of a training with one bag per step; defaults are the paper's
    (Sec. III-C3).

    Args:
        epochs: Number of passes over the training bags.
        learning_rate: Learning rate at the start.
        weight_decay: Factor of the l2 penalty.
        betas: Coefficients of Adam; `betas[0]` is the momentum of `sgd`.
        optimiser: `adam` (coupled l2 decay), `adamw` (decoupled decay), `sgd` (Nesterov momentum),
            `sgd-momentum` (momentum without Nesterov's correction), `lookahead-radam` (as TransMIL
            trains: slow weights from the first synchronisation on) or `lookahead-radam-zhang` (slow
            weights from the start, as its authors publish it).
        schedule: `cosine` down to `final_rate`, `constant`, `time-decay` (rate / (1 + 1e-4 steps),
            as in Keras), `steps` (a fifth from half of the epochs on) or `one-cycle` (from a 25th
            up to the learning rate during 30 % of the epochs, then down to nearly zero, as torch's
            `OneCycleLR` with one step per epoch).
        final_rate: Learning rate at the end of a cosine schedule.
        warm_up: Number of epochs in which the learning rate rises linearly, in front of a cosine
            schedule.
        decay_weights_only: Exclude biases and other vectors from weight decay.
        clip: Upper bound of the gradient norm of each module.
        patience: Stop when the best epoch on the validation bags is this many epochs ago.
        select_after: Fraction of the epochs that are never chosen on the validation bags. DTFD's
            authors choose among the last fifth: 0.8.
        regularisation: Sampling and masking of tiles, noise, mixup and other options of a step, as
            a `Regularisation` or a mapping of its fields; nothing by default.

    Raises:
        OptionError: If values are out of range; the message lists all of them.

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
    select_after: float = 0.0
    warm_up: int = 0
    regularisation: Regularisation = field(default_factory=Regularisation)

    def __post_init__(self) -> None:
        if isinstance(self.betas, list):  # read from a TOML file
            object.__setattr__(self, "betas", tuple(self.betas))
        object.__setattr__(self, "regularisation", Regularisation.of(self.regularisation))
        problems = [
            f"{name} = {value!r}: {expected}"
            for name, value, valid, expected in self._checks()
            if not valid
        ]
        if problems:
            raise OptionError("; ".join(problems) + ".")

    def _checks(self) -> Iterator[tuple[str, Any, bool, object]]:
        """Name, value, whether it is valid, and what is expected, for each setting."""
        for name in ("epochs", "learning_rate", "weight_decay", "final_rate", "clip", "patience"):
            value = getattr(self, name)
            optional = name in ("clip", "patience") and value is None
            yield name, value, optional or BOUNDS[name].holds(value), BOUNDS[name]
        yield "betas", self.betas, _are_betas(self.betas), "two numbers from 0 to below 1"
        known_number = isinstance(self.warm_up, int) and not isinstance(self.warm_up, bool)
        suits = (
            known_number and self.warm_up >= 0 and (self.schedule == "cosine" or not self.warm_up)
        )
        yield "warm_up", self.warm_up, suits, "a number of epochs, with a cosine schedule"
        valid = _is_below_one(self.select_after)
        yield "select_after", self.select_after, valid, "a number from 0 to below 1"
        for name, known in (("optimiser", OPTIMISERS), ("schedule", SCHEDULES)):
            value = getattr(self, name)
            yield name, value, value in known, f"one of {', '.join(known)}"

    @property
    def first_candidate(self) -> int:
        """The first epoch, from 1, that may be chosen on the validation bags.

        >>> Recipe(epochs=200, select_after=0.8).first_candidate
        161
        """
        return 1 + math.floor(self.select_after * self.epochs)

    def to_json(self) -> dict[str, Any]:
        """The settings for a JSON file; later ones only if they are set, as files that were written
        before they existed must stay equal.
        """
        settings = {**asdict(self), "betas": list(self.betas)}
        settings["regularisation"] = self.regularisation.to_json()
        later = ("select_after", "warm_up", "regularisation")
        return {k: v for k, v in settings.items() if v or k not in later}

    def rate(self, epoch: int, step: int) -> float:
        """The learning rate in an epoch, or, for `time-decay`, at a step; both count from 0."""
        if epoch < self.warm_up:
            return self.learning_rate * (epoch + 1) / (self.warm_up + 1)
        if self.schedule == "cosine":
            first, epochs = self.warm_up, max(1, self.epochs - self.warm_up)
            fall = (1 + math.cos(math.pi * (epoch - first) / epochs)) / 2
            return self.final_rate + (self.learning_rate - self.final_rate) * fall
        if self.schedule == "one-cycle":
            return self._one_cycle(epoch)
        if self.schedule == "time-decay":
            return self.learning_rate / (1 + 1e-4 * step)
        if self.schedule == "steps" and 2 * epoch >= self.epochs:
            return self.learning_rate / 5
        return self.learning_rate

    def _one_cycle(self, epoch: int) -> float:
        """Two halves of a cosine: from 1/25 to the peak, and from the peak to 1/250 000 of it."""
        peak, last = 0.3 * self.epochs - 1, self.epochs - 1
        if epoch <= peak:
            start, end, part = 1 / 25, 1.0, epoch / peak if peak else 1.0
        else:
            start, end = 1.0, 1 / 250_000
            part = (epoch - peak) / (last - peak) if last > peak else 0.0
        factor = end + (start - end) * (1 + math.cos(math.pi * part)) / 2
        return self.learning_rate * factor


def _are_betas(value: Any) -> bool:
    return (
        isinstance(value, tuple) and len(value) == 2 and all(_is_below_one(beta) for beta in value)
    )


def _is_below_one(value: Any) -> bool:
    return Bound(0, 1).holds(value) and value < 1


# ------------------------------------------------------------------------------------------ by name

registry: Registry[Recipe] = Registry("recipe")


def recipe(name: str, **changes: Any) -> Recipe:
    """Look up a recipe by name.

    Args:
        name: A name that `scmil ls` lists, such as `"paper"` or `"dsmil"`.
        **changes: Settings of `Recipe` to replace.

    Returns:
        The recipe with the changes.

    Raises:
        UnknownNameError: If there is no recipe with this name.
        OptionError: If a setting is unknown or out of range.

    >>> recipe("dsmil").betas, recipe("paper", epochs=3).epochs
    ((0.5, 0.9), 3)
    """
    return registry.build(name, **changes)


def _register(name: str, summary: str, **settings: Any) -> None:
    """Register a recipe with its line for `scmil ls`."""
    registry.register(name, summary, **settings)(Recipe)


_register("paper", "Adam, 40 epochs at 1e-4 along a cosine, decay 5e-3 (Sec. III-C3)")
_register(
    "paper-slides", "the paper's for slides: 200 epochs, decay 1e-4", epochs=200, weight_decay=1e-4
)
_register(
    "mi-net",
    "Nesterov SGD at 5e-4 with Keras' decay, 50 epochs, l2 on weights only "
    "(Wang et al., MUSK1 and TIGER)",
    optimiser="sgd",
    schedule="time-decay",
    epochs=50,
    learning_rate=5e-4,
    weight_decay=0.01,
    decay_weights_only=True,
)
_register(
    "abmil",
    "Adam at 5e-4, decay 1e-4, 20 epochs, no schedule (Ilse et al., released code)",
    schedule="constant",
    epochs=20,
    learning_rate=5e-4,
    weight_decay=1e-4,
)
_register(
    "abmil-slides",
    "Adam at 1e-4, decay 1e-4, 200 epochs, no schedule "
    "(usual for slides; Ilse et al. published none)",
    schedule="constant",
    epochs=200,
    weight_decay=1e-4,
)
_register(
    "dsmil",
    "Adam at 2e-4, betas 0.5 and 0.9, decay 5e-3, cosine, 40 epochs (Li et al., classical script)",
    learning_rate=2e-4,
    betas=(0.5, 0.9),
)
_register(
    "dsmil-slides",
    "Adam at 1e-4, betas 0.5 and 0.9, decay 1e-3, cosine to 5e-6, 50 epochs (Li et al., slides)",
    epochs=50,
    betas=(0.5, 0.9),
    weight_decay=1e-3,
    final_rate=5e-6,
)
_register(
    "transmil",
    "Lookahead over RAdam at 2e-4, decay 1e-5 on weights only, 200 epochs (Shao et al.)",
    optimiser="lookahead-radam",
    schedule="constant",
    epochs=200,
    learning_rate=2e-4,
    weight_decay=1e-5,
    decay_weights_only=True,
)
_register(
    "dtfd",
    "Adam at 1e-4, decay 1e-4, a fifth of the rate from half of the epochs on, gradients of each "
    "module clipped at 5, the epoch chosen in the last fifth (Zhang et al.)",
    schedule="steps",
    epochs=200,
    weight_decay=1e-4,
    clip=5.0,
    select_after=0.8,
)
_register(
    "ilra",
    "Adam at 1e-4 without decay, cosine, 100 epochs (Xiang and Zhang)",
    epochs=100,
    weight_decay=0.0,
)
_register(
    "transformer",
    "AdamW at up to 1e-4, one cycle, 32 epochs (STAMP, which trains on 512 random tiles of each of "
    "64 slides per step, and stops early)",
    optimiser="adamw",
    schedule="one-cycle",
    epochs=32,
    weight_decay=0.01,
)
_register(
    "rrt",
    "Adam at 2e-4, decay 1e-5, cosine, 200 epochs (Tang et al.)",
    epochs=200,
    learning_rate=2e-4,
    weight_decay=1e-5,
)
_register(
    "wikg",
    "Adam at 1e-4, decay 1e-5, 100 epochs, no schedule (Li et al., WiKG)",
    schedule="constant",
    epochs=100,
    weight_decay=1e-5,
)
_register(
    "s4mil",
    "Adam at 1e-4, decay 1e-5 on weights only, 200 epochs, no schedule (scripts of MambaMIL)",
    schedule="constant",
    epochs=200,
    weight_decay=1e-5,
    decay_weights_only=True,
)
_register(
    "patch-gcn",
    "Adam at 2e-4, decay 1e-5, 20 epochs, no schedule (Chen et al., who add the gradients of 32 "
    "slides per step)",
    schedule="constant",
    epochs=20,
    learning_rate=2e-4,
    weight_decay=1e-5,
)

_register(
    "clam",
    "Adam at 1e-4, decay 1e-5, 200 epochs, no schedule (Lu et al., CLAM)",
    schedule="constant",
    epochs=200,
    weight_decay=1e-5,
)
_register(
    "acmil",
    "AdamW at 1e-4, decay 1e-5, cosine, 50 epochs (Zhang et al., ACMIL)",
    optimiser="adamw",
    epochs=50,
    weight_decay=1e-5,
)
_register(
    "attrimil",
    "SGD at 2e-4 with momentum 0.9, decay 1e-5, 200 epochs, no schedule (Cai et al., who also "
    "draw the classes equally often, and stop early)",
    optimiser="sgd-momentum",
    schedule="constant",
    epochs=200,
    learning_rate=2e-4,
    weight_decay=1e-5,
)
_register(
    "dgr-mil",
    "SGD at 5e-4 with momentum 0.9, decay 1e-4, 10 epochs of warm-up, cosine to 1e-5, 200 epochs "
    "(Zhu et al.)",
    optimiser="sgd-momentum",
    epochs=200,
    learning_rate=5e-4,
    weight_decay=1e-4,
    final_rate=1e-5,
    warm_up=10,
)

# Names of the recipes published with aggregators.
OFFICIAL = {
    "mean": "abmil-slides",  # trained like ABMIL
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
    "clam-sb": "clam",
    "clam-mb": "clam",
    "acmil": "acmil",
    "attrimil": "attrimil",
    "dgr-mil": "dgr-mil",
    "transformer": "transformer",
    "rrt": "rrt",
    "wikg": "wikg",
    "s4mil": "s4mil",
    "patch-gcn": "patch-gcn",
}


def official(aggregator: str) -> Recipe:
    """The recipe that the authors of an aggregator use for slides; the paper's for slides if they
    published none.

    The losses are declared by the aggregators themselves: DSMIL averages two, and the two tiers of
    DTFD learn separately (`docs/decisions/0009-bags-of-any-size.md`).

    >>> official("dsmil").betas, official("nlmil") == recipe("paper-slides")
    ((0.5, 0.9), True)
    """
    aggregators.entry(aggregator)  # raises for an unknown name
    return recipe(OFFICIAL.get(aggregator, "paper-slides"))
