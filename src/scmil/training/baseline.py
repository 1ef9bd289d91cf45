"""The arm that is not a network: logistic regression on the mean and the maximum of a bag's features.

Where it does as well as a network, attention has found nothing that the average tile does not tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from scmil.core.extras import need
from scmil.stats.metrics import auc

if TYPE_CHECKING:
    from scmil.bags.bag import Bag

Numbers = NDArray[np.float64]
NAME = "logistic-mean-max"
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # of C; features are standardised, so that one scale serves all
MOST_STEPS = 5000


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
        """The numbers that were learned; of two classes one row is enough."""
        rows = len(self.intercepts) if len(self.intercepts) > 2 else 1
        return rows * (self.coefficients.shape[1] + 1)

    @property
    def multiply_adds(self) -> int:
        """What a prediction costs once mean and maximum are taken, which multiply nothing."""
        return self.parameters - (len(self.intercepts) if len(self.intercepts) > 2 else 1)

    def predict(self, x: Numbers) -> Numbers:
        """The probability of every class: (bags, classes)."""
        logits = (x - self.mean) / self.deviation @ self.coefficients.T + self.intercepts
        logits -= logits.max(1, keepdims=True)
        return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


def mean_and_max(bags: Iterable[Bag]) -> Numbers:
    """The mean and the maximum of each feature over a bag's instances, side by side: (bags, 2p).

    >>> import torch
    >>> from scmil.bags.bag import Bag
    >>> mean_and_max([Bag("a", torch.tensor([[1.0, 0.0], [3.0, 0.0]]))])
    array([[2., 0., 3., 0.]])
    """
    return np.stack(
        [np.concatenate([bag.features.double().mean(0).numpy(), bag.features.amax(0).double().numpy()]) for bag in bags]
    )


def fit_baseline(x: Numbers, labels: Sequence[int], classes: int, strength: float) -> Baseline:
    """Fit to what `mean_and_max` gave; classes that no label has get no chance.

    >>> fitted = fit_baseline(np.array([[-2.0], [-1.0], [1.0], [2.0]]), [0, 0, 1, 1], classes=2, strength=1.0)
    >>> fitted.predict(np.array([[0.0]])).round(3)
    array([[0.5, 0.5]])
    """
    linear = need("sklearn.linear_model", "statistics")
    mean, deviation = x.mean(0), x.std(0)
    deviation[np.ptp(x, axis=0) == 0] = 1
    found = linear.LogisticRegression(C=strength, max_iter=MOST_STEPS).fit((x - mean) / deviation, np.asarray(labels))
    coefficients, intercepts = np.zeros((classes, x.shape[1])), np.full(classes, -np.inf)
    if len(found.classes_) == 2:  # one row of scikit-learn's stands for both
        coefficients[found.classes_[1]] = found.coef_[0]
        intercepts[found.classes_] = 0.0, found.intercept_[0]
    else:
        coefficients[found.classes_], intercepts[found.classes_] = found.coef_, found.intercept_
    return Baseline(mean, deviation, coefficients, intercepts, strength)


def choose_strength(
    x: Numbers, labels: NDArray[np.int64], train: Sequence[int], valid: Sequence[int], classes: int
) -> float:
    """The C with the highest AUC on the validation part, of equal ones that with the lowest loss, then the smallest."""
    y, places = labels[list(valid)], np.arange(len(valid))
    ranking = []
    for strength in STRENGTHS:
        p = fit_baseline(x[list(train)], labels[list(train)].tolist(), classes, strength).predict(x[list(valid)])
        ranking.append((-np.nan_to_num(auc(y, p)), log_loss(p[places, y]), strength))
    return min(ranking)[2]


def log_loss(likely: Numbers) -> float:
    """The mean of -log of the probabilities that were given to the true classes.

    >>> log_loss(np.array([1.0, 1.0]))
    0.0
    """
    return float(-np.log(np.maximum(likely, 1e-12)).mean() + 0.0)
