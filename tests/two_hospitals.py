"""Two synthetic hospitals: bags of tile features with labels, and copies of slides that leak."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from scmil.bags.bag import Bag, BagSet
from scmil.bags.formats import export_bags

CLASSES = ("normal", "tumor")
TILES, DIM = 30, 16
PROVENANCE = {
    "encoder": "uni_v1",
    "size_px": 256,
    "mpp": 0.5,
    "side_level0": 256.0,
    "slide_mpp": 0.5,
    "overlap_px": 0,
}


def hospital(
    name: str, seed: int, slides: int = 32, shift: float = 0.0, signal: float = 1.0
) -> list[Bag]:
    """Two slides per patient; the first feature of half of the tiles differs between classes."""
    generator = torch.Generator().manual_seed(seed)
    bags = []
    for i in range(slides):
        label = i // 2 % 2
        features = torch.randn(TILES, DIM, generator=generator) + shift
        features[::2, 0] += signal * label
        bags.append(
            Bag(
                f"{name}_{i:02}",
                features,
                label,
                f"{name}_patient_{i // 2}",
                xy=256 * torch.arange(2 * TILES).reshape(TILES, 2),
                provenance=PROVENANCE,
            )
        )
    return bags


def renamed(
    bags: Iterable[Bag], change: Callable[[Tensor], Tensor] = lambda x: x, suffix: str = "x"
) -> list[Bag]:
    """Copies of slides under other names and of other patients."""
    copies = []
    for number, bag in enumerate(bags):
        features = change(bag.features)
        copies.append(
            replace(
                bag,
                id=f"copy_{suffix}_{number}",
                patient=f"stranger_{suffix}_{number}",
                features=features,
                xy=256 * torch.arange(2 * len(features)).reshape(-1, 2),
            )
        )
    return copies


def write_hospital(folder: Path, bags: list[Bag]) -> tuple[Path, Path]:
    """Write bags in the format of TRIDENT, and the table of labels."""
    export_bags(BagSet(bags, CLASSES), folder, "trident")
    table = folder.parent / f"{folder.name}.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["case_id", "slide_id", "label"])
        writer.writerows([bag.patient, bag.id, CLASSES[bag.label or 0]] for bag in bags)
    return folder, table
