"""Fill in the numbers and pictures of docs/arena.md from committed results.

    python docs/make_arena.py
    python docs/make_arena.py --losses runs   # first copy the training losses of the runs

Reads `results.csv`, `folds.csv` and `costs.csv` of the experiments `arena*` in experiments/results,
and `losses.csv` of those that are trained to convergence: the training loss of the last epoch of
each run, which `--losses` takes from its `history.csv`.
The text between `<!-- made: NAME -->` and `<!-- end -->` is generated, the rest is written by hand.
A test checks that the page matches the results.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import arena_pictures
import numpy as np

from scmil.bags.datasets import split_options
from scmil.core.atomic import write_atomically
from scmil.core.tables import records_csv
from scmil.report.html.markup import change, p_equals
from scmil.stats.bootstrap import Interval, bootstrap_interval
from scmil.stats.significance import holm, wilcoxon

HERE = Path(__file__).parent
PAGE = HERE / "arena.md"
IMAGES = HERE / "img"
RESULTS = HERE.parent / "experiments" / "results"
NONE, LINEAR, CHOSEN = "none", "linear", "SC, chosen"
CONFIRMATION = ("arena", "arena_large", "arena_colon")
CONVERGED = tuple(f"arena_converged{part}" for part in ("", "_slow", "_large", "_colon"))
# A method has converged with a training loss up to the first number; *none* also if its loss is at
# most the second above that of the linear layer.
LOW_LOSS, NEAR_LINEAR = 0.05, 0.02
FACTORS = ("bags", "witness", "noise_dims", "active")
Row = dict[str, str]


class Experiment(NamedTuple):
    """The tables of one experiment: rows by data set and method, and AUC by fold."""

    rows: dict[tuple[str, str], Row]
    folds: dict[tuple[str, str], list[float]]

    @property
    def datasets(self) -> list[str]:
        """The data sets, in their order."""
        return list(dict.fromkeys(dataset for dataset, _ in self.rows))

    @property
    def methods(self) -> list[str]:
        """The methods, in their order."""
        return list(dict.fromkeys(method for _, method in self.rows))

    def number(self, dataset: str, method: str, column: str) -> float:
        """A number of results.csv; NaN if there is none."""
        text = self.rows.get((dataset, method), {}).get(column) or "nan"
        return float(text)


class Difference(NamedTuple):
    """The difference in AUC of two methods on one data set, with its 95 % interval over folds."""

    dataset: str
    mean: float
    interval: Interval


def read_experiments(*names: str) -> Experiment:
    """Read the tables of experiments that have the same methods on different data sets."""
    found = Experiment({}, {})
    for name in names:
        for row in _read_rows(RESULTS / name / "results.csv"):
            found.rows[row["dataset"], row["arm"]] = row
        for row in _read_rows(RESULTS / name / "folds.csv"):
            area = float(row["auc"] or "nan")
            found.folds.setdefault((row["dataset"], row["arm"]), []).append(area)
    return found


def _read_rows(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def difference(experiment: Experiment, dataset: str, method: str, other: str) -> Difference:
    """The paired difference over folds, with the interval of the corrected resampled t-test."""
    from scipy.special import stdtrit

    pairs = zip(experiment.folds[dataset, method], experiment.folds[dataset, other], strict=True)
    values = np.array([a - b for a, b in pairs if math.isfinite(a - b)])
    folds = int(experiment.rows[dataset, method]["folds"])
    share = 1 / folds
    error = values.std(ddof=1) * math.sqrt(1 / len(values) + share / (1 - share))
    half = float(stdtrit(len(values) - 1, 0.975) * error)
    mean = experiment.number(dataset, method, "auc") - experiment.number(dataset, other, "auc")
    return Difference(dataset, mean, Interval(mean - half, mean + half))


def differences(experiment: Experiment, method: str, other: str) -> list[Difference]:
    """The differences on all data sets on which both methods have a result."""
    return [
        difference(experiment, dataset, method, other)
        for dataset in experiment.datasets
        if {(dataset, method), (dataset, other)} <= set(experiment.rows)
    ]


def over_datasets(means: Sequence[float]) -> tuple[float, Interval, float]:
    """The mean difference over data sets, its bootstrap interval, and Wilcoxon's p-value."""
    test = wilcoxon(means, [0.0] * len(means))
    return float(np.mean(means)), bootstrap_interval(means), test.p


def table(experiment: Experiment, column: str, digits: int = 3) -> str:
    """One metric of every method on every data set, with the mean over data sets."""
    lines = [
        f"| | {' | '.join(experiment.methods)} |",
        "|---|" + "---|" * len(experiment.methods),
    ]
    for dataset in experiment.datasets:
        cells = [_text(experiment.number(dataset, m, column), digits) for m in experiment.methods]
        if any(cell != "–" for cell in cells):
            lines.append(f"| {dataset} | {' | '.join(cells)} |")
    means = [
        _mean(experiment, method, column)
        if all((dataset, method) in experiment.rows for dataset in experiment.datasets)
        else math.nan
        for method in experiment.methods
    ]
    lines.append(f"| **mean** | {' | '.join(_text(mean, digits) for mean in means)} |")
    return "\n".join(lines)


def summary(experiment: Experiment) -> str:
    """The mean of each metric over data sets, and the median training time relative to no layer."""
    columns = ("accuracy", "auc", "brier", "calibration_error", "density")
    lines = [
        "| | accuracy | AUC | Brier score | calibration error | density | training time |",
        "|---|---|---|---|---|---|---|",
    ]
    for method in experiment.methods:
        cells = [_text(_mean(experiment, method, column), 3) for column in columns]
        ratios = [
            experiment.number(dataset, method, "seconds")
            / experiment.number(dataset, experiment.methods[0], "seconds")
            for dataset in experiment.datasets
        ]
        lines.append(f"| {method} | {' | '.join(cells)} | {_text(np.nanmedian(ratios), 2)} × |")
    return "\n".join(lines)


def instances(experiment: Experiment) -> str:
    """How well instances with labels are ranked."""
    columns = ("attention_auc", "attention_ap", "instance_auc", "instance_ap")
    lines = [
        "| | | attention AUC | attention AP | probability AUC | probability AP |",
        "|---|---|---|---|---|---|",
    ]
    for dataset, method in experiment.rows:
        numbers = [experiment.number(dataset, method, column) for column in columns]
        if math.isfinite(numbers[0]):
            cells = " | ".join(_text(number, 3) for number in numbers)
            lines.append(f"| {dataset} | {method} | {cells} |")
    return "\n".join(lines)


def comparisons(experiment: Experiment, pairs: Sequence[tuple[str, str]]) -> str:
    """The mean difference of each pair over data sets, with Wilcoxon's test, Holm-corrected."""
    lines = [
        "| | data sets | difference in AUC | 95 % interval | better / worse | p | Holm p |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = []
    for method, other in pairs:
        means = [one.mean for one in differences(experiment, method, other)]
        mean, interval, p = over_datasets(means)
        signs = f"{sum(m > 0 for m in means)} / {sum(m < 0 for m in means)}"
        rows.append((f"{method} against {other}", len(means), mean, interval, signs, p))
    for row, corrected in zip(rows, holm([row[-1] for row in rows]), strict=True):
        name, count, mean, interval, signs, p = row
        lines.append(
            f"| {name} | {count} | {change(mean)} | {change(interval.low)} to "
            f"{change(interval.high)} | {signs} | {p:.3f} | {corrected:.3f} |"
        )
    return "\n".join(lines)


def verdict(experiment: Experiment) -> str:
    """The decision by the rule that was written down before the confirmation."""
    against = {
        other: over_datasets([one.mean for one in differences(experiment, CHOSEN, other)])
        for other in (NONE, LINEAR)
    }
    better = against[NONE][0] > 0 and against[NONE][2] < 0.05
    worse = against[LINEAR][0] < 0 and against[LINEAR][2] < 0.05
    found = "; ".join(
        f"against {other} {change(mean)} ({p_equals(p)})" for other, (mean, _, p) in against.items()
    )
    outcome = "meets the rule" if better and not worse else "does not meet the rule"
    return f"> The chosen variant {outcome}: difference in AUC {found}."


def read_losses(*names: str) -> dict[tuple[str, str], float]:
    """The training loss of the last epoch by data set and method."""
    rows = [row for name in names for row in _read_rows(RESULTS / name / "losses.csv")]
    return {(row["dataset"], row["arm"]): float(row["train_loss"]) for row in rows}


def copy_losses(runs: Path) -> None:
    """Write the last training loss of each finished run into the results of its experiment."""
    for name in CONVERGED:
        rows = []
        for row in _read_rows(RESULTS / name / "costs.csv"):
            last = _read_rows(runs / name / "cells" / row["cell"] / "history.csv")[-1]
            kept = {key: row[key] for key in ("cell", "dataset", "arm")}
            rows.append({**kept, "epoch": last["epoch"], "train_loss": last["train_loss"]})
        write_atomically(RESULTS / name / "losses.csv", records_csv(rows))


def converged(losses: dict[tuple[str, str], float], dataset: str) -> bool:
    """Whether the method without a layer has converged on a data set."""
    none, linear = losses[dataset, NONE], losses[dataset, LINEAR]
    return none <= max(LOW_LOSS, linear + NEAR_LINEAR)


def losses_table(experiment: Experiment, losses: dict[tuple[str, str], float]) -> str:
    """AUC and training loss of the methods that are trained to convergence."""
    methods = experiment.methods
    header = [f"{method}: {what}" for what in ("AUC", "loss") for method in methods]
    lines = [f"| | {' | '.join(header)} |", "|---|" + "---|" * len(header)]
    for dataset in experiment.datasets:
        areas = [_text(experiment.number(dataset, m, "auc"), 3) for m in methods]
        ends = [_text(losses.get((dataset, m), math.nan), 3) for m in methods]
        lines.append(f"| {dataset} | {' | '.join([*areas, *ends])} |")
    means = [_text(_mean(experiment, method, "auc"), 3) for method in methods]
    lines.append(f"| **mean** | {' | '.join(means)} |" + " |" * len(methods))
    return "\n".join(lines)


def final_verdict() -> str:
    """The decision of the second confirmation."""
    experiment, losses = read_experiments(*CONVERGED), read_losses(*CONVERGED)
    kept = [dataset for dataset in experiment.datasets if converged(losses, dataset)]
    rows = {key: row for key, row in experiment.rows.items() if key[0] in kept}
    quoted = [
        verdict(experiment),
        f"> On the {len(kept)} data sets on which *none* has converged:",
        verdict(Experiment(rows, experiment.folds)),
    ]
    pairs = [(LINEAR, NONE), (CHOSEN, NONE), (CHOSEN, LINEAR)]
    tables = [comparisons(experiment, pairs), losses_table(experiment, losses)]
    return "\n\n".join(["\n>\n".join(quoted), *tables])


def diagram_rows(experiment: Experiment) -> list[arena_pictures.Point]:
    """The gain of every SC method over its linear control, for every cohort."""
    points = []
    for dataset in experiment.datasets:
        _, options = split_options(dataset)
        for method, other in arena_pictures.PAIRS.items():
            if {(dataset, method), (dataset, other)} <= set(experiment.rows):
                gain = experiment.number(dataset, method, "auc") - experiment.number(
                    dataset, other, "auc"
                )
                factors = {name: float(options[name]) for name in FACTORS}
                points.append(arena_pictures.Point(method, factors, int(options["seed"]), gain))
    return points


def cohorts(experiment: Experiment) -> str:
    """AUC of all methods for every kind of cohort, as means over seeds."""
    methods = experiment.methods
    lines = [
        f"| bags | witness | noise dims | active | {' | '.join(methods)} |",
        "|---|---|---|---|" + "---|" * len(methods),
    ]
    kinds: dict[tuple[float, ...], list[str]] = {}
    for dataset in experiment.datasets:
        _, options = split_options(dataset)
        kinds.setdefault(tuple(float(options[name]) for name in FACTORS), []).append(dataset)
    for kind, members in kinds.items():
        means = [
            float(np.mean([experiment.number(one, method, "auc") for one in members]))
            for method in methods
        ]
        numbers = " | ".join(f"{value:g}" for value in kind)
        lines.append(f"| {numbers} | {' | '.join(_text(mean, 3) for mean in means)} |")
    return "\n".join(lines)


def progress(name: str, experiment: Experiment) -> str:
    """How many runs of an experiment are finished."""
    planned = json.loads((RESULTS / name / "experiment.json").read_text(encoding="utf-8"))["cells"]
    return f"{len(experiment.rows)} of {len(planned)} runs are finished."


def _mean(experiment: Experiment, method: str, column: str) -> float:
    values = [experiment.number(dataset, method, column) for dataset in experiment.datasets]
    known = [value for value in values if math.isfinite(value)]
    return float(np.mean(known)) if known else math.nan


def _text(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "–"


def filled(page: str) -> str:
    """The page with all generated parts updated."""
    arena, heads = read_experiments(*CONFIRMATION), read_experiments("arena_heads")
    baselines, synthetic = read_experiments("arena_baselines"), read_experiments("arena_synthetic")
    development = read_experiments("arena_development", "arena_development_large")
    first = [(method, NONE) for method in arena.methods if method != NONE]
    made: dict[str, Callable[[], str]] = {
        "development": lambda: table(development, "auc"),
        "auc": lambda: table(arena, "auc"),
        "summary": lambda: summary(arena),
        "comparisons": lambda: comparisons(arena, [*first, (CHOSEN, LINEAR), ("SC", LINEAR)]),
        "verdict": lambda: verdict(arena),
        "converged": final_verdict,
        "instances": lambda: instances(arena),
        "heads": lambda: f"{table(heads, 'auc')}\n\n{progress('arena_heads', heads)}",
        "baselines": lambda: (
            f"{table(baselines, 'auc')}\n\n{progress('arena_baselines', baselines)}"
        ),
        "cohorts": lambda: cohorts(synthetic),
    }
    parts = r"(<!-- made: ([\w -]+) -->\n).*?(<!-- end -->)"
    return re.sub(
        parts, lambda found: f"{found[1]}\n{made[found[2]]()}\n\n{found[3]}", page, flags=re.S
    )


def forest(*names: str) -> str:
    """The forest plot of the chosen variant in experiments."""
    experiment = read_experiments(*names)
    shown = {
        f"{CHOSEN} against {other}": differences(experiment, CHOSEN, other)
        for other in (NONE, LINEAR)
    }
    panels = [
        arena_pictures.Panel(
            title,
            [(one.dataset, one.mean, one.interval) for one in found],
            over_datasets([one.mean for one in found]),
        )
        for title, found in shown.items()
    ]
    return arena_pictures.forest(panels)


def pictures() -> dict[str, str]:
    """The SVG of every picture by its file name."""
    return {
        "arena_forest.svg": forest(*CONFIRMATION),
        "arena_forest_converged.svg": forest(*CONVERGED),
        "arena_diagram.svg": arena_pictures.diagram(
            diagram_rows(read_experiments("arena_synthetic"))
        ),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--losses", type=Path, metavar="RUNS")
    if (runs := parser.parse_args().losses) is not None:
        copy_losses(runs)
    for name, picture in pictures().items():
        write_atomically(IMAGES / name, picture.encode())
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
