"""Fill in the numbers of docs/benchmarks.md from committed results: python docs/make_benchmarks.py

The text between `<!-- made: NAME -->` and `<!-- end -->` is generated, the rest is written by hand.
A test checks that the page matches the results.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from statistics import mean
from typing import Any

from scmil.report import Run, read_run, verdict
from scmil.report.comparisons import protocol_effects
from scmil.report.run import Key

HERE = Path(__file__).parent
PAGE = HERE / "benchmarks.md"
TABLE2 = HERE.parent / "experiments" / "results" / "table2_classic"
Row = tuple[str, str, str, str]
MEASURED = HERE.parent / "benchmarks" / "results"


def filled(page: str) -> str:
    """The page with all generated parts updated."""
    made = generated_parts()
    parts = r"(<!-- made: ([\w -]+) -->\n).*?(<!-- end -->)"
    return re.sub(
        parts, lambda found: f"{found[1]}\n{made[found[2]]}\n\n{found[3]}", page, flags=re.S
    )


@cache
def generated_parts() -> dict[str, str]:
    """The generated parts by name."""
    run = read_run(TABLE2)
    made: dict[str, Callable[[], str]] = {
        "verdict": lambda: f"> {verdict(run)}",
        "progress": lambda: (
            f"{len(run.finished)} of {len(run.planned)} runs of the table are finished."
        ),
        "protocols": lambda: protocols(run),
        "worth": lambda: worth(run),
        "other runs": other_runs,
        "speed": speed,
        "shapes": shapes,
        "aggregators": aggregator_costs,
        **{f"table {protocol}": partial(table, run, protocol) for protocol in run.protocols},
    }
    return {name: make() for name, make in made.items()}


def table(run: Run, protocol: str) -> str:
    """Every method on every data set, beside the published accuracy."""
    lines = [
        f"| | {' | '.join(name.upper() for name in run.datasets)} |",
        "|---|" + "---|" * len(run.datasets),
    ]
    for method in run.methods:
        cells = [_beside(run, Key(method.name, dataset, protocol)) for dataset in run.datasets]
        if any(cell != "–" for cell in cells):
            lines.append(f"| {method.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _beside(run: Run, key: Key) -> str:
    if key not in run.results:
        return "–"
    published = run.published.get((key.method, key.dataset))
    return f"{_accuracy(run, key):.3f}" + (f" ({published.accuracy:.3f})" if published else "")


def protocols(run: Run) -> str:
    """The methods that were scored by all protocols, averaged over the data sets common to all."""
    several = [
        method.name
        for method in run.methods
        if any(_by_all(run, method.name, dataset) for dataset in run.datasets)
    ]
    common = [
        dataset
        for dataset in run.datasets
        if all(_by_all(run, method, dataset) for method in several)
    ]
    if not common:
        return "No data set is finished for all methods yet."
    lines = [
        f"Accuracy, mean over {', '.join(name.upper() for name in common)}:\n",
        f"| | {' | '.join(f'`{name}`' for name in run.protocols)} | published |",
        "|---|" + "---|" * (len(run.protocols) + 1),
    ]
    for method in several:
        ours = [
            mean(_accuracy(run, Key(method, dataset, protocol)) for dataset in common)
            for protocol in run.protocols
        ]
        accuracies = [
            run.published[method, dataset].accuracy
            for dataset in common
            if (method, dataset) in run.published
        ]
        published = f"{mean(accuracies):.3f}" if len(accuracies) == len(common) else ""
        lines.append(f"| {method} | {' | '.join(f'{value:.3f}' for value in ours)} | {published} |")
    return "\n".join(lines)


def _by_all(run: Run, method: str, dataset: str) -> bool:
    return all(Key(method, dataset, protocol) in run.results for protocol in run.protocols)


def _accuracy(run: Run, key: Key) -> float:
    return run.results[key].metrics["accuracy"].mean


def worth(run: Run) -> str:
    """The effect of choosing on the test fold, in a sentence."""
    gains = [each.gain for each in protocol_effects(run) if not math.isnan(each.gain)]
    average, low, high = (100 * gain for gain in (mean(gains), min(gains), max(gains)))
    return (
        "Choosing epoch and threshold on the test fold lifts accuracy by "
        f"{average:.1f} points on average over {len(gains)} runs ({low:.1f} to {high:.1f})."
    )


def other_runs() -> str:
    """The verdicts of all runs but Table II and the arena, which has its own page (arena.md)."""
    folders = sorted(
        plan.parent
        for plan in TABLE2.parent.glob("*/experiment.json")
        if plan.parent != TABLE2 and not plan.parent.name.startswith("arena")
    )
    results = "../experiments/results"
    return "\n\n".join(
        f"**{run.title}** ([report]({results}/{run.folder.name}/report.md)). {verdict(run)}"
        for run in map(read_run, folders)
    )


def speed() -> str:
    """The measurements on a machine with two cores, each with its reference."""
    rows = [*_layer_rows(), *_training_rows(), *_slide_rows(), *_scoring_rows()]
    lines = ["| what | measured by `benchmarks/` | | |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def aggregator_costs() -> str:
    """A training step of every aggregator: time at two sizes, ratios, memory of a huge bag."""
    cases = _read("aggregators")["cases"]
    lines = [
        "| aggregator | 1 000 tiles, ms | 8 000 tiles, ms | of its products | with SC | torchmil's "
        "time / ours: 100, 1 000, 8 000, 50 000 tiles | 50 000 tiles, MiB: step | prediction |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(key.rpartition(",")[0] for key in cases):
        small, medium, large, huge = (
            cases.get(f"{name}, {n}", {}) for n in (100, 1000, 8000, 50_000)
        )
        ratios = [case.get("speed-up over torchmil") for case in (small, medium, large, huge)]
        memory = [huge.get("MiB", {}).get(kind, "–") for kind in ("ours", "prediction")]
        cells = [
            f"`{name}`",
            f"{medium['milliseconds']['ours']:.0f}",
            f"{large['milliseconds']['ours']:.0f}",
            f"{large['time / floor']:.2f}",
            f"{large['SC / without']:.2f}",
            ", ".join(f"{ratio:.2f}" for ratio in ratios if ratio),
            *(size if isinstance(size, str) else f"{size:.0f}" for size in memory),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def shapes() -> str:
    """The layer at all shapes, and those beyond a bound, alone and beside a busy process."""
    parts = []
    for name, where in (("", "without load"), ("_loaded", "beside a process that computes")):
        rows = _read(f"sparse_coding_shapes{name}")["shapes"]
        lines = [
            "| threads | rows | shapes | time / transcription | time / products | beyond a bound |",
            "|---|---|---|---|---|---|",
        ]
        for threads, n in dict.fromkeys((row["threads"], row["n"]) for row in rows):
            group = [row for row in rows if (row["threads"], row["n"]) == (threads, n)]
            clock = "cpu " if threads == 1 else ""
            ranges = [
                f"{min(values):.2f} to {max(values):.2f}"
                for other in ("transcription", "floor")
                for values in [[row[f"{clock}ours / {other}"] for row in group]]
            ]
            beyond = sum(bool(row["beyond"]) for row in group)
            lines.append(
                f"| {threads} | {n} | {len(group)} | {ranges[0]} | {ranges[1]} | {beyond} |"
            )
        late = [row for row in rows if row["beyond"]]
        listed = "\n".join(f"- {_shape(row)}" for row in late)
        again = sum("measured" in row for row in rows)
        found = f"{len(rows) - len(late)} of {len(rows)} shapes keep the bounds {where}"
        if again == len(rows):
            found += "; each was measured three times"
        elif again:
            found += f"; the first of three measurements of {again} of them was beyond one"
        parts += [
            "\n".join(lines),
            f"{found}. Beyond a bound:\n\n{listed}" if late else f"{found}.",
        ]
    return "\n\n".join(parts)


def _shape(row: dict[str, Any]) -> str:
    clock = "cpu " if row["threads"] == 1 else ""
    passes = "forward and backward" if row["pass"] == "both" else "forward"
    return (
        f"{row['n']} x {row['p']}, {row['m']} atoms, {passes}, {row['threads']} threads: "
        f"{row[f'{clock}ours / transcription']:.2f} of the transcription, "
        f"{row[f'{clock}ours / floor']:.2f} of the products"
    )


def _layer_rows() -> Iterator[Row]:
    layer = _read("sparse_coding")
    slide, small = layer["slide"], layer["small bag"]
    onednn = ""
    if "time / oneDNN floor" in slide:
        onednn = f", {slide['time / oneDNN floor']:.2f} by oneDNN"
    yield (
        "a slide of 12 000 tiles through the layer, forward and backward",
        "`sparse_coding.py`",
        f"{slide['milliseconds']['ours']:.0f} ms",
        f"{slide['speed-up']:.1f} times as fast as a plain transcription, "
        f"{slide['time / floor']:.2f} of its bare matrix products by `torch.matmul`{onednn}",
    )
    yield (
        "a bag of five instances through the layer",
        "`sparse_coding.py`",
        f"{small['milliseconds']['ours']:.2f} ms",
        f"{small['speed-up']:.1f} times as fast as a plain transcription",
    )


def _training_rows() -> Iterator[Row]:
    training, folds = _read("training"), _read("cross_validation")
    for name, precision in (("ours", "float32"), ("ours, short", "bfloat16")):
        ratios = training[name]
        yield (
            f"an epoch over {training['bags']} slides of 12 000 tiles, from disk, {precision}",
            "`training.py`",
            f"{training['seconds an epoch'][name]:.0f} s",
            f"{ratios['speed-up']:.1f} times as fast as a plain transcription with a DataLoader, "
            f"{ratios['time / floor']:.2f} of the bare matrix products in float32, "
            f"{ratios['memory / transcription']:.2f} of the memory",
        )
    yield (
        f"{folds['models']} models of a cross-validation, {folds['epochs']} epochs",
        "`cross_validation.py`",
        f"{mean(folds['ours, seconds for all models']):.0f} s",
        f"{folds['speed-up']:.1f} times as fast as one after another",
    )


def _slide_rows() -> Iterator[Row]:
    encode = _read("encode")
    rate, small, large = encode["speed"], encode["memory"][0], encode["memory"][-1]
    yield (
        "tiles through ResNet-18",
        "`encode.py`",
        f"{rate['tiles_per_second']['ours']:.0f} a second",
        f"{100 * rate['of_floor']:.0f} % of the network alone, "
        f"{rate['of_plain']:.1f} times a DataLoader",
    )
    cards = encode["cards"].values()
    rates = ", ".join(f"{card['tiles_per_second']['ours']:.0f}" for card in cards)
    shares = ", ".join(f"{100 * card['of_floor']:.0f}" for card in cards)
    yield (
        "tiles through the cards of ResNet-18, a ViT-S/16 and a ViT-L/16",
        "`encode.py --cards`",
        f"{rates} a second",
        f"{shares} % of the network alone",
    )
    yield (
        f"memory for a slide of {large['side_px']:,} pixels a side".replace(",", " "),
        "`encode.py`",
        f"{large['peak_mb']:.0f} MB",
        f"{large['peak_mb'] / small['peak_mb']:.2f} times that of 5 000",
    )


def _scoring_rows() -> Iterator[Row]:
    huge, scored, viewer = _read("huge_bag"), _read("score_tiles"), _read("viewer")
    slide = scored["shapes"][1]
    yield (
        f"prediction of {huge['instances'] // 10**6} million instances",
        "`huge_bag.py`",
        f"{huge['huge']['MiB']['beyond the file']:.0f} MiB",
        "beyond the mapped file",
    )
    yield (
        f"tile scores of a slide of {slide['tiles']} tiles, {scored['threads']} thread",
        "`score_tiles.py`",
        f"{slide['milliseconds']['one pass']:.0f} ms",
        f"{slide['speed-up']:.1f} times as fast as with two passes through the model",
    )
    yield (
        f"a tile of the viewer, {viewer['readers']} readers at once",
        "`viewer.py`",
        f"{viewer['p95_ms']:.0f} ms",
        "95 of 100 are faster",
    )


def _read(name: str) -> Any:
    return json.loads((MEASURED / f"{name}.json").read_text())


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
