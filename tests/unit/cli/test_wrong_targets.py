"""Values that nothing can be learned from are rejected before training, with what to do."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from target_cases import TASKS, target_cohort
from typer.testing import CliRunner

from scmil.cli import app

CLASS = ["--label", "label"]


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return target_cohort(tmp_path_factory.mktemp("cohort"), count=12)


def with_cells(cohort: Path, path: Path, cells: dict[str, str], row: int | None) -> Path:
    """The table with other cells in one row, or in all."""
    with (cohort / "labels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for number, old in enumerate(rows):
        if row is None or row == number:
            old.update(cells)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize("command", ["train", "compare"])
@pytest.mark.parametrize(
    ("task", "cells", "row", "found", "remedy"),
    [
        ("survival", {"os_event": "0"}, None, "all 12 times are censored", "--event-value"),
        (
            "survival",
            {"os_months": "-3"},
            2,
            "1 times are 0 or negative (s02)",
            "correct the times",
        ),
        ("survival", {"os_months": "a year"}, 2, "line 4: 'a year' in the column", "Correct it"),
        ("regression", {"age": "about 50"}, 2, "line 4: 'about 50' in the column", "--missing"),
        ("regression", {"age": "50,5"}, 2, "'50,5' in the column 'age'", "point as a point"),
        ("ordinal", {"grade": "high"}, 2, "are no whole numbers (high)", "--grades low,medium"),
        ("multilabel", {"msi": "maybe"}, 2, "'maybe' in the column 'msi'", "Write 1 or 0"),
        ("survival", {"case_id": "p"}, None, "belong to one patient", "Add slides of other"),
        ("regression", {"case_id": "p"}, None, "belong to one patient", "Add slides of other"),
        ("ordinal", {"case_id": "p"}, None, "belong to one patient", "Add slides of other"),
        ("multilabel", {"case_id": "p"}, None, "belong to one patient", "Add slides of other"),
        ("class", {"case_id": "p"}, None, "has only one patient", "Add to the class"),
        ("regression", {"age": "50"}, None, "all 12 numbers are 50", "Check the column"),
        ("ordinal", {"grade": "2"}, None, "every grade in the column 'grade' is 2", "--grades"),
        ("multilabel", {"tp53": "1", "msi": "0"}, None, "no label has both", "--label"),
        ("class", {"label": "tumour"}, None, "every label is 'tumour'", "two classes are needed"),
    ],
)
def test_wrong_values_are_rejected_before_training(
    cohort: Path,
    tmp_path: Path,
    command: str,
    task: str,
    cells: dict[str, str],
    row: int | None,
    found: str,
    remedy: str,
) -> None:
    table = with_cells(cohort, tmp_path / "labels.csv", cells, row)
    options = [*TASKS.get(task, CLASS), "--drop-unlabelled", "--out", tmp_path / "out"]
    words = [command, cohort / "bags", table, *options]
    result = CliRunner().invoke(app, [str(word) for word in words])
    message = " ".join(str(result.exception or result.output).split())
    assert result.exit_code == 1
    assert found in message
    assert remedy in message
    assert not list(tmp_path.glob("out/**/*.safetensors"))
    assert not list(tmp_path.glob("out/**/result.json"))
