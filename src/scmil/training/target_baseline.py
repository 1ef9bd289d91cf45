"""Linear baselines of tasks other than classes, on the mean and the maximum of each bag.

Ridge regression for numbers and grades, Cox's regression with an l2 penalty for times, and one
logistic regression for each label; each of several targets has its own. If they are as good as a
network, attention adds nothing to the average tile.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from scmil.bags.bag import Bag
from scmil.bags.splits import Split
from scmil.bags.targets import (
    ClassTarget,
    CombinedTarget,
    GradeTarget,
    LabelsTarget,
    NumberTarget,
    Targets,
)
from scmil.core.shapes import Numbers
from scmil.models.target_losses import cox_loss
from scmil.training.baseline import fit_baseline, mean_and_max
from scmil.training.held_out import HeldOut, join_held_out

PENALTIES = tuple(10.0**power for power in range(-2, 6))
COX_PENALTY = 0.1  # of the squared coefficients, for the mean loss of the events
LOGISTIC_STRENGTH = 0.01  # C, the inverse of the l2 penalty
COX_STEPS = 100


def baseline_folds(bags: Sequence[Bag], targets: Targets, splits: Sequence[Split]) -> HeldOut:
    """Fit the baseline of the task to each split and predict its test bags.

    Args:
        bags: The bags.
        targets: Their values.
        splits: Positions of the training and test bags of each fold.

    Returns:
        The predictions of all test bags; survival has risks only.

    >>> bags = [Bag(f"s{i}", torch.full((2, 1), float(i))) for i in range(6)]
    >>> values = tuple(10.0 * i for i in range(6))
    >>> targets = Targets(NumberTarget(), tuple(bag.id for bag in bags), values, (None,) * 6)
    >>> baseline_folds(bags, targets, [Split((0, 1, 2, 5), (3, 4))]).outputs.round(0).tolist()
    [[30.0], [40.0]]
    """
    x, ids = mean_and_max(bags), [bag.id for bag in bags]
    return join_held_out([baseline_fold(x, targets, ids, split) for split in splits])


def baseline_fold(x: Numbers, targets: Targets, ids: Sequence[str], split: Split) -> HeldOut:
    """Fit the baseline of the task to one split and predict its test bags.

    Args:
        x: Features of all bags (bags, p), such as those of `mean_and_max`.
        targets: Their values.
        ids: The bags.
        split: Positions of the training and test bags.

    Returns:
        The predictions of the test bags; survival has risks only. The cut-off of the risk is the
        median of the training bags.
    """
    if isinstance(targets.target, CombinedTarget):
        parts = []
        for number in range(len(targets.target.parts)):
            one = targets.part(number)
            known = tuple(i for i in split.train if one.of(ids[i]) is not None)
            parts.append(baseline_fold(x, one, ids, Split(known, split.test)))
        outputs = np.concatenate([part.outputs for part in parts], axis=1)
        return HeldOut(parts[0].ids, outputs, parts=tuple(parts))
    train, test = list(split.train), list(split.test)
    mean, scale = x[train].mean(0), x[train].std(0)
    scale[scale == 0] = 1
    known, new = ((x[part] - mean) / scale for part in (train, test))
    values = targets.array([ids[position] for position in train])
    found = _fit_one(targets, known, values, np.concatenate([known, new]))
    fitted, outputs = found[: len(train)], found[len(train) :]
    tested = tuple(ids[position] for position in test)
    if targets.task != "survival":
        return HeldOut(tested, outputs)
    return HeldOut(tested, outputs, outputs[:, 0], outputs[:, 0] > np.median(fitted[:, 0]))


def _fit_one(targets: Targets, x: Numbers, values: Numbers, new: Numbers) -> Numbers:
    target = targets.target
    if isinstance(target, NumberTarget):
        return ridge(x, values[:, 0], new)[:, None]
    if isinstance(target, GradeTarget):
        last = len(target.grades) - 1
        nearest = np.clip(ridge(x, values[:, 0], new).round(), 0, last).astype(int)
        return np.eye(last + 1)[nearest]
    if isinstance(target, ClassTarget):
        labels = values[:, 0].astype(int).tolist()
        if len(set(labels)) == 1:
            return np.tile(np.eye(len(target.classes))[labels[0]], (len(new), 1))
        return fit_baseline(x, labels, len(target.classes), LOGISTIC_STRENGTH).predict(new)
    if isinstance(target, LabelsTarget):
        return np.stack([_logistic_label(x, column, new) for column in values.T], axis=1)
    return _cox_risks(x, values, new)[:, None]


def ridge(x: Numbers, y: Numbers, new: Numbers) -> Numbers:
    """Predictions of a ridge regression whose penalty has the lowest generalised cross-validation
    error.

    Args:
        x: Standardised features (n, p).
        y: Numbers (n,).
        new: Features to predict (k, p).

    Returns:
        Predictions (k,).

    >>> x = np.array([[-1.0], [0.0], [1.0]])
    >>> ridge(x, np.array([1.0, 2.0, 3.0]), np.array([[2.0]])).round(1).tolist()
    [4.0]
    """
    u, s, v = np.linalg.svd(x, full_matrices=False)
    centre = y.mean()
    projected = u.T @ (y - centre)
    best, coefficients = np.inf, np.zeros(x.shape[1])
    for penalty in PENALTIES:
        shrink = s**2 / (s**2 + penalty)
        residual = (y - centre) - u @ (shrink * projected)
        free = max(1e-9, 1 - (shrink.sum() + 1) / len(y))
        error = float((residual**2).mean()) / free**2
        if error < best:
            best = error
            coefficients = v.T @ (s / (s**2 + penalty) * projected)
    return centre + new @ coefficients


def _logistic_label(x: Numbers, column: Numbers, new: Numbers) -> Numbers:
    known = ~np.isnan(column)
    labels = column[known].astype(int)
    if labels.min() == labels.max():
        return np.full(len(new), float(labels[0]))
    return fit_baseline(x[known], labels.tolist(), 2, LOGISTIC_STRENGTH).predict(new)[:, 1]


def _cox_risks(x: Numbers, values: Numbers, new: Numbers) -> Numbers:
    features, times = torch.tensor(x), torch.tensor(values[:, 0])
    events = torch.tensor(values[:, 1]) > 0
    weights = torch.zeros(x.shape[1], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=COX_STEPS, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimiser.zero_grad()
        loss = cox_loss(features @ weights, times, events) + COX_PENALTY * (weights**2).sum()
        loss.backward()
        return float(loss.detach())

    optimiser.step(closure)
    return new @ weights.detach().numpy()
