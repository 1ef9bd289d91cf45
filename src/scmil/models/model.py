"""Fig. 1: a bag's features are embedded, refined by sparse coding, and aggregated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scmil.models import aggregators
from scmil.models.aggregators import Embedding, Prediction
from scmil.errors import BagError, OptionError, ShapeError
from scmil.sparse_coding.kernel_torch import in_transform
from scmil.sparse_coding.kernel_numpy import TINY
from scmil.limits import options_problem
from scmil.sparse_coding.released import ReleasedSparseCoding
from scmil.core.shapes import Float
from scmil.sparse_coding.layer import SparseCoding


class MILModel(nn.Module):
    """`aggregate(refine(embed(x)))`: refine is `SparseCoding`, or `nn.Identity` for "w/o SC".

    >>> from scmil.models.aggregators.dsmil import DSMIL
    >>> model = MILModel(nn.Identity(), SparseCoding(512), DSMIL(256, classes=2))
    >>> model(torch.randn(7, 512)).logits.shape
    torch.Size([2])
    """

    def __init__(self, embed: nn.Module, refine: nn.Module, aggregate: nn.Module, dim: int | None = None) -> None:
        super().__init__()
        self.embed, self.refine, self.aggregate = embed, refine, aggregate
        self.dim = dim
        self.spec: dict[str, Any] | None = None  # what `build_model` was asked for; a model that has it can be saved

    def forward(self, x: Float[Tensor, "n p"]) -> Prediction:
        check_bag(x, self.dim)
        prediction: Prediction = self.aggregate(self.refine(self.embed(x)))
        return prediction

    def loss(self, prediction: Prediction, label: Tensor | int) -> Tensor:
        """Cross-entropy of the bag and of its auxiliary logits, with the weights that the aggregator declares.

        >>> model = build_model(8, 2, "dsmil", seed=0)
        >>> model.loss(model(torch.ones(3, 8)), 1).shape
        torch.Size([])
        """
        target = torch.as_tensor(label, device=prediction.logits.device)
        bag_weight, auxiliary_weight = getattr(self.aggregate, "loss_weights", (1.0, 0.0))
        loss = bag_weight * F.cross_entropy(prediction.logits, target)
        if prediction.auxiliary:
            further = torch.stack(prediction.auxiliary)
            loss = loss + auxiliary_weight * F.cross_entropy(further, target.expand(len(further)))
        return loss


def check_bag(x: Tensor, dim: int | None = None) -> None:
    """Refuse what is not a bag: no matrix, no instances, another dimension, NaN or infinite features.

    >>> check_bag(torch.empty(0, 512))
    Traceback (most recent call last):
    ...
    scmil.errors.BagError: the bag is empty: it has no instances, and a model needs at least one.
    """
    if x.ndim != 2:
        raise ShapeError(f"a bag is a matrix (instances, features), and this has the shape {tuple(x.shape)}.")
    if len(x) == 0:
        raise BagError("the bag is empty: it has no instances, and a model needs at least one.")
    if dim is not None and x.shape[1] != dim:
        raise ShapeError(f"the bag has {x.shape[1]}-dimensional features, but this model was built for {dim}.")
    if torch.compiler.is_compiling() or in_transform():
        return  # values cannot be looked at while torch traces or maps
    if not torch.isfinite(x.detach().sum()) and not torch.isfinite(x).all():  # one sum in the ordinary case
        bad = (~torch.isfinite(x)).any(1).nonzero().flatten()
        raise BagError(
            f"{len(bad)} of the bag's {len(x)} instances have NaN or infinite features; the first is number {int(bad[0])}."
        )


class Normalise(nn.LayerNorm):
    """Zero mean and unit variance for each instance, and nothing else: what sparse coding and the control do first.

    So "w/o SC" can be had with the same view of the input, as a gain may be the normalisation's.
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim, eps=TINY, elementwise_affine=False)
        self.dim = dim


class LinearRefine(nn.Sequential):
    """The control for every claim about sparse coding: a plain linear layer with ReLU, of the same width, on the same input.

    Where sparse coding normalises its input, so does the control.
    """

    def __init__(self, dim: int, atoms: int = 256, normalise: bool = True) -> None:
        first: nn.Module = Normalise(dim) if normalise else nn.Identity()
        super().__init__(first, nn.Linear(dim, atoms), nn.ReLU())
        self.dim, self.atoms = dim, atoms


REFINEMENTS: dict[str, Callable[..., nn.Module]] = {
    "sparse-coding": SparseCoding,
    "linear": LinearRefine,
    "normalise": Normalise,
    "released": ReleasedSparseCoding,
}


def build_model(
    dim: int,
    classes: int,
    aggregator: str | Mapping[str, Any] = "abmil-gated",
    sparse_coding: bool | Mapping[str, Any] | None = None,
    *,
    refine: str | None = None,
    embed: Sequence[int] | Mapping[str, Any] | None = None,
    seed: int | None = None,
) -> MILModel:
    """Compose a model by names.

    `aggregator` is a name, or a mapping with its options: `{"name": "abmil", "hidden": 64}`. `sparse_coding` is true, or a
    mapping with the layer's options. `refine` puts something else in its place, with the same options: `"linear"` is the
    capacity control, `"normalise"` keeps only the layer's normalisation, `"released"` is the authors' code. `embed` gives
    the widths of the embedding network, where the aggregator's own is not wanted, or the fields of an `Embedding`:
    `{"widths": [512], "bias": False}`. In front of a cosine dictionary, the aggregator's own embedding takes the largest
    square below its width (512 -> 484), as the paper's Table III does.

    >>> model = build_model(1024, 2, "abmil-gated", sparse_coding={"atoms": 256, "layers": 5}, seed=0)
    >>> model.refine
    SparseCoding(dim=484, atoms=256, layers=5, sparsity='relative')
    >>> build_model(1024, 2, "abml")
    Traceback (most recent call last):
    ...
    scmil.errors.UnknownNameError: unknown aggregator 'abml'. Did you mean 'abmil'? Known: ...
    """
    asked = dict(
        dim=dim, classes=classes, aggregator=aggregator, sparse_coding=sparse_coding, refine=refine, embed=embed
    )
    if isinstance(classes, int) and classes < 2:
        raise OptionError(f"classes = {classes}: a model tells at least two classes apart.")
    if said := options_problem(asked):
        raise OptionError(f"{said}.")
    own = {"name": aggregator} if isinstance(aggregator, str) else dict(aggregator)
    if "name" not in own:
        raise OptionError(f"aggregator = {own}: the options are there, and the name is not.")
    entry = aggregators.entry(name := own.pop("name"))
    options = dict(sparse_coding) if isinstance(sparse_coding, Mapping) else {}
    refine = refine or ("sparse-coding" if sparse_coding or isinstance(sparse_coding, Mapping) else None)
    if refine is not None and refine not in REFINEMENTS:
        raise OptionError(f"refine = {refine!r}. Known: {', '.join(REFINEMENTS)}.")
    embedding: Embedding = getattr(entry.factory, "embedding", Embedding())
    if embed is not None:
        given = dict(embed) if isinstance(embed, Mapping) else {"widths": embed}
        if unknown := given.keys() - {field.name for field in fields(Embedding)}:
            raise OptionError(f"embed: unknown {', '.join(sorted(unknown))}. It takes: widths, bias, glorot.")
        embedding = Embedding(**{**given, "widths": tuple(given.get("widths", ()))})
    elif embedding.widths and refine == "sparse-coding" and options.get("dictionary", "dct") == "dct":
        *widths, last = embedding.widths
        embedding = replace(embedding, widths=(*widths, math.isqrt(last) ** 2))
    with _seeded(seed):
        width = embedding.widths[-1] if embedding.widths else dim
        front = embedding.build(dim)
        middle = _refinement(refine, width, options)
        model = MILModel(front, middle, aggregators.build(name, getattr(middle, "atoms", width), classes, **own), dim)
    model.spec = asked
    return model


def _refinement(refine: str | None, dim: int, options: Mapping[str, Any]) -> nn.Module:
    if refine is None:
        return nn.Identity()
    taken = {"linear": ("atoms", "normalise"), "normalise": ()}.get(
        refine, tuple(options)
    )  # a control takes fewer options
    options = {key: value for key, value in options.items() if key in taken}
    try:
        return REFINEMENTS[refine](dim, **options)
    except TypeError as error:
        raise OptionError(f"sparse_coding: {error}.") from None


@contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Draw the initial weights from a seed without touching torch's global generator; no seed, no change."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
