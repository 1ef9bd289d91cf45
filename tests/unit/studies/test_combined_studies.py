"""Several targets at once, some missing: from the command line to predictions, reports and maps."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from target_cases import cohort_with_holes
from typer.testing import CliRunner

from scmil import studies
from scmil.cli import app
from scmil.errors import ConfigError
from scmil.report import comparisons_for_terminal, read_run, rows_for_terminal, write_report
from scmil.report.combined_run import CombinedRun
from scmil.stats.concordance import concordance
from scmil.stats.ordinal import quadratic_kappa
from scmil.studies.plan import make_plan

pytestmark = pytest.mark.slow  # models are trained

TASK = "ordinal,regression,multilabel,class,survival"
COLUMNS = "grade,age,tp53,label"
NAMES = ("grade", "age", "labels", "label", "survival")
MAIN = {"grade: kappa", "age: r2", "labels: macro: auc", "label: auc", "survival: c_index"}


def call(*words: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, f"{words}\n{result.output}\n{result.exception!r}"
    return " ".join((result.output + str(result.exception or "")).split())


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = cohort_with_holes(tmp_path_factory.mktemp("combined"))
    inputs = (folder / "bags", folder / "labels.csv", "--task", TASK, "--label", COLUMNS)
    output = call(
        *("train", *inputs, "--aggregator", "mean", "--recipe", "paper", "--epochs", "10"),
        *("--out", folder / "model"),
    )
    assert "grade: quadratic kappa" in output
    assert "grade: missing for 16 of 48 slides" in output
    printed = call(
        *("compare", *inputs, "--aggregator", "mean", "--folds", "2", "--epochs", "25"),
        *("--repeats", "1", "--jobs", "1", "--selection", "last", "--refine", "linear"),
        *("--out", folder / "run"),
    )
    assert "Target “grade”" in printed
    return folder


def test_all_targets_are_learned_from_one_model(home: Path) -> None:
    rows = {row["arm"]: row for row in rows_of(home / "run" / "results.csv")}
    chance = {"survival: c_index": 0.5, "labels: macro: auc": 0.5, "label: auc": 0.5}
    for name in MAIN:
        assert float(rows["mean"][f"{name}_low"]) > chance.get(name, 0.0), name


def test_the_folder_states_how_many_slides_have_each_target(home: Path) -> None:
    metrics = json.loads((home / "model" / "metrics.json").read_text())
    assert set(metrics["main"]) == MAIN
    [found] = metrics["test"].values()
    assert set(metrics["known"]["test"]) == set(NAMES)
    assert metrics["known"]["test"]["grade"] < found["n"]


def test_metrics_are_those_of_the_slides_that_have_a_value(home: Path) -> None:
    metrics = json.loads((home / "model" / "metrics.json").read_text())
    tested = [r for r in rows_of(home / "model" / "predictions.csv") if r["part"] == "test"]
    graded = [r for r in tested if r["y_grade"]]
    assert 0 < len(graded) < len(tested)
    observed, predicted = ([int(r[name]) for r in graded] for name in ("y_grade", "pred_grade"))
    expected = quadratic_kappa(observed, predicted, 4)
    found = metrics["test"]["slide"]
    assert found["grade: kappa"]["value"] == pytest.approx(expected, abs=1e-6)
    followed = [r for r in tested if r["y_os_event"]]
    columns = ("y_os_months", "y_os_event", "p_risk")
    values = [np.array([float(r[name]) for r in followed]) for name in columns]
    assert found["survival: c_index"]["value"] == pytest.approx(concordance(*values), abs=1e-6)


def test_predictions_and_maps_have_the_answers_of_all_targets(home: Path) -> None:
    call("predict", home / "model", home / "bags", "--out", home / "new.csv")
    kept = {r["slide_id"]: r for r in rows_of(home / "model" / "predictions.csv")}
    for row in rows_of(home / "new.csv"):
        for name in ("p_grade=3", "p_age", "p_tp53", "p_label=tumour", "p_risk"):
            assert float(row[name]) == pytest.approx(float(kept[row["slide_id"]][name]), rel=1e-4)
        assert row["y_pred"].startswith(f"grade: {row['pred_grade']}; age: {row['pred_age']}")
    bags = studies.open_bags_to_predict([home / "bags"])[:2]
    scored = studies.score_folder(home / "model", bags, home / "maps", evidence=True)
    scores = scored.scores[bags.ids[0]]
    assert scores.of("evidence:age").shape == (20,)
    assert scores.evidence is not None
    assert np.abs(scores.evidence.errors).max() < 1e-4


def test_the_page_of_the_model_has_a_plot_for_each_target(home: Path) -> None:
    page = (home / "model" / "report.html").read_text()
    assert re.findall("<h3>(.*?)</h3>", page)[:4] == ["grade", "age", "label", "survival"]
    assert "Several targets." in page
    card = (home / "model" / "MODEL_CARD.md").read_text()
    assert "several targets at once" in card
    assert "survival: C index" in card


def test_the_report_has_a_section_for_each_target(home: Path) -> None:
    run = read_run(home / "run")
    assert isinstance(run, CombinedRun)
    assert tuple(run.parts) == NAMES
    html, md, tex = (path.read_text() for path in write_report(home / "run"))
    headings = re.findall("<h2>(.*?)</h2>", html)
    for name in NAMES:
        assert f"{name}: results" in headings
        assert f"{name}: comparisons" in headings
        assert f"# Target “{name}”" in md
    assert html.count('class="verdict"') == 1 + len(NAMES)
    assert "survival: risk groups" in headings
    assert "age: predicted against observed" in headings
    assert tex.count(r"\begin{table}") == len(NAMES)
    assert len(rows_for_terminal(run)) == len(NAMES)
    table = comparisons_for_terminal(run)
    assert table is not None
    assert len(table.rows) == len(NAMES)
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_the_bags_of_a_target_are_those_with_its_value(home: Path) -> None:
    run = read_run(home / "run")
    assert isinstance(run, CombinedRun)
    for name, bags in (("grade", 32), ("age", 32), ("survival", 32), ("label", 36)):
        assert {result.bags for result in run.parts[name].results.values()} == {bags}
    assert "32 slides of 32 patients" in (home / "run" / "report.md").read_text()


def test_an_experiment_file_states_the_same_tasks(home: Path) -> None:
    data = {"dataset": "bags", "labels": "labels.csv", "task": TASK, "label": COLUMNS}
    document = {"data": data, "model": {"aggregator": "mean"}}
    [cell] = make_plan(document, "mine", folder=home).cells
    assert cell.settings.data.task == TASK
    wrong = {**document, "data": {**data, "task": "ordinal,regression"}}
    with pytest.raises(ConfigError, match="a column for each task"):
        make_plan(wrong, "mine", folder=home)


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (("--task", "ordinal,regression", "--label", "grade"), "a column for each task"),
        (("--task", TASK, "--label", COLUMNS, "--loss", "cox"), "loss = 'cox' for the task"),
        (("--task", TASK, "--label", COLUMNS, "--class-weights", "balanced"), "need classes"),
        (("--label", "grade,age"), "--task multilabel,regression"),
    ],
)
def test_options_that_do_not_fit_several_targets_are_rejected(
    home: Path, tmp_path: Path, options: tuple[str, ...], cause: str
) -> None:
    words = ("train", home / "bags", home / "labels.csv", *options, "--out", tmp_path / "m")
    assert cause in call(*words, code=1)
    assert not (tmp_path / "m" / "model.safetensors").exists()


def test_a_temperature_is_rejected_before_the_training(home: Path, tmp_path: Path) -> None:
    inputs = (home / "bags", home / "labels.csv", "--task", TASK, "--label", COLUMNS)
    output = call("train", *inputs, "--calibrate", "--out", tmp_path / "model", code=1)
    assert "--calibrate is not available for several targets" in output
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("folder", ["model", "run"])
def test_subgroups_are_compared_for_each_target(home: Path, tmp_path: Path, folder: str) -> None:
    rows = rows_of(home / "labels.csv")
    table = tmp_path / "sites.csv"
    lines = [f"{row['slide_id']},{'ab'[i % 2]}" for i, row in enumerate(rows)]
    table.write_text("\n".join(["slide_id,site", *lines]))
    words: tuple[str | Path, ...] = (home / folder, table, "--by", "site", "--out", tmp_path)
    words += () if folder == "model" else ("--method", "mean")
    found = json.loads(call("subgroups", *words, "--json"))
    assert found["task"] == "combined"
    main = {"grade": "kappa", "age": "r2", "labels": "macro: auc", "survival": "c_index"}
    slides = {}
    for name, metric in {**main, "label": "auc"}.items():
        own = [row for row in found["groups"] if row["column"] == f"{name}: site"]
        assert metric in {row["metric"] for row in own}, name
        slides[name] = sum(row["slides"] for row in own if row["metric"] == metric)
    page = (tmp_path / "subgroups.html").read_text()
    if folder == "run":
        holes = {"age": 32, "grade": 32, "survival": 32, "label": 36, "labels": 44}
        assert slides == holes
        assert "grade: site" in {gap["column"] for gap in found["gaps"]}
        assert "survival: between patients with an event" in page
        smallest = min(found["gaps"], key=lambda gap: gap["p"])  # adjusted for all targets
        expected = min(1.0, smallest["p"] * len(found["gaps"]))
        assert smallest["adjusted"] == pytest.approx(expected, abs=1e-6)
    else:
        known = json.loads((home / "model" / "metrics.json").read_text())["known"]["test"]
        assert slides == known
    assert "<h3>grade: site</h3>" in page
    assert "grade: site a" in call("subgroups", *words)
