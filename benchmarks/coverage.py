"""How often do the 95 % intervals contain the true value?

    python benchmarks/coverage.py

Simulated for AUC, concordance and the metrics of numbers; exact for proportions, by adding the
probabilities of all outcomes. AUC: scores are normal with equal standard deviations ("normal"),
with those of the positives twice as large ("wide") or half as large ("narrow"), or exponential
("exponential"). Concordance: log-normal times, censored independently.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scmil.stats.bootstrap import Interval
from scmil.stats.concordance import concordance, concordance_interval
from scmil.stats.regression import regression_intervals
from scmil.stats.small_samples import metric_intervals, wilson_interval

RESULTS = Path(__file__).parent / "results" / "coverage.json"
SIZES = (20, 50, 200)
AUCS = (0.7, 0.8, 0.9, 0.95, 0.99)
SPREADS = {"normal": 1.0, "wide": 2.0, "narrow": 0.5}
Generator = np.random.Generator


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--samples", type=int, default=4000)
    options = parser.parse_args()
    content: dict[str, Any] = {
        "samples": options.samples,
        "auc": list(auc_rows(options.samples)),
        "concordance": list(concordance_rows(options.samples // 2)),
        "regression": list(regression_rows(options.samples)),
        "accuracy, exact": list(proportion_rows()),
    }
    options.out.write_text(json.dumps(content, indent=2) + "\n")
    reference = [
        row["coverage"]
        for row in content["auc"]
        if row["scores"] == "normal" and row["share"] == 0.5
    ]
    print(f"AUC, normal scores: {min(reference):.1f} to {max(reference):.1f} % in {options.out}")
    return int(not 93 <= min(reference) <= max(reference) <= 97)


def auc_rows(samples: int) -> Iterable[dict[str, Any]]:
    for kind in (*SPREADS, "exponential"):
        for share in (0.5, 0.25):
            for n in SIZES:
                for true in AUCS:
                    generator = np.random.default_rng(0)
                    found = [auc_sample(kind, true, n, share, generator) for _ in range(samples)]
                    yield {
                        "scores": kind,
                        "share": share,
                        "n": n,
                        "true": true,
                        **summary(true, found),
                    }
                    print(kind, share, n, true, flush=True)


def auc_sample(kind: str, true: float, n: int, share: float, generator: Generator) -> Interval:
    """The interval of the AUC of one sample."""
    positive = round(n * share)
    if kind == "exponential":  # P(X > Y) = a / (1 + a) if X has a times the mean of Y
        above = generator.exponential(true / (1 - true), positive)
        below = generator.exponential(1.0, n - positive)
    else:
        spread = SPREADS[kind]
        shift = NormalDist().inv_cdf(true) * math.sqrt(1 + spread**2)
        above = generator.normal(shift, spread, positive)
        below = generator.normal(0.0, 1.0, n - positive)
    labels = np.repeat([1, 0], [positive, n - positive])
    scores = np.concatenate([above, below])
    return metric_intervals(labels, np.stack([-scores, scores], axis=1), 0.0)["auc"]


def concordance_rows(samples: int) -> Iterable[dict[str, Any]]:
    for censored in (0.0, 0.5, 0.75):
        for noise in (2.0, 0.8, 0.3, 0.1):
            generator = np.random.default_rng(0)
            true = float(
                np.mean([concordance(*times(2000, noise, censored, generator)) for _ in range(4)])
            )
            for n in SIZES:
                drawn = (times(n, noise, censored, generator) for _ in range(samples))
                found = [concordance_interval(*sample) for sample in drawn if sample[1].sum() > 1]
                yield {
                    "censored": censored,
                    "n": n,
                    "true": round(true, 3),
                    **summary(true, found),
                }
                print("concordance", censored, noise, n, flush=True)


def times(
    n: int, noise: float, censored: float, generator: Generator
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]:
    """Times, events and risks of n patients; each time is censored at random."""
    risk = generator.normal(size=n)
    time = np.exp(-risk + noise * generator.normal(size=n))
    event = generator.random(n) >= censored
    return np.where(event, time, time * generator.random(n)), event, risk


def regression_rows(samples: int) -> Iterable[dict[str, Any]]:
    for correlation in (0.3, 0.8, 0.95):
        rest = math.sqrt(1 - correlation**2)
        true = {
            "r2": correlation**2,
            "pearson": correlation,
            "spearman": 6 / math.pi * math.asin(correlation / 2),
            "mae": rest * math.sqrt(2 / math.pi),
        }
        for n in SIZES:
            generator = np.random.default_rng(0)
            found = []
            for _ in range(samples):
                x = generator.normal(size=n)
                y = correlation * x + rest * generator.normal(size=n)
                found.append(regression_intervals(y, correlation * x))
            for name, value in true.items():
                yield {
                    "metric": name,
                    "n": n,
                    "true": round(value, 4),
                    **summary(value, [intervals[name] for intervals in found]),
                }


def proportion_rows() -> Iterable[dict[str, Any]]:
    for n in SIZES:
        outcomes = [wilson_interval(hits / n, n) for hits in range(n + 1)]
        for true in AUCS:
            share = probability(n, true)
            covered = sum(share(k) for k, ends in enumerate(outcomes) if ends[0] <= true <= ends[1])
            yield {"n": n, "true": true, "coverage": round(100 * covered, 1)}


def probability(n: int, p: float) -> Callable[[int], float]:
    return lambda k: math.comb(n, k) * p**k * (1 - p) ** (n - k)


def summary(true: float, intervals: list[Interval]) -> dict[str, float]:
    ends = np.array(intervals)
    ends = ends[np.isfinite(ends).all(1)]
    inside = (ends[:, 0] <= true) & (true <= ends[:, 1])
    return {
        "coverage": round(100 * float(inside.mean()), 1),
        "above": round(100 * float((ends[:, 0] > true).mean()), 1),
        "below": round(100 * float((ends[:, 1] < true).mean()), 1),
        "width": round(float((ends[:, 1] - ends[:, 0]).mean()), 4),
    }


if __name__ == "__main__":
    sys.exit(main())
