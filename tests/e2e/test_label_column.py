"""The columns of a label table that were inferred are stated in every output of a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from scmil import Bag, write_bag
from scmil.cli import app

INFERRED = "label column: 'lable' (inferred)"
IN_JSON = {
    "slide": {"name": "slide_id", "inferred": False},
    "patient": {"name": "case_id", "inferred": False},
    "label": {"name": "lable", "inferred": True},
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Bags of 16 patients, and a table whose label column has a misspelled name."""
    generator = torch.Generator().manual_seed(0)
    (tmp_path / "bags").mkdir()
    for number in range(16):
        features = torch.randn(5, 8, generator=generator) + 3 * torch.eye(8)[number % 2]
        write_bag(Bag(f"s{number}", features), tmp_path / "bags" / f"s{number}.h5")
    rows = [f"p{number},s{number},{'ab'[number % 2]}\n" for number in range(16)]
    (tmp_path / "labels.csv").write_text("case_id,slide_id,lable\n" + "".join(rows))
    return tmp_path


def invoke(home: Path, verb: str, *options: str) -> Result:
    command = [verb, str(home / "bags"), str(home / "labels.csv"), *options]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    return result


def train(home: Path, *options: str) -> Result:
    sizes = ["--epochs", "2", "--valid", "0.25", "--test", "0.25"]
    return invoke(home, "train", "--aggregator", "mean", *sizes, "--out", str(home / "m"), *options)


def compare(home: Path, *options: str) -> Result:
    sizes = ["--folds", "2", "--repeats", "1", "--epochs", "1", "--jobs", "1"]
    methods = ["--aggregator", "mean", "--out", str(home / "run")]
    return invoke(home, "compare", *methods, *sizes, *options)


def test_train_states_an_inferred_label_column_on_the_terminal_and_in_all_files(
    home: Path,
) -> None:
    assert INFERRED in train(home).output
    study = json.loads((home / "m" / "study.json").read_text())
    assert study["columns"] == IN_JSON
    assert any(INFERRED in note for note in study["notes"])
    assert "label column: 'lable' \\(inferred\\)" in (home / "m" / "MODEL_CARD.md").read_text()


def test_train_states_an_inferred_label_column_in_json(home: Path) -> None:
    study = json.loads(train(home, "--json").stdout)["study"]
    assert study["columns"] == IN_JSON
    assert any(INFERRED in note for note in study["notes"])


def test_compare_states_an_inferred_label_column(home: Path) -> None:
    assert INFERRED in compare(home).output
    answer = json.loads(compare(home, "--json").stdout)
    assert answer["columns"] == IN_JSON
    assert any(INFERRED in note for note in answer["notes"])


def test_run_states_an_inferred_label_column(home: Path) -> None:
    (home / "mine.toml").write_text(
        f"""\
data = {{ dataset = "{home / "bags"}", labels = "{home / "labels.csv"}" }}
protocol = {{ folds = 2 }}
model = {{ aggregator = "mean" }}
training = {{ epochs = 1 }}
"""
    )
    command = ["run", str(home / "mine.toml"), "--out", str(home / "run"), "--jobs", "1"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert INFERRED in " ".join(result.output.split())
    notes = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)["notes"]
    assert [note.endswith(INFERRED) for note in notes] == [True]


def test_audit_states_an_inferred_label_column(home: Path) -> None:
    assert INFERRED in invoke(home, "audit").output
    assert json.loads(invoke(home, "audit", "--json").stdout)["columns"] == IN_JSON


def test_a_label_column_that_the_user_names_is_not_inferred(home: Path) -> None:
    assert "(inferred)" not in invoke(home, "audit", "--label", "lable").output


def test_inferred_slide_and_patient_columns_are_stated_too(home: Path) -> None:
    text = (home / "labels.csv").read_text().replace("case_id,slide_id,lable", "case,wsi,label")
    (home / "labels.csv").write_text(text)
    output = invoke(home, "audit").output
    assert "slide column: 'wsi' (inferred)" in output
    assert "patient column: 'case' (inferred)" in output
    assert "label column" not in output
