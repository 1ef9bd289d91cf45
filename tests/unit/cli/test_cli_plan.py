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
