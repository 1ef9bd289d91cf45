"""SC-MIL for users of scikit-learn: a classifier whose samples are bags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from scmil.bags.bag import Bag, moments
from scmil.errors import BagError, DataError, MissingExtraError, ShapeError
from scmil.models.model import build_model, check_bag
from scmil.training.recipes import Recipe
from scmil.training.fit import fit, predict

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise MissingExtraError(
        f"SCMILClassifier needs scikit-learn, which cannot be imported ({error}). Install it: pip install 'scmil[statistics]'"
    ) from error

Bags: TypeAlias = Iterable[Bag] | Iterable[ArrayLike]


class SCMILClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """Tells classes of bags apart, wherever scikit-learn takes a classifier: cross-validation, grid search, pipelines.

    A bag is a matrix (instances, features), and bags may differ in their number of instances. `aggregator`,
    `sparse_coding`, `refine` and `embed` are those of `build_model`; epochs, rate and decay start as the paper's. With
    `standardise`, every feature gets zero mean and unit variance on the instances of the training bags.

    After `fit` there are `classes_`, `model_`, `history_` (the loss of every epoch), `n_features_in_`, and `mean_` and
    `scale_`, which are taken off before the model sees a bag.

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
        """Train a new model on bags and their classes; a label that a `Bag` carries is not looked at, `y` is."""
        recipe = Recipe(_plain(self.epochs), _plain(self.learning_rate), _plain(self.weight_decay))
        read = as_bags(bags)
        self.classes_, labels = _classes(y, len(read))
        self.n_features_in_ = dim = read[0].features.shape[1]
        self.mean_, self.scale_ = moments(read) if self.standardise else (torch.zeros(dim), torch.ones(dim))
        train = [replace(bag, label=int(label)) for bag, label in zip(self._scaled(read), labels, strict=True)]
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
        """The probability of every class, in the order of `classes_`, for every bag: (bags, classes)."""
        known = self._known(bags)
        probabilities = predict(self.model_, known).double()
        return (probabilities / probabilities.sum(1, keepdim=True)).numpy()  # in single they sum to one only nearly

    def predict(self, bags: Bags) -> NDArray[Any]:
        """The most probable class of every bag."""
        best = self.predict_proba(bags).argmax(1)
        return self.classes_[best]

    @torch.no_grad()
    def attention(self, bags: Bags) -> list[NDArray[np.float32]]:
        """Each instance's share in the decision on its bag: one array a bag, which sums to one."""
        return [self.model_(bag.features).attention.numpy() for bag in self._known(bags)]

    def _known(self, bags: Bags) -> list[Bag]:
        check_is_fitted(self, "model_")
        return self._scaled(as_bags(bags, self.n_features_in_))

    def _scaled(self, bags: Sequence[Bag]) -> list[Bag]:
        mean, scale = self.mean_.float(), self.scale_.float()
        return [replace(bag, features=(bag.features - mean) / scale) for bag in bags]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False  # a list of matrices
        return tags


def as_bags(bags: Bags, dim: int | None = None) -> list[Bag]:
    """Matrices or bags as bags in single precision, all of one dimension; who is refused is named by position, from 0.

    >>> as_bags([np.ones((2, 3)), [[1, 2, 3]]])
    [Bag('0', 2 x 3, label=None), Bag('1', 1 x 3, label=None)]
    >>> as_bags([np.ones((2, 3)), np.ones((2, 4))])
    Traceback (most recent call last):
    ...
    scmil.errors.ShapeError: bags[1] has 4-dimensional features, but bags[0] has 3.
    """
    if isinstance(bags, (Bag, str)) or not isinstance(bags, Iterable):
        raise DataError(
            f"bags is a {type(bags).__name__}. A list is needed, of one matrix (instances, features) a bag."
        )
    read: list[Bag] = []
    for position, given in enumerate(bags):
        features = _matrix(given.features if isinstance(given, Bag) else given, position)
        expected = dim or (read[0].features.shape[1] if read else features.shape[1])
        if features.shape[1] != expected:
            origin = "the classifier was fitted on" if dim else "bags[0] has"
            raise ShapeError(f"bags[{position}] has {features.shape[1]}-dimensional features, but {origin} {expected}.")
        read.append(replace(given, features=features) if isinstance(given, Bag) else Bag(str(position), features))
    if not read:
        raise DataError("there are no bags. At least one matrix (instances, features) is needed.")
    return read


def _matrix(given: Any, position: int) -> Tensor:
    try:
        if not isinstance(given, Tensor):
            # A copy: torch cannot read from the end, and warns of memory that parallel jobs share read-only.
            given = torch.from_numpy(np.array(given, dtype=np.float32, order="C"))
        features = given.detach().to("cpu", torch.float32)
        check_bag(features)
    except BagError as error:
        raise type(error)(f"bags[{position}]: {error}") from None
    except (TypeError, ValueError) as error:
        raise BagError(f"bags[{position}] is no matrix of numbers (instances, features): {error}.") from None
    return features


def _classes(y: ArrayLike, bags: int) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """The classes in their order, and the number of each bag's class."""
    labels = np.asarray(y)
    if labels.shape != (bags,):
        raise DataError(f"y has the shape {labels.shape} for {bags} bags. One class a bag is needed: ({bags},).")
    if missing := [i for i, label in enumerate(labels.tolist()) if label is None or label != label]:
        raise DataError(f"y[{missing[0]}] is {labels[missing[0]]}. Leave out the bags whose class is not known.")
    if labels.dtype.kind == "f" and (labels % 1).any():
        raise DataError(f"y has fractions such as {labels[labels % 1 != 0][0]}: a measure, and classes are needed.")
    try:
        classes, numbers = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise DataError(f"y mixes kinds of labels ({error}). Give all as text, or all as numbers.") from None
    if len(classes) < 2:
        raise DataError(f"every bag is of class {labels.tolist()[0]!r}. There have to be bags of at least two classes.")
    return classes, numbers


def _plain(value: Any) -> Any:
    """A Python number: a grid of parameters may hold NumPy's."""
    return value.item() if isinstance(value, np.generic) else value
