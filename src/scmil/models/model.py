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

from scmil.core.limits import options_problem
from scmil.core.shapes import Float
from scmil.errors import BagError, OptionError, ShapeError
from scmil.models import aggregators
from scmil.models.aggregators import Embedding, Prediction
from scmil.models.aggregators.rrt import RRTEncoder
from scmil.models.objectives import (
    Objective,
    model_outputs,
    numbers_of,
    objective_from_json,
    objective_json,
)
from scmil.sparse_coding.equations import random_dictionary
from scmil.sparse_coding.kernel_numpy import TINY
from scmil.sparse_coding.kernel_torch import in_transform
from scmil.sparse_coding.layer import SparseCoding
from scmil.sparse_coding.released import ReleasedSparseCoding


class MILModel(nn.Module):
    """A model for bags (Fig. 1): `aggregate(refine(embed(x)))`.

    Args:
        embed: Maps features (n, dim) to embeddings (n, p).
        refine: `SparseCoding`, or `nn.Identity` for "w/o SC".
        aggregate: Maps refined embeddings, and tile positions if it uses them, to a `Prediction`.
        dim: Dimension of the features, which is checked if it is given.

    Raises:
        BagError: In `forward`, if the bag is empty, has NaN or infinite features, or lacks the
            tile positions that the aggregator uses.
        ShapeError: In `forward`, if the bag is not a matrix (n, dim).

    >>> from scmil.models.aggregators.dsmil import DSMIL
    >>> model = MILModel(nn.Identity(), SparseCoding(512), DSMIL(256, classes=2))
    >>> model(torch.randn(7, 512)).logits.shape
    torch.Size([2])
    """

    def __init__(
        self, embed: nn.Module, refine: nn.Module, aggregate: nn.Module, dim: int | None = None
    ) -> None:
        super().__init__()
        self.embed, self.refine, self.aggregate = embed, refine, aggregate
        self.dim = dim
        self.output = "softmax"  # one of `OUTPUTS`, or the name of the objective
        self.objective: Objective | None = None  # of a task other than classes
        # The arguments of `build_model`; models without them cannot be saved.
        self.spec: dict[str, Any] | None = None

    def forward(self, x: Float[Tensor, "n p"], xy: Tensor | None = None) -> Prediction:
        check_bag(x, self.dim)
        if not aggregators.uses_positions(self.aggregate):
            prediction: Prediction = self.aggregate(self.refine(self.embed(x)))
            return prediction
        aggregators.check_xy(self.aggregate, xy, len(x))  # before the work
        return aggregators.aggregate_bag(self.aggregate, self.refine(self.embed(x)), xy)

    def probabilities(self, logits: Float[Tensor, "*n c"]) -> Float[Tensor, "*n k"]:
        """The class probabilities for logits: their softmax, or with `output="sigmoid"` one sigmoid
        per class, which need not sum to one; for another task the outputs of its objective, such as
        survival probabilities or a number.

        >>> model = build_model(8, 2, output="sigmoid")
        >>> model.probabilities(torch.zeros(2))
        tensor([0.5000, 0.5000])
        """
        if self.objective is not None:
            return self.objective.outputs(numbers_of(self.objective, logits))
        return logits.sigmoid() if self.output == "sigmoid" else logits.softmax(-1)

    def loss(self, prediction: Prediction, label: Tensor | int) -> Tensor:
        """Loss of the bag and of its auxiliary logits, with the weights that the aggregator
        declares: cross-entropy; with `output="sigmoid"` the binary cross-entropy of the classes.
        The `own_loss` of the aggregator, if it has one, is added. For another task, `label` has the
        numbers of the target (`Targets.array`), and the loss is that of its objective; the terms of
        `own_loss` that need a class are left out.

        >>> model = build_model(8, 2, "dsmil", seed=0)
        >>> model.loss(model(torch.ones(3, 8)), 1).shape
        torch.Size([])
        """
        target = torch.as_tensor(label, device=prediction.logits.device)
        bag_weight, auxiliary_weight = getattr(self.aggregate, "loss_weights", (1.0, 0.0))
        rows = prediction.auxiliary
        if len(rows) == 1 and bag_weight == auxiliary_weight == 0.5:
            # One mean over both, the same number with half of the operations.
            both = torch.stack([prediction.logits, *rows])
            loss = self._cross_entropy(both, target.expand(2, *target.shape))
        else:
            loss = bag_weight * self._cross_entropy(prediction.logits, target)
            if rows:
                expanded = target.expand(len(rows), *target.shape)
                loss = loss + auxiliary_weight * self._cross_entropy(torch.stack(rows), expanded)
        own_loss: Callable[[Prediction, Tensor | None], Tensor] | None
        if (own_loss := getattr(self.aggregate, "own_loss", None)) is not None:
            loss = loss + own_loss(prediction, target if self.objective is None else None)
        return loss

    def _cross_entropy(self, logits: Tensor, target: Tensor) -> Tensor:
        if self.objective is not None:
            return self.objective.losses(numbers_of(self.objective, logits), target).mean()
        if self.output == "softmax":
            return F.cross_entropy(logits, target)
        classes = torch.arange(logits.shape[-1], device=logits.device)
        one_hot = (target[..., None] == classes).to(logits.dtype)
        return F.binary_cross_entropy_with_logits(logits, one_hot)


def check_bag(x: Tensor, dim: int | None = None) -> None:
    """Raise BagError or ShapeError for anything but a matrix of finite features with instances.

    >>> check_bag(torch.empty(0, 512))
    Traceback (most recent call last):
    ...
    scmil.errors.BagError: the bag is empty: it has no instances, and a model needs at least one.
    """
    if x.ndim != 2:
        raise ShapeError(
            f"a bag is a matrix (instances, features), and this has the shape {tuple(x.shape)}."
        )
    if len(x) == 0:
        raise BagError("the bag is empty: it has no instances, and a model needs at least one.")
    if dim is not None and x.shape[1] != dim:
        raise ShapeError(
            f"the bag has {x.shape[1]}-dimensional features, but this model was built for {dim}."
        )
    if torch.compiler.is_compiling() or in_transform():
        return  # values are not available while torch traces or maps
    # A single sum is enough if all values are finite.
    if not math.isfinite(x.detach().sum().item()) and not torch.isfinite(x).all():
        bad = (~torch.isfinite(x)).any(1).nonzero().flatten()
        raise BagError(
            f"{len(bad)} of the bag's {len(x)} instances have NaN or infinite features; "
            f"the first is number {int(bad[0])}."
        )


class Normalise(nn.LayerNorm):
    """Zero mean and unit variance for each instance, the first step of sparse coding.

    A model with this layer alone shows which part of a gain is due to the normalisation.
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim, eps=TINY, elementwise_affine=False)
        self.dim = dim


class LinearRefine(nn.Sequential):
    """The control for sparse coding: a linear layer with ReLU of the same width on the same input.

    Like sparse coding, it normalises its input.
    """

    def __init__(self, dim: int, atoms: int = 256, normalise: bool = True) -> None:
        first: nn.Module = Normalise(dim) if normalise else nn.Identity()
        super().__init__(first, nn.Linear(dim, atoms), nn.ReLU())
        self.dim, self.atoms = dim, atoms


class RandomRefine(nn.Sequential):
    """The control without learning: fixed random projections of unit norm with ReLU, of the same
    width on the same input.

    What it reaches is due to a wider representation, and neither to a dictionary nor to learning.
    """

    def __init__(self, dim: int, atoms: int = 256, normalise: bool = True) -> None:
        first: nn.Module = Normalise(dim) if normalise else nn.Identity()
        projections = nn.Linear(dim, atoms, bias=False)
        # A parameter without gradient, so that it is saved, and stacked over folds.
        projections.weight = nn.Parameter(random_dictionary(dim, atoms).mT, requires_grad=False)
        super().__init__(first, projections, nn.ReLU())
        self.dim, self.atoms = dim, atoms


# How logits become probabilities, and which loss belongs to it: a softmax over the classes, or a
# sigmoid for each class.
OUTPUTS = ("softmax", "sigmoid")
REFINEMENTS: dict[str, Callable[..., nn.Module]] = {
    "sparse-coding": SparseCoding,
    "linear": LinearRefine,
    "random": RandomRefine,
    "normalise": Normalise,
    "released": ReleasedSparseCoding,
    "rrt": RRTEncoder,
}
RRT_OPTIONS = ("heads", "kernel", "summaries", "summary_heads", "summary_mlp", "shortcut")


def build_model(
    dim: int,
    classes: int,
    aggregator: str | Mapping[str, Any] = "abmil-gated",
    sparse_coding: bool | Mapping[str, Any] | None = None,
    *,
    refine: str | None = None,
    embed: Sequence[int] | Mapping[str, Any] | None = None,
    output: str | Mapping[str, Any] = "softmax",
    seed: int | None = None,
) -> MILModel:
    """Build a model from the names of its modules.

    In front of a cosine dictionary, the width of the aggregator's own embedding is reduced to the
    largest square (512 -> 484), as in the paper's Table III.

    Args:
        dim: Dimension of the features.
        classes: Number of classes, at least two.
        aggregator: A name, or a mapping with options: `{"name": "abmil", "hidden": 64}`.
        sparse_coding: True, or a mapping with the options of `SparseCoding`.
        refine: Another layer in the place of sparse coding, with the same options: `"linear"` is
            the capacity control, `"random"` has fixed random projections with ReLU, `"normalise"`
            has only the normalisation, `"released"` is the layer of the authors' code, `"rrt"` the
            re-embedding of RRT-MIL, whose output is as wide as its input.
        embed: Widths of the embedding network, or the fields of an `Embedding`:
            `{"widths": [512], "bias": False}`; that of the aggregator by default.
        output: `"softmax"`, or `"sigmoid"` for one independent probability per class. Aggregators
            that learn one score for two classes need softmax, which is the sigmoid of that score.
            For another task, the JSON values of an objective (`models.objectives`); `classes` is
            then its number of outputs.
        seed: Seed of the initial weights; torch's global generator by default.

    Returns:
        The model, on the CPU.

    Raises:
        UnknownNameError: If there is no aggregator with this name.
        OptionError: If an option is unknown or out of range.

    >>> options = {"atoms": 256, "layers": 5}
    >>> model = build_model(1024, 2, "abmil-gated", sparse_coding=options, seed=0)
    >>> model.refine
    SparseCoding(dim=484, atoms=256, layers=5, sparsity='relative')
    >>> build_model(1024, 2, "abml")
    Traceback (most recent call last):
    ...
    scmil.errors.UnknownNameError: unknown aggregator 'abml'. Did you mean 'abmil'? Known: ...
    """
    spec: dict[str, Any] = dict(
        dim=dim,
        classes=classes,
        aggregator=aggregator,
        sparse_coding=sparse_coding,
        refine=refine,
        embed=embed,
    )
    objective = _read_objective(output, classes)
    if output != "softmax":  # as in the files of versions that knew no other
        spec["output"] = output if objective is None else objective_json(objective)
    if isinstance(classes, int) and classes < 2:
        raise OptionError(f"classes = {classes}: a model needs at least two classes.")
    if problem := options_problem(spec):
        raise OptionError(f"{problem}.")
    own = {"name": aggregator} if isinstance(aggregator, str) else dict(aggregator)
    if "name" not in own:
        raise OptionError(f"aggregator = {own}: the options are there, and the name is not.")
    entry = aggregators.entry(name := own.pop("name"))
    options = dict(sparse_coding) if isinstance(sparse_coding, Mapping) else {}
    refine = refine or (
        "sparse-coding" if sparse_coding or isinstance(sparse_coding, Mapping) else None
    )
    if refine is not None and refine not in REFINEMENTS:
        raise OptionError(f"refine = {refine!r}. Known: {', '.join(REFINEMENTS)}.")
    embedding: Embedding = getattr(entry.factory, "embedding", Embedding())
    if embed is not None:
        given = dict(embed) if isinstance(embed, Mapping) else {"widths": embed}
        known = [field.name for field in fields(Embedding)]
        if unknown := given.keys() - set(known):
            raise OptionError(
                f"embed: unknown {', '.join(sorted(unknown))}. It takes: {', '.join(known)}."
            )
        embedding = Embedding(**{**given, "widths": tuple(given.get("widths", ()))})
    elif (
        embedding.widths and refine == "sparse-coding" and options.get("dictionary", "dct") == "dct"
    ):
        *widths, last = embedding.widths
        embedding = replace(embedding, widths=(*widths, math.isqrt(last) ** 2))
    with _seeded(seed):
        width = embedding.widths[-1] if embedding.widths else dim
        front = embedding.build(dim)
        middle = _refinement(refine, width, options)
        model = MILModel(
            front,
            middle,
            aggregators.build(
                name, getattr(middle, "width", getattr(middle, "atoms", width)), classes, **own
            ),
            dim,
        )
    model.spec, model.objective = spec, objective
    model.output = str(output) if objective is None else str(spec["output"]["name"])
    _check_own_loss(model, name)
    return model


def _read_objective(output: str | Mapping[str, Any], classes: int) -> Objective | None:
    """The objective of a task other than classes; None for classes."""
    if not isinstance(output, Mapping):
        if output not in OUTPUTS:
            raise OptionError(f"output = {output!r}. Known: {', '.join(OUTPUTS)}.")
        return None
    objective = objective_from_json(output)
    if classes != (expected := model_outputs(objective)):
        raise OptionError(
            f"classes = {classes}: the objective {output.get('name')!r} needs {expected} outputs."
        )
    return objective


def _check_own_loss(model: MILModel, name: str) -> None:
    """Raise if the aggregator adds a loss that needs a class, and the task has none."""
    if model.objective is None or getattr(model.aggregate, "own_loss_without_classes", False):
        return
    if getattr(model.aggregate, "own_loss", None) is not None:
        raise OptionError(
            f"the aggregator {name!r} has a loss of its own that needs classes, so it cannot be "
            f"trained for the task {model.objective.task!r}. Choose another aggregator."
        )


def _refinement(refine: str | None, dim: int, options: Mapping[str, Any]) -> nn.Module:
    if refine is None:
        return nn.Identity()
    control = ("atoms", "normalise")  # a control takes fewer options
    accepted = {"linear": control, "random": control, "normalise": (), "rrt": RRT_OPTIONS}
    taken = accepted.get(refine, tuple(options))
    options = {key: value for key, value in options.items() if key in taken}
    try:
        return REFINEMENTS[refine](dim, **options)
    except TypeError as error:
        raise OptionError(f"sparse_coding: {error}.") from None


@contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Context manager: seed torch's global generator, and restore it; no effect without a seed."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
