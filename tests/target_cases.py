"""Bags with values of every task, for tests of commands and studies."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import torch

from scmil import Bag
from scmil.bags.formats import export_bags

HEADER = "case_id,slide_id,os_months,os_event,age,grade,tp53,msi,label"
# The options of each task on the command line.
TASKS = {
    "survival": ["--task", "survival"],
    "regression": ["--task", "regression", "--label", "age"],
    "ordinal": ["--task", "ordinal", "--label", "grade"],
    "multilabel": ["--label", "tp53,msi"],
}


def target_cohort(folder: Path, count: int = 40, seed: int = 0, signal: bool = True) -> Path:
    """Write `bags/` and `labels.csv`: a share of instances of one kind drives all values.

    Without `signal` the values belong to other bags.
    """
    random = np.random.default_rng(seed)
    shares = random.random(count)
    driven = shares if signal else random.permutation(shares)
    bags, rows = [], [HEADER]
    for i, (share, value) in enumerate(zip(shares, driven, strict=True)):
        x = random.normal(size=(20, 6))
        x[: round(20 * share), :2] += 3
        xy = [[256 * (j % 5), 256 * (j // 5)] for j in range(20)]
        bags.append(Bag(f"s{i:02d}", torch.tensor(x, dtype=torch.float32), xy=torch.tensor(xy)))
        time, censored = random.exponential([60 * np.exp(-4 * value), 60])
        label = "" if i % 10 == 9 else int(value > 0.5)
        rows.append(
            f"p{i},s{i:02d}.svs,{min(time, censored) + 0.1:.3f},{int(time <= censored)},"
            f"{40 + 40 * value + random.normal():.2f},{int(3.999 * value)},{label},"
            f"{int(value + random.normal() / 4 > 0.6)},{'tumour' if value > 0.5 else 'normal'}"
        )
    export_bags(bags, folder / "bags", "clam")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    return folder


def cohort_with_holes(folder: Path, seed: int = 0) -> Path:
    """48 slides without a third of grades, numbers and times each, and a quarter of the classes."""
    target_cohort(folder, count=48, seed=seed)
    rows = read_table(folder / "labels.csv")
    for i, row in enumerate(rows):
        for column in (("grade",), ("age",), ("os_months", "os_event"))[i % 3]:
            row[column] = ""
        if i % 4 == 0:
            row["label"] = ""
    write_table(folder / "labels.csv", rows)
    return folder


def rename_cohort(folder: Path, prefix: str) -> Path:
    """Give all slides and patients of a cohort other names."""
    for path in [*(folder / "bags").rglob("s[0-9][0-9].*")]:
        path.rename(path.with_name(prefix + path.name))
    table = folder / "labels.csv"
    head, *rows = table.read_text().splitlines()
    rows = [prefix + row.replace(",s", f",{prefix}s", 1) for row in rows]
    table.write_text("\n".join([head, *rows]) + "\n")
    return folder


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_table(path: Path, rows: list[dict[str, str]]) -> None:
    """Write the rows of a CSV file."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
