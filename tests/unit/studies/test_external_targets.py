"""Models of survival, numbers, grades and labels on another cohort: metrics, curves, calibration,
change against the internal estimate, leaks and ensembles.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import scmil
from target_cases import TASKS, rename_cohort, target_cohort

from scmil import studies
from scmil.bags.targets import NumberTarget, Targets
from scmil.errors import DataError, ModelFileError
from scmil.models.objectives import CoxObjective, RegressionObjective, SurvivalObjective
from scmil.studies.ensemble import predictor_of
from scmil.studies.external_targets import internal_targets, score_targets
from scmil.studies.predict import load_trained_model
from scmil.studies.settings import TaskOptions

pytestmark = pytest.mark.slow  # models are trained

QUICK: dict[str, Any] = {"aggregator": "mean", "recipe": "paper", "epochs": 4}
LABEL = {"survival": None, "regression": "age", "ordinal": "grade", "multilabel": "tp53,msi"}
MAIN = {"survival": "c_index", "regression": "r2", "ordinal": "kappa", "multilabel": "macro: auc"}


# What the page of each task shows.
PARTS = {
    "survival": [
        "Survival by risk",
        "Patients at risk",
        "Log-rank test of high against low",
        "observed / predicted events",
        "slope of the log hazard",
    ],
    "regression": ["Predicted against observed", "on the line they agree", "intercept"],
    "ordinal": ["quadratic kappa", "Confusion matrix", "2 or higher", "observed grades"],
    "multilabel": ["Metrics by label", "mean over the labels", "Reliability of msi"],
}


def open_cohort(home: Path, task: str) -> studies.Data:
    bags, table = home / "bags", home / "labels.csv"
    return studies.open_data(
        bags, table, label=LABEL[task], task=TaskOptions(task), drop_unlabelled=True
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`ours`, and `theirs` with other slides and patients."""
    folder = tmp_path_factory.mktemp("hospitals")
    target_cohort(folder / "ours", count=40)
    rename_cohort(target_cohort(folder / "theirs", count=40, seed=1), "t")
    return folder


@pytest.fixture(scope="module")
def models(home: Path) -> dict[str, Path]:
    """A model of each task, and an ensemble of each."""
    found = {}
    for task in TASKS:
        data = open_cohort(home / "ours", task)
        found[task] = studies.train(data, home / task, **QUICK).out
        found[f"{task} folds"] = studies.train(
            data, home / f"{task}-folds", folds=2, keep_folds=True, **QUICK
        ).out
    return found


def evaluate(model: Path, cohort: Path, out: Path, **options: Any) -> dict[str, Any]:
    settings = studies.CohortOptions(drop_unlabelled=True)
    tested = studies.evaluate_cohort(
        model, cohort / "bags", cohort / "labels.csv", out, options=settings, **options
    )
    assert tested.failed == {}
    return dict(tested.metrics)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("folds", [False, True], ids=["split", "folds"])
def test_the_page_of_every_task_has_its_plots_and_the_change_with_an_interval(
    models: dict[str, Path], home: Path, tmp_path: Path, task: str, folds: bool
) -> None:
    page = evaluate(models[f"{task} folds" if folds else task], home / "theirs", tmp_path)
    source = "the cross-validation with 2 folds" if folds else "the internal test split"
    assert page["internal"]["source"] == source
    own, inside = (page[key]["slide"][MAIN[task]] for key in ("metrics", "internal"))
    change = page["change"]["slide"][MAIN[task]]
    assert change["value"] == pytest.approx(own["value"] - inside["value"], abs=2e-6)
    assert change["low"] < change["value"] < change["high"]
    text = (tmp_path / "report.html").read_text()
    assert "the change is" in text
    assert [part for part in PARTS[task] if part not in text] == []
    if task == "survival":  # at the same times, or the change would be that of another quantity
        assert {name for name in page["change"]["slide"] if name.startswith("auc@")}


@pytest.mark.slow
def test_patients_are_divided_at_the_cut_off_of_the_training(
    models: dict[str, Path], home: Path, tmp_path: Path
) -> None:
    from scmil.stats.survival import log_rank

    page = evaluate(models["survival"], home / "theirs", tmp_path)
    cut_off = json.loads((models["survival"] / "study.json").read_text())["cut_off"]
    rows = rows_of(tmp_path / "predictions.csv")
    high = [float(row["p_risk"]) > cut_off for row in rows]
    assert [row["y_pred"] == "high risk" for row in rows] == high
    times, events = ([float(row[f"y_os_{name}"]) for row in rows] for name in ("months", "event"))
    expected = log_rank(times, events, high).p_value
    assert page["metrics"]["slide"]["log_rank_p"] == pytest.approx(expected, abs=1e-6)


def run_test(model: Path, cohort: Path, out: Path, *words: str, code: int) -> str:
    """`scmil test` from the command line; its messages as one line."""
    command = ["test", model, cohort / "bags", cohort / "labels.csv", "--out", out]
    return " ".join(scmil(*command, "--drop-unlabelled", *words, code=code).stderr.split())


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_the_slides_of_the_training_are_found_under_other_names(
    models: dict[str, Path], tmp_path: Path, task: str
) -> None:
    leak = rename_cohort(target_cohort(tmp_path / "leak", count=40), "x")
    message = run_test(models[task], leak, tmp_path / "out", code=1)
    assert "slides of this cohort were used to train the model" in message
    assert "--exclude-overlap" in message
    split = json.loads((models[task] / "study.json").read_text())["split"]
    assert f"x{split['train'][0]}" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_the_patients_of_the_training_are_found_among_other_slides(
    models: dict[str, Path], tmp_path: Path, task: str
) -> None:
    split = json.loads((models[task] / "study.json").read_text())["split"]
    known = int(split["train"][0].removeprefix("s"))
    cohort = rename_cohort(target_cohort(tmp_path / "other", count=40, seed=5), "t")
    table = (cohort / "labels.csv").read_text()
    (cohort / "labels.csv").write_text(table.replace("\ntp3,", f"\np{known},"))
    message = run_test(models[task], cohort, tmp_path / "out", code=1)
    assert "1 of " in message
    assert "ts03" in message
    assert "same patient id" in message
    if task == "survival":
        message = run_test(models[task], cohort, tmp_path / "out", "--exclude-overlap", code=0)
        assert "1 slides were used to train the model; they were left out" in message


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_an_ensemble_predicts_the_mean_and_the_spread_of_its_models(
    models: dict[str, Path], home: Path, tmp_path: Path, task: str
) -> None:
    folder = models[f"{task} folds"]
    bags = studies.open_bags_to_predict([home / "theirs" / "bags"])
    predicted = studies.predict_folder(folder, bags, tmp_path / "p.csv")
    assert predicted.models == 2
    predictor = predictor_of(folder, *load_trained_model(folder))
    alone = []
    for member in predictor.members:
        if task == "survival":  # on the bins of the model of all slides
            from scmil.models.survival_bins import bin_ends, survival_at
            from scmil.training.fitting import predict

            own, common = member.model.objective, predictor.objective
            assert isinstance(own, SurvivalObjective)
            assert isinstance(common, SurvivalObjective)
            curves = predict(member.model, list(bags)).double().numpy()
            alone.append(-survival_at(own.edges, curves, bin_ends(common.edges)).sum(1)[:, None])
        else:
            from scmil.training.fitting import predict

            alone.append(predict(member.model, list(bags)).double().numpy())
    names = predictor.study["classes"]
    for column, values in zip(names, np.stack(alone).transpose(2, 0, 1), strict=True):
        rows = predicted.rows
        mean, sd = ([float(row[f"{kind}_{column}"]) for row in rows] for kind in ("p", "sd"))
        assert mean == pytest.approx(values.mean(0).tolist(), rel=1e-4, abs=1e-5)
        assert sd == pytest.approx(values.std(0, ddof=1).tolist(), rel=1e-3, abs=1e-5)
        assert max(sd) > 0
    page = evaluate(folder, home / "theirs", tmp_path / "out")
    assert page["model"]["ensemble"] == 2
    tested = rows_of(tmp_path / "out" / "predictions.csv")
    assert [row[f"p_{names[0]}"] for row in tested] == [
        row[f"p_{names[0]}"]
        for row in rows_of(tmp_path / "p.csv")
        if row["slide_id"] in {own["slide_id"] for own in tested}
    ]


@pytest.mark.slow
def test_the_cut_off_of_an_ensemble_is_the_median_of_its_own_risks(
    models: dict[str, Path], home: Path
) -> None:
    folder = models["survival folds"]
    bags = studies.open_bags_to_predict([home / "ours" / "bags"])
    rows = studies.predict_folder(folder, bags).rows
    high = [row["y_pred"] == "high risk" for row in rows]
    assert sum(high) == len(high) // 2


@pytest.mark.slow
def test_an_ensemble_of_cox_models_is_centred_at_their_training_slides(
    home: Path, tmp_path: Path
) -> None:
    data = open_cohort(home / "ours", "survival")
    trained = studies.train(data, tmp_path / "cox", folds=2, keep_folds=True, loss="cox", **QUICK)
    predictor = predictor_of(tmp_path / "cox", *load_trained_model(tmp_path / "cox"))
    assert isinstance(predictor.objective, CoxObjective)
    assert len({member.centre for member in predictor.members}) == 2
    page = evaluate(tmp_path / "cox", home / "theirs", tmp_path / "out")
    assert page["metrics"]["survival_calibration"]["groups"] == []
    assert "without a baseline" in (tmp_path / "out" / "report.html").read_text()
    study = json.loads((trained.out / "study.json").read_text())
    del study["ensemble"]["cut_off"]
    (trained.out / "study.json").write_text(json.dumps(study))
    with pytest.raises(ModelFileError, match="the ensemble is incomplete or wrong"):
        evaluate(tmp_path / "cox", home / "theirs", tmp_path / "again")


@pytest.mark.slow
def test_a_cohort_without_events_is_rejected_before_anything_is_written(
    models: dict[str, Path], home: Path, tmp_path: Path
) -> None:
    cohort = rename_cohort(target_cohort(tmp_path / "censored", count=12, seed=3), "t")
    head, *rows = (cohort / "labels.csv").read_text().splitlines()
    cells = [row.split(",") for row in rows]
    rows = [",".join([*row[:3], "0", *row[4:]]) for row in cells]
    (cohort / "labels.csv").write_text("\n".join([head, *rows]))
    with pytest.raises(DataError, match="no-events: all 12 times are censored"):
        evaluate(models["survival"], cohort, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_columns_with_other_names_are_named(
    models: dict[str, Path], home: Path, tmp_path: Path
) -> None:
    cohort = tmp_path / "renamed"
    cohort.mkdir()
    head, *rows = (home / "theirs/labels.csv").read_text().splitlines()
    for old, new in {"os_months": "fu", "os_event": "status", "tp53,msi": "gene,micro"}.items():
        head = head.replace(old, new)
    cells = [row.split(",") for row in rows]
    rows = [",".join([*row[:3], str(int(row[3]) + 1), *row[4:]]) for row in cells]
    (cohort / "labels.csv").write_text("\n".join([head, *rows]))
    (cohort / "bags").symlink_to(home / "theirs/bags")
    named = ["--time", "fu", "--event", "status", "--event-value", "2"]
    run_test(models["survival"], cohort, tmp_path / "a", *named, code=0)
    run_test(models["multilabel"], cohort, tmp_path / "b", "--label", "gene,micro", code=0)
    for task, out in (("survival", "a"), ("multilabel", "b")):
        page = evaluate(models[task], home / "theirs", tmp_path / f"{out}2")
        again = json.loads((tmp_path / out / "metrics.json").read_text())
        assert again["metrics"] == page["metrics"]
    message = run_test(models["survival"], cohort, tmp_path / "c", code=1)
    assert "os_months" in message
    message = run_test(models["multilabel"], cohort, tmp_path / "c", "--label", "gene", code=1)
    assert "names 1 columns, and the model predicts 2 labels: tp53, msi" in message
    message = run_test(models["ordinal"], cohort, tmp_path / "c", "--time", "fu", code=1)
    assert "--time is for the task 'survival', and the model predicts the task 'ordinal'" in message


@pytest.mark.slow
@pytest.mark.parametrize("task", [None, "regression"])
def test_a_model_of_joined_patients_is_tested_on_joined_patients(
    tmp_path: Path, task: str | None
) -> None:
    for name, prefix, seed in (("ours", "", 0), ("theirs", "t", 1)):
        cohort = rename_cohort(target_cohort(tmp_path / name, count=40, seed=seed), prefix)
        head, *rows = (cohort / "labels.csv").read_text().splitlines()
        cells = [row.split(",") for row in rows]
        for i in range(1, 40, 2):  # the second slide of a patient has the values of the first
            cells[i] = [cells[i - 1][0], cells[i][1], *cells[i - 1][2:]]
        (cohort / "labels.csv").write_text("\n".join([head, *map(",".join, cells)]))
    data = studies.open_data(
        tmp_path / "ours/bags",
        tmp_path / "ours/labels.csv",
        label="age" if task else "label",
        task=TaskOptions(task) if task else None,
        patient="joined",
    )
    studies.train(data, tmp_path / "model", **QUICK)
    bags, labels = tmp_path / "theirs/bags", tmp_path / "theirs/labels.csv"
    options = studies.CohortOptions(label=None if task else "label")
    tested = studies.evaluate_cohort(
        tmp_path / "model", bags, labels, tmp_path / "out", options=options
    )
    assert tested.metrics["metrics"]["slide"]["n"] == 20
    assert rows_of(tmp_path / "out/predictions.csv")[0]["slide_id"] == "tp0"
    assert "where slides are counted, these are patients" in tested.notes[-1]
    with pytest.raises(DataError, match="were used to train the model"):
        studies.evaluate_cohort(
            tmp_path / "model",
            tmp_path / "ours/bags",
            tmp_path / "ours/labels.csv",
            tmp_path / "leak",
            options=options,
        )


def test_several_slides_of_a_patient_are_one_patient_of_a_survival_test() -> None:
    from scmil.bags.targets import SurvivalTarget

    ids = tuple(f"s{i}" for i in range(8))
    values = tuple((float(1 + i // 2), i < 6) for i in range(8))
    targets = Targets(SurvivalTarget(), ids, values, tuple(f"p{i // 2}" for i in range(8)))
    outputs = np.array([[0.1 + 0.1 * (i // 2), 0.05] for i in range(8)])
    page = score_targets(SurvivalObjective((2.0,)), targets, ids, outputs, cut_off=-0.3)
    assert "slide" not in page
    assert (page["patient"]["n"], page["patient"]["patients"]) == (4, 4)
    assert page["patient"]["c_index"]["value"] == 1.0
    assert sum(group["patients"] for group in page["survival_calibration"]["groups"]) == 4


def test_predictions_that_are_too_extreme_have_a_slope_below_one() -> None:
    random = np.random.default_rng(0)
    ids = tuple(f"s{i}" for i in range(60))
    truth = random.normal(size=60)
    targets = Targets(NumberTarget("age"), ids, tuple(truth.tolist()), (None,) * 60)
    outputs = (3 * truth + 1 + random.normal(size=60) / 10)[:, None]
    found = score_targets(RegressionObjective(0.0, 1.0), targets, ids, outputs)
    calibration = found["number_calibration"]
    assert calibration["slope"]["value"] == pytest.approx(1 / 3, abs=0.01)
    assert calibration["slope"]["high"] < 0.4
    assert calibration["intercept"]["value"] == pytest.approx(
        float((truth - outputs[:, 0]).mean()), abs=1e-5
    )


def test_the_internal_estimate_of_survival_with_several_slides_is_by_patient() -> None:
    row: dict[str, Any] = {"folds": 2, "repeats": 3, "bags": 8, "patients": 4, "events": 3}
    row |= {"c_index": 0.7, "c_index_low": 0.6, "c_index_high": 0.8, "c_index_sd_folds": 0.1}
    found = internal_targets({"cross_validation": [row]})
    assert found == {
        "source": "the cross-validation with 2 folds (mean of 3 repeats)",
        "patient": {
            "n": 4,
            "patients": 4,
            "c_index": {"value": 0.7, "low": 0.6, "high": 0.8},
        },
    }
    assert internal_targets({"valid": {"slide": {}}}) is None
