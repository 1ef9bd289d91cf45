"""How do the costs of a study grow with the number of bags?   python benchmarks/scale.py

Measured with 1 000, 10 000 and 100 000 bags of two instances, so that the number of bags and not
their content determines the cost:

- `list`:    open the folder and assign labels and patients from a table;
- `mark`:    the fingerprint of all bags at the start of a study, from the digests in the files;
- `recheck`: the fingerprint compared with a recorded one on resume, without opening files;
- `splits`:  ten folds by patient, written to a file and read back;
- `restart`: `scmil encode` starts again and finds everything completed;
- `fail`:    every tenth slide fails and is logged; then all of them succeed;
- `results`: two methods are scored over ten folds, with intervals and tables;
- `report`:  the page, the Markdown and the LaTeX of the run;
- `load`:    every tenth bag once through the loader;
- `epoch`:   one epoch of the smallest model (a mean and a linear layer) on every tenth bag;
- `audit`:   all bags are read and compared with each other and with ten folds.

Each size runs in its own process. Printed are the seconds and the peak memory of each stage above
what the process held before, and the factor by which both grow for ten times as many bags: 10 is
linear. The criterion is the exponent over all sizes. Short stages run three times, and the best
counts. The files are in the cache of the system: disks and networks are not measured
(docs/scale.md).

The cost of the fingerprint is limited to 5 % each of listing (with fingerprints against without, in
turns), of an epoch over the same bags of two instances (the shortest possible epoch), and, for a
slide of 12 000 tiles, of a training step (digest at the first read).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scale_stages import CLASSES, STAGES, Study

RESULTS = Path(__file__).parent / "results" / "scale.json"
SIZES = (1_000, 10_000, 100_000)
# The largest accepted exponent over all sizes: n has 1, n log n 1.11, a square 2.
LINEAR = 1.15
# Smaller values at the largest size are not evaluated.
NOTICED = {"processor_seconds": 0.2, "memory_mb": 64.0}
LEAST = {"processor_seconds": 1e-3, "memory_mb": 1.0}  # smaller values count as this
MOST_SHARE = 0.05  # of listing and of an epoch
# Short stages: the best of three.
AGAIN, TURNS = ("list", "mark", "recheck", "splits", "restart", "results", "report"), 3


def memory_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


def measure_one(folder: Path, count: int) -> None:
    """Print a line of JSON for each stage, as soon as it ends."""
    import torch

    import scmil.bags.audit
    import scmil.bags.formats
    import scmil.report
    import scmil.studies.runner
    import scmil.training.fitting  # noqa: F401  (imports are not counted)

    torch.set_num_threads(1)
    study = Study(folder, count)
    for stage in STAGES:
        Path("/proc/self/clear_refs").write_text("5")
        before, times = memory_mb("VmRSS"), []
        for _ in range(TURNS if stage in AGAIN else 1):
            began, worked = time.perf_counter(), time.process_time()
            getattr(study, stage)()
            times.append((time.process_time() - worked, time.perf_counter() - began))
        processor, seconds = min(times)
        row = {
            "stage": stage,
            "bags": count,
            "seconds": round(seconds, 4),
            "processor_seconds": round(processor, 4),
            "memory_mb": round(max(memory_mb("VmHWM") - before, 0), 1),
        }
        print(json.dumps(row), flush=True)


def fingerprint_costs(folder: Path, rows: list[dict[str, Any]]) -> dict[str, float]:
    """The cost of the fingerprint as a fraction of listing, an epoch and a step."""
    largest = {
        row["stage"]: row["processor_seconds"] for row in rows if row["bags"] == rows[-1]["bags"]
    }
    epoch = 10 * largest["epoch"]  # measured on a tenth of the bags
    return {
        "listing": round(share_of_listing(folder), 4),
        "mark / epoch of bags of two instances": round(largest["mark"] / epoch, 4),
        "recheck / epoch of bags of two instances": round(largest["recheck"] / epoch, 4),
        "digest at the first read / step on a slide of 12 000 tiles": round(
            share_of_first_read(folder), 4
        ),
    }


def share_of_listing(folder: Path, count: int = 10_000, turns: int = 15) -> float:
    """The relative cost of fingerprints when a folder is opened."""
    from unittest.mock import patch

    from scmil.bags.bag import BagSet

    study, lazy = Study(folder / "listing", count), BagSet.lazy.__func__  # type: ignore[attr-defined]

    def without_marks(cls: Any, /, *arguments: Any, mark: Any = None, **more: Any) -> Any:
        return lazy(cls, *arguments[:5], **more)

    times: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(2 * turns):
        marked = turn % 2 == 0
        with patch.object(BagSet, "lazy", BagSet.lazy if marked else classmethod(without_marks)):
            gc.collect()
            gc.disable()  # otherwise it would run in every other turn
            began = time.process_time()
            study.list()
            times[marked].append(time.process_time() - began)
            gc.enable()
    return min(times[True]) / min(times[False]) - 1


def share_of_first_read(folder: Path, tiles: int = 12_000, dim: int = 512, turns: int = 5) -> float:
    """The extra time of the first read of a slide, relative to a training step on it."""
    import torch

    from scmil.bags.bag import Bag
    from scmil.bags.hdf5 import _compared, read_bag, write_bag
    from scmil.models.model import build_model
    from scmil.training.fitting import fit
    from scmil.training.recipes import Recipe

    path = folder / "slide.h5"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bag(Bag("slide", torch.randn(tiles, dim)), path)
    model = build_model(dim, CLASSES, "abmil-gated", seed=0)
    steps, first, again = list[float](), list[float](), list[float]()
    bag = read_bag(path, label=1)
    for _ in range(turns):
        _compared.clear()
        for times in (first, again):
            began = time.process_time()
            read_bag(path)
            times.append(time.process_time() - began)
        began = time.process_time()
        fit(model, [bag], recipe=Recipe(epochs=1), seed=0)
        steps.append(time.process_time() - began)
    return float((np.median(first) - np.median(again)) / np.median(steps))


def measure(count: int) -> Iterator[dict[str, Any]]:
    folder = Path(tempfile.mkdtemp(prefix="scmil-scale-"))
    command = [sys.executable, __file__, "--one", str(count), "--folder", str(folder / "study")]
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout or ():
                yield json.loads(line)
        if process.returncode:
            raise RuntimeError(f"the process of {count} bags ended with {process.returncode}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def growth(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The factors by which time and memory of each stage grow for ten times the bags.

    The time is processor time, which does not depend on disks and other processes.
    """
    found = []
    for stage in STAGES:
        own = [row for row in rows if row["stage"] == stage]
        for small, large in pairwise(own):
            of_time, of_memory = (10 ** exponent(small, large, what) for what in LEAST)
            found.append(
                {
                    "stage": stage,
                    "from": small["bags"],
                    "to": large["bags"],
                    "time": round(of_time, 2),
                    "memory": round(of_memory, 2),
                }
            )
    return found


def exponents(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The k of n^k by which time and memory of each stage grow from the smallest size."""
    ends = {stage: [row for row in rows if row["stage"] == stage] for stage in STAGES}
    return {
        stage: {
            what: round(exponent(own[0], own[-1], what), 3)
            for what in LEAST
            if own[-1][what] > NOTICED[what]
        }
        for stage, own in ends.items()
        if len(own) > 1
    }


def exponent(small: dict[str, Any], large: dict[str, Any], what: str) -> float:
    times = max(large[what], LEAST[what]) / max(small[what], LEAST[what])
    return float(np.log(times) / np.log(large["bags"] / small["bags"]))


def is_linear(rows: list[dict[str, Any]]) -> bool:
    return all(each <= LINEAR for stage in exponents(rows).values() for each in stage.values())


def show(rows: list[dict[str, Any]], grown: list[dict[str, Any]]) -> None:
    print(
        f"{'stage':8} {'bags':>8} {'seconds':>9} {'of processor':>13} {'memory, MB':>11} "
        f"{'time x':>7} {'memory x':>9}"
    )
    factors = {(one["stage"], one["to"]): one for one in grown}
    for row in sorted(rows, key=lambda row: (STAGES.index(row["stage"]), row["bags"])):
        one = factors.get((row["stage"], row["bags"]))
        growth_factors = f"{one['time']:7.1f} {one['memory']:9.1f}" if one else ""
        print(
            f"{row['stage']:8} {row['bags']:8} {row['seconds']:9.2f} "
            f"{row['processor_seconds']:13.2f} {row['memory_mb']:11.1f} {growth_factors}"
        )
    print(f"n^k from {rows[0]['bags']} to {rows[-1]['bags']} bags; at most {LINEAR} is linear")
    for stage, found in exponents(rows).items():
        words = {"processor_seconds": "time", "memory_mb": "memory"}
        line = ", ".join(
            f"{words[what]} k = {k:.2f}{'' if k <= LINEAR else ' NOT LINEAR'}"
            for what, k in found.items()
        )
        print(f"  {stage:8} {line}")


def write(path: Path, rows: list[dict[str, Any]], costs: dict[str, float] | None = None) -> None:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    page = {
        "machine": machine,
        "linear": LINEAR,
        "stages": rows,
        "growth": growth(rows),
        "exponents": exponents(rows),
    }
    if costs:
        page["fingerprint"] = {"at most": MOST_SHARE, **costs}
    path.write_text(json.dumps(page, indent=2) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        measure_one(arguments.folder, arguments.one)
        return 0
    rows: list[dict[str, Any]] = []
    for count in arguments.sizes:
        for row in measure(count):
            rows.append(row)
            print(
                f"{row['bags']:8} {row['stage']:8} {row['processor_seconds']:9.2f} s",
                file=sys.stderr,
                flush=True,
            )
            # An interrupted run keeps what was measured.
            write(arguments.out, rows)
    show(rows, growth(rows))
    with tempfile.TemporaryDirectory(prefix="scmil-scale-") as folder:
        costs = fingerprint_costs(Path(folder), rows)
    write(arguments.out, rows, costs)
    for what, share in costs.items():
        verdict = "" if share <= MOST_SHARE else " MISSED"
        print(f"fingerprint, {what}: {share:.2%}{verdict} (at most {MOST_SHARE:.0%})")
    return 0 if is_linear(rows) and max(costs.values()) <= MOST_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
