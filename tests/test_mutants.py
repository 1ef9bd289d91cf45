"""The list of faults that the campaign plants fits the code; `make campaign` runs the tests."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "campaign"))

import mutants
from mutants import Mutant, as_pattern, find_places, find_problem, read_mutants

MUTANTS = read_mutants()
PACKAGES = {path.name for path in (mutants.SOURCE / "scmil").iterdir() if path.is_dir()}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_fault_has_one_place_and_tests(mutant: Mutant) -> None:
    assert find_problem(mutant) is None
    assert mutant.tests


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_fault_is_valid_python(mutant: Mutant) -> None:
    ((path, match),) = find_places(mutant)
    text = path.read_text()
    changed = text[: match.start()] + mutant.replacement + text[match.end() :]
    assert changed != text
    compile(changed, path.name, "exec")


def test_there_are_at_least_120_faults_and_five_in_every_large_package() -> None:
    counts = Counter(mutant.package.partition("/")[0] for mutant in MUTANTS)
    assert counts.total() >= 120
    assert min(counts.values()) >= 5
    assert len({mutant.name for mutant in MUTANTS}) == counts.total()
    assert set(counts) == PACKAGES - {"demo", "__pycache__"}


def test_places_are_found_whatever_the_line_breaks() -> None:
    pattern = as_pattern("f(a, b) + g[c]")
    assert pattern.search("x = f(\n    a,\n    b,\n) + g[c]")
    assert not pattern.search("x = f(a, c) + g[c]")
    assert not as_pattern("split(a)").search("with_split(a)")
