"""A run directory of another task than classes, with random predictions instead of models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from target_cohort import make_bags, make_targets

from scmil.bags.splits import repeated_folds
from scmil.bags.target_bags import split_strata
from scmil.bags.targets import Targets, target_json
from scmil.core.tables import records_csv
from scmil.studies.results import gather_again
from scmil.studies.target_cell import TargetFold, target_tables
from scmil.training.held_out import HeldOut, patients_of_targets
from scmil.training.target_folds import score_times

SKILL = {"plain": 0.3, "plain + SC": 1.0, "baseline": 0.0}
MODELS: dict[str, dict[str, Any]] = {
    "plain": {"aggregator": "mean"},
    "plain + SC": {"aggregator": "mean", "sparse_coding": True},
    "baseline": {"aggregator": "logistic-mean-max"},
}


def write_target_run(
    folder: Path,
    task: str,
    *,
    protocols: tuple[str, ...] = ("last", "test-tuned"),
    n: int = 40,
    slides: int = 1,
    repeats: int = 2,
    folds: int = 2,
    skill: dict[str, float] | None = None,
) -> Path:
    """Write the files of `plain`, `plain + SC` and `baseline`, with predictions of given skill.

    Skill 1 is the share of instances that the values were made from, 0 is noise.
    """
    shares = make_bags(n)[1]
    shares = np.repeat(shares[::slides], slides)[:n]
    targets = make_targets(task, shares)
    values = tuple(targets.values[i - i % slides] for i in range(n))
    patients = tuple(f"p{i // slides}" for i in range(n))
    targets = replace(targets, values=values, patients=patients)
    strata = split_strata(targets, targets.ids)
    splits = repeated_folds(strata, folds, repeats, 0, patients_of_targets(targets, targets.ids))
    cells = []
    for number, (method, weight) in enumerate((skill or SKILL).items()):
        name = f"cohort--{number}"
        found = [
            TargetFold(protocol, r, f, 3, _predict(targets, shares, split.test, weight, 10 * r + f))
            for protocol in protocols
            for r, own in enumerate(splits)
            for f, split in enumerate(own)
        ]
        tables = target_tables(targets, protocols, found)
        home = folder / "cells" / name
        home.mkdir(parents=True)
        (home / "predictions.csv").write_bytes(records_csv(tables.predictions))
        (home / "history.csv").write_text(
            "training,epoch,train_loss,test_loss,test_accuracy,test_auc\nfull,1,0.7,,,\n"
        )
        result = {"rows": tables.rows, "folds": tables.folds, "metrics": tables.metrics}
        costs = {"parameters": 9, "multiply_adds": 8, "density": None, "seconds": 1.5}
        more = {"memory_mib": 3.0, "trained": "fold by fold", "data": {"digest": "a" * 64}}
        (home / "result.json").write_text(json.dumps(result | costs | more))
        settings = {"model": MODELS.get(method, {})}
        cells.append({"cell": name, "dataset": "cohort", "arm": method, "settings": settings})
        cells[-1]["protocols"] = list(protocols)
    plan = {
        "format": "scmil-run-1",
        "name": "synthetic",
        "title": "Synthetic <b>run</b>",
        "about": "Random, not trained.",
        "task": task,
        "targets": {"cohort": target_json(targets.target)},
        "arms": [
            {"name": name, "against": "plain" if name.startswith("plain +") else None}
            for name in (skill or SKILL)
        ],
        "datasets": ["cohort"],
        "protocol": {"kind": "kfold", "folds": folds, "repeats": repeats, "seed": 0},
        "training": {"epochs": 3},
        "cells": cells,
        "versions": {"scmil": "0.7.0"},
    }
    (folder / "experiment.json").write_text(json.dumps(plan))
    (folder / "results.csv").write_text("cell\n")
    gather_again(folder)
    return folder


def _predict(
    targets: Targets, shares: np.ndarray, test: tuple[int, ...], weight: float, seed: int
) -> HeldOut:
    random = np.random.default_rng(seed)
    rows = list(test)
    ids = tuple(targets.ids[i] for i in rows)
    guess = np.clip(weight * shares[rows] + (1 - weight) * random.random(len(rows)), 0, 1)
    if targets.task == "survival":
        times = score_times(targets.array(targets.ids))
        curves = np.exp(-guess[:, None] * np.arange(1, len(times) + 1))
        return HeldOut(ids, curves, guess, guess > 0.5, tuple(times.tolist()))
    if targets.task == "regression":
        return HeldOut(ids, 100 + 20 * guess[:, None])
    if targets.task == "ordinal":
        return HeldOut(ids, np.eye(4)[np.minimum(3, (4 * guess).astype(int))])
    return HeldOut(ids, np.stack([guess, 1 - guess, random.random(len(rows))], axis=1))
