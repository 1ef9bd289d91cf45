"""The baseline: logistic regression on the mean and the maximum of the features of a bag.

If it is as accurate as a network, attention adds nothing to the average tile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from scmil.core.extras import import_extra
from scmil.core.shapes import Numbers
from scmil.training.selection import choose_candidate

if TYPE_CHECKING:
    from scmil.bags.bag import Bag

NAME = "logistic-mean-max"
# Candidates for C, the inverse regularisation strength, for standardised features.
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
MAX_STEPS = 5000


@dataclass(frozen=True)
class Baseline:
    """A fitted logistic regression, with the scaling of its inputs."""

    mean: Numbers
    deviation: Numbers
    coefficients: Numbers  # (classes, 2p)
    intercepts: Numbers  # (classes,)
    strength: float  # C, the inverse of the l2 penalty

    @property
    def parameters(self) -> int:
        """Number of learned parameters; two classes share one row."""
        rows = len(self.intercepts) if len(self.intercepts) > 2 else 1
        return rows * (self.coefficients.shape[1] + 1)

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of a prediction; mean and maximum need none."""
        return self.parameters - (len(self.intercepts) if len(self.intercepts) > 2 else 1)

    def predict(self, x: Numbers) -> Numbers:
        """Probabilities (bags, classes)."""
        logits = (x - self.mean) / self.deviation @ self.coefficients.T + self.intercepts
        logits -= logits.max(1, keepdims=True)
        return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


def mean_and_max(bags: Iterable[Bag]) -> Numbers:
    """Mean and maximum of each feature over the instances of a bag, concatenated: (bags, 2p).

    >>> import torch
    >>> from scmil.bags.bag import Bag
    >>> mean_and_max([Bag("a", torch.tensor([[1.0, 0.0], [3.0, 0.0]]))])
    array([[2., 0., 3., 0.]])
    """
    return np.stack(
        [
            np.concatenate(
                [bag.features.double().mean(0).numpy(), bag.features.amax(0).double().numpy()]
            )
            for bag in bags
        ]
    )


def fit_baseline(x: Numbers, labels: Sequence[int], classes: int, strength: float) -> Baseline:
    """Fit to the features of `mean_and_max`; classes without a label get probability 0.

    >>> x = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    >>> fitted = fit_baseline(x, [0, 0, 1, 1], classes=2, strength=1.0)
    >>> fitted.predict(np.array([[0.0]])).round(3)
    array([[0.5, 0.5]])
    """
    linear = import_extra("sklearn.linear_model", "statistics")
    mean, deviation = x.mean(0), x.std(0)
    deviation[np.ptp(x, axis=0) == 0] = 1
    fitted = linear.LogisticRegression(C=strength, max_iter=MAX_STEPS).fit(
        (x - mean) / deviation, np.asarray(labels)
    )
    coefficients, intercepts = np.zeros((classes, x.shape[1])), np.full(classes, -np.inf)
    if len(fitted.classes_) == 2:  # scikit-learn has one row for two classes
        coefficients[fitted.classes_[1]] = fitted.coef_[0]
        intercepts[fitted.classes_] = 0.0, fitted.intercept_[0]
    else:
        coefficients[fitted.classes_], intercepts[fitted.classes_] = fitted.coef_, fitted.intercept_
    return Baseline(mean, deviation, coefficients, intercepts, strength)


def choose_strength(
    x: Numbers, labels: NDArray[np.int64], train: Sequence[int], valid: Sequence[int], classes: int
) -> float:
    """The C with the highest AUC on the validation bags, then the lowest loss."""
    x_train, y_train = x[list(train)], labels[list(train)].tolist()
    fitted = [fit_baseline(x_train, y_train, classes, strength) for strength in STRENGTHS]
    probabilities = np.stack([candidate.predict(x[list(valid)]) for candidate in fitted])
    return STRENGTHS[choose_candidate(labels[list(valid)], probabilities)]
