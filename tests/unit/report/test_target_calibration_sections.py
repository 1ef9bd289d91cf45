"""Calibration and conformal sections on the pages of grades, labels and numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scmil.core.tables import records_csv
from scmil.report.run_files import ResultTable
from scmil.report.target_calibration import target_calibration_sections

STUDIES: dict[str, dict[str, Any]] = {
    "regression": {"classes": ["age"], "target": {"name": "age"}},
    "ordinal": {"classes": ["1", "2", "3"], "target": {"name": "grade"}},
    "multilabel": {"classes": ["tp53", "msi"], "target": {"names": ["tp53", "msi"]}},
    "survival": {"classes": ["risk"], "target": {"time": "os", "event": "dead"}},
}


def write_predictions(folder: Path, task: str, valid: int = 30, test: int = 60) -> ResultTable:
    random = np.random.default_rng(0)
    rows = []
    for i in range(valid + test):
        part = "valid" if i < valid else "test"
        row: dict[str, object] = {"slide_id": f"s{i}", "case_id": f"p{i}", "part": part}
        truth = float(random.normal())
        if task == "ordinal":
            p = random.dirichlet((2, 2, 2))
            grade = 1 + int(random.choice(3, p=p))
            row |= {"y_grade": grade, "y_pred": 1 + int(p.argmax())}
            row |= {f"p_{1 + k}": value for k, value in enumerate(p.tolist())}
        elif task == "multilabel":
            p = 1 / (1 + np.exp(-truth))
            row |= {"y_tp53": int(random.random() < p), "y_msi": "" if i % 5 else 1, "y_pred": ""}
            row |= {"p_tp53": p, "p_msi": 0.5}
        else:
            row |= {"y_age": truth, "y_pred": truth, "p_age": truth + float(random.normal())}
        rows.append(row)
    path = folder / "predictions.csv"
    path.write_bytes(records_csv(rows))
    return ResultTable(path, ["slide_id", "case_id", "part", "y_pred"])


def sections(folder: Path, task: str, **sizes: int) -> dict[str, str]:
    study = {"task": task, **STUDIES[task]}
    found = target_calibration_sections(study, write_predictions(folder, task, **sizes))
    return {title: str(body) for title, body in found.items() if body}


def test_grades_have_a_reliability_diagram_and_prediction_sets(tmp_path: Path) -> None:
    found = sections(tmp_path, "ordinal")
    assert set(found) == {"Calibration", "Prediction sets"}
    assert "<svg" in found["Calibration"]
    assert "coverage" in found["Prediction sets"]


def test_each_label_with_both_values_has_its_sections(tmp_path: Path) -> None:
    found = sections(tmp_path, "multilabel")
    assert set(found) == {"Calibration", "Decision curve", "Prediction sets"}
    for body in found.values():
        assert "<h3>tp53</h3>" in body
        assert "<h3>msi</h3>" not in body  # it is present in all slides that have it


def test_numbers_have_intervals_with_their_coverage(tmp_path: Path) -> None:
    found = sections(tmp_path, "regression")
    assert "slope" in found["Calibration"]
    assert "plus and minus" in found["Prediction intervals"]
    few = sections(tmp_path, "regression", valid=8)
    assert "fewer than 9 validation patients" in few["Prediction intervals"]


@pytest.mark.parametrize("task", STUDIES)
def test_without_a_test_split_there_are_no_sections(tmp_path: Path, task: str) -> None:
    assert sections(tmp_path, task, test=0) == {}


def test_survival_has_none(tmp_path: Path) -> None:
    assert sections(tmp_path, "survival") == {}
