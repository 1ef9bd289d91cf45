"""Experiment files that mean harm: too many runs, deep nesting, pipes, private files."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from scmil.errors import ConfigError
from scmil.studies.plan import make_plan, read_plan


def test_a_grid_of_millions_of_cells_is_rejected_before_it_is_expanded() -> None:
    grid = {
        f"training.{key}": list(range(1, 21))
        for key in ("epochs", "learning_rate", "weight_decay", "clip", "patience")
    }
    document = {"data": {"dataset": "musk1"}, "grid": {**grid, "protocol.seed": list(range(20))}}
    start = time.process_time()
    with pytest.raises(ConfigError, match=r"\[grid\]: 64000000 runs, more than 10000"):
        make_plan(document, "bomb")
    assert time.process_time() < start + 5


def test_a_grid_of_a_thousand_cells_is_expanded_in_seconds() -> None:
    grid = {"protocol.seed": list(range(40)), "training.epochs": list(range(1, 26))}
    plan = make_plan({"data": {"dataset": "musk1"}, "grid": grid}, "large")
    assert len({cell.name for cell in plan.cells}) == 1000


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("a = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("a = " + "[" * 100 + "]" * 100, "nested more than 40 times"),
        ("[" + ".".join("a" * 100) + "]", "nested more than 40 times"),
        ("a = " + "9" * 5000, "not readable as TOML"),
        ("a = 0x" + "f" * 5000, "an integer has more than 64 bits"),
        ("a = '" + "x" * 2**21 + "'", "has more than 1048576 bytes"),
    ],
    ids=["recursion", "depth", "dotted", "digits", "hex", "long"],
)
def test_toml_that_would_break_the_parser_or_what_follows_is_a_sentence(
    tmp_path: Path, text: str, cause: str
) -> None:
    (tmp_path / "bomb.toml").write_text(text)
    with pytest.raises(ConfigError, match=f"bomb.toml.*{cause}"):
        read_plan(tmp_path / "bomb.toml")


@pytest.mark.parametrize("value", ["[" * 5000 + "]" * 5000, "0x" + "f" * 5000])
def test_an_override_that_would_break_the_parser_is_a_sentence(tmp_path: Path, value: str) -> None:
    (tmp_path / "plan.toml").write_text('[data]\ndataset = "musk1"\n')
    with pytest.raises(ConfigError, match=r"--set training\.epochs: "):
        read_plan(tmp_path / "plan.toml", [f"training.epochs={value}"])


@pytest.mark.parametrize(
    "change",
    [
        {"protocol": {"repeats": 10**9}},
        {"protocol": {"seed": 2**70}},
        {"training": {"epochs": 10**12}},
        {"training": {"learning_rate": 10**400}},
        {"training": {"class_weights": [1, float("inf")]}},
        {"model": {"embed": [10**9]}},
        {"model": {"sparse_coding": {"layers": 10**7}}},
    ],
)
def test_numbers_that_no_experiment_has_are_problems_of_the_file(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="has 1 problem"):
        make_plan({"data": {"dataset": "musk1"}, **change}, "absurd")


def test_an_experiment_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(ConfigError, match="a pipe, a device or a folder"):
        read_plan(tmp_path / "pipe.toml")


@pytest.mark.parametrize(
    "content",
    [
        "root:x:0:0:root:/root:/bin/bash\nbin:x:1:1:bin\n",
        "-----BEGIN PRIVATE KEY-----\nMIIE,abc\n",
        "hf_aVerySecretToken\n",
    ],
)
def test_a_file_that_an_experiment_names_as_labels_is_not_shown(
    tmp_path: Path, content: str
) -> None:
    """An experiment may come from others, and its report is shared: the report must not show
    private files of the person who runs it.
    """
    from scmil.errors import DataError
    from scmil.studies.runner import load_bags

    (tmp_path / "bags").mkdir()
    torch.save(torch.zeros(3, 8), tmp_path / "bags" / "a.pt")
    (tmp_path / "private").write_text(content)
    plan = tmp_path / "plan.toml"
    plan.write_text('[data]\ndataset = "bags"\nlabels = "private"\n')
    [cell] = read_plan(plan).cells
    with pytest.raises(DataError) as raised:
        load_bags(cell.settings.data)
    assert "private" in str(raised.value)
    assert not any(line in str(raised.value) for line in content.splitlines())
