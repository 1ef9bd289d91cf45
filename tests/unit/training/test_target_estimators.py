"""The estimators of numbers and of times to an event work with scikit-learn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from target_cohort import make_bags, make_targets

import scmil
from scmil.errors import DataError, OptionError, ShapeError
from scmil.stats.survival_scores import integrated_brier
from scmil.training.target_estimators import SCMILRegressor, SCMILSurvival

SMALL: dict[str, Any] = dict(
    aggregator="mean", sparse_coding=False, embed=[8], epochs=5, learning_rate=0.01
)


def cohort(task: str, n: int = 60, signal: float = 1.0) -> tuple[list[np.ndarray], np.ndarray]:
    bags, shares = make_bags(n, signal)
    targets = make_targets(task, shares)
    x = [bag.features.numpy() for bag in bags]
    values = targets.array([bag.id for bag in bags])
    if task == "regression":
        return x, values[:, 0]
    pairs = [(event > 0, time) for time, event in values]
    return x, np.array(pairs, dtype=[("event", bool), ("time", float)])


def test_numbers_are_predicted_in_their_own_units() -> None:
    x, y = cohort("regression")
    regressor = SCMILRegressor(**SMALL).fit(x[:40], y[:40])
    predicted = regressor.predict(x[40:])
    assert predicted.shape == (20,)
    assert 90 < predicted.min() < predicted.max() < 130
    assert regressor.score(x[40:], y[40:]) > 0.5
    assert is_regressor(regressor)
    [attention] = regressor.attention(x[:1])
    assert attention.sum() == pytest.approx(1, abs=1e-5)


def test_the_regressor_is_used_in_cross_validation_and_grid_search() -> None:
    x, y = cohort("regression", 24)
    regressor = SCMILRegressor(**{**SMALL, "epochs": 1})
    assert cross_val_predict(regressor, x, y, cv=3).shape == (24,)
    search = GridSearchCV(regressor, {"loss": ["huber", "squared"]}, cv=2).fit(x, y)
    assert search.best_params_["loss"] in ("huber", "squared")


@pytest.mark.parametrize("loss", ["discrete", "cox"])
def test_times_are_predicted_as_risks(loss: str) -> None:
    x, y = cohort("survival", 100)
    model = SCMILSurvival(**SMALL, loss=loss, risk_set=10).fit(x[:60], y[:60])
    assert model.score(x[60:], y[60:]) > 0.65
    assert clone(model).get_params()["loss"] == loss
    scores = cross_val_score(SCMILSurvival(**{**SMALL, "epochs": 1}, loss=loss), x, y, cv=2)
    assert scores.shape == (2,)


def test_without_a_signal_the_risk_is_chance() -> None:
    x, y = cohort("survival", 140, signal=0.0)
    model = SCMILSurvival(**SMALL).fit(x[:70], y[:70])
    assert abs(model.score(x[70:], y[70:]) - 0.5) < 0.12


def test_survival_curves_fall_and_are_better_than_a_coin() -> None:
    x, y = cohort("survival", 100)
    model = SCMILSurvival(**SMALL, bins=3).fit(x[:60], y[:60])
    at = np.quantile(y["time"][60:], [0.2, 0.4, 0.6, 0.8])
    curves = model.predict_survival(x[60:], at)
    assert curves.shape == (40, 4)
    assert (np.diff(curves, axis=1) <= 0).all()
    assert len(model.objective_.edges) == 2
    assert integrated_brier(y["time"][60:], y["event"][60:], curves, at) < 0.25
    risky = SCMILSurvival(**SMALL, loss="cox").fit(x, y)
    with pytest.raises(OptionError, match="gives risks, not survival"):
        risky.predict_survival(x, at)


def test_models_of_the_estimators_can_be_saved(tmp_path: Any) -> None:
    x, y = cohort("survival", 20)
    model = SCMILSurvival(**SMALL).fit(x, y)
    scmil.save_model(model.model_, tmp_path / "model.safetensors")
    assert scmil.load_model(tmp_path / "model.safetensors").objective == model.objective_


def survival_y(*pairs: tuple[bool, float]) -> np.ndarray:
    return np.array(list(pairs), dtype=[("event", bool), ("time", float)])


X = [np.ones((2, 3)) * i for i in range(2)]


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: SCMILSurvival().fit(X, [1.0, 2.0]), DataError, "a structured array"),
        (lambda: SCMILSurvival().fit(X, survival_y((True, 1.0))), DataError, "for 2 bags"),
        (
            lambda: SCMILSurvival().fit(X, survival_y((False, 1.0), (False, 2.0))),
            DataError,
            "no-events: all 2 times are censored",
        ),
        (
            lambda: SCMILSurvival().fit(X, survival_y((True, -1.0), (False, 2.0))),
            DataError,
            "0 or negative",
        ),
        (
            lambda: SCMILSurvival().fit(X, survival_y((True, math.inf), (False, 2.0))),
            DataError,
            "1 times are not finite",
        ),
        (
            lambda: SCMILSurvival(loss="weibull").fit(X, survival_y((True, 1.0), (True, 2.0))),
            OptionError,
            "Known: discrete, cox",
        ),
        (lambda: SCMILRegressor().fit(X, [1.0, 1.0]), DataError, "constant: all 2 numbers are 1"),
        (lambda: SCMILRegressor().fit(X, [1.0]), DataError, "One number per bag"),
        (lambda: SCMILRegressor().fit(X, ["a", "b"]), DataError, "not a list of numbers"),
        (lambda: SCMILRegressor().fit(X, [1.0, math.nan]), DataError, r"y\[1\] is nan"),
        (lambda: SCMILRegressor(loss="l3").fit(X, [1.0, 2.0]), OptionError, "huber, squared"),
        (lambda: SCMILRegressor().fit([X[0]], [1.0]), DataError, "one-patient|one patient"),
        (lambda: SCMILRegressor().predict(X), NotFittedError, "not fitted"),
        (lambda: SCMILSurvival().predict(X), NotFittedError, "not fitted"),
        (
            lambda: (
                SCMILRegressor(**{**SMALL, "epochs": 1}).fit(X, [1, 2]).predict([np.ones((2, 9))])
            ),
            ShapeError,
            "9-dimensional",
        ),
    ],
)
def test_invalid_input_is_rejected(call: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        call()
