"""Does the layer train from the first step?   python benchmarks/start_alive.py

The measurements of docs/decisions/0001-start-alive.md: variants of the layer, on real data at
several scales and behind a ReLU embedding, 15 epochs of the paper's recipe on all bags. Output: the
fraction of all-zero codes and the density before and after training, and the training loss of the
first and the last epoch (0.693 is chance).

"printed" is the form of Eqs. (2) to (4), whose threshold is lambda. "absolute" has the threshold
lambda / mu, the proximal step of Eq. (1), as in the authors' code.
"""

from __future__ import annotations

import argparse
import json
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "start_alive.json"
VARIANTS: dict[str, dict[str, Any] | None] = {
    "no sparse coding": None,
    "printed": {"sparsity": "printed", "normalise": False},
    "printed, normalised": {"sparsity": "printed", "normalise": True},
    "absolute": {"sparsity": "absolute", "normalise": False},
    "absolute, normalised": {"sparsity": "absolute", "normalise": True},
    "relative 0.1-0.9": {"normalise": False},
    "relative 0-1, normalised": {"bounds": (0.0, 1.0)},
    "relative 0.25-0.75, normalised": {"bounds": (0.25, 0.75)},
    "default": {},
}
INPUTS = {  # scale of the standardised features, and widths of the embedding
    "ReLU embedding": (1.0, (256, 128, 64)),
    "ReLU embedding of x/50": (0.02, (256, 128, 64)),
    "standardised": (1.0, ()),
    "times 50": (50.0, ()),
    "unit norm": (None, ()),
}


def run(dataset: str, variant: str, source: str, epochs: int) -> dict[str, Any]:
    import torch

    from scmil import Bag, Recipe, SparseCoding, build_model, fit, load_dataset
    from scmil.bags.scaling import moments

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    scale, widths = INPUTS[source]
    loaded = load_dataset(dataset)
    standardised = moments(loaded).apply_to_bags(loaded)
    scaled = [
        bag.features * scale if scale else torch.nn.functional.normalize(bag.features)
        for bag in standardised
    ]
    bags = [Bag(bag.id, x, bag.label) for bag, x in zip(standardised, scaled, strict=True)]
    options, everything = VARIANTS[variant], torch.cat(scaled)
    aggregator = {"name": "abmil-gated", "hidden": 64}
    model = build_model(
        everything.shape[1], 2, aggregator, sparse_coding=options, embed=widths, seed=0
    )
    layer = model.refine if isinstance(model.refine, SparseCoding) else None
    row: dict[str, Any] = {"dataset": dataset, "input": source, "variant": variant}
    for when in ("before", "after"):
        if when == "after":
            losses = fit(model, bags, recipe=Recipe(epochs=epochs)).train_loss
            row |= {"first loss": losses[0], "last loss": losses[-1]}
        if layer is not None:
            with torch.no_grad():
                statistics = layer.statistics(model.embed(everything))
            row |= {
                f"dead {when}": statistics.dead,
                f"density {when}": statistics.density,
                f"step {when}": statistics.step,
            }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--datasets", nargs="+", default=["musk1", "elephant"])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    with ProcessPoolExecutor(2) as pool:
        runs = [
            (dataset, variant, source, options.epochs)
            for dataset in options.datasets
            for source in INPUTS
            for variant in options.variants
        ]
        rows = list(pool.map(run, *zip(*runs, strict=True)))
    for row in rows:
        numbers = "  ".join(
            f"{key} {value:.3f}" for key, value in row.items() if isinstance(value, float)
        )
        print(f"{row['dataset']:9} {row['input']:23} {row['variant']:31} {numbers}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
