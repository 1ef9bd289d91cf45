"""The sections on probabilities have the numbers of independent computations."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from scmil.report.calibration_sections import calibration_sections
from scmil.report.run_files import ResultTable


def predictions(
    path: Path, classes: list[str], slides: int = 60, parts: tuple[str, ...] = ("test", "valid")
) -> tuple[ResultTable, np.ndarray, np.ndarray]:
    """Random predictions, half of each split; the labels and probabilities of the test split."""
    generator = np.random.default_rng(0)
    labels = np.arange(slides) // len(parts) % len(classes)
    p = generator.dirichlet(np.ones(len(classes)), size=slides)
    p = (p + 0.7 * np.eye(len(classes))[labels]) / 1.7
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        header = ["slide_id", "case_id", "part", "y_true", "y_pred"]
        writer.writerow([*header, *(f"p_{name}" for name in classes)])
        for i in range(slides):
            row = [
                f"s{i}",
                f"p{i}",
                parts[i % len(parts)],
                classes[labels[i]],
                classes[p[i].argmax()],
            ]
            writer.writerow([*row, *p[i]])
    test = np.arange(slides) % len(parts) == 0
    return ResultTable(path, ["part"]), labels[test], p[test]


def test_two_classes_have_all_sections(tmp_path: Path) -> None:
    table, labels, p = predictions(tmp_path / "p.csv", ["normal", "tumor"])
    sections = calibration_sections({"classes": ["normal", "tumor"], "temperature": 1.5}, table)
    assert set(sections) == {"Calibration", "Decision curve", "Prediction sets"}
    text = str(sections["Calibration"])
    brier = ((p[:, 1] - labels) ** 2).mean()
    assert f"The Brier score, {brier:.3f}, is the sum of" in text
    assert "temperature 1.5, which was fitted on the validation split" in text
    bins = np.minimum((p[:, 1] * 10).astype(int), 9)
    base = labels.mean()
    resolution = sum(
        (bins == b).mean() * (labels[bins == b].mean() - base) ** 2 for b in set(bins.tolist())
    )
    assert f"resolution {resolution:.3f}" in text
    assert "calibration slope" in text
    assert "act on everybody" in str(sections["Decision curve"])


def test_the_sets_are_calibrated_on_the_validation_split_and_tested_on_the_test_split(
    tmp_path: Path,
) -> None:
    table, labels, p = predictions(tmp_path / "p.csv", ["a", "b", "c"], slides=90)
    text = str(calibration_sections({"classes": ["a", "b", "c"]}, table)["Prediction sets"])
    valid = np.arange(90) % 2 == 1
    own = np.array(
        [float(table.columns[f"p_{table.columns['y_true'][i]}"][i]) for i in np.flatnonzero(valid)]
    )
    limit = np.sort(own)[int(0.1 * (len(own) + 1)) - 1]
    assert f"is at least {limit:.3f}" in text
    coverage = (p[np.arange(len(labels)), labels] >= limit).mean()
    assert f"{coverage:.3f}" in text
    assert "about 90 % of the sets" in text


def test_several_classes_have_no_decision_curve(tmp_path: Path) -> None:
    table, labels, p = predictions(tmp_path / "p.csv", ["a", "b", "c"])
    sections = calibration_sections({"classes": ["a", "b", "c"]}, table)
    assert sections["Decision curve"] is None
    text = str(sections["Calibration"])
    right = p.argmax(1) == labels
    assert f"The Brier score, {((p.max(1) - right) ** 2).mean():.3f}" in text
    assert "without temperature scaling" in text


def test_few_validation_patients_give_sets_of_all_classes(tmp_path: Path) -> None:
    table, _, _ = predictions(tmp_path / "p.csv", ["a", "b"], slides=12)
    text = str(calibration_sections({"classes": ["a", "b"]}, table)["Prediction sets"])
    assert "fewer than 9 validation patients" in text


@pytest.mark.parametrize("parts", [("valid", "train"), ("train",)])
def test_without_a_test_split_there_are_no_sections(tmp_path: Path, parts: tuple[str, ...]) -> None:
    table, _, _ = predictions(tmp_path / "p.csv", ["a", "b"], parts=parts)
    assert calibration_sections({"classes": ["a", "b"]}, table) == {}


def test_a_patient_of_two_classes_has_no_set(tmp_path: Path) -> None:
    table, _, _ = predictions(tmp_path / "p.csv", ["a", "b"])
    table.columns["case_id"] = ("same",) * table.length
    text = str(calibration_sections({"classes": ["a", "b"]}, table)["Prediction sets"])
    assert "No prediction sets: 1 patients have slides of different classes" in text
