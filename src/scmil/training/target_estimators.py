"""scikit-learn estimators of numbers and of times to an event whose samples are bags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scmil.bags.audit_targets import check_targets
from scmil.bags.targets import NumberTarget, SurvivalTarget, Target, Targets, Value
from scmil.core.extras import import_extra
from scmil.errors import DataError, OptionError
from scmil.models.objective_start import start_at_frequencies
from scmil.models.objectives import (
    CoxObjective,
    Objective,
    RegressionObjective,
    SurvivalObjective,
    model_outputs,
    objective_json,
    risk_of,
)
from scmil.models.survival_bins import DEFAULT_BINS, survival_at, survival_edges
from scmil.stats.concordance import concordance
from scmil.training.bag_estimator import BagEstimator, Bags, as_bags
from scmil.training.fitting import fit, predict

sklearn_base: Any = import_extra("sklearn.base", "statistics")


SURVIVAL_LOSSES = ("discrete", "cox")


class _TargetEstimator(BagEstimator):
    """Fits a model to the values of bags."""

    def _fit_targets(
        self, bags: Bags, target: Target, values: Sequence[Value], objective: Objective
    ) -> None:
        recipe = self._recipe()
        # Ids of bags may repeat or be missing; the position is unique.
        train = [replace(bag, id=str(i)) for i, bag in enumerate(as_bags(bags))]
        ids = tuple(bag.id for bag in train)
        targets = Targets(target, ids, tuple(values), (None,) * len(ids))
        check_targets(targets)
        scaled = self._learn_scaling(train)
        self.objective_ = objective
        self.model_ = self._build(model_outputs(objective), objective_json(objective))
        self.history_ = fit(
            self.model_, scaled, recipe=recipe, seed=int(self.seed), targets=targets
        )

    def _outputs(self, bags: Bags) -> NDArray[np.float64]:
        prepared = self._prepare_bags(bags)
        return predict(self.model_, prepared).double().numpy()


class SCMILRegressor(sklearn_base.RegressorMixin, _TargetEstimator):  # type: ignore[misc]  # untyped
    """Predicts a number for a bag, wherever scikit-learn takes a regressor; `score` is R².

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
        loss: "huber", or "squared" for the squared error.

    Attributes:
        model_: The trained `MILModel`.
        objective_: Mean and scale of the training numbers.
        history_: The losses of all epochs.
        n_features_in_: The number of features.
        mean_, scale_: Mean and scale with which features are standardised.

    >>> bags = [np.full((3, 4), float(i)) for i in range(8)]
    >>> settings = dict(aggregator="mean", sparse_coding=False, embed=[8], learning_rate=0.01)
    >>> regressor = SCMILRegressor(**settings).fit(bags, range(8))
    >>> low, high = regressor.predict([np.full((5, 4), 1.0), np.full((5, 4), 6.0)])
    >>> bool(low < 3 < high)
    True
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
        loss: str = "huber",
    ) -> None:
        super().__init__(
            aggregator,
            sparse_coding,
            refine,
            embed,
            epochs,
            learning_rate,
            weight_decay,
            standardise,
            seed,
        )
        self.loss = loss

    def fit(self, bags: Bags, y: ArrayLike) -> SCMILRegressor:
        """Train a new model.

        Args:
            bags: Matrices (instances, features), or `Bag` objects.
            y: The number of each bag.

        Returns:
            The fitted regressor itself.

        Raises:
            DataError: If there are no bags, or `y` does not hold one finite number for each of
                them, or all numbers are equal.
            BagError: If a bag is not a matrix of finite numbers.
            OptionError: If the loss is unknown.
        """
        listed = as_bags(bags)
        numbers = _as_numbers(y, len(listed))
        scale = float(numbers.std())
        objective = RegressionObjective(float(numbers.mean()), scale or 1.0, self.loss)
        self._fit_targets(listed, NumberTarget(), numbers.tolist(), objective)
        return self

    def predict(self, bags: Bags) -> NDArray[np.float64]:
        """Predict the number of each bag."""
        return self._outputs(bags)[:, 0]


class SCMILSurvival(_TargetEstimator):
    """Predicts times to an event; `y` and `predict` follow the conventions of scikit-survival.

    `y` is a structured array whose first field says whether the event was observed, and whose
    second is the time. `predict` returns a risk, which is higher for an earlier event; `score` is
    Harrell's concordance.

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
        loss: "discrete" for the likelihood of times in bins, one bag per step, or "cox" for Cox's
            partial likelihood over risk sets of bags.
        bins: Number of bins of "discrete", between quantiles of the events.
        risk_set: Number of bags of a step of "cox".

    Attributes:
        model_: The trained `MILModel`.
        objective_: Bins or risk set of the training.
        history_: The losses of all epochs.
        n_features_in_: The number of features.
        mean_, scale_: Mean and scale with which features are standardised.

    >>> bags = [np.full((3, 4), float(i)) for i in range(8)]
    >>> y = np.array([(True, 9.0 - i) for i in range(8)], dtype=[("event", bool), ("time", float)])
    >>> settings = dict(aggregator="mean", sparse_coding=False, embed=[8], learning_rate=0.01)
    >>> model = SCMILSurvival(**settings).fit(bags, y)
    >>> round(model.score(bags, y), 2)
    1.0
    >>> model.predict_survival(bags[:2], times=[1.0, 4.0]).shape
    (2, 2)
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
        loss: str = "discrete",
        bins: int = DEFAULT_BINS,
        risk_set: int = 32,
    ) -> None:
        super().__init__(
            aggregator,
            sparse_coding,
            refine,
            embed,
            epochs,
            learning_rate,
            weight_decay,
            standardise,
            seed,
        )
        self.loss = loss
        self.bins = bins
        self.risk_set = risk_set

    def fit(self, bags: Bags, y: ArrayLike) -> SCMILSurvival:
        """Train a new model.

        Args:
            bags: Matrices (instances, features), or `Bag` objects.
            y: Structured array (bags,) of the event (bool) and the time.

        Returns:
            The fitted estimator itself.

        Raises:
            DataError: If `y` is not such an array, no event was observed, or a time is not above 0.
            BagError: If a bag is not a matrix of finite numbers.
            OptionError: If the loss is unknown, or bins or risk set are invalid.
        """
        listed = as_bags(bags)
        events, times = as_survival(y, len(listed))
        if self.loss not in SURVIVAL_LOSSES:
            raise OptionError(f"loss = {self.loss!r}. Known: {', '.join(SURVIVAL_LOSSES)}.")
        values = [(float(t), bool(e)) for t, e in zip(times, events, strict=True)]
        ids = tuple(map(str, range(len(listed))))
        check_targets(Targets(SurvivalTarget(), ids, tuple(values), (None,) * len(ids)))
        objective: Objective
        if self.loss == "cox":
            objective = CoxObjective(int(self.risk_set))
        else:
            edges = tuple(survival_edges(times, events, self.bins).tolist())
            table = np.stack([times, events], axis=1)
            objective = start_at_frequencies(SurvivalObjective(edges), table)
        self.last_time_ = float(times.max())
        self._fit_targets(listed, SurvivalTarget(), values, objective)
        return self

    def predict(self, bags: Bags) -> NDArray[np.float64]:
        """Predict the risk of each bag, which is higher for an earlier event."""
        outputs = self._outputs(bags)
        return risk_of(self.objective_, outputs)

    def predict_survival(self, bags: Bags, times: ArrayLike) -> NDArray[np.float64]:
        """Predict the probability of no event up to each time.

        Args:
            bags: The bags.
            times: Times (k,); after the last follow-up of the training the curve is flat.

        Returns:
            Probabilities (bags, k).

        Raises:
            OptionError: If the loss is "cox", which gives risks only.
        """
        outputs = self._outputs(bags)
        if not isinstance(self.objective_, SurvivalObjective):
            raise OptionError("loss = 'cox' gives risks, not survival: use loss = 'discrete'.")
        return survival_at(self.objective_.edges, outputs, times, self.last_time_)

    def score(self, bags: Bags, y: ArrayLike) -> float:
        """Harrell's concordance of the predicted risk; 0.5 is chance."""
        risk = self.predict(bags)
        events, times = as_survival(y, len(risk))
        return concordance(times, events, risk)


def as_survival(y: ArrayLike, bags: int) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Events and times of a structured array as scikit-survival uses it.

    Raises:
        DataError: If it is not an array of pairs of an event (bool) and a time.

    >>> y = np.array([(True, 2.0), (False, 3.0)], dtype=[("event", bool), ("time", float)])
    >>> as_survival(y, 2)[1].tolist()
    [2.0, 3.0]
    """
    array = np.asarray(y)
    names = array.dtype.names or ()
    if len(names) != 2 or array.shape != (bags,) or array[names[0]].dtype.kind != "b":
        raise DataError(
            f"y of type {array.dtype} and shape {array.shape} for {bags} bags: a structured array "
            "of the event (bool) and the time is expected, such as np.array([(True, 12.5)], "
            "dtype=[('event', bool), ('time', float)])."
        )
    times = array[names[1]].astype(float)
    if not np.isfinite(times).all():
        raise DataError(f"{(~np.isfinite(times)).sum()} times are not finite. Leave them out.")
    return array[names[0]], times


def _as_numbers(y: ArrayLike, bags: int) -> NDArray[np.float64]:
    try:
        numbers = np.asarray(y, dtype=float)
    except (TypeError, ValueError) as error:
        raise DataError(f"y is not a list of numbers: {error}.") from None
    if numbers.shape != (bags,):
        raise DataError(
            f"y has the shape {numbers.shape} for {bags} bags. "
            f"One number per bag is needed: ({bags},)."
        )
    if not np.isfinite(numbers).all():
        position = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise DataError(f"y[{position}] is {numbers[position]}. Leave out bags without a number.")
    return numbers
