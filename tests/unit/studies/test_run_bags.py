"""All runs of a process share the bags that were read for the first of them."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from scmil.bags import in_memory
from scmil.bags.bag import Bag, BagSet
from scmil.bags.formats import export_bags
from scmil.studies import compare_aggregators, open_data, run_bags, run_inputs
from scmil.studies.plan import Plan, make_plan
from scmil.studies.runner import run

BAGS, DIM = 12, 6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of bags in which the first feature depends on the class."""
    write_bags(tmp_path / "bags", shift=4.0)
    return tmp_path / "bags"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each bag was read from its file by runs."""
    counts: Counter[str] = Counter()
    load = run_inputs.load_bags

    def load_counting(*arguments: Any) -> BagSet:
        bags = load(*arguments)
        positions = {bag_id: position for position, bag_id in enumerate(bags.ids)}

        def read(bag_id: str) -> Bag:
            counts[bag_id] += 1
            return bags[positions[bag_id]]

        return BagSet.lazy(bags.ids, read, bags.labels, bags.patients, bags.classes, mark=bags.mark)

    monkeypatch.setattr(run_bags, "load_bags", load_counting)
    run_bags.release_run_bags()
    return counts


def write_bags(folder: Path, shift: float) -> None:
    generator = torch.Generator().manual_seed(0)
    bags = []
    for i in range(BAGS):
        x = torch.randn(5, DIM, generator=generator)
        x[:, 0] += shift * (i % 2)
        bags.append(Bag(f"s{i}", x, label=i % 2))
    export_bags(BagSet(bags), folder, "clam")


def plan_of(folder: Path, **changes: Any) -> Plan:
    arms = [{"name": name, "model": {"aggregator": name}} for name in ("mean", "max", "abmil")]
    document = {
        "data": {"dataset": str(folder), "labels": str(folder / "labels.csv")},
        "protocol": {"folds": 2, "selection": ["last", "nested"]},
        "model": {"embed": [4]},
        "training": {"epochs": 2},
        "arms": arms,
    }
    return make_plan(document | changes, "mine")


@pytest.mark.slow
def test_an_experiment_reads_each_bag_once(
    folder: Path, tmp_path: Path, reads: Counter[str]
) -> None:
    outcome = run(plan_of(folder), tmp_path / "out", jobs=1)
    assert (outcome.finished, outcome.failed) == (3, {})
    assert sorted(reads) == sorted(f"s{i}" for i in range(BAGS))
    assert set(reads.values()) == {1}


@pytest.mark.slow
def test_a_comparison_reads_each_bag_once(
    folder: Path, tmp_path: Path, reads: Counter[str]
) -> None:
    data = open_data(folder, folder / "labels.csv")
    compare_aggregators(data, tmp_path / "out", ["mean"], folds=2, epochs=1, atoms=4, jobs=1)
    assert set(reads.values()) == {1}


@pytest.mark.slow
def test_bags_too_large_for_memory_are_validated_once_and_read_when_needed(
    folder: Path, tmp_path: Path, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(plan_of(folder), tmp_path / "in memory", jobs=1)
    monkeypatch.setattr(in_memory, "MAX_NUMBERS", 5 * DIM * BAGS - 1)
    run_bags.release_run_bags()
    run(plan_of(folder), tmp_path / "from files", jobs=1)
    assert min(reads.values()) > 2
    results = [(tmp_path / name / "folds.csv").read_bytes() for name in ("in memory", "from files")]
    assert results[0] == results[1]


@pytest.mark.parametrize("change", ["features", "labels"])
def test_bags_that_have_changed_are_read_again(
    folder: Path, tmp_path: Path, reads: Counter[str], change: str
) -> None:
    run(plan_of(folder), tmp_path / "before", jobs=1, only="*--mean")
    [cell, *_] = plan_of(folder).cells
    first = run_bags.open_run_bags(cell, tmp_path / "before")
    again = run_bags.open_run_bags(cell, tmp_path / "before")
    assert again.features is first.features
    change_files: dict[str, Callable[[], object]] = {
        "features": lambda: (shutil.rmtree(folder), write_bags(folder, shift=1.0)),
        "labels": lambda: swap_labels(folder / "labels.csv"),
    }
    change_files[change]()
    other = run_bags.open_run_bags(cell, tmp_path / "before")
    assert other.features is not first.features
    assert other.inputs.digest != first.inputs.digest


def swap_labels(path: Path) -> None:
    lines = path.read_text().splitlines()
    lines[1], lines[2] = (
        f"{a.rpartition(',')[0]},{b.rpartition(',')[2]}"
        for a, b in ((lines[1], lines[2]), (lines[2], lines[1]))
    )
    path.write_text("\n".join(lines) + "\n")
