"""How fast is the sparse-coding layer, and how much memory does it need?

    python benchmarks/sparse_coding.py

Forward and backward, on a slide and on a small bag, of

- `ours`:          scmil.SparseCoding with its defaults;
- `transcription`: the module of the authors in plain torch (scmil.ReleasedSparseCoding);
- `floor`:         the matrix products of ours and nothing else, by `torch.matmul`;
- `oneDNN floor`:  the same by oneDNN, on processors on which ours uses it.

Each runs in its own process, as in a training, so that none profits from the memory of another. The
processes take turns of a few steps, so that all see the same load; the figures are medians of the
ratios of each round. Before a turn there is a pause, because the threads of the process before it
wait in a loop for some milliseconds and use a core. Peak memory is that of one more step above what
the process held before.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results" / "sparse_coding.json"
PAUSE = 0.02  # seconds


class Case(NamedTuple):
    n: int
    p: int
    m: int
    repeat: int  # steps in a turn
    rounds: int
    layers: int = 5


CASES = {
    "slide": Case(12_000, 512, 256, repeat=5, rounds=12),
    "small bag": Case(5, 64, 256, repeat=500, rounds=40),
}
TARGETS = {  # the ratio, and its upper or lower limit
    "slide": {
        "time / floor": ("<=", 1.25),
        "speed-up": (">=", 2.0),
        "memory / transcription": ("<=", 0.25),
    },
    "small bag": {"speed-up": (">=", 4.0)},
}


def make_step(name: str, case: Case) -> Callable[[], None]:
    """One forward and backward pass, with gradients for the input and all parameters."""
    import torch

    from scmil import ReleasedSparseCoding, SparseCoding

    torch.manual_seed(0)
    if name == "floor":
        return floor_step(case)
    if name == "oneDNN floor":
        return floor_step(case, onednn_product)
    build = SparseCoding if name == "ours" else ReleasedSparseCoding
    layer = build(case.p, atoms=case.m, layers=case.layers)
    x = torch.randn(case.n, case.p).relu().requires_grad_()
    g = torch.randn(case.n, case.m)

    def step() -> None:
        x.grad = None
        layer.zero_grad(set_to_none=True)
        layer(x).backward(g)

    return step


def onednn_product(a: Any, b: Any) -> Any:
    """A product by oneDNN, which copies matrices that do not lie row by row."""
    from scmil.sparse_coding.kernel_products import onednn_linear

    narrow = a.is_contiguous() or a.shape[0] <= b.shape[1]
    return onednn_linear(a, b.mT) if narrow else onednn_linear(b.mT, a)


def floor_step(case: Case, product: Callable[[Any, Any], Any] | None = None) -> Callable[[], None]:
    """The matrix products of ours, in the form that it chooses."""
    import torch

    from scmil.sparse_coding.kernel_torch import gram_is_cheaper

    mm = product or torch.matmul
    n, p, m, later = case.n, case.p, case.m, case.layers - 1
    h1, h2 = p // 4, p // 8
    x, alpha, r, D, G = (torch.randn(*shape) for shape in ((n, p), (n, m), (n, p), (p, m), (m, m)))
    y1, y2, y3 = torch.randn(n, h1), torch.randn(n, h2), torch.randn(n, 1)
    w1, w2, w3 = torch.randn(p, h1), torch.randn(h1, h2), torch.randn(h2, 1)
    gram = gram_is_cheaper(n, p, m, case.layers, backward=True)

    def step() -> None:
        mm(x, w1), mm(y1, w2), mm(y2, w3), mm(x, D)
        mm(y3, w3.T), mm(y2.T, y3), mm(y2, w2.T), mm(y1.T, y2), mm(y1, w1.T), mm(x.T, y1)
        mm(alpha, D.T), mm(x.T, alpha)
        if gram:
            mm(D.T, D), mm(D, G)
        for _ in range(later):
            if gram:
                mm(alpha, G), mm(alpha, G), mm(alpha.T, alpha)
            else:
                mm(alpha, D.T), mm(r, D), mm(alpha, D.T), mm(r, D), mm(r.T, alpha), mm(r.T, alpha)

    return step


def serve(pipe: Connection, name: str, case: Case, threads: int) -> None:
    """A process that answers requests with seconds per step or with bytes."""
    import torch

    torch.set_num_threads(threads)
    step = make_step(name, case)
    step()  # the first call starts threads and loads kernels
    while (request := pipe.recv()) != "stop":
        if request == "memory":
            before = reset_peak()
            step()
            pipe.send(peak() - before)
        else:
            step()  # wakes the threads
            start = time.perf_counter()
            for _ in range(case.repeat):
                step()
            pipe.send((time.perf_counter() - start) / case.repeat)


def reset_peak() -> int:
    """Release unused memory, reset the peak, and return the memory in use."""
    import ctypes

    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    return int(line.split()[1]) * 1024


def contestants() -> list[str]:
    from scmil.sparse_coding.kernel_products import onednn_is_faster

    names = ["ours", "transcription", "floor"]
    return [*names, "oneDNN floor"] if onednn_is_faster() else names


def measure(case: Case, threads: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    pipes, workers = {}, []
    for name in contestants():
        pipes[name], end = context.Pipe()
        worker = context.Process(target=serve, args=(end, name, case, threads), daemon=True)
        worker.start()
        workers.append(worker)

    def ask(name: str, request: str) -> float:
        time.sleep(PAUSE)
        pipes[name].send(request)
        return float(pipes[name].recv())

    rounds = [{name: ask(name, "time") for name in pipes} for _ in range(case.rounds)]
    memory = {name: ask(name, "memory") for name in ("ours", "transcription")}
    for name in pipes:
        pipes[name].send("stop")
    for worker in workers:
        worker.join()
    return {
        "milliseconds": {
            name: round(1e3 * statistics.median(row[name] for row in rounds), 4) for name in pipes
        },
        "MiB": {name: round(size / 2**20, 1) for name, size in memory.items()},
        **{
            f"time / {name}": statistics.median(row["ours"] / row[name] for row in rounds)
            for name in pipes
            if name.endswith("floor")
        },
        "transcription / floor": statistics.median(
            row["transcription"] / row["floor"] for row in rounds
        ),
        "speed-up": statistics.median(row["transcription"] / row["ours"] for row in rounds),
        "memory / transcription": memory["ours"] / max(memory["transcription"], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    import torch

    results: dict[str, Any] = {
        "machine": platform.machine(),
        "threads": options.threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "load average before": os.getloadavg()[0],
        "priority (nice)": os.nice(0),
    }
    failed = False
    for name, case in CASES.items():
        result = results[name] = measure(case, options.threads)
        times, sizes = result["milliseconds"], result["MiB"]
        shape = f"n={case.n} p={case.p} m={case.m} L={case.layers}"
        print(f"{name}: {shape}, forward and backward, {options.threads} threads")
        print("  " + "   ".join(f"{key} {value:.3f} ms" for key, value in times.items()))
        print("  " + "   ".join(f"{key} +{value:.1f} MiB" for key, value in sizes.items()))
        for key, (relation, bound) in TARGETS[name].items():
            held = result[key] <= bound if relation == "<=" else result[key] >= bound
            failed |= not held
            verdict = "reached" if held else "MISSED"
            print(f"  {key:24} {result[key]:6.2f}   target {relation} {bound}   {verdict}")
        for key in ("transcription / floor", "time / oneDNN floor"):
            if key in result:
                print(f"  {key:24} {result[key]:6.2f}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=2) + "\n")
    print(f"written to {options.out}")
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
