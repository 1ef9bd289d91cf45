"""A scikit-learn classifier whose samples are bags."""

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
from scmil.errors import BagError, DataError, MissingExtraError, ShapeError
from scmil.models.model import build_model, check_bag
from scmil.models.streaming import call_model
from scmil.training.fitting import fit, predict
from scmil.training.recipes import Recipe

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise MissingExtraError(
        f"SCMILClassifier needs scikit-learn, which cannot be imported ({error}). "
        "Install it: pip install 'scmil[statistics]'"
    ) from error

Bags: TypeAlias = Iterable[Bag] | Iterable[ArrayLike]


class SCMILClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """Classifies bags with SC-MIL, wherever scikit-learn takes a classifier: cross-validation, grid
    search, pipelines.

    A bag is a matrix (instances, features); bags may differ in their number of instances.

    Args:
        aggregator: Name or options of the aggregator, as in `build_model`.
        sparse_coding: Whether to use sparse coding, or its options, as in `build_model`.
        refine: Another layer in the place of sparse coding, as in `build_model`.
        embed: Widths or options of the embedding network, as in `build_model`.
        epochs: Number of passes over the training bags.
        learning_rate: Learning rate at the start.
        weight_decay: Factor of the l2 penalty.
        standardise: Scale each feature to zero mean and unit variance on the training instances.
        seed: Seed of the initial weights, the order of the bags and dropout.

    Attributes:
        classes_: The class labels, sorted.
        model_: The trained `MILModel`.
        history_: The losses of all epochs.
        n_features_in_: The number of features.
        mean_, scale_: Mean and scale with which features are standardised.

    >>> healthy, sick = np.zeros((3, 4)), np.eye(2, 4)
    >>> classifier = SCMILClassifier(sparse_coding={"atoms": 16}, embed=[9], learning_rate=0.01)
    >>> classifier = classifier.fit([healthy, sick] * 2, ["healthy", "sick"] * 2)
    >>> classifier.predict([np.zeros((9, 4)), np.eye(5, 4)])
    array(['healthy', 'sick'], dtype='<U7')
    >>> [attention] = classifier.attention([np.eye(5, 4)])
    >>> attention.shape, round(float(attention.sum()), 4)
    ((5,), 1.0)
    """

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

    def fit(self, bags: Bags, y: ArrayLike) -> SCMILClassifier:
        """Train a new model.

        Args:
            bags: Matrices (instances, features), or `Bag` objects, whose own labels are ignored.
            y: The class of each bag.

        Returns:
            The fitted classifier itself.

        Raises:
            DataError: If there are no bags, or `y` does not hold one class for each of them.
            BagError: If a bag is not a matrix of finite numbers.
        """
        recipe = Recipe(
            _to_python(self.epochs), _to_python(self.learning_rate), _to_python(self.weight_decay)
        )
        train_bags = as_bags(bags)
        self.classes_, labels = _encode_classes(y, len(train_bags))
        self.n_features_in_ = dim = train_bags[0].features.shape[1]
        self.mean_, self.scale_ = (
            moments(train_bags) if self.standardise else (torch.zeros(dim), torch.ones(dim))
        )
        train = [
            replace(bag, label=int(label))
            for bag, label in zip(self._scaled(train_bags), labels, strict=True)
        ]
        seed = int(self.seed)
        self.model_ = build_model(
            dim,
            len(self.classes_),
            self.aggregator,
            self.sparse_coding,
            refine=self.refine,
            embed=self.embed,
            seed=seed,
        )
        self.history_ = fit(self.model_, train, recipe=recipe, seed=seed)
        return self

    def predict_proba(self, bags: Bags) -> NDArray[np.float64]:
        """Predict probabilities (bags, classes), in the order of `classes_`."""
        prepared = self._prepare_bags(bags)
        probabilities = predict(self.model_, prepared).double()
        # In single precision they sum to one only approximately.
        return (probabilities / probabilities.sum(1, keepdim=True)).numpy()

    def predict(self, bags: Bags) -> NDArray[Any]:
        """Predict the most probable class of each bag."""
        best = self.predict_proba(bags).argmax(1)
        return self.classes_[best]

    @torch.no_grad()
    def attention(self, bags: Bags) -> list[NDArray[np.float32]]:
        """The attention of the instances: one array per bag, which sums to one."""
        return [
            call_model(self.model_, bag.features, bag.xy).attention.numpy()
            for bag in self._prepare_bags(bags)
        ]

    def _prepare_bags(self, bags: Bags) -> list[Bag]:
        """Check and scale bags for the fitted model."""
        check_is_fitted(self, "model_")
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


def _encode_classes(y: ArrayLike, bags: int) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """The sorted classes, and the position of the class of each bag."""
    labels = np.asarray(y)
    if labels.shape != (bags,):
        raise DataError(
            f"y has the shape {labels.shape} for {bags} bags. "
            f"One class per bag is needed: ({bags},)."
        )
    if missing := [i for i, label in enumerate(labels.tolist()) if label is None or label != label]:
        raise DataError(
            f"y[{missing[0]}] is {labels[missing[0]]}. Leave out bags whose class is unknown."
        )
    if labels.dtype.kind == "f" and (labels % 1).any():
        raise DataError(
            f"y contains non-integer values such as {labels[labels % 1 != 0][0]}; "
            "SCMILClassifier needs class labels, not a continuous target."
        )
    try:
        classes, numbers = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise DataError(
            f"y mixes labels of different types ({error}). Use only text, or only numbers."
        ) from None
    if len(classes) < 2:
        raise DataError(
            f"every bag is of class {labels.tolist()[0]!r}. "
            "Bags of at least two classes are needed."
        )
    return classes, numbers


def _to_python(value: Any) -> Any:
    """Convert a NumPy number, as a parameter grid may hold it, to a Python number."""
    return value.item() if isinstance(value, np.generic) else value
