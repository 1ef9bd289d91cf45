"""Which form of the layer helps most? Evaluated on inner validation splits, never on a test fold.

    python benchmarks/choose_layer.py               all variants, about an hour on one core
    python benchmarks/choose_layer.py none sc       some of them

Every variant has the same folds, seeds and recipe. A fifth of the training split of each of ten
outer folds is held out and scored at the last epoch with threshold 0.5; the outer test folds are
not used. Writes benchmarks/results/choose_layer.json, and keeps the results of other variants.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

from scmil.bags.datasets import load_dataset
from scmil.bags.splits import Split, repeated_folds, with_validation
from scmil.core.atomic import write_atomically
from scmil.models.model import build_model
from scmil.stats.metrics import score_all
from scmil.training.folds import fit_folds

RESULTS = Path(__file__).parent / "results" / "choose_layer.json"
# The number of repeats of ten folds.
DATASETS = {"musk1": 2, "ucsb-breast-cancer": 2, "elephant": 1}
DEEP = (256, 128, 64)
VARIANTS: dict[str, dict[str, Any]] = {
    "none": {"embed": DEEP},
    "norm": {"embed": DEEP, "refine": "normalise"},
    "none-128": {"embed": (128,)},
    "lin": {"embed": DEEP, "refine": "linear"},
    "lin-raw": {"embed": (), "refine": "linear"},
    "sc": {"embed": DEEP, "sparse_coding": True},
    "sc-random": {"embed": DEEP, "sparse_coding": {"dictionary": "random"}},
    "sc-loose": {"embed": DEEP, "sparse_coding": {"bounds": (0.02, 0.5)}},
    "sc-raw": {"embed": (), "sparse_coding": {"dictionary": "random"}},
    "sc-raw-loose": {"embed": (), "sparse_coding": {"dictionary": "random", "bounds": (0.02, 0.5)}},
    "sc-L10": {"embed": DEEP, "sparse_coding": {"layers": 10}},
    "sc-m64": {"embed": DEEP, "sparse_coding": {"atoms": 64}},
    "sc-128": {"embed": (128,), "sparse_coding": {"dictionary": "random"}},
}


def measure(variant: str, dataset: str, repeats: int) -> dict[str, Any]:
    bags = load_dataset(dataset)
    labels = [int(label or 0) for label in bags.labels]
    splits = []
    for repeat, folds in enumerate(repeated_folds(labels, 10, repeats, seed=7000)):
        for fold, outer in enumerate(folds):
            inner = with_validation(outer, labels, 0.2, seed=7000 + 97 * repeat + fold)
            splits.append(Split(inner.train, test=inner.valid))
    aggregator = {"name": "abmil-gated", "hidden": 64}
    models = [
        build_model(bags.dim, 2, aggregator, seed=9000 + i, **VARIANTS[variant])
        for i in range(len(splits))
    ]
    history = fit_folds(models, list(bags), splits, seed=7, look="last")
    scores = [
        score_all(
            [labels[i] for i in split.test], history.probabilities[-1, fold, list(split.test)]
        )
        for fold, split in enumerate(splits)
    ]
    return {
        "arm": variant,
        "data": dataset,
        "accuracy": statistics.mean(score["accuracy"] for score in scores),
        "auc": statistics.mean(score["auc"] for score in scores),
        "accuracies": [score["accuracy"] for score in scores],
    }


def main() -> None:
    torch.set_num_threads(1)
    known = {
        (row["arm"], row["data"]): row
        for row in (json.loads(RESULTS.read_text()) if RESULTS.exists() else [])
    }
    for variant in sys.argv[1:] or VARIANTS:
        for dataset, repeats in DATASETS.items():
            row = known[variant, dataset] = measure(variant, dataset, repeats)
            print(
                f"{variant:14} {dataset:20} accuracy {row['accuracy']:.3f}  AUC {row['auc']:.3f}",
                flush=True,
            )
            write_atomically(RESULTS, (json.dumps(list(known.values()), indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
