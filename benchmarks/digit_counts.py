"""How well is the share of nines in a bag of digits predicted? A regression on public images.

    python benchmarks/digit_counts.py

The bags are those of the data set `digits` (150 bags of about ten 8 x 8 images of scikit-learn,
each image in one bag); the target is the share of images that show a nine. Five folds, the last
epoch, the same splits for all methods, and ridge regression on mean and maximum of each bag.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

import scmil
from scmil.bags.datasets import load_targets
from scmil.stats.bootstrap import MetricEstimate
from scmil.training.target_baseline import baseline_folds
from scmil.training.target_folds import cross_fit, score_held_out, target_folds

RESULTS = Path(__file__).parent / "results" / "digit_counts.json"
METHODS: dict[str, dict[str, Any]] = {
    "ABMIL": {"aggregator": "abmil", "embed": [64]},
    "ABMIL + SC": {"aggregator": "abmil", "embed": [64], "sparse_coding": {"atoms": 128}},
    "ABMIL + linear": {
        "aggregator": "abmil",
        "embed": [64],
        "sparse_coding": {"atoms": 128},
        "refine": "linear",
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    bags = list(scmil.load_dataset("digits"))
    targets = load_targets("digits", "regression")
    splits = target_folds(targets, targets.ids, folds=5)
    recipe = scmil.Recipe(epochs=options.epochs, learning_rate=1e-3)
    rows = {
        "ridge on mean and maximum": scores(
            score_held_out(targets, baseline_folds(bags, targets, splits))
        )
    }
    for name, model in METHODS.items():
        found = cross_fit(bags, targets, splits, recipe, model)
        rows[name] = scores(score_held_out(targets, found))
        print(name, rows[name], flush=True)
    content = {"bags": len(bags), "folds": 5, "epochs": options.epochs, "methods": rows}
    options.out.write_text(json.dumps(content, indent=2) + "\n")
    return int(max(row["r2"][1] for row in rows.values()) <= 0)


def scores(estimates: dict[str, MetricEstimate]) -> dict[str, list[float]]:
    """Value, lower and upper end of each metric."""
    return {
        name: [round(number, 4) for number in (value, *interval)]
        for name, (value, interval) in estimates.items()
    }


if __name__ == "__main__":
    sys.exit(main())
