"""A layout: the names of the tensors of a published checkpoint, and their places in a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scmil.core.limits import problem
from scmil.errors import OptionError

POOLINGS = ("max", "mean", "lse")
Shapes = Mapping[str, tuple[int, ...]]  # of the tensors of a checkpoint, by their names


class Entry(NamedTuple):
    """The place of a tensor: the name of our parameter, and how its form differs.

    Forms: `same`; `flatten` (other axes, same order of the numbers); `transpose` (Keras' kernels
    are inputs x outputs); `second row` (one score s is the pair of logits (0, s), so that the first
    row is zero); `row 0`, `row 1` (one row of our tensor); `unused` (the tensor has no effect on
    any output, and no parameter of ours).
    """

    name: str
    form: str = "same"


UNUSED = Entry("", "unused")
Table = dict[str, Entry]  # by the authors' name


@dataclass(frozen=True)
class Choices:
    """What a checkpoint does not contain.

    Args:
        groups: Number of pseudo-bags of DTFD.
        pooling: Pooling of MI-Net: max, mean or lse.
        sc_layers: Number of steps of the released sparse coding layer.
        options: Further options of the aggregator that no tensor shows, such as the `heads` of
            `transformer`; with the prefix `embed.`, fields of the `Embedding`.
    """

    groups: int = 4
    pooling: str = "max"
    sc_layers: int = 5
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise OptionError(f"pooling = {self.pooling!r}. Known: {', '.join(POOLINGS)}.")
        for name, value in (("groups", self.groups), ("layers", self.sc_layers)):
            if wrong := problem(name, value):
                raise OptionError(f"{wrong}.")


class Description(NamedTuple):
    """The arguments of `build_model`, the place of every tensor, and the names of our buffers that
    a checkpoint does not hold and that start at zero.
    """

    settings: dict[str, Any]
    table: Table
    starts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layout:
    """One way in which authors store an aggregator.

    Args:
        repository: Where the layout is published.
        marker: A tensor that tells the layout from others of the same aggregator.
        describe: Maps the name of the aggregator, the shapes of the tensors and the choices to a
            `Description`. Sizes of tensors that are missing may be anything: it is reported later.
    """

    repository: str
    marker: str
    describe: Callable[[str, Shapes, Choices], Description]


def linear(theirs: str, ours: str, form: str = "same") -> Table:
    """The entries of the weight and the bias of a linear layer.

    >>> linear("classifier.fc", "aggregate.classifier")["classifier.fc.bias"].name
    'aggregate.classifier.bias'
    """
    return {
        f"{theirs}.{part}": Entry(f"{ours}.{part}", form if part == "weight" else _bias(form))
        for part in ("weight", "bias")
    }


def _bias(form: str) -> str:
    return form if form == "second row" else "same"


def size(shapes: Shapes, name: str, axis: int, otherwise: int = 1) -> int:
    """The length of an axis of a tensor; `otherwise` if the checkpoint has no such axis.

    >>> size({"weight": (2, 512)}, "weight", 1), size({}, "weight", 1, otherwise=8)
    (512, 8)
    """
    shape = shapes.get(name, ())
    return shape[axis] if axis < len(shape) else otherwise


def has(shapes: Shapes, prefix: str) -> bool:
    """Whether the name of a tensor starts so."""
    return any(name.startswith(prefix) for name in shapes)
