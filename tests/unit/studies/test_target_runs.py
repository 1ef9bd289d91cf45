"""Runs of tasks other than classes: what is selected, what is learned from, and their tables."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from target_folder import DATA, HEADER, write_target_folder

from scmil.bags.bag import BagSet
from scmil.bags.splits import Split
from scmil.errors import ConfigError
from scmil.models.aggregators.clam import CLAM
from scmil.report import write_report
from scmil.studies.data import inferred_columns
from scmil.studies.from_settings import build_for_split
from scmil.studies.plan import Plan, make_plan
from scmil.studies.runner import run
from scmil.training import fold as fold_module
from scmil.training.fold import TrainedFold
from scmil.training.history import History

pytestmark = pytest.mark.slow  # models are trained

MEAN = {"aggregator": "mean", "embed": [4]}
TABLES = {"c_index": "survival", "r2": "regression", "kappa": "ordinal", "macro: auc": "multilabel"}


def plan_of(
    home: Path, task: str, selection: list[str] | None = None, **changes: dict[str, Any]
) -> Plan:
    document: dict[str, Any] = {
        "data": {"dataset": "bags", "labels": "values.csv", **DATA[task]},
        "protocol": {"folds": 2, "selection": selection or ["last"]},
        "training": {"epochs": 1},
        "arms": [
            {"name": "mean", "model": MEAN},
            {"name": "linear", "model": {"aggregator": "logistic-mean-max"}},
        ],
    }
    for table, values in changes.items():
        document[table] = document[table] | values if isinstance(values, dict) else values
    return make_plan(document, "mine", folder=home)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """32 slides of 16 patients."""
    return write_target_folder(tmp_path_factory.mktemp("cohort"), n=32, slides=2)


def brute_force_concordance(rows: list[dict[str, str]]) -> float:
    """Harrell's C of the mean risk of each patient, pair by pair."""
    patients: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        patients.setdefault(row["patient"], []).append(row)
    facts = [
        (float(own[0]["time"]), own[0]["event"] == "1", np.mean([float(r["risk"]) for r in own]))
        for own in patients.values()
    ]
    right = total = 0.0
    for time, event, risk in facts:
        for later, happened, other in facts:
            if event and (later > time or (later == time and not happened)):
                total += 1
                right += 1.0 if risk > other else 0.5 if risk == other else 0.0
    return right / total


@pytest.mark.parametrize("metric", TABLES)
def test_results_follow_from_the_predictions_of_each_task(
    home: Path, tmp_path: Path, metric: str
) -> None:
    out = tmp_path / "out"
    assert run(plan_of(home, TABLES[metric]), out, jobs=1).failed == {}
    for row in read(out / "results.csv"):
        rows = read(out / "cells" / row["cell"] / "predictions.csv")
        assert (row["bags"], row["patients"], len(rows)) == ("32", "16", 32)
        assert float(row[f"{metric}_low"]) <= float(row[metric]) <= float(row[f"{metric}_high"])
        if metric == "c_index":
            expected = brute_force_concordance(rows)
        elif metric == "r2":
            y, p = (np.array([float(r[key]) for r in rows]) for key in ("observed", "predicted"))
            expected = 1 - ((y - p) ** 2).sum() / ((y - y.mean()) ** 2).sum()
        elif metric == "kappa":
            y, p = (np.array([int(r[key]) for r in rows]) for key in ("observed", "predicted"))
            chance = np.mean([(a - b) ** 2 for a in y for b in p])
            expected = float(1 - np.mean((y - p) ** 2) / chance)
        else:
            expected = float(np.mean([area(rows, name) for name in ("high", "low", "noise")]))
        assert float(row[metric]) == pytest.approx(expected, abs=1e-6)
    folds = read(out / "folds.csv")
    assert len(folds) == 4
    assert metric in folds[0]
    assert "threshold" not in folds[0]
    stated = json.loads((out / "experiment.json").read_text())
    assert stated["task"] == stated["targets"]["bags"]["task"] == TABLES[metric]


def area(rows: list[dict[str, str]], name: str) -> float:
    known = [row for row in rows if row[f"y_{name}"]]
    with_it, without = (
        [float(row[f"p_{name}"]) for row in known if row[f"y_{name}"] == value] for value in "10"
    )
    return float(np.mean([(a > b) + 0.5 * (a == b) for a in with_it for b in without]))


class FakeTraining:
    """Stands in for `train_fold`: chosen outputs of each epoch, without a network."""

    def __call__(
        self, model: Any, bags: BagSet, split: Split, recipe: Any, options: Any, **more: Any
    ) -> TrainedFold:
        assert bags.targets is not None
        best, test = bags.targets.array(bags.ids), list(split.test)
        worse, worst = best.copy(), best.copy()
        worse[test] = best[test][::-1]
        worst[test] = -best[test]
        history = History(train_loss=[1.0, 0.5, 0.2])
        by_epoch = np.stack([worst, best, worse])
        final = -1
        if split.valid:  # the model ends with the weights of its best epoch
            history.valid_loss, history.valid_score = [0.3, 0.5, 0.7], [0.9, 0.2, 0.1]
            final = 0
        if not more["every_epoch"]:
            by_epoch = by_epoch[[final]]
        return TrainedFold(history, None, by_epoch, float("nan"))


def test_protocols_select_the_last_the_validated_and_the_best_tested_epoch(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold_module, "train_fold", FakeTraining())
    plan = plan_of(
        home,
        "regression",
        ["last", "nested", "test-tuned"],
        arms=[{"name": "mean", "model": MEAN}],  # type: ignore[arg-type]
    )
    assert run(plan, tmp_path, jobs=1).failed == {}
    folds = read(tmp_path / "folds.csv")
    epochs = {row["protocol"]: row["epoch"] for row in folds}
    # The second epoch is the best on the test folds; validation prefers the first one.
    assert epochs == {"last": "3", "nested": "1", "test-tuned": "2"}
    scores = {row["protocol"]: float(row["r2"]) for row in read(tmp_path / "results.csv")}
    assert scores["test-tuned"] == pytest.approx(1.0)
    assert scores["nested"] < 0


def test_bins_and_scales_come_from_the_training_bags(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[float, list[str]]] = []

    def spy(model: Any, bags: BagSet, split: Split, *more: Any) -> Any:
        built = build_for_split(model, bags, split, *more)
        assert split.valid
        seen.append((built.objective.mean, [bags.ids[i] for i in split.train]))
        return built

    monkeypatch.setattr("scmil.studies.target_training.build_for_split", spy)
    run(plan_of(home, "regression", ["nested"]), tmp_path, jobs=1)
    numbers = {row["slide_id"]: float(row["number"]) for row in read(home / "values.csv")}
    assert len(seen) == 2
    for mean, train in seen:
        assert mean == pytest.approx(np.mean([numbers[bag_id] for bag_id in train]))


def test_the_slides_of_a_patient_stay_on_one_side(home: Path, tmp_path: Path) -> None:
    run(plan_of(home, "survival"), tmp_path, jobs=1)
    folds: dict[str, set[str]] = {}
    for row in read(tmp_path / "cells/bags--linear/predictions.csv"):
        folds.setdefault(row["patient"], set()).add(row["fold"])
    assert all(len(places) == 1 for places in folds.values())


def test_cox_is_a_loss_and_its_runs_have_no_curves(home: Path, tmp_path: Path) -> None:
    plan = plan_of(home, "survival", training={"loss": "cox"})
    assert run(plan, tmp_path, jobs=1).failed == {}
    columns = read(tmp_path / "cells/bags--mean/predictions.csv")[0]
    assert not [name for name in columns if name.startswith("s_")]
    row = read(tmp_path / "results.csv")[0]
    assert [name for name in row if name.startswith("auc@") and name.endswith("_low")]


def test_a_changed_value_is_noticed(tmp_path: Path) -> None:
    home = write_target_folder(tmp_path, n=16)
    plan = plan_of(home, "regression", arms=[{"name": "mean", "model": MEAN}])  # type: ignore[arg-type]
    run(plan, tmp_path / "out", jobs=1)
    table = home / "values.csv"
    lines = table.read_text().splitlines()
    cells = lines[1].split(",")
    cells[4] = "104.25"
    table.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]))
    with pytest.raises(ConfigError, match="the label of 1 bag changed"):
        run(plan, tmp_path / "out", jobs=1)


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        ("survival", {"training": {"loss": "huber"}}, "loss = 'huber' for the task 'survival'"),
        ("survival", {"training": {"class_weights": "balanced"}}, "class_weights need classes"),
        ("survival", {"data": {"time": "nothing"}}, r"\[data\] .*nothing"),
        ("ordinal", {"data": {"task": "cure"}}, "task = 'cure'. Known: class, survival"),
        ("ordinal", {"data": {"label": "os_months"}}, "no whole numbers"),
    ],
)
def test_what_does_not_fit_the_task_is_rejected_before_training(
    home: Path, task: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(home, task, **changes)


def test_an_aggregator_with_a_loss_for_classes_is_rejected_before_training(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CLAM, "own_loss_without_classes", False)
    arms = [{"name": "clam", "model": {"aggregator": "clam-sb"}}]
    with pytest.raises(ConfigError, match=r"\[model\] .*clam-sb.*'survival'"):
        plan_of(home, "survival", arms=arms)  # type: ignore[arg-type]


def test_a_loss_needs_a_task_and_an_experiment_has_one(home: Path) -> None:
    with pytest.raises(ConfigError, match="classes have one loss"):
        make_plan({"data": {"dataset": "musk1"}, "training": {"loss": "cox"}}, "mine")
    document = {
        "data": {"dataset": "bags", "labels": "values.csv", "standardise": True},
        "arms": [
            {"name": task, "model": MEAN, "data": {"name": task, **DATA[task]}}
            for task in ("survival", "ordinal")
        ],
    }
    with pytest.raises(ConfigError, match=r"different tasks: survival \(survival\), ordinal"):
        make_plan(document, "mine", folder=home)


def test_an_inferred_task_is_stated(tmp_path: Path) -> None:
    home = write_target_folder(tmp_path, n=16)
    document = {"data": {"dataset": "bags", "labels": "values.csv", "label": "high,low"}}
    plan = make_plan(document, "mine", folder=home)
    assert plan.cells[0].settings.data.task == "multilabel"
    notes = inferred_columns(cell.settings.data for cell in plan.cells)
    assert "values.csv: task: 'multilabel'." in notes


@pytest.mark.parametrize("mode", ["mean", "max"])
@pytest.mark.parametrize("task", ["survival", "regression", "ordinal", "multilabel"])
def test_predictions_of_slides_become_those_of_patients(
    home: Path, tmp_path: Path, task: str, mode: str
) -> None:
    slides, patients = tmp_path / "slides", tmp_path / "patients"
    assert run(plan_of(home, task), slides, jobs=1).failed == {}
    assert run(plan_of(home, task, data={"patient": mode}), patients, jobs=1).failed == {}
    for row in read(patients / "results.csv"):
        path = Path("cells") / row["cell"] / "predictions.csv"
        [other] = [own for own in read(slides / "results.csv") if own["arm"] == row["arm"]]
        by_slide = read(slides / "cells" / other["cell"] / "predictions.csv")
        found = read(patients / path)
        assert (row["bags"], row["patients"], len(found)) == ("16", "16", 16)
        column = {"survival": "risk", "regression": "predicted", "multilabel": "p_high"}.get(task)
        for patient in found if column else []:
            own = [float(r[column]) for r in by_slide if r["patient"] == patient["bag"]]
            expected = max(own) if mode == "max" else np.mean(own)
            assert float(patient[column]) == pytest.approx(expected, rel=1e-6)
    words = {"mean": "with the mean of the predictions", "max": "with the largest prediction"}
    report = write_report(patients, ["md"])[0].read_text()
    assert words[mode] in report
    assert "16 patients" in report


def test_patients_with_different_values_cannot_count_once(tmp_path: Path) -> None:
    home = write_target_folder(tmp_path, n=32, slides=2)
    lines = (home / "values.csv").read_text().splitlines()
    cells = lines[1].split(",")
    cells[HEADER.index("number")] = "0.987"
    (home / "values.csv").write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]) + "\n")
    outcome = run(plan_of(home, "regression", data={"patient": "max"}), tmp_path / "out", jobs=1)
    assert all("cannot be counted as one" in cause for cause in outcome.failed.values())
    assert outcome.failed
