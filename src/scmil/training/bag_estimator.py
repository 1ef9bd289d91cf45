"""What scikit-learn estimators whose samples are bags have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from scmil.bags.bag import Bag
from scmil.bags.scaling import Scaling, moments
from scmil.core.extras import import_extra
from scmil.errors import BagError, DataError, ShapeError
from scmil.models.model import MILModel, build_model, check_bag
from scmil.models.streaming import call_model
from scmil.training.recipes import Recipe

sklearn_base: Any = import_extra("sklearn.base", "statistics")

Bags: TypeAlias = Iterable[Bag] | Iterable[ArrayLike]


class BagEstimator(sklearn_base.BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """The settings of a model and of its training, and the scaling of the features."""

    def __init__(
        self,
        aggregator: str | Mapping[str, Any] = "abmil-gated",
        sparse_coding: bool | Mapping[str, Any] = True,
        refine: str | None = None,
        embed: Sequence[int] | Mapping[str, Any] | None = None,
        epochs: int = 40,
        learning_rate: float = 1e-4,
        weight_decay: float = 5e-3,
        standardise: bool = True,
        seed: int = 0,
    ) -> None:
        self.aggregator = aggregator
        self.sparse_coding = sparse_coding
        self.refine = refine
        self.embed = embed
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.standardise = standardise
        self.seed = seed

    def _recipe(self) -> Recipe:
        return Recipe(
            _to_python(self.epochs), _to_python(self.learning_rate), _to_python(self.weight_decay)
        )

    def _learn_scaling(self, train_bags: Sequence[Bag]) -> list[Bag]:
        """Set dimension and scaling from the training bags, and return them scaled."""
        self.n_features_in_ = dim = train_bags[0].features.shape[1]
        self.mean_, self.scale_ = (
            moments(train_bags) if self.standardise else (torch.zeros(dim), torch.ones(dim))
        )
        return self._scaled(train_bags)

    def _build(self, outputs: int, output: str | Mapping[str, Any] = "softmax") -> MILModel:
        return build_model(
            self.n_features_in_,
            outputs,
            self.aggregator,
            self.sparse_coding,
            refine=self.refine,
            embed=self.embed,
            output=output,
            seed=int(self.seed),
        )

    @torch.no_grad()
    def attention(self, bags: Bags) -> list[NDArray[np.float32]]:
        """The attention of the instances: one array per bag, which sums to one."""
        return [
            call_model(self.model_, bag.features, bag.xy).attention.numpy()
            for bag in self._prepare_bags(bags)
        ]

    def _prepare_bags(self, bags: Bags) -> list[Bag]:
        """Check and scale bags for the fitted model."""
        import_extra("sklearn.utils.validation", "statistics").check_is_fitted(self, "model_")
        return self._scaled(as_bags(bags, self.n_features_in_))

    def _scaled(self, bags: Sequence[Bag]) -> list[Bag]:
        scaling = Scaling(self.mean_, self.scale_)
        return [scaling.apply_to_bag(bag) for bag in bags]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False  # a list of matrices
        return tags


def as_bags(bags: Bags, dim: int | None = None) -> list[Bag]:
    """Convert matrices or bags to bags in single precision; errors name the position of a bag, from
    0.

    >>> as_bags([np.ones((2, 3)), [[1, 2, 3]]])
    [Bag('0', 2 x 3, label=None), Bag('1', 1 x 3, label=None)]
    >>> as_bags([np.ones((2, 3)), np.ones((2, 4))])
    Traceback (most recent call last):
    ...
    scmil.errors.ShapeError: bags[1] has 4-dimensional features, but bags[0] has 3.
    """
    if isinstance(bags, (Bag, str)) or not isinstance(bags, Iterable):
        raise DataError(
            f"bags is a {type(bags).__name__}. "
            "A list with one matrix (instances, features) per bag is needed."
        )
    converted: list[Bag] = []
    for position, given in enumerate(bags):
        features = _to_matrix(given.features if isinstance(given, Bag) else given, position)
        expected = dim or (converted[0].features.shape[1] if converted else features.shape[1])
        if features.shape[1] != expected:
            origin = "the classifier was fitted on" if dim else "bags[0] has"
            raise ShapeError(
                f"bags[{position}] has {features.shape[1]}-dimensional features, "
                f"but {origin} {expected}."
            )
        converted.append(
            replace(given, features=features)
            if isinstance(given, Bag)
            else Bag(str(position), features)
        )
    if not converted:
        raise DataError("there are no bags. At least one matrix (instances, features) is needed.")
    return converted


def _to_matrix(given: Any, position: int) -> Tensor:
    """Convert features to a checked tensor (instances, features) in single precision."""
    try:
        if not isinstance(given, Tensor):
            # A copy: torch supports no negative strides, and warns about the read-only memory that
            # parallel jobs share.
            given = torch.from_numpy(np.array(given, dtype=np.float32, order="C"))
        features = given.detach().to("cpu", torch.float32)
        check_bag(features)
    except BagError as error:
        raise type(error)(f"bags[{position}]: {error}") from None
    except (TypeError, ValueError) as error:
        raise BagError(
            f"bags[{position}] is not a matrix of numbers (instances, features): {error}."
        ) from None
    return features


def _to_python(value: Any) -> Any:
    """Convert a NumPy number, as a parameter grid may hold it, to a Python number."""
    return value.item() if isinstance(value, np.generic) else value
