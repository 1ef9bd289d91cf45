"""The aggregators (σ in the paper): they map the embeddings of a bag to one prediction.

An aggregator is any `nn.Module` that

- is built as `Name(dim, classes, **own)`: the width of the embeddings, the number of classes, and
  options of its own;
- maps `h (n, d)`, the embeddings of one bag, to a `Prediction`, for every n >= 1;
- declares `permutation_invariant`: whether the result is independent of the order of the instances.
  The paper defines σ so; TransMIL and DTFD are not invariant;
- declares `embedding`: the trainable network that its authors use in front of it; sparse coding is
  placed between the two (Fig. 1);
- declares `loss_weights` if it returns `auxiliary` logits: the weight of the loss of the bag, and
  that of the mean auxiliary loss;
- may have `clip_groups()`: the modules whose gradients a recipe with `clip` clips separately; by
  default its children;
- may declare `uses_positions = True`. It is then called as `forward(h, xy)`, where `xy (n, 2)` are
  the corners of the tiles in level-0 pixels, as in `Bag.xy`; a bag without them is rejected;
- may have a loss of its own beside the loss of the bag: `own_loss(prediction, label)` returns a
  scalar, which `MILModel.loss` adds. The tensors that it needs are in `Prediction.extras`. `label`
  is a tensor () with the number of the class. For a task without classes the aggregator is
  rejected, unless it declares `own_loss_without_classes = True`: `label` is then None, and the
  terms that need a class are left out;
- may declare `stackable = False` if `torch.func` cannot map it over folds, for example because
  `own_loss` changes buffers (queues, running means). Its folds are trained one after the other.
  State that changes during training belongs in buffers, so that checkpoints contain it;
- may have `set_epoch(epoch)`, which training calls before each epoch, counted from 0, for losses
  that start later. Until the first call all losses are active;
- may have `evidence(h, attention)` if its head is linear after pooling: see `Evidence`. All others
  get integrated gradients (`scmil.models.evidence`).

To add one, write a file in this folder and decorate the class with
`@register("its-name", "what it does")`; the contract tests include it automatically. Other packages
name theirs in an entry point of the group `scmil.aggregators`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor, nn

from scmil.core.limits import Bound
from scmil.core.registry import Entry, Registry
from scmil.core.shapes import Float
from scmil.errors import BagError, OptionError, ShapeError


class Prediction(NamedTuple):
    """The output of an aggregator for one bag.

    Args:
        logits: Logits (c,) of the bag.
        attention: Weights (n,) of the instances, non-negative, with sum one; NaN for external
            modules that return none.
        auxiliary: Further logits (c,) that are trained with the label of the bag: DSMIL's critical
            instance, DTFD's pseudo-bags, MI-Net's deep supervision.
        extras: Tensors that the aggregator's `own_loss` needs, of any shape.
    """

    logits: Float[Tensor, " c"]
    attention: Float[Tensor, " n"]
    auxiliary: tuple[Float[Tensor, " c"], ...] = ()
    extras: tuple[Tensor, ...] = ()


class Evidence(NamedTuple):
    """The exact contributions of the instances of a bag to its logits:
    `logits = constant + terms.sum(0)`.

    An aggregator that can be written in this form has a method `evidence(h, attention)`, which
    returns an `Evidence`, or None if its options make the head non-linear. `attention` is that of
    its `Prediction`. The term of an instance depends on its own row of `h` and on its weight in the
    pooling, and on nothing else: weights are taken as given, without gradient. If the attention
    contains all that is needed of the other rows, the aggregator also declares
    `evidence_by_rows = True`; the method is then called with blocks of rows.

    Args:
        terms: Contribution (n, c) of each instance to each logit.
        constant: The part (c,) of the logits that no instance contributes: the bias of the head.
        linear: Whether a term is linear in its row of `h`, so that it is a sum over the dimensions
            of `h`, which are the atoms behind sparse coding.
    """

    terms: Float[Tensor, "n c"]
    constant: Float[Tensor, " c"]
    linear: bool = True


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "leaky-relu": nn.LeakyReLU,
}


@dataclass(frozen=True)
class Embedding:
    """The trainable embedding network in front of an aggregator: linear layers, each with an
    activation and optionally with dropout.

    Args:
        widths: Widths of the layers; without any, there is no network.
        bias: Whether the layers have biases.
        glorot: Initialise with Glorot-uniform weights and zero biases, as Keras does, instead of
            torch's default.
        activation: `"relu"`, `"gelu"` or `"leaky-relu"`.
        dropout: Probability of dropout behind each activation.

    Raises:
        OptionError: If the activation is unknown or the dropout is not a probability.

    >>> Embedding(widths=(512,), bias=False).build(dim=1024)
    Sequential(
      (0): Linear(in_features=1024, out_features=512, bias=False)
      (1): ReLU()
    )
    """

    widths: tuple[int, ...] = ()
    bias: bool = True
    glorot: bool = False
    activation: str = "relu"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise OptionError(
                f"embed: activation = {self.activation!r}. Known: {', '.join(ACTIVATIONS)}."
            )
        if not Bound(0, 1).holds(self.dropout):
            raise OptionError(f"embed: dropout = {self.dropout!r}: {Bound(0, 1)} is needed.")

    def build(self, dim: int) -> nn.Module:
        """Build the network for features of `dim` dimensions; `nn.Identity` without widths."""
        layers: list[nn.Module] = []
        for width in self.widths:
            layers += [nn.Linear(dim, width, bias=self.bias), ACTIVATIONS[self.activation]()]
            layers += [nn.Dropout(self.dropout)] if self.dropout else []
            dim = width
        network = nn.Sequential(*layers) if layers else nn.Identity()
        return glorot_(network) if self.glorot else network


# The network of Wang et al. (2018) and Ilse et al. (2018) for the classical benchmarks.
CLASSICAL = Embedding(widths=(256, 128, 64))


class Aggregator(Protocol):
    """The interface of an aggregator, for type checkers; aggregators need not inherit from it."""

    permutation_invariant: ClassVar[bool]
    embedding: ClassVar[Embedding]

    def __call__(self, h: Float[Tensor, "n d"]) -> Prediction: ...


def linear_evidence(
    head: nn.Linear, h: Float[Tensor, "n d"], weights: Float[Tensor, ...]
) -> Evidence:
    """The evidence of `logits = W z + b` with `z = sum_i a_i h_i`: the terms `a_i w_c . h_i` and
    the constant b. The weights are one per instance, or one per instance and dimension.

    >>> import torch
    >>> head = nn.Linear(2, 2)
    >>> _ = head.weight.data.copy_(torch.tensor([[1.0, 0], [0, -2]])), head.bias.data.fill_(0.5)
    >>> found = linear_evidence(head, torch.tensor([[4.0, 0], [0, 4]]), torch.tensor([0.25, 0.75]))
    >>> found.terms.tolist(), found.constant.tolist()
    ([[1.0, 0.0], [0.0, -6.0]], [0.5, 0.5])
    """
    weights = weights.detach()
    if weights.ndim == 1:
        return Evidence(weights[:, None] * (h @ head.weight.T), head.bias)
    return Evidence((weights * h) @ head.weight.T, head.bias)


registry: Registry[nn.Module] = Registry("aggregator")


def register(
    name: str, summary: str, **preset: Any
) -> Callable[[Callable[..., nn.Module]], Callable[..., nn.Module]]:
    """Register an aggregator class, with its line for `scmil ls`; `preset` holds the options that
    the name implies.
    """
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


def uses_positions(aggregate: nn.Module) -> bool:
    """Whether an aggregator takes the positions of the tiles, as `forward(h, xy)`.

    >>> uses_positions(build("abmil", 64, classes=2))
    False
    """
    return bool(getattr(aggregate, "uses_positions", False))


def check_xy(aggregate: nn.Module, xy: Tensor | None, n: int) -> None:
    """Raise BagError if an aggregator that uses positions gets none, ShapeError for any but n."""
    if not uses_positions(aggregate):
        return
    if xy is None:
        raise BagError(MISSING_POSITIONS)
    if tuple(xy.shape) != (n, 2):
        raise ShapeError(
            f"positions of shape {tuple(xy.shape)}, but ({n}, 2) is needed, x and y of each tile."
        )


MISSING_POSITIONS = (
    "the bag has no tile positions, which the aggregator uses. Encode it with scmil encode, "
    "import features together with their coordinates, or choose another aggregator."
)


def aggregate_bag(
    aggregate: nn.Module, h: Float[Tensor, "n d"], xy: Tensor | None = None
) -> Prediction:
    """Apply an aggregator to the refined embeddings of a bag; `xy` is passed on only to those that
    use positions.

    >>> import torch
    >>> aggregate_bag(build("abmil", 8, classes=2), torch.ones(3, 8)).attention.shape
    torch.Size([3])
    """
    check_xy(aggregate, xy, len(h))
    prediction: Prediction = (
        aggregate(h, xy.to(h.device))
        if xy is not None and uses_positions(aggregate)
        else aggregate(h)
    )
    return prediction


def glorot_(module: nn.Module) -> nn.Module:
    """Initialise every linear layer with Glorot-uniform weights and zero biases, in place."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module


# The order here is the order in `scmil ls`: simple first.
for _module in (
    "pooling",
    "minet",
    "abmil",
    "gnn",
    "dynamic",
    "nonlocal_",
    "dsmil",
    "transmil",
    "dtfd",
    "ilra",
    "clam",
    "acmil",
    "attrimil",
    "dgr",
    "additive",
    "transformer",
    "rrt",
    "wikg",
    "s4mil",
    "patch_gcn",
):
    import_module(f"{__name__}.{_module}")
