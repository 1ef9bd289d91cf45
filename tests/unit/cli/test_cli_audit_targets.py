"""`scmil audit` finds what is wrong with the table of each task, before anything is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command import scmil

from scmil.bags.bag import Bag
from scmil.bags.formats import export_bags

SLIDES = 24
SURVIVAL = ["--task", "survival"]
NUMBER = ["--task", "regression", "--label", "age"]
GRADE = ["--task", "ordinal", "--label", "grade"]
LABELS = ["--label", "tp53,msi"]


@pytest.fixture(scope="module")
def bags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = torch.Generator().manual_seed(0)
    made = [Bag(f"s{i}", torch.rand(5, 4, generator=generator)) for i in range(SLIDES)]
    folder = tmp_path_factory.mktemp("audited") / "bags"
    export_bags(made, folder, "clam")
    (folder / "labels.csv").unlink(missing_ok=True)
    return folder


def write_values(folder: Path, change: dict[str, Any]) -> Path:
    """A sound table of all tasks; a changed column is a list, or one value for all slides."""
    columns: dict[str, list[Any]] = {
        "case_id": [f"p{i}" for i in range(SLIDES)],
        "slide_id": [f"s{i}" for i in range(SLIDES)],
        "os_months": [1 + i for i in range(SLIDES)],
        "os_event": [i % 2 for i in range(SLIDES)],
        "age": [40 + i for i in range(SLIDES)],
        "grade": [i % 4 for i in range(SLIDES)],
        "tp53": [i % 2 for i in range(SLIDES)],
        "msi": [i // 2 % 2 for i in range(SLIDES)],
    }
    for name, values in change.items():
        own = values if isinstance(values, list) else [values] * SLIDES
        columns[name] = [*own, *columns.get(name, own)[len(own) :]]
    path = folder / "values.csv"
    rows = [list(columns), *map(list, zip(*columns.values(), strict=True))]
    path.write_text("\n".join(",".join(map(str, row)) for row in rows))
    return path


def audit(*words: object) -> tuple[int, str]:
    finished = scmil("audit", *words, code=None)
    return finished.returncode, finished.stdout + finished.stderr


@pytest.mark.parametrize("words", [SURVIVAL, NUMBER, GRADE, LABELS])
def test_a_sound_table_has_no_problems(bags: Path, tmp_path: Path, words: list[str]) -> None:
    code, text = audit(bags, write_values(tmp_path, {}), *words)
    assert (code, "no problems found" in text) == (0, True), text


@pytest.mark.parametrize(
    ("words", "change", "severity", "code"),
    [
        (SURVIVAL, {"os_event": 0}, "error", "no-events"),
        (SURVIVAL, {"os_event": 1}, "note", "no-censoring"),
        (SURVIVAL, {"os_event": [1, *[0] * 23]}, "warning", "few-events"),
        (SURVIVAL, {"os_months": [0]}, "error", "time"),
        (SURVIVAL, {"os_months": [-3]}, "error", "time"),
        (SURVIVAL, {"os_months": [5000]}, "warning", "unit"),
        (SURVIVAL, {"os_event": [0] * 12 + ["dead"] * 12}, None, None),
        (SURVIVAL, {"case_id": ["p1"]}, "error", "contradiction"),
        (NUMBER, {"age": 50}, "error", "constant"),
        (NUMBER, {"age": [4000]}, "warning", "outlier"),
        (NUMBER, {"age": [""]}, "warning", "no-value"),
        (NUMBER, {"case_id": "p"}, "error", "one-patient"),
        (GRADE, {"grade": [0, 1, 3] * 8}, "warning", "grade-gap"),
        ([*GRADE, "--grades", "0,1,2,3"], {"grade": 2}, "error", "one-grade"),
        (LABELS, {"msi": 0}, "warning", "one-value"),
        (LABELS, {"msi": ""}, "warning", "one-value"),
        (LABELS, {"msi": 0, "tp53": 1}, "error", "no-label"),
    ],
)
def test_each_problem_of_a_table_is_found(
    bags: Path,
    tmp_path: Path,
    words: list[str],
    change: dict[str, Any],
    severity: str | None,
    code: str | None,
) -> None:
    exit_code, text = audit(bags, write_values(tmp_path, change), *words, "--json")
    if severity is None:
        assert "no problems found" in text or json.loads(text)["findings"] == []
        return
    found = {each["code"]: each["severity"] for each in json.loads(text)["findings"]}
    assert found.get(str(code)) == severity, found
    assert exit_code == int(severity == "error")


def test_events_coded_one_and_two_need_the_value_of_an_event(bags: Path, tmp_path: Path) -> None:
    values = write_values(tmp_path, {"os_event": [1 + i % 2 for i in range(SLIDES)]})
    code, text = audit(bags, values, *SURVIVAL)
    assert code == 1
    assert "coded 1 and 2" in " ".join(text.split())
    code, text = audit(bags, values, *SURVIVAL, "--event-value", "2")
    assert (code, "no problems found" in text) == (0, True)


def test_words_of_events_are_read_and_the_inferred_task_is_stated(
    bags: Path, tmp_path: Path
) -> None:
    words = ["dead" if i % 2 else "alive" for i in range(SLIDES)]
    code, text = audit(bags, write_values(tmp_path, {"os_event": words}))
    assert (code, "no problems found" in text) == (0, True), text
    assert "task: 'survival' (inferred from the columns)." in text


def test_a_word_in_a_column_of_numbers_is_an_error(bags: Path, tmp_path: Path) -> None:
    code, text = audit(bags, write_values(tmp_path, {"age": ["old"]}), *NUMBER)
    assert (code, "is no number" in " ".join(text.split())) == (1, True), text
    code, text = audit(bags, *SURVIVAL)
    assert (code, "needs a table" in text) == (1, True), text
    code, text = audit(bags, write_values(tmp_path, {"grade": 2}), *GRADE)
    assert (code, "grade" in text) == (1, True), text
