"""σ, the aggregators: a bag's embeddings go in, one prediction comes out. This page is the whole contract.

An aggregator is any `nn.Module` that

- is built as `Name(dim, classes, **own)`: the width of the embeddings, the number of classes, options of its own;
- maps `h (n, d)`, the embeddings of one bag, to a `Prediction`, for every n >= 1;
- declares `permutation_invariant`: whether the order of the instances is free. The paper defines σ so; TransMIL and
  DTFD are not, and say it;
- declares `embedding`: the trainable network in front of it that its authors use, before which nothing stands and after
  which sparse coding is plugged in (Fig. 1);
- declares `loss_weights` if it gives `auxiliary` logits: the weight of the bag's loss, and of the mean auxiliary loss.

To add one, write a file in this folder and decorate the class with `@register("its-name", "what it does")`; the contract
tests run over it from then on. From another package, name it in an entry point of the group `scmil.aggregators`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor, nn

from scmil.core.registry import Entry, Registry
from scmil.core.shapes import Float


class Prediction(NamedTuple):
    """What every aggregator says about a bag.

    `attention` is each instance's share in the decision: never negative, sums to one. It is NaN for outside modules that
    do not tell. `auxiliary` holds further logits that the bag's label supervises: DSMIL's critical instance, DTFD's
    pseudo-bags, MI-Net's deep supervision.
    """

    logits: Float[Tensor, " c"]
    attention: Float[Tensor, " n"]
    auxiliary: tuple[Float[Tensor, " c"], ...] = ()


@dataclass(frozen=True)
class Embedding:
    """The trainable embedding network that an aggregator expects in front: linear layers, each followed by ReLU.

    >>> Embedding(widths=(512,), bias=False).build(dim=1024)
    Sequential(
      (0): Linear(in_features=1024, out_features=512, bias=False)
      (1): ReLU()
    )
    """

    widths: tuple[int, ...] = ()
    bias: bool = True
    glorot: bool = False  # Glorot-uniform weights and zero biases, as Keras initialises; otherwise torch's default

    def build(self, dim: int) -> nn.Module:
        """Make the network for features of `dim` dimensions; no widths, no network."""
        layers: list[nn.Module] = []
        for width in self.widths:
            layers += [nn.Linear(dim, width, bias=self.bias), nn.ReLU()]
            dim = width
        network = nn.Sequential(*layers) if layers else nn.Identity()
        return glorot_(network) if self.glorot else network


# The network of Wang et al. (2018) and Ilse et al. (2018) for the classical benchmarks.
CLASSICAL = Embedding(widths=(256, 128, 64))


class Aggregator(Protocol):
    """The shape of an aggregator, for type checkers; nothing inherits from it."""

    permutation_invariant: ClassVar[bool]
    embedding: ClassVar[Embedding]

    def __call__(self, h: Float[Tensor, "n d"]) -> Prediction: ...


registry: Registry[nn.Module] = Registry("aggregator")


def register(name: str, summary: str, **preset: Any) -> Callable[[Callable[..., nn.Module]], Callable[..., nn.Module]]:
    """Register an aggregator class, with a line for `scmil ls`; further arguments are what the name stands for."""
    return registry.register(name, summary, **preset)


def names() -> list[str]:
    """The names of all aggregators, ours and those of installed packages.

    >>> "abmil-gated" in names()
    True
    """
    return registry.names()


def entry(name: str) -> Entry[nn.Module]:
    """Look an aggregator up by name without building it."""
    return registry.entry(name)


def build(name: str, dim: int, classes: int, **options: Any) -> nn.Module:
    """Build an aggregator by name.

    >>> build("abmil", 64, classes=2, hidden=32).permutation_invariant
    True
    """
    return registry.build(name, dim, classes, **options)


def glorot_(module: nn.Module) -> nn.Module:
    """Initialise every linear layer with Glorot-uniform weights and zero biases, in place."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module


# The order here is the order in `scmil ls`: simple first.
for _room in ("pooling", "minet", "abmil", "gnn", "dynamic", "nonlocal_", "dsmil", "transmil", "dtfd", "ilra"):
    import_module(f"{__name__}.{_room}")
