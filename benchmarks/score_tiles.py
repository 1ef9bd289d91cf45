"""How much faster is one pass through the model when tiles are scored?

    python benchmarks/score_tiles.py

`score_bag` embeds and refines each tile once and computes the prediction of the slide, the tile
probabilities, lambda and the codes from the same rows. The reference is the way of version 0.6.0:
predict the bag, then embed and refine all rows once more for the tile scores. Both run in turns in
one process; the figure for each shape is the median of the ratios. The largest difference between
their results is reported as well.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from scmil import Bag, build_model
from scmil.models.model import MILModel
from scmil.models.streaming import BLOCK_ROWS, predict_bag
from scmil.models.tile_scores import Codes, instance_logits, score_bag
from scmil.sparse_coding.layer import SparseCoding

RESULTS = Path(__file__).parent / "results" / "score_tiles.json"
TURNS = 7
EXACT = 1e-5  # largest accepted difference of attention, probabilities and lambda


class Shape(NamedTuple):
    """A model and a bag to score."""

    tiles: int
    dim: int
    aggregator: str
    sparse_coding: bool


SHAPES = (
    Shape(2_000, 512, "abmil-gated", True),
    Shape(12_000, 1024, "abmil-gated", True),
    Shape(12_000, 1024, "dsmil", True),
    Shape(12_000, 1024, "abmil-gated", False),
)


@torch.no_grad()
def score_in_two_passes(model: MILModel, bag: Bag) -> dict[str, Any]:
    """The way of version 0.6.0: a prediction, then all rows through the model once more."""
    model.eval()
    prediction = predict_bag(model, bag.features)
    instance, lam, codes = [], [], []
    for start in range(0, len(bag.features), BLOCK_ROWS):
        embedded = model.embed(bag.features[start : start + BLOCK_ROWS])
        h = model.refine(embedded)
        instance.append(instance_logits(model.aggregate, h).softmax(-1))
        if isinstance(model.refine, SparseCoding):
            lam.append(model.refine.sparsity(embedded)[:, 0])
            codes.append(Codes.of(h.float().numpy()))
    if codes:
        Codes.stack(codes)
    scores = {"attention": prediction.attention, "instance": torch.cat(instance)}
    if lam:
        scores["lam"] = torch.cat(lam)
    return {name: tensor.float().numpy() for name, tensor in scores.items()}


def measure(shape: Shape, turns: int) -> dict[str, Any]:
    """Times of both ways in turns, after a warm-up of each."""
    model = build_model(
        shape.dim, 2, shape.aggregator, sparse_coding=shape.sparse_coding, embed=[484], seed=0
    )
    generator = torch.Generator().manual_seed(0)
    bag = Bag(
        "slide",
        torch.randn(shape.tiles, shape.dim, generator=generator),
        xy=torch.arange(2 * shape.tiles).reshape(-1, 2),
        provenance={"side_level0": 256.0},
    )
    before, after = score_in_two_passes(model, bag), score_bag(model, bag)
    difference = max(
        float(np.abs(array - getattr(after, name)).max()) for name, array in before.items()
    )
    seconds: dict[str, list[float]] = {"two passes": [], "one pass": []}
    for _ in range(turns):
        for name, score in (("two passes", score_in_two_passes), ("one pass", score_bag)):
            start = time.perf_counter()
            score(model, bag)
            seconds[name].append(time.perf_counter() - start)
    ratios = [two / one for two, one in zip(*seconds.values(), strict=True)]
    return {
        **shape._asdict(),
        "milliseconds": {name: 1000 * statistics.median(s) for name, s in seconds.items()},
        "speed-up": statistics.median(ratios),
        "largest difference": difference,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    measured = []
    for shape in SHAPES:
        measured.append(measure(shape, options.turns))
        result = measured[-1]
        layer = "sparse coding" if shape.sparse_coding else "no sparse coding"
        print(
            f"{shape.tiles:6} tiles x {shape.dim}, {shape.aggregator}, {layer}: "
            f"{result['milliseconds']['two passes']:.0f} ms -> "
            f"{result['milliseconds']['one pass']:.0f} ms, "
            f"speed-up {result['speed-up']:.2f}, "
            f"largest difference {result['largest difference']:.1e}"
        )
    content = {
        "machine": platform.machine(),
        "threads": options.threads,
        "torch": torch.__version__,
        "turns": options.turns,
        "shapes": measured,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(content, indent=2) + "\n")
    print(f"written to {options.out}")
    raise SystemExit(any(result["largest difference"] > EXACT for result in measured))


if __name__ == "__main__":
    main()
