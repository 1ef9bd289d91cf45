"""Small cohorts, tables and experiments for the tests of scmil.studies."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from scmil import studies
from scmil.bags.bag import Bag, BagSet
from scmil.bags.formats import export_bags
from scmil.bags.formats.reading import make_bag
from scmil.studies.plan import Plan, make_plan

QUICK: dict[str, Any] = {"aggregator": "mean", "epochs": 3}


PROVENANCE: dict[str, Any] = {
    "encoder": "uni_v1",
    "size_px": 256,
    "mpp": 0.5,
    "side_level0": 256.0,
    "slide_mpp": 0.5,
    "overlap_px": 0,
}


EPOCHS = 3


def cohort(
    count: int = 36, classes: int = 3, dim: int = 8, provenance: dict[str, Any] = PROVENANCE
) -> BagSet:
    """Two slides per patient; the first features differ between the classes."""
    generator = torch.Generator().manual_seed(0)
    bags = [
        Bag(
            f"s{i:02}",
            torch.randn(5, dim, generator=generator) + 3 * torch.eye(dim)[i // 2 % classes],
            label=i // 2 % classes,
            patient=f"p{i // 2}",
            xy=256 * torch.arange(10).reshape(5, 2),
            provenance=provenance,
        )
        for i in range(count)
    ]
    return BagSet(bags, ["normal", "benign", "tumor"][:classes])


def open_clam_cohort(folder: Path, count: int = 24, classes: int = 2) -> studies.Data:
    """Write a cohort to `bags` in the format of CLAM, with its labels, and open it."""
    export_bags(cohort(count, classes), folder / "bags", "clam")
    return studies.open_data(folder / "bags", folder / "bags" / "labels.csv")


def count_reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each bag of a folder of CLAM is read from its file from now on."""
    counts: Counter[str] = Counter()

    def make_counting(bag_id: str, *arguments: Any, **options: Any) -> Bag:
        counts[bag_id] += 1
        return make_bag(bag_id, *arguments, **options)

    monkeypatch.setattr("scmil.bags.formats.clam.make_bag", make_counting)
    return counts


def relabel(folder: Path, change: dict[str, str]) -> Path:
    """Copy the label table with other labels for some slides; "" removes a label."""
    lines = [line.split(",") for line in (folder / "labels.csv").read_text().splitlines()]
    path = folder.parent / "changed.csv"
    path.write_text(
        "\n".join(",".join([*line[:2], change.get(line[1], line[2])]) for line in lines)
    )
    return path


def labelled_folder(folder: Path, names: dict[str, str], rows: dict[str, str]) -> tuple[Path, Path]:
    """Write a folder of tensors with these file names, and a table of labels."""
    (folder / "bags").mkdir(parents=True)
    for number, file in enumerate(names):
        torch.save(
            torch.randn(4, 3, generator=torch.Generator().manual_seed(number)),
            folder / "bags" / file,
        )
    (folder / "labels.csv").write_text(
        "slide_id,label\n" + "".join(f"{slide_id},{label}\n" for slide_id, label in rows.items())
    )
    return folder / "bags", folder / "labels.csv"


def with_coordinates(bags: BagSet) -> BagSet:
    """The same bags with coordinates of their tiles."""
    return BagSet(
        [
            replace(bag, xy=torch.stack([torch.arange(len(bag.features)) * 10] * 2, 1))
            for bag in bags
        ],
        bags.classes,
    )


def edit_study(model: Path, **changes: Any) -> Path:
    """Change values of `study.json`; `__` in a name stands for a nested key."""
    study = json.loads((model / "study.json").read_text())
    for key, value in changes.items():
        *path, last = key.split("__")
        table = study
        for name in path:
            table = table[name]
        table[last] = value
    (model / "study.json").write_text(json.dumps(study))
    return model


def plan_of_table(table: Path, **document: Any) -> Plan:
    protocol = {
        "folds": 3,
        "repeats": 2,
        "selection": ["last", "nested", "test-tuned"],
        **document.pop("protocol", {}),
    }
    arms = [
        {"name": "plain"},
        {"name": "SC", "against": "plain", "model": {"sparse_coding": {"atoms": 9, "layers": 2}}},
    ]
    base = {
        "data": {"dataset": str(table)},
        "protocol": protocol,
        "model": {"aggregator": "abmil", "embed": [4]},
        "training": {"epochs": EPOCHS, "learning_rate": 0.01},
        "arms": arms,
    }
    return make_plan({**base, **document}, "mine")


def plan_of_folder(folder: Path, **document: Any) -> Plan:
    data = {
        "dataset": str(folder),
        "labels": str(folder / "labels.csv"),
        **document.pop("data", {}),
    }
    protocol = {"repeats": 1, "selection": ["last", "nested"], **document.pop("protocol", {})}
    return plan_of_table(folder, data=data, protocol=protocol, **document)


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def predictions_by_bag(run: Path) -> dict[tuple[str, ...], dict[str, str]]:
    """Probability of each test bag by protocol, repeat and fold."""
    predictions: dict[tuple[str, ...], dict[str, str]] = {}
    for row in read_rows(run / "predictions.csv"):
        key = (row["protocol"], row["repeat"], row["fold"])
        predictions.setdefault(key, {})[row["bag"]] = row["p1"]
    return predictions
