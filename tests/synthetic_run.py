"""A run directory as `scmil run` writes it, with random predictions instead of trained models."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scmil.bags.splits import repeated_folds
from scmil.stats.metrics import METRICS, accuracy, score_all, youden_threshold

EVIL = "<script>alert(1)</script>"
METHODS: tuple[tuple[str, str | None], ...] = (
    ("ABMIL | a_b", None),
    ("ABMIL + SC", "ABMIL | a_b"),
    (EVIL, "ABMIL | a_b"),
)
PUBLISHED = {("ABMIL | a_b", "musk1"): 0.9, ("ABMIL + SC", "musk1"): 0.969}
PROTOCOLS = ("last", "nested", "test-tuned")
EPOCHS = 12


def write_run(
    folder: Path,
    methods: Sequence[tuple[str, str | None]] = METHODS,
    datasets: Sequence[str] = ("musk1", "fox"),
    *,
    skill: Mapping[str, float]
    | None = None,  # distance between the scores of the classes, by method
    failed: Sequence[tuple[str, str]] = ((EVIL, "fox"),),
    missing: Sequence[tuple[str, str]] = (),
    protocols: Sequence[str] = PROTOCOLS,
    published: Mapping[tuple[str, str], float] = PUBLISHED,
    bags: int = 60,
    repeats: int = 5,
    folds: int = 10,
) -> Path:
    """Write every method on every data set; failed runs have a cause, missing ones no files."""
    planned: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    fold_rows: list[dict[str, Any]] = []
    for d, dataset in enumerate(datasets):
        for a, (method, _) in enumerate(methods):
            name = f"{dataset}--method-{a}"
            planned.append(
                {
                    "cell": name,
                    "dataset": dataset,
                    "arm": method,
                    "protocols": list(protocols),
                    "settings": {"n": a},
                }
            )
            if (method, dataset) in missing:
                continue
            home = folder / "cells" / name
            home.mkdir(parents=True)
            if (method, dataset) in failed:
                (home / "failed.json").write_text(
                    json.dumps({"error": "ValueError: no <b>luck</b>"})
                )
                continue
            apart = (skill or {}).get(method, 1.6 + 0.2 * a) - 0.3 * d
            one = _SyntheticRun(
                method, dataset, name, bags, repeats, folds, apart, noise=100 * d + a
            )
            predictions = [
                row for protocol in protocols for row in one.test(protocol, results, fold_rows)
            ]
            _write_csv(home / "predictions.csv", predictions)
            _write_csv(home / "history.csv", one.history())
    _write_csv(folder / "results.csv", results)
    _write_csv(folder / "folds.csv", fold_rows)
    plan = {
        "format": "scmil-run-1",
        "name": "synthetic",
        "title": "Table II · synthetic <b>run</b>",
        "about": "Random, not trained.",
        "arms": [{"name": name, "against": against} for name, against in methods],
        "datasets": list(datasets),
        "protocol": {"kind": "kfold", "folds": folds, "repeats": repeats, "seed": 0},
        "training": {"epochs": EPOCHS, "learning_rate": 1e-4},
        "cells": planned,
        "published": [
            {"arm": a, "dataset": d, "accuracy": v, "sd": 0.05} for (a, d), v in published.items()
        ],
        "published_note": "From the paper & its Table II.",
        "versions": {"scmil": "0.2.0", "torch": "2.13.0"},
    }
    (folder / "experiment.json").write_text(json.dumps(plan))
    return folder


def small_run(folder: Path, **options: object) -> Path:
    """A run of 20 bags without failures; `options` are those of `write_run`."""
    return write_run(folder, **{"bags": 20, "repeats": 2, "folds": 5, "failed": (), **options})  # type: ignore[arg-type]


class _SyntheticRun:
    """One method on one data set: all methods share the bags, each has its own noise."""

    def __init__(
        self,
        method: str,
        dataset: str,
        name: str,
        bags: int,
        repeats: int,
        folds: int,
        apart: float,
        noise: int,
    ) -> None:
        self.place = {"cell": name, "dataset": dataset, "arm": method}
        self.labels = np.arange(bags) % 2
        self.splits = repeated_folds(self.labels.tolist(), folds, repeats, seed=0)
        hardness = np.random.default_rng(len(dataset)).normal(size=bags)
        drawn = np.random.default_rng(noise).normal(size=(repeats, bags))
        logit = apart * (2 * self.labels - 1) + 1.3 * hardness + 0.6 * drawn
        self.positive = 1 / (1 + np.exp(-logit))
        self.noise = np.random.default_rng(noise)

    def test(
        self, protocol: str, results: list[dict[str, Any]], folds: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        rows, scores = [], []
        for repeat, splits in enumerate(self.splits):
            for fold, split in enumerate(splits):
                labels, positive = (
                    self.labels[list(split.test)],
                    self.positive[repeat, list(split.test)],
                )
                probabilities = np.stack([1 - positive, positive], 1)
                threshold = youden_threshold(labels, positive) if protocol == "test-tuned" else 0.5
                if accuracy(labels, probabilities, threshold) < accuracy(labels, probabilities):
                    threshold = 0.5  # so that tuning never loses here
                threshold += 0.02 * (protocol == "nested")
                score = score_all(labels, probabilities, threshold)
                scores.append([score[metric] for metric in METRICS])
                place = {**self.place, "protocol": protocol, "repeat": repeat, "fold": fold}
                folds.append(
                    {
                        **place,
                        "bags": len(labels),
                        **_blank(score),
                        "epoch": EPOCHS,
                        "threshold": threshold,
                    }
                )
                rows += [
                    {
                        "protocol": protocol,
                        "repeat": repeat,
                        "fold": fold,
                        "bag": str(bag),
                        "label": int(self.labels[bag]),
                    }
                    | {"threshold": threshold, "p0": 1 - p, "p1": p}
                    for bag, p in zip(split.test, positive.tolist())
                ]
        results.append(
            self._result(protocol, np.array(scores).reshape(len(self.splits), -1, len(METRICS)))
        )
        return rows

    def _result(self, protocol: str, scores: np.ndarray) -> dict[str, Any]:
        counts = {"repeats": scores.shape[0], "folds": scores.shape[1], "bags": len(self.labels)}
        row: dict[str, Any] = {**self.place, "protocol": protocol, **counts}
        for i, metric in enumerate(METRICS):
            mean, error = (
                scores[..., i].mean(),
                2 * scores[..., i].std() / math.sqrt(scores.shape[1]),
            )
            row |= {
                metric: mean,
                f"{metric}_sd_repeats": scores[..., i].mean(1).std(ddof=1)
                if len(scores) > 1
                else math.nan,
            }
            row |= {
                f"{metric}_sd_folds": scores[..., i].std(),
                f"{metric}_low": mean - error,
                f"{metric}_high": mean + error,
            }
        density = 0.12 if "SC" in self.place["arm"] else math.nan
        return _blank({**row, "parameters": 81_234, "density": density, "seconds": 93.4})

    def history(self) -> list[dict[str, Any]]:
        rate = self.noise.uniform(2, 4)
        return [
            {
                "training": training,
                "epoch": epoch,
                "train_loss": 0.1 + 0.6 * math.exp(-epoch / rate),
                "test_loss": 0.3 + 0.4 * math.exp(-epoch / rate),
                "test_accuracy": 0.9 - 0.3 * math.exp(-epoch / rate) + 0.01 * self.noise.normal(),
                "test_auc": 0.95 - 0.3 * math.exp(-epoch / rate),
            }
            for training in ("full", "inner")
            for epoch in range(1, EPOCHS + 1)
        ]


def _blank(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: "" if isinstance(value, float) and math.isnan(value) else value
        for name, value in row.items()
    }


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
