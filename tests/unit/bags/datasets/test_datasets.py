"""Data sets by name or folder, and their status."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scmil import load_dataset
from scmil.bags import datasets
from scmil.bags.bag import BagSet
from scmil.errors import DataError, OptionError, UnknownNameError


def test_an_unknown_data_set_is_rejected() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'elephant'"):
        load_dataset("elefant")
    with pytest.raises(UnknownNameError, match="Did you mean 'tiger'"):
        datasets.fetch("tigger")


def test_the_status_states_what_is_ready_and_the_remedy_otherwise() -> None:
    status = {entry.name: entry for entry in datasets.dataset_status()}
    assert list(status) == datasets.names()
    assert (status["musk1"].ready, status["musk1"].remedy) == (True, "")
    assert status["musk1"].where.endswith("musk1.csv")
    assert (status["fox"].ready, status["fox"].where) == (False, "")
    assert "scmil get fox" in status["fox"].remedy
    assert status["digits"].where == "scikit-learn"


def clam_folder(tmp_path: Path) -> Path:
    from scmil.bags.bag import Bag
    from scmil.bags.formats import export_bags

    bags = [Bag(f"s{i}", torch.ones(2, 3), label=i % 2, patient=f"p{i // 2}") for i in range(4)]
    export_bags(BagSet(bags, ["normal", "tumor"]), tmp_path / "clam", "clam")
    return tmp_path / "clam"


def test_a_folder_of_another_tool_is_a_data_set(tmp_path: Path) -> None:
    folder = clam_folder(tmp_path)
    bags = load_dataset(str(folder), labels=folder / "labels.csv")
    assert bags.classes == ("normal", "tumor")
    assert bags.patients == ("p0", "p0", "p1", "p1")
    assert load_dataset(folder).labels == (None,) * 4
    assert load_dataset(folder, format="clam").ids == bags.ids


def test_wrong_options_for_a_folder_are_rejected(tmp_path: Path) -> None:
    folder = clam_folder(tmp_path)
    other = tmp_path / "other.csv"
    other.write_text("slide,label\nx1,a\nx2,b\n")
    with pytest.raises(
        DataError, match=r"no bag of .*clam is in .*other.csv: bags have names such as s0, s1, s2"
    ):
        load_dataset(folder, labels=other)
    with pytest.raises(DataError, match="no column 'grade' for the label"):
        load_dataset(folder, labels=folder / "labels.csv", label="grade")
    with pytest.raises(
        OptionError, match=r"label = 'grade' refers to a table of labels\. Give the table"
    ):
        load_dataset(folder, label="grade")
    with pytest.raises(
        OptionError, match="data set 'musk1' does not support the option key, labels"
    ):
        load_dataset("musk1", labels="labels.csv", key="uni")
    with pytest.raises(
        OptionError, match="a table that contains its labels, does not support the option labels"
    ):
        load_dataset("bags.csv", labels="labels.csv")
