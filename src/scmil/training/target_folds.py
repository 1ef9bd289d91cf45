"""Cross-validation of tasks other than classes: predictions of held-out bags, and their metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scmil.bags.audit_targets import check_targets
from scmil.bags.bag import Bag
from scmil.bags.scaling import moments
from scmil.bags.splits import Split, check_split, stratified_folds
from scmil.bags.targets import (
    GradeTarget,
    LabelsTarget,
    NumberTarget,
    SurvivalTarget,
    Target,
    Targets,
)
from scmil.core.shapes import Numbers
from scmil.errors import OptionError
from scmil.models.model import build_model
from scmil.models.objective_start import start_at_frequencies
from scmil.models.objectives import (
    CoxObjective,
    MultilabelObjective,
    Objective,
    OrdinalObjective,
    RegressionObjective,
    SurvivalObjective,
    model_outputs,
    objective_json,
    survival_at,
    survival_edges,
)
from scmil.stats.bootstrap import MetricEstimate, number_groups
from scmil.stats.multilabel import score_multilabel
from scmil.stats.ordinal import ordinal_intervals, score_ordinal
from scmil.stats.regression import regression_intervals, score_regression
from scmil.stats.survival import LogRank, log_rank
from scmil.stats.survival_scores import survival_intervals
from scmil.training.fitting import fit, predict
from scmil.training.recipes import Recipe

LOSSES = {
    "survival": ("discrete", "cox"),
    "regression": ("huber", "squared"),
    "ordinal": ("cumulative",),
    "multilabel": ("masked",),
}
HORIZONS = (0.25, 0.5, 0.75)  # quantiles of the events at which survival is scored
POINTS = 32  # of the grid on which survival is averaged to a risk


@dataclass(frozen=True)
class HeldOut:
    """Predictions of bags by models that were not trained on their patients.

    Attributes:
        ids: The bags.
        outputs: A number, probabilities of grades or labels, or survival at `times` (b, w).
        risk: Risk of an event, higher for an earlier one; None for other tasks.
        high: Whether the risk is above the median of the training split; None for other tasks.
        times: The times of the survival in `outputs`; empty for Cox and other tasks.
    """

    ids: tuple[str, ...]
    outputs: Numbers
    risk: Numbers | None = None
    high: NDArray[np.bool_] | None = None
    times: tuple[float, ...] = ()


def objective_for(target: Target, values: Numbers, loss: str | None = None) -> Objective:
    """The objective of a task, with bins, scale and start from the training split.

    Args:
        target: The target.
        values: Its values in the training split, as `Targets.array` returns them.
        loss: One of `LOSSES` of the task; the first by default.

    Returns:
        The objective.

    Raises:
        OptionError: If the loss is unknown.
        DataError: If the training split has no events.

    >>> objective_for(NumberTarget(), np.array([[1.0], [3.0]]))
    RegressionObjective(mean=2.0, scale=1.0, loss='huber')
    """
    known = LOSSES[target.task]
    loss = known[0] if loss is None else loss
    if loss not in known:
        raise OptionError(
            f"loss = {loss!r} for the task {target.task!r}. Known: {', '.join(known)}."
        )
    if isinstance(target, SurvivalTarget):
        if loss == "cox":
            return CoxObjective(min(32, max(2, len(values))))
        edges = tuple(survival_edges(values[:, 0], values[:, 1]).tolist())
        return start_at_frequencies(SurvivalObjective(edges), values)
    if isinstance(target, NumberTarget):
        return RegressionObjective(float(values.mean()), float(values.std()) or 1.0, loss)
    if isinstance(target, GradeTarget):
        return start_at_frequencies(OrdinalObjective(len(target.grades)), values)
    return start_at_frequencies(MultilabelObjective(len(target.names)), values)


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
    patients = dict(zip(targets.ids, targets.patients, strict=True))
    if isinstance(targets.target, SurvivalTarget):
        strata = values[:, 1]
    elif isinstance(targets.target, NumberTarget):
        strata = (values[:, 0] > np.median(values[:, 0])).astype(float)
    else:
        strata = np.nan_to_num(values[:, 0])
    labels = np.unique(strata, return_inverse=True)[1]
    groups = [patients.get(i) for i in ids]
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
    patients = dict(zip(targets.ids, targets.patients, strict=True))
    for split in splits:
        check_split(split, ids, [patients.get(i) for i in ids])
    tested = [position for split in splits for position in split.test]
    if len(set(tested)) < len(tested):
        raise OptionError("a bag is in the test split of two folds. Use one repeat of the folds.")
    times = _horizons(targets.target, values)
    grid = _risk_grid(targets.target, values)
    parts = []
    for number, split in enumerate(splits):
        part = _fit_split(
            bags, targets, split, recipe or Recipe(), dict(model or {}), loss, seed, standardise
        )
        parts.append(_predictions(part, split, values, times, grid))
        if progress:
            progress(number + 1)
    survival = isinstance(targets.target, SurvivalTarget)
    return HeldOut(
        tuple(ids[position] for position in tested),
        np.concatenate([part.outputs for part in parts]),
        np.concatenate([part.risk for part in parts]) if survival else None,
        np.concatenate([part.high for part in parts]) if survival else None,
        parts[0].times,
    )


def score_held_out(
    targets: Targets, predictions: HeldOut, draws: int = 1000
) -> dict[str, MetricEstimate]:
    """The metrics of the task with 95 % intervals over patients.

    For survival the risks of the slides of a patient are averaged.

    Args:
        targets: The targets.
        predictions: The predictions.
        draws: Number of bootstrap resamples, where there are any.

    Returns:
        The metrics by name; those of several labels are `label: metric`, and `macro: metric`.

    >>> targets = Targets(NumberTarget(), ("a", "b", "c"), (1.0, 2.0, 3.0), (None,) * 3)
    >>> held_out = HeldOut(("a", "b", "c"), np.array([[1.0], [2.0], [4.0]]))
    >>> score_held_out(targets, held_out)["r2"].value
    0.5
    """
    values, outputs = targets.array(predictions.ids), predictions.outputs
    patients = _patients_of(targets, predictions)
    target = targets.target
    if isinstance(target, SurvivalTarget):
        return _score_survival(values, predictions, patients, draws)
    if isinstance(target, NumberTarget):
        scores = score_regression(values[:, 0], outputs[:, 0])
        intervals = regression_intervals(values[:, 0], outputs[:, 0], patients)
    elif isinstance(target, GradeTarget):
        grades = values[:, 0].astype(int), outputs.argmax(1), len(target.grades)
        scores = score_ordinal(*grades)
        intervals = ordinal_intervals(*grades, patients, draws)
    else:
        return _score_labels(target, values, outputs, patients, draws)
    return {name: MetricEstimate(value, intervals[name]) for name, value in scores.items()}


def risk_groups(targets: Targets, predictions: HeldOut) -> LogRank:
    """The log-rank test of patients with a risk above and below the cut-off of the training split.

    The first slide of each patient decides the group.

    Raises:
        OptionError: If the task is not survival.
        DataError: If all patients are in one group.
    """
    if predictions.high is None:
        raise OptionError(f"risk groups need the task 'survival', not {targets.task!r}.")
    units = number_groups(_patients_of(targets, predictions), len(predictions.ids))
    first = np.unique(units, return_index=True)[1]
    values = targets.array(predictions.ids)[first]
    return log_rank(values[:, 0], values[:, 1], predictions.high[first].tolist())


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


def _predictions(
    part: tuple[Objective, Numbers, Numbers],
    split: Split,
    values: Numbers,
    times: Numbers,
    grid: Numbers,
) -> HeldOut:
    """The test predictions of a fold, on scales that do not depend on the fold."""
    objective, known, new = part
    if isinstance(objective, CoxObjective):
        # Risks are relative to the mean of the training split.
        known, risk = known[:, 0] - known.mean(), new[:, 0] - known.mean()
        return HeldOut((), risk[:, None], risk, risk > np.median(known))
    if not isinstance(objective, SurvivalObjective):
        return HeldOut((), new)
    last = float(values[list(split.train), 0].max())
    known_risk, risk = (
        -survival_at(objective.edges, outputs, grid, last).mean(1) for outputs in (known, new)
    )
    curves = survival_at(objective.edges, new, times, last)
    return HeldOut((), curves, risk, risk > np.median(known_risk), tuple(times.tolist()))


def _horizons(target: Target, values: Numbers) -> Numbers:
    if not isinstance(target, SurvivalTarget):
        return np.empty(0)
    return np.unique(np.quantile(values[values[:, 1] > 0, 0], HORIZONS))


def _risk_grid(target: Target, values: Numbers) -> Numbers:
    if not isinstance(target, SurvivalTarget):
        return np.empty(0)
    return np.linspace(0, float(values[:, 0].max()), POINTS + 1)[1:]


def _patients_of(targets: Targets, predictions: HeldOut) -> list[str | None]:
    patients = dict(zip(targets.ids, targets.patients, strict=True))
    return [patients.get(bag_id) for bag_id in predictions.ids]


def _score_survival(
    values: Numbers, predictions: HeldOut, patients: list[str | None], draws: int
) -> dict[str, MetricEstimate]:
    units = number_groups(patients, len(values))
    sizes = np.bincount(units)

    def mean(column: Numbers) -> Numbers:
        return np.bincount(units, column) / sizes

    assert predictions.risk is not None
    first = np.unique(units, return_index=True)[1]
    curves = np.stack([mean(column) for column in predictions.outputs.T], axis=1)
    return survival_intervals(
        values[first, 0],
        values[first, 1],
        mean(predictions.risk),
        survival=curves if predictions.times else None,
        at=predictions.times,
        draws=draws,
    )


def _score_labels(
    target: LabelsTarget,
    values: Numbers,
    outputs: Numbers,
    patients: list[str | None],
    draws: int,
) -> dict[str, MetricEstimate]:
    found = score_multilabel(target.names, values, outputs, patients, draws=draws)
    scores = {
        f"{name}: {metric}": MetricEstimate(value, row.intervals[metric])
        for name, row in found.labels.items()
        for metric, value in row.scores.items()
    }
    return scores | {
        f"macro: {metric}": MetricEstimate(value, found.macro_intervals[metric])
        for metric, value in found.macro.items()
    }
