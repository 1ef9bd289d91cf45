"""Bags whose share of one kind of instance determines a time, a number, a grade and labels."""

from __future__ import annotations

import math

import numpy as np
import torch

from scmil.bags.bag import Bag
from scmil.bags.targets import (
    GradeTarget,
    LabelsTarget,
    NumberTarget,
    SurvivalTarget,
    Target,
    Targets,
    Value,
)

DIM = 8


def make_bags(n: int, signal: float = 1.0, seed: int = 0) -> tuple[list[Bag], np.ndarray]:
    """Bags of 12 instances, and the share of instances that are shifted by the signal."""
    random = np.random.default_rng(seed)
    shares = random.random(n)
    bags = []
    for i, share in enumerate(shares):
        x = random.normal(0, 0.5, (12, DIM))
        x[: round(12 * share), 0] += 3 * signal
        bags.append(Bag(f"s{i}", torch.tensor(x, dtype=torch.float32)))
    return bags, shares


def make_witness_bags(n: int, seed: int = 0) -> tuple[list[Bag], np.ndarray]:
    """Bags of 30 instances of which two, found by one feature, show the severity in another."""
    random = np.random.default_rng(seed)
    severity = random.random(n)
    bags = []
    for i, value in enumerate(severity):
        x = random.normal(0, 0.5, (30, DIM))
        x[:2, 0] += 4
        x[:2, 1] += 4 * (value - 0.5)
        bags.append(Bag(f"s{i}", torch.tensor(x, dtype=torch.float32)))
    return bags, severity


def make_targets(task: str, shares: np.ndarray, seed: int = 0) -> Targets:
    """The target of each bag; a larger share is an earlier event, a larger number or grade."""
    random = np.random.default_rng(seed + 1)
    target: Target
    values: list[Value | None]
    if task == "survival":
        times = random.exponential(np.exp(-4 * (shares - 0.5)))
        ends = random.exponential(2.0, len(shares))
        target = SurvivalTarget()
        values = [
            (float(min(time, end)) + 1e-3, bool(time <= end))
            for time, end in zip(times, ends, strict=True)
        ]
    elif task == "regression":
        target = NumberTarget()
        values = [float(100 + 20 * share + random.normal(0, 2)) for share in shares]
    elif task == "ordinal":
        target = GradeTarget("grade", ("1", "2", "3", "4"))
        values = [int(min(3, math.floor(4 * share))) for share in shares]
    else:
        target = LabelsTarget(("high", "low", "noise"))
        values = [
            (
                bool(s > 0.6),
                None if random.random() < 0.3 else bool(s < 0.3),
                bool(random.random() < 0.5),
            )
            for s in shares
        ]
    ids = tuple(f"s{i}" for i in range(len(shares)))
    return Targets(target, ids, tuple(values), (None,) * len(ids))
