"""`scmil plan` states what a cohort can show, from its label table only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import scmil

from scmil.stats.sample_size import expected_auc_interval


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    rows = [f"p{i},s{i},{'ab'[i % 4 == 0]}" for i in range(80)]
    path = tmp_path / "labels.csv"
    path.write_text("\n".join(["case_id,slide_id,label", *rows]))
    return path


def test_the_plan_has_the_interval_of_a_test_split_and_of_folds(labels: Path) -> None:
    page = json.loads(scmil("plan", labels, "--auc", 0.8, "--test", 0.25, "--json").stdout)
    assert (page["task"], page["counts"], page["patients"]) == ("class", {"a": 60, "b": 20}, 80)
    split, folds = page["expected"]
    assert (split["tested"], folds["tested"]) == ({"a": 15, "b": 5}, {"a": 60, "b": 20})
    assert split["low"] == pytest.approx(expected_auc_interval(0.8, [15, 5]).low, abs=1e-4)
    assert split["needed"] > folds["needed"] > 80
    assert "normal scores" in page["assumptions"][0]


def test_the_text_has_several_assumed_values_and_states_the_assumptions(labels: Path) -> None:
    text = scmil("plan", labels).stdout
    assert "80 patients, 80 slides: a 60, b 20" in text
    assert all(f"\n {value} " in text for value in ("0.6", "0.7", "0.8", "0.9", "0.95"))
    assert "Patients are independent" in text


def test_survival_columns_give_the_concordance(tmp_path: Path) -> None:
    rows = [f"p{i},s{i},{i + 1},{i % 2}" for i in range(40)]
    path = tmp_path / "surv.csv"
    path.write_text("\n".join(["case_id,slide_id,os_time,os_event", *rows]))
    page = json.loads(scmil("plan", path, "--c-index", 0.7, "--json").stdout)
    assert page["counts"] == {"events": 20, "censored": 20}
    assert page["expected"][1]["low"] < 0.6
    assert "time column: 'os_time' (inferred)." in page["notes"]
    error = scmil("plan", path, "--auc", 0.7, code=1).stderr
    assert "the table is read as the task 'survival'. Use --c-index" in error


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Numbers, grades and two labels, one of them rare."""
    rows = [f"p{i},s{i},{40 + i},{i % 3},{i % 2},{int(i < 3)}" for i in range(60)]
    path = tmp_path / "tasks.csv"
    path.write_text("\n".join(["case_id,slide_id,age,grade,tp53,rare", *rows]))
    return path


def test_a_number_gives_the_correlation(tasks: Path) -> None:
    words = ["plan", tasks, "--task", "regression", "--label", "age", "--correlation", 0.6]
    page = json.loads(scmil(*words, "--json").stdout)
    assert (page["task"], page["counts"]) == ("regression", {"patients": 60})
    assert page["expected"][1]["low"] == pytest.approx(0.408, abs=0.001)
    text = scmil(*words).stdout
    assert "task: regression\n60 patients, 60 slides\n" in text
    assert "assumed correlation" in text
    assert "Use --correlation" in scmil(*words[:6], "--auc", 0.8, code=1).stderr


def test_grades_give_the_auc_and_the_reason(tasks: Path) -> None:
    text = scmil("plan", tasks, "--task", "ordinal", "--label", "grade", "--auc", 0.8).stdout
    assert "60 patients, 60 slides: 0 20, 1 20, 2 20" in text
    assert "kappa depends on the errors of the model" in " ".join(text.split())


def test_each_label_has_its_own_table_and_too_few_patients_are_a_note(tasks: Path) -> None:
    finished = scmil("plan", tasks, "--label", "tp53,rare", "--auc", 0.8)
    assert "tp53: absent 30, present 30" in finished.stdout
    assert "rare: folds = 5, with 3 patients of the rarest class" in finished.stderr
    page = json.loads(scmil("plan", tasks, "--label", "tp53,rare", "--folds", 3, "--json").stdout)
    assert {row["label"] for row in page["expected"]} == {"tp53", "rare"}
    error = scmil("plan", tasks, "--label", "rare,rare", code=1).stderr
    assert "rare" in error
