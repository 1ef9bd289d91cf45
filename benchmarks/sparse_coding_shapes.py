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
processes; the medians over the rounds of all three count, and `measured` has the ratios of each.
Beside a busy process, times depend on which core it shares with which thread, for the life of a
process and longer. There all shapes are measured three times (`--repeats`), each in new processes.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from sparse_coding_contestants import CONTESTANTS, SLIDE, Shape, make_step

RESULTS = Path(__file__).parent / "results"
GRID = {
    "n": (5, 100, 1000, 12_000, 50_000),
    "p": (166, 484, 512, 768, 1024, 1280, 1536, 2560),
    "m": (64, 256, 1024),
}
PAUSE, WARM_UP = 0.02, 0.1  # seconds
ROUNDS = 4  # turns of the slowest contestant in its time
QUICK = {"n": (5, 100, 1000, 12_000), "p": (166, 512, 1536), "m": (256,)}
SLIDE_BOUND = 1.15
REPEATS = 3  # sets of processes, of a shape beyond a bound and of all shapes beside load
NOISE = 1.05  # of a median of ratios on a quiet machine


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


Round = dict[str, tuple[float, float]]  # seconds and processor seconds of each contestant


class Measurement(NamedTuple):
    """The rounds of one set of processes, and the runnable processes in each."""

    rounds: list[Round]
    runnable: list[int]


def processor() -> str:
    """Its name, or nothing if the system does not tell."""
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text().splitlines() if listing.is_file() else []
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), "")


def measure(pipes: dict[str, Connection], shape: Shape, seconds: float) -> Measurement:
    """Take turns; `seconds` is the time for each contestant."""
    names = shape.contestants

    def ask(name: str, request: Shape | int) -> tuple[float, float]:
        time.sleep(PAUSE)
        pipes[name].send(request)
        wall, worked = pipes[name].recv()
        return float(wall), max(float(worked), 1e-9)

    first = {name: ask(name, shape)[0] for name in names}
    turn = {name: max(1, round(seconds / 10 / max(first[name], 1e-6))) for name in names}
    count = max(2, min(9, round(ROUNDS * seconds / max(first.values()))))
    rounds, load = [], []
    for _ in range(count):
        load.append(runnable())
        rounds.append({name: ask(name, turn[name]) for name in names})
    return Measurement(rounds, load)


def ratios(rounds: Sequence[Round]) -> dict[str, float]:
    """The medians over the rounds of our time relative to that of the others."""
    return {
        f"{prefix}ours / {name}": round(
            statistics.median(each["ours"][clock] / each[name][clock] for each in rounds), 3
        )
        for clock, prefix in enumerate(("", "cpu "))
        for name in rounds[0]
        if name != "ours"
    }


def summarise(threads: int, shape: Shape, measurements: Sequence[Measurement]) -> dict[str, Any]:
    """The row of a shape in the results."""
    n, p, m, backward = shape
    rounds = [each for measurement in measurements for each in measurement.rounds]
    load = [count for measurement in measurements for count in measurement.runnable]
    row: dict[str, Any] = {"threads": threads, "n": n, "p": p, "m": m}
    row["pass"] = "both" if backward else "forward"
    for name in shape.contestants:
        row[name] = round(1e3 * statistics.median(each[name][0] for each in rounds), 4)
    row |= ratios(rounds)
    row |= {"rounds": len(rounds), "runnable": round(statistics.mean(load), 1)}
    row["beyond"] = problems(row)
    if len(measurements) > 1:
        row["measured"] = [ratios(measurement.rounds) for measurement in measurements]
    return row


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
    parser.add_argument("--repeats", type=int, help="default: 1, beside load 3")
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
    found: dict[tuple[int, Shape], list[Measurement]] = {}
    everything = list(itertools.product(options.threads, shapes))
    start = time.time()
    load_before = os.getloadavg()[0]
    with loaded(options.load):
        for _ in range(options.repeats or (REPEATS if options.load else 1)):
            measure_all(found, everything, options.seconds)
        late = [] if options.load else [key for key in everything if is_late(key, found[key])]
        for _ in range(REPEATS - 1):
            measure_all(found, late, options.seconds)
    results = [summarise(*key, found[key]) for key in everything]
    document = {
        "machine": platform.machine(),
        "processor": processor(),
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


def is_late(key: tuple[int, Shape], measurements: Sequence[Measurement]) -> bool:
    """Whether a shape is beyond a bound."""
    return bool(summarise(*key, measurements)["beyond"])


def measure_all(
    found: dict[tuple[int, Shape], list[Measurement]],
    keys: Sequence[tuple[int, Shape]],
    seconds: float,
) -> None:
    """Measure shapes with numbers of threads in new processes, and print a line for each."""
    for threads, group in itertools.groupby(keys, key=lambda key: key[0]):
        with contestants(threads) as pipes:
            for key in group:
                measurement = measure(pipes, key[1], seconds)
                found.setdefault(key, []).append(measurement)
                print(describe(summarise(*key, [measurement])), flush=True)


def describe(row: dict[str, Any]) -> str:
    """A line with the times and ratios of a shape."""
    names = [name for name in CONTESTANTS if name in row]
    text = "  ".join(f"{name} {row[name]:9.3f} ms" for name in names)
    relative = "  ".join(
        f"/{name[:5]} {row[f'ours / {name}']:5.2f} (cpu {row[f'cpu ours / {name}']:5.2f})"
        for name in names[1:]
    )
    shape = f"{row['threads']} x {row['n']:6} {row['p']:5} {row['m']:5} {row['pass']:8}"
    return f"{shape} {text}  {relative}  {', '.join(row['beyond'])}"


if __name__ == "__main__":
    main()
