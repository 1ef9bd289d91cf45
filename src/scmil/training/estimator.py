"""A scikit-learn classifier whose samples are bags."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scmil.core.extras import import_extra
from scmil.errors import DataError
from scmil.training.bag_estimator import BagEstimator, Bags, as_bags
from scmil.training.fitting import fit, predict

sklearn_base: Any = import_extra("sklearn.base", "statistics")


class SCMILClassifier(sklearn_base.ClassifierMixin, BagEstimator):  # type: ignore[misc]  # scikit-learn is untyped
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
        recipe, train_bags = self._recipe(), as_bags(bags)
        self.classes_, labels = _encode_classes(y, len(train_bags))
        train = [
            replace(bag, label=int(label))
            for bag, label in zip(self._learn_scaling(train_bags), labels, strict=True)
        ]
        self.model_ = self._build(len(self.classes_))
        self.history_ = fit(self.model_, train, recipe=recipe, seed=int(self.seed))
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
