"""Model selection on a validation split: the best candidate, and the decision threshold.

`fit`, the protocol `nested` and the baseline select by the same rule: the highest AUC, then the
lowest loss, then the first candidate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scmil.core.shapes import Numbers
from scmil.stats.metrics import auc, youden_threshold


def best_candidate(aucs: Sequence[float], losses: Sequence[float]) -> int:
    """Position of the candidate with the highest AUC; of equal ones that with the lowest loss, then
    the first.

    An AUC of NaN, which a split with one class has, counts as 0.

    >>> best_candidate([0.5, 0.9, 0.9], [0.1, 0.4, 0.3])
    2
    """
    ranking = [
        (-float(np.nan_to_num(area)), float(loss)) for area, loss in zip(aucs, losses, strict=True)
    ]
    return ranking.index(min(ranking))


def choose_candidate(labels: NDArray[np.int64], probabilities: Numbers, first: int = 0) -> int:
    """Position of the best candidate, for example an epoch, given the probabilities
    (candidates, bags, classes); candidates before `first` are not chosen, unless all are.

    >>> labels = np.array([0, 1])
    >>> choose_candidate(labels, np.array([[[0.4, 0.6], [0.5, 0.5]], [[0.9, 0.1], [0.6, 0.4]]]))
    1
    """
    first = min(first, len(probabilities) - 1)
    rows, candidates = np.arange(len(labels)), probabilities[first:]
    return first + best_candidate(
        [auc(labels, candidate) for candidate in candidates],
        [log_loss(candidate[rows, labels]) for candidate in candidates],
    )


def choose_threshold(labels: NDArray[np.int64], probabilities: Numbers) -> float:
    """Youden's threshold for two classes; 0.5 for more classes, where the most probable one is
    predicted, and for no bags.

    >>> choose_threshold(np.array([0, 1]), np.array([[0.9, 0.1], [0.6, 0.4]]))
    0.25
    """
    if not len(labels) or probabilities.shape[1] != 2:
        return 0.5
    return float(youden_threshold(labels, probabilities[:, 1]))


def log_loss(likelihoods: Numbers) -> float:
    """Mean of -log over the probabilities of the true classes.

    >>> log_loss(np.array([1.0, 1.0]))
    0.0
    """
    return float(-np.log(np.maximum(likelihoods, 1e-12)).mean() + 0.0)
