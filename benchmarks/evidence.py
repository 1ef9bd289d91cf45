"""Does evidence find the planted tumour at least as well as attention?

    python benchmarks/evidence.py --work FOLDER

Synthetic slides, half of them with a planted tumour, are tiled, encoded and used to train models of
several aggregators, with and without sparse coding, with several seeds. Each model then localises
the tumour in its test slides with four tile scores: evidence for the class tumour, attention, ratio
(attention times the number of tiles), and the probability of the tile on its own. All numbers are
those of one call of `scmil locate` with these scores, on slides that were used neither for training
nor for selection: the FROC score of CAMELYON16, the AUC of tiles over all slides and as the mean
over the slides with tumour, and the differences from evidence with 95 % intervals over slides. The
completeness error is the largest over the slides and classes of a model.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from pathlib import Path
from typing import Any

import torch

from scmil import studies
from scmil.bags.formats import open_bags
from scmil.bags.labels import read_labels
from scmil.demo.slides import make_bags, make_slides
from scmil.models.score_files import open_scores
from scmil.stats.localisation import Rule
from scmil.viz.lesions import locate

RESULTS = Path(__file__).parent / "results" / "evidence.json"
SCORES = ("evidence", "attention", "ratio", "probability")
# Heads that are linear after pooling, and one that gets integrated gradients.
AGGREGATORS = ("mean", "abmil-gated", "dsmil", "dtfd-afs", "clam-sb", "nlmil")
METRICS = ("froc", "tile_auc", "slide_auc")


def measure(
    work: Path, bags: Path, labels: Path, name: str, sparse: bool, seed: int
) -> dict[str, Any]:
    """Train one model, and localise with every score."""
    model = work / "models" / f"{name}{'-sc' * sparse}-{seed}"
    studies.train(
        studies.open_data(bags, labels),
        model,
        aggregator=name,
        sparse_coding=sparse,
        recipe="paper",
        epochs=40,
        patience=None,
        valid=0.15,
        test=0.4,
        seed=seed,
    )
    opened = open_bags(bags, labels=read_labels(labels))
    rules = [Rule(score) for score in SCORES]
    page = locate(model, opened, work / "slides", rule=rules, draws=1000).page
    found: dict[str, Any] = {
        each["rule"]["score"]: {
            "froc": each["froc"]["score"],
            "tile_auc": each["tiles"]["auc"],
            "slide_auc": each["tiles"]["slide_auc"],
            **({"minus evidence": each["difference"]} if "difference" in each else {}),
        }
        for each in [page, *page["compared"]]
    }
    slides = [scores for scores in open_scores(model).values() if scores.evidence is not None]
    return {
        "aggregator": name,
        "sparse_coding": sparse,
        "seed": seed,
        "test_auc": json.loads((model / "metrics.json").read_text())["test"]["slide"]["auc"],
        "method": "exact" if slides[0].evidence.steps == 0 else "integrated gradients",  # type: ignore[union-attr]
        "largest_error": max(float(abs(s.evidence.errors).max()) for s in slides),  # type: ignore[union-attr]
        "scores": found,
    }


def summarise(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the seeds of each method, and over all models."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        layer = " + SC" if run["sparse_coding"] else ""
        groups.setdefault(f"{run['aggregator']}{layer}", []).append(run)
    groups["all"] = runs
    return [
        {
            "method": name,
            "models": len(group),
            "largest_error": max(run["largest_error"] for run in group),
            **{
                score: {
                    metric: statistics.fmean(run["scores"][score][metric] for run in group)
                    for metric in METRICS
                }
                for score in SCORES
            },
            "models where evidence is lower": {
                score: {metric: _lower(group, score, metric) for metric in METRICS[:2]}
                for score in SCORES[1:]
            },
        }
        for name, group in groups.items()
    ]


def _lower(group: list[dict[str, Any]], score: str, metric: str) -> int:
    """In how many models evidence has a lower value than another score."""
    return sum(
        run["scores"]["evidence"][metric] < run["scores"][score][metric] - 1e-9 for run in group
    )


def as_markdown(methods: list[dict[str, Any]]) -> str:
    """The means of each method as a table: FROC score and AUC of tiles of every score."""
    lines = [
        "| method | " + " | ".join(SCORES) + " | largest error |",
        "|---|" + "---|" * (len(SCORES) + 1),
    ]
    for row in methods:
        cells = [f"{row[score]['froc']:.3f}, {row[score]['tile_auc']:.3f}" for score in SCORES]
        lines.append(f"| {row['method']} | {' | '.join(cells)} | {row['largest_error']:.1e} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder for slides and models")
    parser.add_argument("--slides", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    labels = make_slides(options.work, options.slides, seed=0)
    bags = make_bags(options.work)
    runs = []
    for name in AGGREGATORS:
        for sparse in (False, True):
            for seed in range(options.seeds):
                runs.append(measure(options.work, bags, labels, name, sparse, seed))
                print(json.dumps(runs[-1]), flush=True)
    page: dict[str, Any] = {
        "slides": options.slides,
        "seeds": options.seeds,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "methods": summarise(runs),
        "runs": runs,
    }
    options.out.write_text(json.dumps(page, indent=1) + "\n")
    print(as_markdown(page["methods"]))


if __name__ == "__main__":
    main()
