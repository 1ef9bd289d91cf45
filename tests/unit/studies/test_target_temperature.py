"""The temperature of survival, grades and labels comes from the validation split, belongs to the
model, and is applied to every prediction.
"""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from target_cases import target_cohort
from target_cohort import DIM, make_bags, make_targets

from scmil import build_model, studies
from scmil.bags.bag import BagSet
from scmil.bags.target_bags import with_targets
from scmil.errors import OptionError
from scmil.models.objectives import (
    MultilabelObjective,
    OrdinalObjective,
    SurvivalObjective,
    model_outputs,
    objective_from_json,
    objective_json,
)
from scmil.studies.settings import TaskOptions
from scmil.studies.target_temperature import calibrate_target, fit_target_temperature
from scmil.training.fitting import predict
from scmil.training.fold import TrainedFold
from scmil.training.history import History
from scmil.training.target_objectives import objective_for

pytestmark = pytest.mark.slow  # models are trained

QUICK: dict[str, Any] = {"aggregator": "mean", "recipe": "paper", "epochs": 4}
LABEL = {"survival": None, "ordinal": "grade", "multilabel": "tp53,msi", "regression": "age"}
Tempered = SurvivalObjective | OrdinalObjective | MultilabelObjective
OBJECTIVES: dict[str, Tempered] = {
    "survival": SurvivalObjective((2.0, 4.0), start=(-1.0, -1.0, 0.0)),
    "ordinal": OrdinalObjective(3, start=(0.5, 0.2)),
    "multilabel": MultilabelObjective(2, start=(-2.0, 0.0)),
}


def draw_values(objective: Tempered, numbers: np.ndarray, seed: int = 0) -> np.ndarray:
    """Values that are as frequent as the objective predicts."""
    random = np.random.default_rng(seed)
    p = objective.outputs(torch.tensor(numbers)).numpy()
    if isinstance(objective, MultilabelObjective):
        return (random.random(p.shape) < p).astype(float)
    if isinstance(objective, OrdinalObjective):
        return (random.random((len(p), 1)) > p.cumsum(1)).sum(1, keepdims=True).astype(float)
    bins = (random.random((len(p), 1)) < p).sum(1)  # survived bins
    times = np.array([1.0, 3.0, 5.0, 9.0])[bins]
    return np.stack([times, bins < 3], axis=1).astype(float)


@pytest.mark.parametrize("task", OBJECTIVES)
def test_numbers_that_are_three_times_too_large_have_the_temperature_three(task: str) -> None:
    objective = OBJECTIVES[task]
    numbers = np.random.default_rng(0).normal(size=(3000, objective.numbers))
    values = draw_values(objective, numbers)
    assert fit_target_temperature(objective, numbers, values) == pytest.approx(1, abs=0.12)
    assert fit_target_temperature(objective, 3 * numbers, values) == pytest.approx(3, abs=0.36)


@pytest.mark.parametrize("task", OBJECTIVES)
def test_a_high_temperature_gives_the_frequencies_of_the_training(task: str) -> None:
    hot = replace(OBJECTIVES[task], temperature=100.0)
    numbers = torch.randn(5, hot.numbers)
    start = hot.outputs(torch.zeros(1, hot.numbers))
    assert torch.allclose(hot.outputs(numbers), start.expand(5, -1), atol=0.02)
    assert objective_from_json(objective_json(hot)) == hot
    assert "temperature" not in objective_json(OBJECTIVES[task])  # as in files of before
    with pytest.raises(OptionError, match="temperature = 0: a number from"):
        replace(OBJECTIVES[task], temperature=0)


@pytest.mark.parametrize("task", OBJECTIVES)
def test_only_the_validation_bags_determine_the_temperature(task: str) -> None:
    bags, shares = make_bags(40)
    targets = make_targets(task, shares)
    temperatures = []
    for changed in ((), range(20, 40), range(20)):
        values = list(targets.values)
        for i in changed:  # those of other bags
            values[i] = targets.values[(i + 7) % 40]
        objective = objective_for(targets.target, targets.array(targets.ids))
        output = objective_json(objective)
        model = build_model(DIM, model_outputs(objective), "mean", output=output, seed=0)
        own = with_targets(BagSet(bags), replace(targets, values=tuple(values)))
        fold = TrainedFold(History(), None, predict(model, bags).double().numpy()[None], np.nan)
        found, note = calibrate_target(model, fold, own, range(20))
        assert "20 slides of the validation split" in note
        assert found.probabilities.shape == fold.probabilities.shape
        temperatures.append(getattr(model.objective, "temperature", None))
    assert temperatures[0] == temperatures[1] != temperatures[2]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return target_cohort(tmp_path_factory.mktemp("tempered"), count=60)


def data_of(home: Path, task: str) -> studies.Data:
    return studies.open_data(
        home / "bags",
        home / "labels.csv",
        label=LABEL[task],
        task=TaskOptions(task),
        drop_unlabelled=True,
    )


def rows_of(path: Path) -> dict[str, dict[str, str]]:
    with path.open(newline="") as file:
        return {row["slide_id"]: row for row in csv.DictReader(file)}


@pytest.mark.slow
@pytest.mark.parametrize("task", OBJECTIVES)
def test_a_calibrated_model_predicts_with_its_temperature(
    home: Path, tmp_path: Path, task: str
) -> None:
    data = data_of(home, task)
    studies.train(data, tmp_path / "plain", **QUICK)
    studies.train(data, tmp_path / "calibrated", calibrate=True, **QUICK)
    spec = json.loads((tmp_path / "calibrated/model.json").read_text())["model"]
    study = json.loads((tmp_path / "calibrated/study.json").read_text())
    temperature = spec["output"]["temperature"]
    assert temperature != 1
    assert study["objective"]["temperature"] == temperature
    assert any(f"temperature {temperature:.3g}" in note for note in study["notes"])
    first, second = (
        rows_of(tmp_path / name / "predictions.csv") for name in ("plain", "calibrated")
    )
    columns = [name for name in next(iter(first.values())) if name.startswith(("p_", "s_"))]
    assert any(first[slide][name] != second[slide][name] for slide in first for name in columns)
    # The same numbers of the model, before and after it was written.
    bags = studies.open_bags_to_predict([home / "bags"])
    for row in studies.predict_folder(tmp_path / "calibrated", bags).rows:
        if row["slide_id"] in second:
            own = second[row["slide_id"]]
            assert row["y_pred"] == own["y_pred"]
            for name in columns:
                assert float(row[name]) == pytest.approx(float(own[name]), rel=1e-4, abs=1e-6)


def test_what_has_no_probabilities_is_rejected_with_the_reason(home: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"the task 'regression' has none.*scmil test"):
        studies.train(data_of(home, "regression"), tmp_path / "a", calibrate=True, **QUICK)
    with pytest.raises(OptionError, match=r"a Cox model has none.*--loss discrete"):
        studies.train(
            data_of(home, "survival"), tmp_path / "b", calibrate=True, loss="cox", **QUICK
        )
    assert not (tmp_path / "a").exists()
