"""A bag file with all optional content, and changed copies of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import torch

from scmil.bags.bag import Bag
from scmil.bags.hdf5 import (
    write_bag,
)


def full_bag() -> Bag:
    """A bag with everything that a bag can have."""
    return Bag(
        "slide 1",
        torch.tensor([[0.5, -2.0, 0.0], [1024.0, 3.25, -0.125]]),
        label=1,
        patient="p",
        instance_labels=torch.tensor([0, 1]),
        xy=torch.tensor([[0, 512], [2**40, 3]]),
        provenance={
            "encoder": "resnet18",
            "mpp": 0.5,
            "slide_size": [10, 20],
            "stain": "H&E, µ",
            "nested": {"a": None},
        },
    )


def write_changed_bag(path: Path, change: Callable[[h5py.File], object]) -> Path:
    write_bag(full_bag(), path)
    with h5py.File(path, "a") as file:
        change(file)
    return path
