"""The numbers of docs/benchmarks.md, read from the results that are in the repository.   python docs/make_benchmarks.py

The page's sentences are written by people; what stands between `<!-- made: NAME -->` and `<!-- end -->` is written here.
A test holds that the page says what the results say.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from scmil.report import Run, read_run, verdict
from scmil.report.comparisons import protocol_worth
from scmil.report.run_files import Key

HERE = Path(__file__).parent
PAGE = HERE / "benchmarks.md"
TABLE2 = HERE.parent / "experiments" / "results" / "table2_classic"
MEASURED = HERE.parent / "benchmarks" / "results"


def filled(page: str) -> str:
    """The page with all its made parts made anew."""
    run = read_run(TABLE2)
    made: dict[str, Callable[[], str]] = {
        "verdict": lambda: f"> {verdict(run)}",
        "progress": lambda: f"{len(run.finished)} of {len(run.cells)} cells of the table are finished.",
        "protocols": lambda: protocols(run),
        "worth": lambda: worth(run),
        "other runs": other_runs,
        "speed": speed,
        **{f"table {protocol}": partial(table, run, protocol) for protocol in run.protocols},
    }
    parts = r"(<!-- made: ([\w -]+) -->\n).*?(<!-- end -->)"
    return re.sub(parts, lambda found: f"{found[1]}\n{made[found[2]]()}\n\n{found[3]}", page, flags=re.S)


def table(run: Run, protocol: str) -> str:
    """Every arm on every data set, beside the published accuracy."""
    lines = [f"| | {' | '.join(name.upper() for name in run.datasets)} |", "|---|" + "---|" * len(run.datasets)]
    for arm in run.arms:
        cells = [_beside(run, Key(arm.name, dataset, protocol)) for dataset in run.datasets]
        if any(cell != "–" for cell in cells):
            lines.append(f"| {arm.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _beside(run: Run, key: Key) -> str:
    if key not in run.results:
        return "–"
    published = run.published.get((key.arm, key.dataset))
    return f"{_accuracy(run, key):.3f}" + (f" ({published.accuracy:.3f})" if published else "")


def protocols(run: Run) -> str:
    """The arms that were scored by all protocols, averaged over the data sets on which all of these arms are finished."""
    several = [arm.name for arm in run.arms if any(_by_all(run, arm.name, dataset) for dataset in run.datasets)]
    common = [dataset for dataset in run.datasets if all(_by_all(run, arm, dataset) for arm in several)]
    if not common:
        return "No data set is finished for all arms yet."
    lines = [
        f"Accuracy, mean over {', '.join(name.upper() for name in common)}:\n",
        f"| | {' | '.join(f'`{name}`' for name in run.protocols)} | published |",
        "|---|" + "---|" * (len(run.protocols) + 1),
    ]
    for arm in several:
        ours = [mean(_accuracy(run, Key(arm, dataset, protocol)) for dataset in common) for protocol in run.protocols]
        told = [run.published[arm, dataset].accuracy for dataset in common if (arm, dataset) in run.published]
        published = f"{mean(told):.3f}" if len(told) == len(common) else ""
        lines.append(f"| {arm} | {' | '.join(f'{value:.3f}' for value in ours)} | {published} |")
    return "\n".join(lines)


def _by_all(run: Run, arm: str, dataset: str) -> bool:
    return all(Key(arm, dataset, protocol) in run.results for protocol in run.protocols)


def _accuracy(run: Run, key: Key) -> float:
    return run.results[key].metrics["accuracy"].mean


def worth(run: Run) -> str:
    """What choosing on the test fold is worth, in a sentence."""
    gains = [each.gain for each in protocol_worth(run) if not math.isnan(each.gain)]
    return (
        f"Choosing epoch and threshold on the test fold lifts accuracy by {100 * mean(gains):.1f} points on average over"
        f" {len(gains)} cells ({100 * min(gains):.1f} to {100 * max(gains):.1f})."
    )


def other_runs() -> str:
    """The verdicts of all runs but Table II, each with its report."""
    folders = sorted(plan.parent for plan in TABLE2.parent.glob("*/experiment.json") if plan.parent != TABLE2)
    runs = [read_run(folder) for folder in folders]
    return "\n\n".join(
        f"**{run.title}** ([report](../experiments/results/{run.folder.name}/report.md)). {verdict(run)}"
        for run in runs
    )


def speed() -> str:
    """What was measured on a machine with two cores, each beside what it is compared with."""
    layer, folds, encode = (_read(name) for name in ("sparse_coding", "cross_validation", "encode"))
    rate, huge, viewer, training = encode["speed"], _read("huge_bag"), _read("viewer"), _read("training")
    large = encode["memory"][-1]
    rows = [
        ("a slide of 12 000 tiles through the layer, forward and backward", "`sparse_coding.py`",
         f"{layer['slide']['milliseconds']['ours']:.0f} ms",
         f"{layer['slide']['speed-up']:.1f} times as fast as a plain transcription, "
         f"{layer['slide']['time / floor']:.2f} of its bare matrix products"),
        ("a bag of five instances through the layer", "`sparse_coding.py`",
         f"{layer['small bag']['milliseconds']['ours']:.2f} ms",
         f"{layer['small bag']['speed-up']:.1f} times as fast as a plain transcription"),
        *((f"an epoch over {training['bags']} slides of 12 000 tiles, from disk, {digits}", "`training.py`",
           f"{training['seconds an epoch'][name]:.0f} s",
           f"{training[name]['speed-up']:.1f} times as fast as a plain transcription with a DataLoader, "
           f"{training[name]['time / floor']:.2f} of the bare matrix products in float32, "
           f"{training[name]['memory / transcription']:.2f} of the memory")
          for name, digits in (("ours", "float32"), ("ours, short", "bfloat16"))),
        (f"{folds['models']} models of a cross-validation, {folds['epochs']} epochs", "`cross_validation.py`",
         f"{mean(folds['ours, seconds for all models']):.0f} s",
         f"{folds['speed-up']:.1f} times as fast as one after another"),
        ("tiles through ResNet-18", "`encode.py`", f"{rate['tiles_per_second']['ours']:.0f} a second",
         f"{100 * rate['of_floor']:.0f} % of the network alone, {rate['of_plain']:.1f} times a DataLoader"),
        (f"memory for a slide of {large['side_px']:,} pixels a side".replace(",", " "), "`encode.py`",
         f"{large['peak_mb']:.0f} MB", f"{large['peak_mb'] / encode['memory'][0]['peak_mb']:.2f} times that of 5 000"),
        (f"prediction of {huge['instances'] // 10**6} million instances", "`huge_bag.py`",
         f"{huge['huge']['MiB']['beyond the file']:.0f} MiB", "beyond the mapped file"),
        (f"a tile of the viewer, {viewer['readers']} readers at once", "`viewer.py`",
         f"{viewer['p95_ms']:.0f} ms", "95 of 100 are faster"),
    ]  # fmt: skip
    lines = ["| what | measured by `benchmarks/` | | |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _read(name: str) -> Any:
    return json.loads((MEASURED / f"{name}.json").read_text())


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
