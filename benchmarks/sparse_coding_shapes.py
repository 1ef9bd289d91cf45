"""How fast is the sparse-coding layer at every shape, alone and beside a busy process?

    python benchmarks/sparse_coding_shapes.py                    # the grid, 30 minutes
    python benchmarks/sparse_coding_shapes.py --all              # every combination, hours
    python benchmarks/sparse_coding_shapes.py --quick            # a part of it
    python benchmarks/sparse_coding_shapes.py --quick --load 1   # beside a process that computes

For each number of rows n, dimension p, number of atoms m and number of threads, forward alone and
forward with backward (gradients for the input and all parameters), of

- `ours`:          scmil.SparseCoding with its defaults;
- `transcription`: the same equations in plain torch operations, with the same products;
- `released`:      the authors' module in plain torch (another network, one layer more);
- `floor`:         the matrix products of ours and nothing else, by `torch.mm`.

Each runs in its own process. The processes take turns of a few steps, so that all see the same
load; ratios are medians of the ratios of each round. Before a turn there is a pause, because the
threads of the process before it wait in a loop for some milliseconds and use a core; the first step
of a turn, which wakes the threads, is not timed. The time that the processor worked for a
contestant (`cpu`) is recorded as well: with one thread it depends little on other processes. The
load of the machine (runnable processes) is recorded with each shape, and the priority of the
benchmark with the result: with `nice -n -20` the processes beside it change little.

A pass over 50 000 x 2 560 with 1 024 atoms takes half a minute on one core. So slides have a part
of the combinations unless `--all` is given: all p with 64 and 256 atoms, p = 512 and 1 536 with
1 024 atoms, and 50 000 rows with p = 512 and 1 536 and 256 atoms. `released` is timed on at most
12 000 rows, with at most 256 atoms.

Bounds: no shape takes longer than the transcription, and slides (n >= 12 000) take at most 1.15
times the floor. With one thread they are checked in processor time: nothing waits for another
thread, so that it is the elapsed time without the time in which other processes had the core. With
more threads they are checked in elapsed time, because processor time does not count waiting. Both
are recorded for every shape.

Where the weights fill the cache, times depend on the pages of memory that a process has got: by up
to a fifth, that of the floor as well. So a shape beyond a bound is measured twice more, in new
processes; the medians of the three count, and `measured` has the ratios of each.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results"
CONTESTANTS = ("ours", "transcription", "released", "floor")
GRID = {
    "n": (5, 100, 1000, 12_000, 50_000),
    "p": (166, 484, 512, 768, 1024, 1280, 1536, 2560),
    "m": (64, 256, 1024),
}
SOME_P = (512, 1536)  # of the combinations that take longest
PAUSE, WARM_UP = 0.02, 0.1  # seconds
ROUNDS = 4  # turns of the slowest contestant in its time
QUICK = {"n": (5, 100, 1000, 12_000), "p": (166, 512, 1536), "m": (256,)}
SLIDE, SLIDE_BOUND = 12_000, 1.15
NOISE = 1.05  # of a median of ratios on a quiet machine
LAYERS = 5


class Shape(NamedTuple):
    n: int
    p: int
    m: int
    backward: bool

    @property
    def is_in_grid(self) -> bool:
        """Whether the shape is measured without `--all`."""
        if self.n < SLIDE or (self.p in SOME_P and self.m == 256):
            return True
        return self.n == SLIDE and (self.m < 1024 or self.p in SOME_P)

    @property
    def contestants(self) -> tuple[str, ...]:
        """Those that are timed."""
        short = self.n <= SLIDE and self.m <= 256
        return tuple(name for name in CONTESTANTS if short or name != "released")


def make_step(name: str, shape: Shape) -> Callable[[], None]:
    """One pass of a contestant."""
    import torch

    from scmil import ReleasedSparseCoding, SparseCoding

    torch.manual_seed(0)
    if name == "floor":
        return floor_step(shape)
    x, g = torch.randn(shape.n, shape.p).relu(), torch.randn(shape.n, shape.m)
    build = ReleasedSparseCoding if name == "released" else SparseCoding
    layer = build(shape.p, atoms=shape.m, layers=LAYERS)
    run = (lambda: transcribe(layer, x)) if name == "transcription" else (lambda: layer(x))

    def forward() -> None:
        with torch.no_grad():
            run()

    def both() -> None:
        x.grad = None
        layer.zero_grad(set_to_none=True)
        run().backward(g)

    if shape.backward:
        x.requires_grad_()
    return both if shape.backward else forward


def transcribe(layer: Any, x: Any) -> Any:
    """The equations of `SparseCoding`, operation by operation, with the cheaper of two products."""
    import torch
    import torch.nn.functional as F

    from scmil.sparse_coding.equations import soft_threshold
    from scmil.sparse_coding.kernel_torch import gram_is_cheaper

    x = F.layer_norm(x, x.shape[-1:], eps=1e-12)
    D, mu, (low, high) = layer.dictionary, layer.mu, layer.relative
    n, (p, m) = len(x), D.shape
    s = layer.network(x)
    W = D / mu
    drive = x @ W
    fraction = low + (high - low) * s / (1 + s)
    threshold = fraction * drive.abs().amax(-1, keepdim=True)
    alpha = soft_threshold(drive, threshold)
    if gram_is_cheaper(n, p, m, layer.layers, torch.is_grad_enabled()):
        W_t = torch.eye(m) - D.mT @ W
        for _ in range(layer.layers - 1):
            alpha = soft_threshold(drive + alpha @ W_t, threshold)
    else:
        for _ in range(layer.layers - 1):
            alpha = soft_threshold(alpha + (x - alpha @ D.mT) @ W, threshold)
    return alpha


def floor_step(shape: Shape) -> Callable[[], None]:
    """The matrix products of ours, in the form that it chooses, into memory that is ready."""
    import torch

    from scmil.sparse_coding.kernel_torch import gram_is_cheaper

    n, p, m, backward = shape
    h1, h2 = max(1, p // 4), max(1, p // 8)
    gram = gram_is_cheaper(n, p, m, LAYERS, backward)
    once = [(n, p, h1), (n, h1, h2), (n, h2, 1), (n, p, m)]
    each = [(n, m, m)] if gram else [(n, m, p), (n, p, m)]
    if gram:
        once += [(m, p, m)]
    if backward:
        once += [(n, 1, h2), (h2, n, 1), (n, h2, h1), (h1, n, h2), (n, h1, p), (p, n, h1)]
        once += [(n, m, p), (p, n, m)]
        each += [(n, m, m), (m, n, m)] if gram else [(n, m, p), (n, p, m), (p, n, m), (p, n, m)]
        once += [(p, m, m)] if gram else []
    made: dict[tuple[int, int], Any] = {}

    def matrix(rows: int, columns: int) -> Any:
        return made.setdefault((rows, columns), torch.randn(rows, columns))

    products = [
        (matrix(k, a).mT if k == n else matrix(a, k), matrix(k, b), torch.empty(a, b))
        for a, k, b in once
    ]
    products += [
        (matrix(k, a).mT if k == n else matrix(a, k), matrix(k, b), torch.empty(a, b))
        for a, k, b in each
    ] * (LAYERS - 1)

    def step() -> None:
        with torch.no_grad():
            for left, right, out in products:
                torch.mm(left, right, out=out)

    return step


def serve(pipe: Connection, name: str, threads: int) -> None:
    """A process that answers shapes and numbers of steps with seconds and processor seconds."""
    import torch

    from scmil.core.memory import memory_is_kept

    torch.set_num_threads(threads)
    step = None
    with memory_is_kept():
        while (request := pipe.recv()) is not None:
            if isinstance(request, Shape):
                step = None  # its memory first
                step = make_step(name, request)
            assert step is not None
            step()  # wakes the threads
            if isinstance(request, Shape):  # memory grows in the first steps
                start = time.perf_counter()
                while time.perf_counter() - start < WARM_UP:
                    step()
            repeat = request if isinstance(request, int) else 1
            start, worked = time.perf_counter(), time.process_time()
            for _ in range(repeat):
                step()
            seconds = time.perf_counter() - start, time.process_time() - worked
            pipe.send([value / repeat for value in seconds])


def burn(value: float) -> None:
    """Use a core until the process is ended."""
    while True:
        value = value * 1.0000001 % 7.0


@contextmanager
def loaded(processes: int) -> Iterator[None]:
    """Run processes that compute beside the measurement."""
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=burn, args=(1.0,), daemon=True) for _ in range(processes)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


@contextmanager
def contestants(threads: int) -> Iterator[dict[str, Connection]]:
    """One process for each contestant."""
    context = multiprocessing.get_context("spawn")
    pipes, workers = {}, []
    for name in CONTESTANTS:
        pipes[name], end = context.Pipe()
        worker = context.Process(target=serve, args=(end, name, threads), daemon=True)
        worker.start()
        workers.append(worker)
    try:
        yield pipes
    finally:
        for pipe in pipes.values():
            pipe.send(None)
        for worker in workers:
            worker.join()


def runnable() -> int:
    """Processes and threads that are running or waiting for a core, this one excluded."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) - 1


def measure(pipes: dict[str, Connection], shape: Shape, seconds: float) -> dict[str, Any]:
    """Medians over rounds of turns; `seconds` is the time for each contestant."""
    names = shape.contestants

    def ask(name: str, request: Shape | int) -> tuple[float, float]:
        time.sleep(PAUSE)
        pipes[name].send(request)
        wall, worked = pipes[name].recv()
        return float(wall), max(float(worked), 1e-9)

    first = {name: ask(name, shape)[0] for name in names}
    turn = {name: max(1, round(seconds / 10 / max(first[name], 1e-6))) for name in names}
    rounds = max(2, min(9, round(ROUNDS * seconds / max(first.values()))))
    rows, cpu, load = [], [], []
    for _ in range(rounds):
        load.append(runnable())
        both = {name: ask(name, turn[name]) for name in names}
        rows.append({name: wall for name, (wall, _) in both.items()})
        cpu.append({name: worked for name, (_, worked) in both.items()})
    ratio = {
        f"{prefix}ours / {name}": round(
            statistics.median(row["ours"] / row[name] for row in table), 3
        )
        for prefix, table in (("", rows), ("cpu ", cpu))
        for name in names[1:]
    }
    return {
        **{name: round(1e3 * statistics.median(row[name] for row in rows), 4) for name in names},
        **ratio,
        "rounds": rounds,
        "runnable": round(statistics.mean(load), 1),
    }


def problems(result: dict[str, Any]) -> list[str]:
    """The bounds that a shape does not keep; with one thread, in processor time."""
    found = []
    clock = "cpu " if result["threads"] == 1 else ""
    if result[f"{clock}ours / transcription"] > NOISE:
        found.append("slower than the transcription")
    if result["n"] >= SLIDE and result[f"{clock}ours / floor"] > SLIDE_BOUND:
        found.append(f"above {SLIDE_BOUND} x the floor")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for axis, values in GRID.items():
        parser.add_argument(f"--{axis}", type=int, nargs="+", help=f"default: {values}")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--passes", nargs="+", default=["forward", "both"])
    parser.add_argument("--quick", action="store_true", help="a part of the grid")
    parser.add_argument("--all", action="store_true", help="every combination")
    parser.add_argument("--load", type=int, default=0, help="busy processes beside it")
    parser.add_argument("--seconds", type=float, default=0.15, help="for each shape and contestant")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    grid = {
        axis: getattr(options, axis) or (QUICK if options.quick else GRID)[axis] for axis in GRID
    }
    combinations = itertools.product(grid["n"], grid["p"], grid["m"], options.passes)
    shapes = [Shape(n, p, m, which == "both") for n, p, m, which in combinations]
    shapes = [shape for shape in shapes if options.all or shape.is_in_grid]
    import torch

    name = "sparse_coding_shapes" + ("_loaded" if options.load else "")
    out = options.out or RESULTS / f"{name}.json"
    results: list[dict[str, Any]] = []
    start = time.time()
    load_before = os.getloadavg()[0]
    with loaded(options.load):
        for threads in options.threads:
            with contestants(threads) as pipes:
                results += measure_all(pipes, threads, shapes, options.seconds)
        results = measure_again(results, options.seconds)
    document = {
        "machine": platform.machine(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "load average before": load_before,
        "busy processes": options.load,
        "priority (nice)": os.nice(0),
        "minutes": round((time.time() - start) / 60, 1),
        "shapes": results,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=1) + "\n")
    failed = [row for row in results if row["beyond"]]
    print(f"{len(results)} shapes, {len(failed)} beyond a bound; written to {out}")
    raise SystemExit(bool(failed))


def measure_again(rows: list[dict[str, Any]], seconds: float) -> list[dict[str, Any]]:
    """The rows, with medians of three measurements for those beyond a bound."""
    late = [row for row in rows if row["beyond"] and "measured" not in row]
    found = {id(row): [row] for row in late}
    for _ in range(2):
        for threads in dict.fromkeys(row["threads"] for row in late):
            group = [row for row in late if row["threads"] == threads]
            shapes = [Shape(row["n"], row["p"], row["m"], row["pass"] == "both") for row in group]
            with contestants(threads) as pipes:
                again = measure_all(pipes, threads, shapes, seconds)
            for row, other in zip(group, again, strict=True):
                found[id(row)].append(other)
    return [_median_row(found[id(row)]) if id(row) in found else row for row in rows]


def _median_row(rows: list[dict[str, Any]]) -> dict[str, Any]:
    numbers = [key for key, value in rows[0].items() if isinstance(value, float)]
    medians = {key: round(statistics.median(row[key] for row in rows), 4) for key in numbers}
    row = rows[0] | medians
    row["beyond"] = problems(row)
    ratios = [key for key in numbers if key.removeprefix("cpu ").startswith("ours / ")]
    return row | {"measured": [{key: each[key] for key in ratios} for each in rows]}


def measure_all(
    pipes: dict[str, Connection], threads: int, shapes: Sequence[Shape], seconds: float
) -> list[dict[str, Any]]:
    """Measure shapes with a number of threads, and print a line for each."""
    rows = []
    for shape in shapes:
        n, p, m, backward = shape
        which = "both" if backward else "forward"
        row: dict[str, Any] = {"threads": threads, "n": n, "p": p, "m": m, "pass": which}
        row |= measure(pipes, shape, seconds)
        row["beyond"] = problems(row)
        rows.append(row)
        text = "  ".join(f"{name} {row[name]:9.3f} ms" for name in shape.contestants)
        ratios = "  ".join(
            f"/{name[:5]} {row[f'ours / {name}']:5.2f} (cpu {row[f'cpu ours / {name}']:5.2f})"
            for name in shape.contestants[1:]
        )
        notes = ", ".join(row["beyond"])
        print(f"{threads} x {n:6} {p:5} {m:5} {which:8} {text}  {ratios}  {notes}", flush=True)
    return rows


if __name__ == "__main__":
    main()
