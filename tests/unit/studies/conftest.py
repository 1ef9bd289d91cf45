"""Bags and models that several test files of scmil.studies share."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from study_cases import QUICK, cohort

from scmil import studies
from scmil.bags.bag import Bag, BagSet
from scmil.bags.formats import export_bags


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `bags` and a `model` that was trained on them."""
    folder = tmp_path_factory.mktemp("trained")
    export_bags(cohort(), folder / "bags", "trident")
    studies.train(
        studies.open_data(folder / "bags", folder / "bags" / "labels.csv"),
        folder / "model",
        **QUICK,
    )
    return folder


@pytest.fixture
def model_copy(trained_once: Path, tmp_path: Path) -> Path:
    """A copy of the model that a test may change."""
    return Path(shutil.copytree(trained_once / "model", tmp_path / "model"))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """24 bags of 4 instances, whose first feature differs between the classes."""
    generator = np.random.default_rng(0)
    path = tmp_path / "bags.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["bag", "label", "patient", *(f"f{i}" for i in range(5))])
        for bag in range(24):
            for x in generator.normal(size=(4, 5)) + (bag % 2) * np.array([2, 0, 0, 0, 0]):
                writer.writerow(
                    [f"b{bag}", bag % 2, f"p{bag // 2 if bag < 4 else bag}", *x.round(4)]
                )
    return path


@pytest.fixture
def clam_folder(tmp_path: Path) -> Path:
    """A CLAM folder of 24 slides of 12 patients with its labels.csv; the first feature differs
    between the classes.
    """
    generator = torch.Generator().manual_seed(0)
    bags = [
        Bag(
            f"s{i:02}",
            torch.randn(6, 5, generator=generator) + 2 * (i // 2 % 2) * torch.eye(5)[0],
            label=i // 2 % 2,
            patient=f"p{i // 2}",
        )
        for i in range(24)
    ]
    export_bags(BagSet(bags, ["normal", "tumor"]), tmp_path / "clam", "clam")
    return tmp_path / "clam"
