"""Does the work around a cohort grow as the cohort does?   python benchmarks/scale.py

With 1 000, 10 000 and 100 000 bags of two instances, so that what is measured is the number of bags and not their content:

- `list`:    the folder is opened, and each bag gets its label and patient from a table;
- `mark`:    the fingerprint of all bags, when a study begins: the digest that each file carries is read;
- `recheck`: the fingerprint of all bags, compared with a recorded one, as when a study goes on: files are not opened;
- `splits`:  ten folds by patient, written to a file and read back;
- `restart`: `scmil encode` begins again, and finds everything done;
- `fail`:    every tenth slide fails, as when a disk is not mounted, and is written down; then all of them are made good;
- `results`: two arms are scored over ten folds, with intervals, and their tables written;
- `report`:  the page, the Markdown and the LaTeX of the run;
- `load`:    every tenth bag once through the loader;
- `epoch`:   one epoch of the smallest model (a mean and a linear layer) on every tenth bag;
- `audit`:   all bags are read and compared with each other, and with ten folds.

Each size runs in a process of its own. Printed are seconds and the largest memory of each stage above what the process had
before, and by which factor both grow when there are ten times as many bags: 10 is linear. What is judged is the exponent over
all sizes, since a tenth of a second is soon twice as much. Short stages are done three times, and the best counts. The files
lie in the cache of the system: disks and networks are another matter (docs/scale.md).

What the fingerprint costs is judged too: listing with fingerprints against listing without, in turns; `mark` and `recheck` of
as many bags against an epoch of them, whose bags of two instances are the shortest epoch there is; and, for a slide of 12 000
tiles, the comparison with its digest at the first read against a training step on it. At most 5 % each.
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
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results" / "scale.json"
SIZES = (1_000, 10_000, 100_000)
SLIDES_A_PATIENT, FOLDS, CLASSES, DIM = 2, 10, 2, 8
LINEAR = 1.15  # the largest exponent from the smallest size to the largest: n has 1, n log n 1.11, a square 2
NOTICED = {"processor_seconds": 0.2, "memory_mb": 64.0}  # what is less at the largest size is not judged
LEAST = {"processor_seconds": 1e-3, "memory_mb": 1.0}  # less than this is as good as this
MOST_SHARE = 0.05  # of listing and of an epoch
AGAIN, TURNS = ("list", "mark", "recheck", "splits", "restart", "results", "report"), 3  # short: the best of three
NAMELESS = "slide_0000000"


def name_of(number: int) -> str:
    return f"slide_{number:07d}"


# ------------------------------------------------------------------------------------------------------------ material


def write_bags(folder: Path, count: int) -> None:
    """One file a bag: a true one, in whose bytes the name and some features are exchanged, which is quicker than HDF5."""
    import torch

    from scmil.bags.hdf5 import ContentDigest, stored_digest, write_bag
    from scmil.bags.bag import Bag

    mark = torch.full((2, DIM), 1.5)
    write_bag(Bag(NAMELESS, mark, xy=torch.zeros(2, 2), provenance={"encoder": "tiny", "mpp": 0.5}), folder / "one.h5")
    template, features = (folder / "one.h5").read_bytes(), mark.half().numpy().tobytes()
    digest = str(stored_digest(folder / "one.h5")).encode()
    (folder / "one.h5").unlink()
    assert template.count(NAMELESS.encode()) == 1
    assert template.count(features) == 1
    assert template.count(digest) == 1
    drawn = np.random.default_rng(0).normal(size=(count, 2, DIM)).astype(np.float16)
    for number in range(count):
        found = ContentDigest(name_of(number).encode(), json.dumps({"encoder": "tiny", "mpp": 0.5}, sort_keys=True))
        for name, array in (("features", drawn[number]), ("coords", np.zeros((2, 2), np.int64))):
            found.begin(name, array)
            found.add(array)
        content = template.replace(NAMELESS.encode(), name_of(number).encode())
        content = content.replace(features, drawn[number].tobytes())
        content = content.replace(digest, found.text().encode().rpartition(b":")[2])
        (folder / f"{name_of(number)}.h5").write_bytes(content)


def write_table(path: Path, count: int) -> None:
    rows = (f"patient_{i // SLIDES_A_PATIENT},{name_of(i)},{('normal', 'tumor')[i // 7 % 2]}\n" for i in range(count))
    path.write_text("case_id,slide_id,label\n" + "".join(rows))


# -------------------------------------------------------------------------------------------------------------- stages


class Study:
    """One cohort, stage by stage; each leaves what the next needs."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        self.names = [name_of(number) for number in range(count)]
        (folder / "bags").mkdir(parents=True)
        write_bags(folder / "bags", count)
        write_table(folder / "labels.csv", count)

    def list(self) -> None:
        from scmil.bags.formats import open_bags
        from scmil.bags.labels import read_labels

        self.labels = read_labels(self.folder / "labels.csv")
        self.bags = open_bags(self.folder / "bags", labels=self.labels)
        assert len(self.bags) == self.count

    def mark(self) -> None:
        self.inputs = self.bags.inputs()

    def recheck(self) -> None:
        assert self.bags.inputs(self.inputs).digest == self.inputs.digest

    def epoch(self) -> None:
        from scmil.models.model import build_model
        from scmil.training.recipes import Recipe
        from scmil.training.fit import fit

        model = build_model(DIM, CLASSES, "mean", seed=0)
        fit(model, self.bags.subset(range(0, self.count, 10)), recipe=Recipe(epochs=1), seed=0)

    def splits(self) -> None:
        from scmil.bags.splits import load_splits, repeated_folds, save_splits

        dealt = repeated_folds(self.bags.labels, FOLDS, 1, 0, self.bags.patients)
        save_splits(self.folder / "splits.csv", dealt, self.bags.ids)
        self.dealt = load_splits(self.folder / "splits.csv", self.bags.ids)

    def audit(self) -> None:
        from scmil.bags.audit import audit

        found = audit(self.bags, self.labels, self.dealt)
        assert found.ok, found.lines()

    def load(self) -> None:
        from scmil.bags.loader import Loader

        some = range(0, self.count, 10)
        assert sum(len(bag.features) for bag in Loader(room=0).read(self.bags, some)) == 2 * len(some)

    def restart(self) -> None:
        self._for_each(self.names, self.folder / "bags", "encode", lambda name: None)

    def fail(self) -> None:
        from scmil.errors import SlideError

        def missing(name: str) -> None:
            raise SlideError(f"{name}: there is no such file")

        out, some = self.folder / "out", self.names[::10]
        self._for_each(some, out, "tile", missing)
        self._for_each(some, out, "tile", lambda name: (out / f"{name}.h5").touch(), retry_failed=True)
        assert not (out / "failures.csv").read_text().count("no such file")

    def _for_each(self, names: Sequence[str], out: Path, stage: str, make: Callable[[str], None], **more: Any) -> None:
        from scmil.core.jobs.work import Ledger, for_each

        for_each(names, make, target=lambda name: out / f"{name}.h5", ledger=Ledger(out), stage=stage, **more)

    def results(self) -> None:
        from scmil.studies.runner import gather_again
        from scmil.core.files import write_atomically
        from scmil.studies.protocols import score, summarise

        y = np.array(self.bags.labels)
        run, cells = self.folder / "run", []
        for arm, apart in (("without SC", 1.0), ("with SC", 1.2)):
            positive = 1 / (1 + np.exp(-np.random.default_rng(1).normal(apart * (2 * y - 1))))
            p = np.stack([1 - positive, positive], 1)[None]
            scored = [score("last", 0, fold, split, p, y) for fold, split in enumerate(self.dealt[0])]
            name = f"many--{arm.replace(' ', '-').lower()}"
            costs = dict.fromkeys(("parameters", "density", "seconds", "multiply_adds", "memory_mib"), 1)
            rows = [summarise(scored, y, self.bags.patients)]
            page = {"rows": rows, "folds": [fold.row(y) for fold in scored], "trained": "drawn", **costs}
            write_atomically(run / "cells" / name / "result.json", json.dumps(page).encode())
            predictions = [row for fold in scored for row in fold.predictions(self.bags.ids, y)]
            write_atomically(run / "cells" / name / "predictions.csv", as_csv(predictions))
            history = {
                "training": "full",
                "epoch": 1,
                "train_loss": 1,
                "test_loss": 1,
                "test_accuracy": 1,
                "test_auc": 1,
            }
            write_atomically(run / "cells" / name / "history.csv", as_csv([history]))
            cells.append({"cell": name, "dataset": "many", "arm": arm, "protocols": ["last"], "settings": {}})
        write_atomically(run / "experiment.json", json.dumps(plan_of(cells)).encode())
        write_atomically(run / "results.csv", b"cell\n")
        gather_again(run)

    def report(self) -> None:
        from scmil.report import write_report

        self.pages = write_report(self.folder / "run")


STAGES = ("list", "mark", "recheck", "splits", "restart", "fail", "results", "report", "load", "epoch", "audit")


def plan_of(cells: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "format": "scmil-run-1",
        "name": "many",
        "title": "Many bags",
        "about": "Drawn, not trained.",
        "arms": [{"name": "without SC", "against": None}, {"name": "with SC", "against": "without SC"}],
        "datasets": ["many"],
        "protocol": {"kind": "kfold", "folds": FOLDS, "repeats": 1, "seed": 0},
        "training": {"epochs": 1},
        "cells": cells,
        "published": [],
        "published_note": "",
        "versions": {},
    }


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    return ("\n".join(lines) + "\n").encode()


# ----------------------------------------------------------------------------------------------------------- measuring


def memory_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


def measure_one(folder: Path, count: int) -> None:
    """Print a line of JSON for each stage, as soon as it ends."""
    import torch

    import scmil.bags.audit
    import scmil.studies.runner
    import scmil.bags.formats
    import scmil.report
    import scmil.training.fit  # noqa: F401  (loading packages is no cost of a stage)

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
    """What the fingerprint takes, as a share of listing and of an epoch."""
    largest = {row["stage"]: row["processor_seconds"] for row in rows if row["bags"] == rows[-1]["bags"]}
    epoch = 10 * largest["epoch"]  # of a tenth of the bags
    return {
        "listing": round(share_of_listing(folder), 4),
        "mark / epoch of bags of two instances": round(largest["mark"] / epoch, 4),
        "recheck / epoch of bags of two instances": round(largest["recheck"] / epoch, 4),
        "digest at the first read / step on a slide of 12 000 tiles": round(share_of_first_read(folder), 4),
    }


def share_of_listing(folder: Path, count: int = 10_000, turns: int = 15) -> float:
    """How much longer it takes to open a folder whose bags can be marked than to open it without."""
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
            gc.disable()  # or it would run in every other turn, on what the turn before has left
            began = time.process_time()
            study.list()
            times[marked].append(time.process_time() - began)
            gc.enable()
    return min(times[True]) / min(times[False]) - 1


def share_of_first_read(folder: Path, tiles: int = 12_000, dim: int = 512, turns: int = 5) -> float:
    """How much longer the first read of a slide takes than a later one, for one training step on it."""
    import torch

    from scmil.bags.hdf5 import _compared, read_bag, write_bag
    from scmil.bags.bag import Bag
    from scmil.models.model import build_model
    from scmil.training.recipes import Recipe
    from scmil.training.fit import fit

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
    """By which factor seconds and memory of each stage grow from one size to the next, for ten times the bags.

    The seconds are those of the processor: what waits for a disk, or for others on the machine, is not ours.
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
    """The k of n^k by which seconds and memory of each stage grow from the smallest size to the largest."""
    ends = {stage: [row for row in rows if row["stage"] == stage] for stage in STAGES}
    return {
        stage: {what: round(exponent(own[0], own[-1], what), 3) for what in LEAST if own[-1][what] > NOTICED[what]}
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
        f"{'stage':8} {'bags':>8} {'seconds':>9} {'of processor':>13} {'memory, MB':>11} {'time x':>7} {'memory x':>9}"
    )
    factors = {(one["stage"], one["to"]): one for one in grown}
    for row in sorted(rows, key=lambda row: (STAGES.index(row["stage"]), row["bags"])):
        one = factors.get((row["stage"], row["bags"]))
        said = f"{one['time']:7.1f} {one['memory']:9.1f}" if one else ""
        print(
            f"{row['stage']:8} {row['bags']:8} {row['seconds']:9.2f} {row['processor_seconds']:13.2f} "
            f"{row['memory_mb']:11.1f} {said}"
        )
    print(f"n^k from {rows[0]['bags']} to {rows[-1]['bags']} bags; at most {LINEAR} is held to be linear")
    for stage, found in exponents(rows).items():
        words = {"processor_seconds": "time", "memory_mb": "memory"}
        said = ", ".join(
            f"{words[what]} k = {k:.2f}{'' if k <= LINEAR else ' NOT LINEAR'}" for what, k in found.items()
        )
        print(f"  {stage:8} {said}")


def write(path: Path, rows: list[dict[str, Any]], costs: dict[str, float] | None = None) -> None:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    page = {"machine": machine, "linear": LINEAR, "stages": rows, "growth": growth(rows), "exponents": exponents(rows)}
    if costs:
        page["fingerprint"] = {"at most": MOST_SHARE, **costs}
    path.write_text(json.dumps(page, indent=2) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
            print(f"{row['bags']:8} {row['stage']:8} {row['processor_seconds']:9.2f} s", file=sys.stderr, flush=True)
            write(arguments.out, rows)  # so that what was measured is there, also if the rest is not waited for
    show(rows, growth(rows))
    with tempfile.TemporaryDirectory(prefix="scmil-scale-") as folder:
        costs = fingerprint_costs(Path(folder), rows)
    write(arguments.out, rows, costs)
    for what, share in costs.items():
        print(f"fingerprint, {what}: {share:.2%}{'' if share <= MOST_SHARE else ' MISSED'} (at most {MOST_SHARE:.0%})")
    return 0 if is_linear(rows) and max(costs.values()) <= MOST_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
