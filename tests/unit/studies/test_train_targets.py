"""Models of other tasks than classes: training, predictions, files, maps."""

from __future__ import annotations

import csv
import html
import json
from pathlib import Path

import numpy as np
import pytest
from target_cases import target_cohort

from scmil import studies
from scmil.core.run_format import PATIENT_MEANING
from scmil.errors import ModelFileError, OptionError
from scmil.stats.concordance import concordance
from scmil.studies.settings import TaskOptions
from scmil.studies.train_state import STARTED

pytestmark = pytest.mark.slow  # models are trained

LABEL = {"survival": None, "regression": "age", "ordinal": "grade", "multilabel": "tp53,msi"}
MAIN = {"survival": "c_index", "regression": "r2", "ordinal": "kappa", "multilabel": "macro: auc"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = target_cohort(tmp_path_factory.mktemp("targets"))
    for task in LABEL:
        studies.train(data_of(folder, task), folder / task, settings())
    return folder


def settings(**changes: object) -> studies.TrainSettings:
    options = {"aggregator": "mean", "recipe": "paper", "epochs": 6, "patience": None, **changes}
    return studies.TrainSettings(**options)


def data_of(folder: Path, task: str) -> studies.Data:
    bags, table = folder / "bags", folder / "labels.csv"
    return studies.open_data(
        bags, table, label=LABEL[task], task=TaskOptions(task), drop_unlabelled=True
    )


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("task", LABEL)
def test_the_folder_states_the_task_and_its_metrics(home: Path, task: str) -> None:
    study = json.loads((home / task / "study.json").read_text())
    metrics = json.loads((home / task / "metrics.json").read_text())
    assert (study["task"], study["target"]["task"], metrics["task"]) == (task,) * 3
    [found] = metrics["test"].values()
    assert found[MAIN[task]]["low"] <= found[MAIN[task]]["value"] <= found[MAIN[task]]["high"]
    assert len(study["split"]["test"]) == found["n"] == found["patients"]
    page, card = ((home / task / name).read_text() for name in ("report.html", "MODEL_CARD.md"))
    assert "Metrics" in page
    assert html.escape(metrics["intervals"], quote=True).partition(" ")[2] in page
    assert "A model of" in card


def test_metrics_are_those_of_the_written_predictions(home: Path) -> None:
    metrics = json.loads((home / "survival" / "metrics.json").read_text())
    tested = [r for r in rows_of(home / "survival" / "predictions.csv") if r["part"] == "test"]
    values = [[float(r[name]) for r in tested] for name in ("y_os_months", "y_os_event", "p_risk")]
    found = concordance(*map(np.array, values))
    assert found == pytest.approx(metrics["test"]["slide"]["c_index"]["value"], abs=1e-6)


@pytest.mark.parametrize("task", LABEL)
def test_the_model_predicts_its_test_bags_again(home: Path, task: str) -> None:
    kept = {r["slide_id"]: r for r in rows_of(home / task / "predictions.csv")}
    bags = studies.open_bags_to_predict([home / "bags"])
    predicted = studies.predict_folder(home / task, bags, home / f"{task}.csv")
    assert not predicted.failed
    assert len(predicted.rows) == len(bags)
    for row in predicted.rows:
        names = [name for name in row if name.startswith(("p_", "s_"))]
        old = kept.get(row["slide_id"], row)
        assert row["y_pred"] == old["y_pred"]
        assert [float(row[n]) for n in names] == pytest.approx(
            [float(old[n]) for n in names], abs=1e-5
        )


def test_the_cut_off_is_the_median_risk_of_the_training_split(home: Path) -> None:
    study = json.loads((home / "survival" / "study.json").read_text())
    rows = rows_of(home / "survival" / "predictions.csv")
    train = [float(row["p_risk"]) for row in rows if row["part"] == "train"]
    assert study["cut_off"] == pytest.approx(np.median(train), abs=1e-5)
    for row in rows:
        assert row["y_pred"] == ("high" if float(row["p_risk"]) > study["cut_off"] else "low") + (
            " risk"
        )


def test_bins_and_scales_come_from_the_training_split(home: Path, tmp_path: Path) -> None:
    study = json.loads((home / "regression" / "study.json").read_text())
    rows = rows_of(home / "regression" / "predictions.csv")
    train = [float(row["y_age"]) for row in rows if row["part"] == "train"]
    assert study["objective"]["mean"] == pytest.approx(np.mean(train), abs=1e-4)
    survival = json.loads((home / "survival" / "study.json").read_text())["objective"]
    rows = rows_of(home / "survival" / "predictions.csv")
    times = [
        float(r["y_os_months"]) for r in rows if r["part"] == "train" and float(r["y_os_event"])
    ]
    expected = np.quantile(times, [0.25, 0.5, 0.75])
    assert survival["edges"] == pytest.approx(expected.tolist(), abs=1e-3)


def test_a_repeated_command_keeps_the_model_and_other_values_are_rejected(
    home: Path, tmp_path: Path
) -> None:
    before = (home / "ordinal" / "model.safetensors").stat().st_mtime_ns
    studies.train(data_of(home, "ordinal"), home / "ordinal", settings())
    assert (home / "ordinal" / "model.safetensors").stat().st_mtime_ns == before
    other = data_of(target_cohort(tmp_path, seed=1), "ordinal")
    with pytest.raises(Exception, match="overwrite"):
        studies.train(other, home / "ordinal", settings())


@pytest.mark.parametrize("task", LABEL)
def test_tiles_are_scored_by_the_answers_of_the_task(home: Path, task: str) -> None:
    bags = studies.open_bags_to_predict([home / "bags"])[:2]
    scored = studies.score_folder(home / task, bags, home / task / "maps")
    assert not scored.failed
    scores = scored.scores[bags.ids[0]]
    study = json.loads((home / task / "study.json").read_text())
    assert list(scores.classes) == study["classes"]
    assert scores.of(f"probability:{study['classes'][0]}").shape == (20,)
    assert scores.evidence is not None
    assert np.abs(scores.evidence.errors).max() < 1e-4


def test_class_weights_and_losses_of_other_tasks_are_rejected(home: Path, tmp_path: Path) -> None:
    data = data_of(home, "survival")
    with pytest.raises(OptionError, match="class_weights need classes"):
        studies.train(data, tmp_path / "m", settings(class_weights="balanced"))
    with pytest.raises(OptionError, match=r"loss = 'huber' for the task 'survival'\. Known"):
        studies.train(data, tmp_path / "m", settings(loss="huber"))
    classes = studies.open_data(home / "bags", home / "labels.csv", label="label")
    with pytest.raises(OptionError, match="classes have one loss"):
        studies.train(classes, tmp_path / "m", settings(loss="cox"))


def test_cox_is_an_option(home: Path, tmp_path: Path) -> None:
    trained = studies.train(
        data_of(home, "survival"), tmp_path / "m", settings(loss="cox", epochs=2)
    )
    assert trained.study["objective"]["name"] == "cox"


def test_a_study_of_another_task_than_the_model_is_rejected(home: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(home / "regression", tmp_path / "m")
    study = json.loads((tmp_path / "m" / "study.json").read_text())
    other = json.loads((home / "survival" / "study.json").read_text())
    keys = ("task", "target", "classes")
    (tmp_path / "m" / "study.json").write_text(json.dumps(study | {k: other[k] for k in keys}))
    with pytest.raises(ModelFileError, match="the model is of the task 'regression', the study"):
        studies.load_trained_model(tmp_path / "m")


def test_the_slides_of_a_patient_can_be_joined(home: Path, tmp_path: Path) -> None:
    lines = (home / "labels.csv").read_text().splitlines()
    first = [line.replace(f"p{i},", f"p{i // 2},", 1) for i, line in enumerate(lines[1:])]
    same = [f"{a},{b.split(',')[1]},{a2}" for a, _, a2, b in
            ((*first[i - i % 2].split(",", 2), first[i]) for i in range(len(first)))]  # fmt: skip
    (tmp_path / "labels.csv").write_text("\n".join([lines[0], *same]) + "\n")
    for task in (None, TaskOptions("survival")):
        data = studies.open_data(
            home / "bags", tmp_path / "labels.csv", label="label", task=task, patient="joined"
        )
        assert data.settings.patient == "joined"
        assert data.bags.ids[:2] == ("p0", "p1")
        assert len(data.bags) == len(lines) // 2
        assert len(data.bags[0].features) == 40
    out = tmp_path / "m"
    trained = studies.train(data, out, settings(epochs=1))
    assert trained.study["settings"]["data"]["patient"] == "joined"


def test_an_unknown_patient_mode_is_rejected(home: Path) -> None:
    with pytest.raises(OptionError, match=r"patient = 'sum'\. Known: joined, mean, max"):
        studies.open_data(home / "bags", home / "labels.csv", label="label", patient="sum")


@pytest.mark.parametrize("patient", [None, "max", "joined"])
def test_the_page_states_how_slides_of_a_patient_are_used(
    home: Path, tmp_path: Path, patient: str | None
) -> None:
    data = studies.open_data(
        home / "bags", home / "labels.csv", label="label", patient=patient, task=None
    )
    studies.train(data, tmp_path / "m", settings(epochs=1))
    page = (tmp_path / "m" / "report.html").read_text()
    assert PATIENT_MEANING[patient] in page


def test_a_training_that_was_killed_before_its_page_is_finished(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "m"
    data = data_of(home, "regression")
    studies.train(data, out, settings(epochs=1))
    files = {path.name for path in out.iterdir()}
    (out / STARTED).write_text("{}")
    (out / "report.html").unlink()
    studies.train(data, out, settings(epochs=1))
    assert {path.name for path in out.iterdir()} == files
