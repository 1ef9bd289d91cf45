"""A file with an unusual structure is read or rejected by name: a short form of the campaign."""

from __future__ import annotations

import doctest
import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

CAMPAIGN = Path(__file__).parents[2] / "campaign"
sys.path.insert(0, str(CAMPAIGN))

import structures  # noqa: E402
from structures.arrays import npy_of_one  # noqa: E402


@pytest.mark.slow
def test_no_structure_does_more_than_be_rejected(tmp_path: Path) -> None:
    for package in ("openslide", "openpyxl", "shapely", "defusedxml", "starlette"):
        pytest.importorskip(package)
    out = tmp_path / "structure.json"
    words = ["--inputs", "36", "--seed", "1", "--processes", "1", "--out", out]
    done = subprocess.run(
        [sys.executable, CAMPAIGN / "structure.py", *words], capture_output=True, text=True
    )
    page = json.loads(out.read_text())
    assert page["findings"] == [], done.stdout
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(page["outcomes"].values()) == page["inputs"] >= 30


@pytest.mark.parametrize(
    "suffix", [".csv", ".svm", ".npy", ".pkl", ".png", ".svs", ".geojson", ".xml"]
)
def test_the_same_seed_gives_the_same_file(suffix: str) -> None:
    make = structures.GENERATORS[suffix]
    good = {".geojson": b'{"features": []}', ".npy": npy_of_one()}.get(suffix, b"a,b\n1,2\n")
    made = [make(good, Random(n)) for n in range(12)]
    assert made == [make(good, Random(n)) for n in range(12)]
    assert len({content for content, _ in made}) > 5


def test_the_examples_of_the_structures_are_true() -> None:
    names = [module.name for module in pkgutil.iter_modules(structures.__path__)]
    found = [doctest.testmod(importlib.import_module(f"structures.{name}")) for name in names]
    assert sum(each.attempted for each in found) >= 4
    assert not any(each.failed for each in found)
