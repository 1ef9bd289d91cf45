"""Cross-validation of tasks other than classes: predictions of held-out bags, and their metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from scmil.bags.audit_targets import check_targets
from scmil.bags.bag import Bag
from scmil.bags.scaling import moments
from scmil.bags.splits import Split, check_split, stratified_folds
from scmil.bags.target_bags import split_strata
from scmil.bags.targets import (
    CombinedTarget,
    NumberTarget,
    SurvivalTarget,
    Targets,
)
from scmil.core.shapes import Numbers
from scmil.errors import OptionError
from scmil.models.combined_objective import CombinedObjective, target_width
from scmil.models.model import build_model
from scmil.models.objectives import (
    CoxObjective,
    Objective,
    SurvivalObjective,
    model_outputs,
    objective_json,
    risk_of,
)
from scmil.models.survival_bins import survival_at
from scmil.stats.bootstrap import number_groups
from scmil.training.fitting import fit, predict
from scmil.training.held_out import (
    HeldOut,
    join_held_out,
    patients_of_targets,
    risk_groups,
    score_held_out,
)
from scmil.training.recipes import Recipe
from scmil.training.target_objectives import LOSSES, objective_for

__all__ = [
    "LOSSES",
    "HeldOut",
    "cross_fit",
    "fold_predictions",
    "objective_for",
    "risk_groups",
    "score_held_out",
    "score_times",
    "target_folds",
]

HORIZONS = (0.25, 0.5, 0.75)  # quantiles of the events at which survival is scored
POINTS = 32  # of the grid on which survival is averaged to a risk


def target_folds(targets: Targets, ids: Sequence[str], folds: int, seed: int = 0) -> list[Split]:
    """Folds by patient, with about as many events, grades or positive labels in each.

    Args:
        targets: The targets.
        ids: The bags.
        folds: Number of folds.
        seed: Seed of the folds.

    Returns:
        The splits, without validation bags.

    Raises:
        SplitError: If there are too few patients.

    >>> ids = tuple(f"s{i}" for i in range(6))
    >>> targets = Targets(NumberTarget(), ids, tuple(range(6)), (None,) * 6)
    >>> [len(split.test) for split in target_folds(targets, ids, folds=3)]
    [2, 2, 2]
    """
    values = targets.array(ids)
    if isinstance(targets.target, CombinedTarget):
        strata = np.array(split_strata(targets, ids), dtype=float)
    elif isinstance(targets.target, SurvivalTarget):
        strata = values[:, 1]
    elif isinstance(targets.target, NumberTarget):
        strata = (values[:, 0] > np.median(values[:, 0])).astype(float)
    else:
        strata = np.nan_to_num(values[:, 0])
    labels = np.unique(strata, return_inverse=True)[1]
    groups = patients_of_targets(targets, ids)
    units = number_groups(groups, len(ids))
    rarest = min(len(np.unique(units[labels == label])) for label in np.unique(labels))
    if rarest < folds or labels.max() == 0:
        labels = units % 2  # not every fold can have each: two arbitrary halves of the patients
    return stratified_folds(labels.tolist(), folds, seed, groups)


def cross_fit(
    bags: Sequence[Bag],
    targets: Targets,
    splits: Sequence[Split],
    recipe: Recipe | None = None,
    model: Mapping[str, Any] | None = None,
    *,
    loss: str | None = None,
    seed: int = 0,
    standardise: bool = True,
    progress: Callable[[int], None] | None = None,
) -> HeldOut:
    """Train a model for each split and predict its test bags.

    Bins, scales, the scaling of features and the cut-off of the risk come from the training bags of
    the split. Nothing is selected: the weights are those of the last epoch, or with validation bags
    those of the best one.

    Args:
        bags: The bags.
        targets: Their values.
        splits: Positions of the training, test and validation bags of each fold; each bag is at
            most once in a test split.
        recipe: Optimiser, epochs and schedule; the paper's by default.
        model: Arguments of `build_model` other than the sizes, such as `aggregator`.
        loss: One of `LOSSES` of the task; the first by default.
        seed: Seed of the weights, of the order of the bags and of dropout.
        standardise: Scale each feature to zero mean and unit variance on the training bags.
        progress: Called with the number of each finished fold, from 1.

    Returns:
        The predictions of all test bags.

    Raises:
        DataError: If the targets cannot be learned, or a bag has none.
        SplitError: If a split is invalid or has a patient on both sides.
        OptionError: If an option is invalid.
    """
    check_targets(targets)
    ids = [bag.id for bag in bags]
    values = targets.array(ids)
    patients = patients_of_targets(targets, ids)
    for split in splits:
        check_split(split, ids, patients)
    tested = [position for split in splits for position in split.test]
    if len(set(tested)) < len(tested):
        raise OptionError("a bag is in the test split of two folds. Use one repeat of the folds.")
    parts = []
    for number, split in enumerate(splits):
        part = _fit_split(
            bags, targets, split, recipe or Recipe(), dict(model or {}), loss, seed, standardise
        )
        parts.append(fold_predictions(part, split, ids, values))
        if progress:
            progress(number + 1)
    return join_held_out(parts)


def _fit_split(
    bags: Sequence[Bag],
    targets: Targets,
    split: Split,
    recipe: Recipe,
    options: dict[str, Any],
    loss: str | None,
    seed: int,
    standardise: bool,
) -> tuple[Objective, Numbers, Numbers]:
    """The objective, and the outputs for the training and for the test bags."""
    parts = [[bags[i] for i in part] for part in (split.train, split.valid or (), split.test)]
    if standardise:
        scaling = moments(parts[0])
        parts = [[scaling.apply_to_bag(bag) for bag in part] for part in parts]
    train, valid, test = parts
    objective = objective_for(targets.target, targets.array([bag.id for bag in train]), loss)
    built = build_model(
        train[0].features.shape[1],
        model_outputs(objective),
        output=objective_json(objective),
        seed=seed,
        **options,
    )
    fit(built, train, valid or None, recipe, seed=seed, targets=targets)
    known, new = (predict(built, part).double().numpy() for part in (train, test))
    return objective, known, new


def fold_predictions(
    part: tuple[Objective, Numbers, Numbers], split: Split, ids: Sequence[str], values: Numbers
) -> HeldOut:
    """The predictions of the test bags of a fold, on scales that do not depend on the fold.

    The cut-off between low and high risk is the median risk of the training bags.

    Args:
        part: The objective of the model, and its outputs for the training and for the test bags.
        split: Positions of the training and test bags.
        ids: All bags.
        values: The values of all bags.

    Returns:
        The predictions of the test bags.
    """
    objective, known, new = part
    tested = tuple(ids[position] for position in split.test)
    if isinstance(objective, CombinedObjective):
        found, start = [], 0
        for own, columns in objective.slices():
            width = target_width(own)
            part = own, known[:, columns], new[:, columns]
            found.append(fold_predictions(part, split, ids, values[:, start : start + width]))
            start += width
        return HeldOut(tested, new, parts=tuple(found))
    if isinstance(objective, CoxObjective):
        # Risks are relative to the mean of the training split.
        known, risk = known[:, 0] - known.mean(), new[:, 0] - known.mean()
        return HeldOut(tested, risk[:, None], risk, risk > np.median(known))
    if not isinstance(objective, SurvivalObjective):
        return HeldOut(tested, new)
    last = float(np.nanmax(values[list(split.train), 0]))
    times, grid = score_times(values), _risk_grid(values)
    known_risk, risk = (
        -survival_at(objective.edges, outputs, grid, last).mean(1) for outputs in (known, new)
    )
    curves = survival_at(objective.edges, new, times, last)
    return HeldOut(tested, curves, risk, risk > np.median(known_risk), tuple(times.tolist()))


def held_out_part(
    targets: Targets,
    objective: Objective,
    outputs: Numbers,
    ids: Sequence[str],
    split: Split,
    part: Sequence[int],
) -> HeldOut:
    """The predictions of some bags by one model, for `score_held_out`.

    Args:
        targets: The targets.
        objective: The objective of the model.
        outputs: Outputs of the model for all bags (b, w).
        ids: All bags.
        split: The split that the model was trained on.
        part: Positions of the bags.

    Returns:
        The predictions.
    """
    train, chosen = outputs[list(split.train)], outputs[list(part)]
    own = Split(split.train, tuple(part))
    found = fold_predictions((objective, train, chosen), own, ids, targets.array(ids))
    if isinstance(objective, CombinedObjective):
        slices = list(objective.slices())
        parts = [
            _with_model_risk(one, each, train[:, columns], chosen[:, columns])
            for one, (each, columns) in zip(found.parts, slices, strict=True)
        ]
        return replace(found, parts=tuple(parts))
    return _with_model_risk(found, objective, train, chosen)


def _with_model_risk(
    found: HeldOut, objective: Objective, train: Numbers, chosen: Numbers
) -> HeldOut:
    if found.risk is None:
        return found
    # All are of one model: the risk is that which `predict` writes, and needs no common scale.
    risk = risk_of(objective, chosen)
    return replace(found, risk=risk, high=risk > np.median(risk_of(objective, train)))


def score_times(values: Numbers) -> Numbers:
    """The times at which survival is scored: quantiles of the events of all bags.

    >>> score_times(np.array([[1.0, 1], [2.0, 1], [3.0, 1], [9.0, 0]])).tolist()
    [1.5, 2.0, 2.5]
    """
    return np.unique(np.quantile(values[values[:, 1] > 0, 0], HORIZONS))


def times_of_scores(targets: Targets) -> list[float]:
    """The times at which survival is scored, of all bags; empty if nothing is a time to an event.

    >>> times_of_scores(Targets(NumberTarget(), ("a",), (1.0,), (None,)))
    []
    """
    if isinstance(targets.target, CombinedTarget):
        parts = [targets.part(number) for number in range(len(targets.target.parts))]
        return [time for part in parts for time in times_of_scores(part)]
    if not isinstance(targets.target, SurvivalTarget):
        return []
    return [float(time) for time in score_times(targets.array(targets.known))]


def _risk_grid(values: Numbers) -> Numbers:
    return np.linspace(0, float(np.nanmax(values[:, 0])), POINTS + 1)[1:]
