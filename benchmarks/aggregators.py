"""How fast are the aggregators, and how much memory do they need?

    python benchmarks/aggregators.py                                  a reduced set
    python benchmarks/aggregators.py --sizes 100,1000,8000,50000      all sizes of bags
    python benchmarks/aggregators.py --sizes 50000 --only-memory      memory and first step of ours,
                                                                      in training and prediction

A training step (forward, loss, backward) on one bag of n x 1 024, for every registered aggregator
with the widths of its authors:

- `ours`:     the model without sparse coding;
- `with SC`:  the same with sparse coding, 256 atoms;
- `floor`:    the matrix products of `ours`, forward and backward, and nothing else; the attention
              kernels of torch and convolutions are not among them;
- `torchmil`: the same network of torchmil, the fastest public implementation that installs from
              PyPI, where it has one (`pip install torchmil`; without it the column is empty). Its
              TransMIL has neither the convolution of the values nor dropout. Its DTFD (another
              attention), Patch-GCN (another convolution, a dense adjacency matrix) and transformers
              (attention pooling instead of a class token) are not the same networks.

The four take turns, so that all see the same load, in another order in every round, as a step is
slower behind one that fills the caches; ratios are medians over the rounds. Memory
is the peak of one step above what the process held before, each in a process of its own, and with
`--only-memory` also that of a `prediction` of ours. Sizes with more than `--most` seconds per step
are measured once. The load of the machine is in the result.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from random import Random
from typing import Any

import torch
from sparse_coding import peak, reset_peak
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from scmil import build_model
from scmil.models import aggregators
from scmil.models.streaming import call_model, predict_bag

RESULTS = Path(__file__).parent / "results" / "aggregators.json"
DIM, ATOMS = 1024, 256
KINDS = ("ours", "with SC", "floor", "torchmil")
MEMORY, FIRST_STEP = "MiB", "milliseconds of the first step"
SIZES = (100, 1000)
# torchmil's CLAM has no dropout, so ours is measured without it too.
OPTIONS: dict[str, dict[str, Any]] = {"clam-sb": {"dropout": 0.0}}
MOST_MEMORY = 12 << 30  # address space of a process that measures memory
Step = Callable[[], None]


def bag(n: int) -> tuple[Tensor, Tensor]:
    """Features and positions on a square grid."""
    side = max(1, round(n**0.5))
    place = torch.arange(n)
    xy = 256 * torch.stack([place % side, place // side], 1)
    return torch.randn(n, DIM, generator=torch.Generator().manual_seed(0)), xy


def our_step(name: str, n: int, sparse_coding: bool) -> Step:
    coded = {"atoms": ATOMS} if sparse_coding else None
    options = {"name": name, **OPTIONS.get(name, {})}
    model = build_model(DIM, 2, options, sparse_coding=coded, seed=0)
    x, xy = bag(n)

    def step() -> None:
        model.zero_grad()
        model.loss(call_model(model, x, xy), 1).backward()

    return step


def prediction_step(name: str, n: int) -> Step:
    """The prediction of a bag without sparse coding, as `scmil predict` computes it."""
    model = build_model(DIM, 2, name, seed=0).eval()
    x, xy = bag(n)

    def step() -> None:
        predict_bag(model, x, xy=xy)

    return step


class Products(TorchDispatchMode):
    """Records the shapes of the matrix products that are computed."""

    names = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm")

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[torch.Size, torch.Size]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func).rpartition(".")[0] in self.names:
            left, right = [part for part in args if isinstance(part, Tensor)][-2:]
            self.shapes.append((left.shape, right.shape))
        return func(*args, **(kwargs or {}))


def floor_step(name: str, n: int) -> Step:
    """The products of a step of ours, forward and backward, and nothing else."""
    ours = our_step(name, n, sparse_coding=False)
    with Products() as recorded:
        ours()
    operands: dict[torch.Size, Tensor] = {}
    for shapes in recorded.shapes:
        for shape in shapes:
            operands.setdefault(shape, torch.randn(shape))
    products = [tuple(operands[shape] for shape in shapes) for shapes in recorded.shapes]

    @torch.no_grad()
    def step() -> None:
        for left, right in products:
            torch.matmul(left, right)

    return step


def torchmil_step(name: str, n: int) -> Step | None:
    """The same network of torchmil; None if it has none, or is not installed."""
    try:
        import torchmil.models as theirs
    except ImportError:
        return None
    embed, embed_with_bias = (
        torch.nn.Sequential(torch.nn.Linear(DIM, 512, bias=bias), torch.nn.ReLU())
        for bias in (False, True)
    )
    shape = (DIM,)
    makers: dict[str, Callable[[], Any]] = {
        "abmil": lambda: theirs.ABMIL(shape, feat_ext=embed),
        "abmil-gated": lambda: theirs.ABMIL(shape, gated=True, feat_ext=embed),
        "dsmil": lambda: theirs.DSMIL(shape, nonlinear_q=True),
        "transmil": lambda: theirs.TransMIL(shape, att_dim=512, n_heads=8),
        "clam-sb": lambda: theirs.CLAM_SB(
            shape, att_dim=256, gated=True, k_sample=8, feat_ext=embed_with_bias
        ),
    }
    if name not in makers:
        return None
    model, x = makers[name](), bag(n)[0][None]

    def step() -> None:
        model.zero_grad()
        _, losses = model.compute_loss(torch.ones(1), x)
        sum(losses.values()).backward()

    return step


def make_step(kind: str, name: str, n: int) -> Step | None:
    if kind == "torchmil":
        return torchmil_step(name, n)
    if kind == "prediction":
        return prediction_step(name, n)
    return floor_step(name, n) if kind == "floor" else our_step(name, n, kind == "with SC")


def seconds(step: Step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def measure(name: str, n: int, rounds: int, most: float) -> dict[str, Any]:
    """Times of all kinds, taking turns."""
    steps = {kind: make_step(kind, name, n) for kind in KINDS}
    there = {kind: step for kind, step in steps.items() if step is not None}
    slowest = max(seconds(step) for step in there.values())  # the first step is not counted
    random, rows = Random(0), []
    for _ in range(1 if slowest > most else rounds):
        order = random.sample(list(there), len(there))
        rows.append({kind: seconds(there[kind]) for kind in order})

    def ratio(above: str, below: str) -> float | None:
        if above not in there or below not in there:
            return None
        return round(statistics.median(row[above] / row[below] for row in rows), 2)

    return {
        "milliseconds": {
            kind: round(1e3 * statistics.median(row[kind] for row in rows), 2) for kind in there
        },
        "rounds": len(rows),
        "time / floor": ratio("ours", "floor"),
        "SC / without": ratio("with SC", "ours"),
        "speed-up over torchmil": ratio("torchmil", "ours"),
    }


def memory_of(kind: str, name: str, n: int, threads: int, queue: Any) -> None:
    torch.set_num_threads(threads)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    step = make_step(kind, name, n)
    before = reset_peak()
    try:
        taken = None if step is None else seconds(step)
    except (RuntimeError, MemoryError):  # it does not fit
        queue.put((math.nan, math.nan))
        return
    queue.put(None if taken is None else (taken, (peak() - before) / 2**20))


def known(value: float) -> float | str:
    """The number, or that the step did not fit into the memory."""
    return f"above {MOST_MEMORY >> 30} GiB" if math.isnan(value) else round(value, 1)


def measure_memory(
    name: str, n: int, threads: int, kinds: tuple[str, ...]
) -> dict[str, tuple[float, float]]:
    """Seconds and MiB of the first step of each kind, each in a process of its own."""
    context = multiprocessing.get_context("spawn")
    found: dict[str, tuple[float, float]] = {}
    for kind in kinds:
        queue = context.Queue()
        worker = context.Process(target=memory_of, args=(kind, name, n, threads, queue))
        worker.start()
        measured = queue.get()
        worker.join()
        if measured is not None:
            found[kind] = measured
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--names", default=",".join(aggregators.names()))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--most", type=float, default=5.0, help="seconds of a step")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--only-memory", action="store_true", help="without times")
    parser.add_argument("--kinds", default="ours,prediction", help="with --only-memory")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    try:
        peer = version("torchmil")
    except PackageNotFoundError:
        peer = None
        print("torchmil is not installed: its column stays empty (pip install torchmil)")
    found = json.loads(options.out.read_text())["cases"] if options.out.exists() else {}
    for n in map(int, options.sizes.split(",")):
        for name in options.names.split(","):
            row: dict[str, Any] = {} if not options.only_memory else found.get(f"{name}, {n}", {})
            row |= {"load before": round(os.getloadavg()[0], 1), "threads": options.threads}
            if not options.only_memory:
                row |= measure(name, n, options.rounds, options.most)
            if not options.no_memory:
                kinds = options.kinds if options.only_memory else "ours,with SC,torchmil"
                first = measure_memory(name, n, options.threads, tuple(kinds.split(",")))
                for words, place, factor in ((MEMORY, 1, 1.0), (FIRST_STEP, 0, 1e3)):
                    values = {kind: known(factor * pair[place]) for kind, pair in first.items()}
                    row[words] = row.get(words, {}) | values
            found[f"{name}, {n}"] = row
            print(f"{name}, {n}: {row}", flush=True)
            content = {
                "machine": platform.machine(),
                "cores": os.cpu_count(),
                "torch": torch.__version__,
                "torchmil": peer,
                "dim": DIM,
                "cases": found,
            }
            options.out.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
