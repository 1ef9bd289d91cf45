"""A model of several targets on another cohort: each target by the slides that have it, its change,
its sections; and the ensemble of such models.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from target_cases import cohort_with_holes, read_table, rename_cohort, write_table

from scmil import studies
from scmil.bags.targets import CombinedTarget, GradeTarget, NumberTarget, SurvivalTarget, Targets
from scmil.errors import DataError, ModelFileError, OptionError
from scmil.models.combined_objective import CombinedObjective
from scmil.models.objectives import OrdinalObjective, RegressionObjective, SurvivalObjective
from scmil.models.survival_bins import bin_ends, survival_at
from scmil.stats.concordance import concordance
from scmil.stats.metrics import score_all
from scmil.stats.ordinal import quadratic_kappa
from scmil.studies.ensemble import predictor_of
from scmil.studies.external_parts import find_unscored, internal_parts, score_parts
from scmil.studies.predict import load_trained_model
from scmil.studies.settings import TaskOptions
from scmil.training.fitting import predict

MODELS = ("model", "ensemble")
TASK = "ordinal,regression,multilabel,class,survival"
COLUMNS = "grade,age,tp53,label"
NAMES = ["grade", "age", "labels", "label", "survival"]
MAIN = {"grade": "kappa", "age": "r2", "labels": "macro: auc", "label": "auc"}
MAIN["survival"] = "c_index"
QUICK: dict[str, Any] = {"aggregator": "mean", "recipe": "paper", "epochs": 4}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`ours` with `model` and `ensemble`, and `theirs` with other slides and patients."""
    folder = tmp_path_factory.mktemp("hospitals")
    cohort_with_holes(folder / "ours")
    rename_cohort(cohort_with_holes(folder / "theirs", seed=1), "t")
    data = open_ours(folder)
    studies.train(data, folder / "model", **QUICK)
    studies.train(data, folder / "ensemble", folds=2, keep_folds=True, **QUICK)
    return folder


def open_ours(home: Path, **options: Any) -> studies.Data:
    table = home / "ours" / "labels.csv"
    task = TaskOptions(TASK)
    return studies.open_data(home / "ours/bags", table, label=COLUMNS, task=task, **options)


def evaluate(
    home: Path,
    out: Path,
    rows: list[dict[str, str]] | None = None,
    *,
    model: str = "model",
    **options: str,
) -> studies.Evaluated:
    """Test a model on `theirs`, with other rows of its table if they are given."""
    table = home / "theirs" / "labels.csv"
    if rows is not None:
        table = out.with_suffix(".csv")
        write_table(table, rows)
    settings = studies.CohortOptions(**options)  # type: ignore[arg-type]
    return studies.evaluate_cohort(home / model, home / "theirs/bags", table, out, options=settings)


@pytest.fixture(scope="module")
def tests(home: Path) -> dict[str, studies.Evaluated]:
    """The tests of both models on `theirs`."""
    return {name: evaluate(home, home / f"test-{name}", model=name) for name in MODELS}


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_each_target_is_tested_on_the_slides_that_have_it(
    tests: dict[str, studies.Evaluated], model: str
) -> None:
    page = tests[model].metrics
    assert list(page["metrics"]) == NAMES
    rows = read_table(tests[model].out / "predictions.csv")
    assert len(rows) == 48
    graded = [row for row in rows if row["y_grade"]]
    observed, predicted = ([int(row[n]) for row in graded] for n in ("y_grade", "pred_grade"))
    found = {name: page["metrics"][name]["slide"] for name in NAMES}
    expected = quadratic_kappa(observed, predicted, 4)
    assert found["grade"]["kappa"]["value"] == pytest.approx(expected, abs=1e-6)
    followed = [row for row in rows if row["y_os_event"]]
    columns = ("y_os_months", "y_os_event", "p_risk")
    values = [np.array([float(row[name]) for row in followed]) for name in columns]
    expected = concordance(*values)
    assert found["survival"]["c_index"]["value"] == pytest.approx(expected, abs=1e-6)
    named = [row for row in rows if row["y_label"]]
    p = np.array(
        [[float(row[f"p_label={name}"]) for name in ("normal", "tumour")] for row in named]
    )
    scores = score_all(np.array([row["y_label"] == "tumour" for row in named]).astype(int), p)
    assert found["label"]["auc"]["value"] == pytest.approx(scores["auc"], abs=1e-6)
    assert {name: own["n"] for name, own in found.items()} == {
        **dict.fromkeys(("grade", "age", "survival"), 32),
        "labels": 44,
        "label": 36,
    }


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_the_change_of_each_target_is_against_its_own_internal_estimate(
    home: Path, tests: dict[str, studies.Evaluated], model: str
) -> None:
    page = tests[model].metrics
    metrics = json.loads((home / model / "metrics.json").read_text())
    known = metrics["known"]["test"] if model == "model" else {"grade": 32, "labels": 44}
    for name, metric in MAIN.items():
        inside = page["internal"][name]["slide"]
        kept = (
            metrics["test"]["slide"][f"{name}: {metric}"]["value"]
            if model == "model"
            else metrics["cross_validation"][-1][f"{name}: {metric}"]
        )
        assert inside[metric]["value"] == pytest.approx(kept, abs=1e-6)
        assert inside["n"] == known.get(name, inside["n"])
        change = page["change"][name]["slide"][metric]
        own = page["metrics"][name]["slide"][metric]
        assert change["value"] == pytest.approx(own["value"] - kept, abs=2e-6)
    # At the same times, or the change would be that of another quantity.
    assert {name for name in page["change"]["survival"]["slide"] if name.startswith("auc@")}


@pytest.mark.slow
def test_the_page_has_the_sections_of_each_target(
    home: Path, tests: dict[str, studies.Evaluated]
) -> None:
    text = (tests["model"].out / "report.html").read_text()
    headings = re.findall("<h2>(.*?)</h2>", text)
    assert headings[0] == "Targets"
    for name in NAMES:
        assert f"{name}: metrics" in headings
    assert {
        "grade: confusion matrix",
        "grade: ROC curve and calibration",
        "age: predicted against observed",
        "labels: each label",
        "label: confusion matrix",
        "label: ROC curve and calibration",
        "survival: survival by risk",
        "survival: calibration of survival",
        "Case mix",
        "Overlap with the training",
        "Predictions",
    } <= {*headings}
    for words in ("2 or higher", "Reliability of tumour", "Reliability of tp53", "Log-rank test"):
        assert words in text
    assert text.count("the change is") == len(NAMES)
    mix = {row["property"]: row for row in tests["model"].metrics["case_mix"]}
    assert mix["grade: slides with a value"]["cohort"] == "32"
    trained = read_table(home / "model" / "predictions.csv")
    graded = [row for row in trained if row["part"] == "train" and row["y_grade"]]
    assert mix["grade: slides with a value"]["training"] == str(len(graded))
    assert mix["label: class tumour"]["cohort"].endswith("%)")


@pytest.mark.slow
def test_columns_with_other_names_and_classes_that_are_missing(home: Path, tmp_path: Path) -> None:
    rows = read_table(home / "theirs" / "labels.csv")
    for row in rows:
        row["label"] = "" if row["label"] == "normal" else row["label"]
        row["grade"] = "" if row["grade"] in ("0", "3") else row["grade"]
    usual = evaluate(home, tmp_path / "a", rows).metrics
    assert usual["metrics"]["label"]["confusion"][0] == [0, 0]
    assert sum(usual["metrics"]["label"]["confusion"][1]) == usual["metrics"]["label"]["slide"]["n"]
    assert [sum(row) > 0 for row in usual["metrics"]["grade"]["confusion"]] == [0, 1, 1, 0]
    new = {"grade": "isup", "label": "kind", "os_months": "fu", "os_event": "died"}
    renamed = [{new.get(name, name): cell for name, cell in row.items()} for row in rows]
    with pytest.raises(DataError, match="grade"):
        evaluate(home, tmp_path / "b", renamed)
    columns = {"label": "isup,age,tp53,kind", "time": "fu", "event": "died"}
    found = evaluate(home, tmp_path / "b", renamed, **columns).metrics
    assert found["metrics"] == usual["metrics"]
    with pytest.raises(OptionError, match="names 2 columns, and the model was trained with 4"):
        evaluate(home, tmp_path / "c", renamed, label="isup,age")
    rows[1]["label"] = "other"
    with pytest.raises(DataError, match="'other' is not among the classes normal, tumour"):
        evaluate(home, tmp_path / "c", rows)


@pytest.mark.slow
def test_a_target_that_the_cohort_does_not_have_is_noted(home: Path, tmp_path: Path) -> None:
    rows = read_table(home / "theirs" / "labels.csv")
    for row in rows:
        row["age"] = ""
        row["os_event"] = "0" if row["os_event"] else ""
    tested = evaluate(home, tmp_path / "a", rows)
    assert list(tested.metrics["metrics"]) == ["grade", "labels", "label"]
    notes = " ".join(tested.notes)
    assert "age: no slide of this cohort has a value, so this target is not tested." in notes
    assert "survival: not tested. no-events: all 32 times are censored." in notes
    text = (tmp_path / "a" / "report.html").read_text()
    assert "age: metrics" not in text
    assert "not tested" in text


@pytest.mark.slow
def test_the_slides_of_the_training_are_found_under_other_names(home: Path, tmp_path: Path) -> None:
    leak = rename_cohort(cohort_with_holes(tmp_path / "leak"), "x")
    with pytest.raises(DataError, match="slides of this cohort were used to train the model"):
        studies.evaluate_cohort(
            home / "model", leak / "bags", leak / "labels.csv", tmp_path / "out"
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_joined_patients_are_tested_with_the_values_that_any_slide_has(tmp_path: Path) -> None:
    for name, prefix, seed in (("ours", "", 0), ("theirs", "t", 1)):
        cohort = rename_cohort(cohort_with_holes(tmp_path / name, seed), prefix)
        rows = read_table(cohort / "labels.csv")
        for first, second in zip(rows[::2], rows[1::2], strict=True):
            for column in {*first} - {"slide_id", "age"}:
                second[column] = first[column]
            second["age"], first["age"] = first["age"] or "60", ""
        write_table(cohort / "labels.csv", rows)
    studies.train(open_ours(tmp_path, patient="joined"), tmp_path / "model", **QUICK)
    tested = evaluate(tmp_path, tmp_path / "out")
    assert tested.metrics["metrics"]["age"]["slide"]["n"] == 24  # known of the second slides
    assert read_table(tmp_path / "out" / "predictions.csv")[0]["slide_id"] == "tp0"
    assert "where slides are counted, these are patients" in " ".join(tested.notes)


@pytest.mark.slow
def test_an_ensemble_predicts_the_mean_and_the_spread_of_all_targets(home: Path) -> None:
    bags = studies.open_bags_to_predict([home / "theirs" / "bags"])
    predicted = studies.predict_folder(home / "ensemble", bags)
    assert predicted.models == 2
    predictor = predictor_of(home / "ensemble", *load_trained_model(home / "ensemble"))
    alone = []
    for member in predictor.members:
        own, common = member.model.objective, predictor.objective
        assert isinstance(own, CombinedObjective)
        assert isinstance(common, CombinedObjective)
        outputs = predict(member.model, list(bags)).double().numpy()
        times, ends = own.parts[-1], common.parts[-1]
        assert isinstance(times, SurvivalObjective)
        assert isinstance(ends, SurvivalObjective)
        width = times.numbers
        curves = survival_at(times.edges, outputs[:, -width:], bin_ends(ends.edges))
        alone.append(np.column_stack([outputs[:, :-width], -curves.sum(1)]))
    values = np.stack(alone).transpose(2, 0, 1)
    for name, column in zip(predictor.study["classes"], values, strict=True):
        mean, sd = (
            [float(row[f"{kind}_{name}"]) for row in predicted.rows] for kind in ("p", "sd")
        )
        assert mean == pytest.approx(column.mean(0).tolist(), rel=1e-4, abs=1e-5)
        assert sd == pytest.approx(column.std(0, ddof=1).tolist(), rel=1e-3, abs=1e-5)
        assert max(sd) > 0


@pytest.mark.slow
def test_the_cut_off_of_an_ensemble_is_the_median_of_its_own_risks(home: Path) -> None:
    bags = studies.open_bags_to_predict([home / "ours" / "bags"])
    rows = studies.predict_folder(home / "ensemble", bags).rows
    assert sum(row["pred_survival"] == "high risk" for row in rows) == 24


@pytest.mark.slow
def test_a_model_of_other_targets_is_no_model_of_the_ensemble(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "ensemble", tmp_path / "copy")
    path = tmp_path / "copy" / "ensemble" / "fold_1" / "model.json"
    page = json.loads(path.read_text())
    parts = page["model"]["output"]["parts"]
    parts[0], parts[1] = parts[1], parts[0]
    page["model"]["output"]["parts"] = parts
    path.write_text(json.dumps(page))
    with pytest.raises(ModelFileError, match="the ensemble is incomplete or wrong"):
        predictor_of(tmp_path / "copy", *load_trained_model(tmp_path / "copy"))


BOTH = CombinedTarget((NumberTarget("age"), GradeTarget("isup", ("1", "2"))))


def test_a_target_of_one_slide_has_values_without_intervals() -> None:
    targets = Targets(BOTH, ("a", "b"), ((61.0, None), (None, 1)), (None, None))
    objective = CombinedObjective((RegressionObjective(60.0, 1.0), OrdinalObjective(2)), (1.0, 1.0))
    outputs = np.array([[60.0, 0.4, 0.6], [62.0, 0.4, 0.6]])
    found = score_parts(objective, targets, ["a", "b"], outputs)
    assert found.metrics["age"]["slide"]["mae"] == {"value": 1.0, "low": None, "high": None}
    assert found.metrics["isup"]["slide"]["accuracy"]["value"] == 1.0
    assert found.internal == {"age": None, "isup": None}


def test_a_cohort_without_any_testable_target_is_rejected() -> None:
    times = CombinedTarget((SurvivalTarget(), NumberTarget("age")))
    targets = Targets(times, ("a", "b"), (((3.0, False), None), ((4.0, False), None)), (None, None))
    with pytest.raises(DataError, match=r"no target can be tested.*all 2 times are censored.*age"):
        find_unscored(targets, ["a", "b"])


def test_the_internal_estimate_of_survival_is_that_of_patients(tmp_path: Path) -> None:
    target = CombinedTarget((SurvivalTarget(), NumberTarget("age")))
    value = {"value": 0.7, "low": 0.6, "high": 0.8}
    found = {"n": 4, "patients": 2, "survival: c_index": value, "age: r2": value}
    internal = {"source": "the internal test split", "slide": found}
    lines = ["case_id,part,y_time,y_event,y_age", "p,test,1,1,9", "p,test,1,1,", "q,test,2,0,"]
    (tmp_path / "predictions.csv").write_text("\n".join([*lines, "r,train,2,0,8"]))
    parts = internal_parts(tmp_path, target, internal)
    source = {"source": "the internal test split"}
    assert parts["survival"] == {**source, "patient": {"n": 2, "patients": 2, "c_index": value}}
    assert parts["age"] == {**source, "slide": {"n": 1, "patients": 1, "r2": value}}
    (tmp_path / "predictions.csv").unlink()  # as the documentation recommends for public models
    parts = internal_parts(tmp_path, target, internal)
    assert parts["age"] == {**source, "slide": {"n": None, "patients": None, "r2": value}}
    assert internal_parts(tmp_path, target, None) == {"survival": None, "age": None}
