"""How much memory does a bag of a million instances need?   python benchmarks/huge_bag.py

A bag file of 1 000 000 x 512 in float16 is predicted by ABMIL-Gated with sparse coding through
`predict_bag(model, read_bag(path).features)` in a separate process. The figure is the peak memory
of this process (VmHWM, including the interpreter and torch) without the resident pages of the
mapped file, which the system can reclaim (Rss of the mapping in smaps, largest at the end).

Then, on 100 000 instances, which fit into memory: the largest difference of logits and attention
between blocks and one piece, and the median ratio of their times, measured in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scmil import build_model
from scmil.bags.hdf5 import FORMAT, read_bag
from scmil.models.model import MILModel
from scmil.models.streaming import predict_bag

RESULTS = Path(__file__).parent / "results" / "huge_bag.json"
INSTANCES, FITS, DIM = 1_000_000, 100_000, 512
LIMIT_MIB = 2048
EXACT = 1e-5  # largest accepted difference between blocks and one piece
TURNS = 5


def write(path: Path, instances: int) -> None:
    """Write a file like `write_bag`, but in blocks, to limit the memory."""
    import h5py

    generator = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        features = file.create_dataset("features", (instances, DIM), np.float16)
        for start in range(0, instances, 50_000):
            rows = min(50_000, instances - start)
            features[start : start + rows] = generator.standard_normal(
                (rows, DIM), np.float32
            ).clip(0)
        file.attrs.update(scmil_format=FORMAT, id="huge", provenance="{}")


def model() -> MILModel:
    return build_model(DIM, 2, "abmil-gated", sparse_coding=True, seed=0).eval()


def memory_of_self(path: Path) -> dict[str, float]:
    """The peak memory of this process and the resident pages of the file, in MiB."""
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    mapped, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        # The first line of a mapping has its range and its file.
        if not line.split()[0].endswith(":"):
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            mapped += int(line.split()[1])
    return {
        "peak": peak / 1024,
        "mapped file": mapped / 1024,
        "beyond the file": (peak - mapped) / 1024,
    }


def alone(path: Path, threads: int) -> None:
    """The separate process: one prediction, and a line of JSON."""
    torch.set_num_threads(threads)
    features, network = read_bag(path).features, model()
    seconds, prediction = timed(lambda: predict_bag(network, features))
    report = {
        "seconds": seconds,
        "MiB": memory_of_self(path),
        "attention adds up to": float(prediction.attention.double().sum()),
    }
    print(json.dumps(report))


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    answer = work()
    return time.perf_counter() - start, answer


def compare(instances: int, turns: int) -> dict[str, Any]:
    """Blocks against one piece, both from memory in float32, which is what one piece needs."""
    network, x = (
        model(),
        torch.randn(instances, DIM, generator=torch.Generator().manual_seed(0)).relu(),
    )

    @torch.no_grad()
    def one_piece() -> Any:
        return network(x)

    ratios, difference = [], 0.0
    for _ in range(turns):
        whole_seconds, whole = timed(one_piece)
        seconds, prediction = timed(lambda: predict_bag(network, x))
        ratios.append(seconds / whole_seconds)
        for a, b in ((prediction.logits, whole.logits), (prediction.attention, whole.attention)):
            difference = max(difference, float((a - b).abs().max()))
    return {
        "instances": instances,
        "blocks / one piece, time": statistics.median(ratios),
        "largest difference": difference,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--instances", type=int, default=INSTANCES, help="fewer only for a quick check"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        alone(options.alone, options.threads)
        return
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "huge.h5"
        write(path, options.instances)
        command = [
            sys.executable,
            __file__,
            "--alone",
            str(path),
            "--threads",
            str(options.threads),
        ]
        huge = json.loads(
            subprocess.run(command, check=True, capture_output=True, text=True).stdout
        )
    same = compare(min(FITS, options.instances), options.turns)
    beyond = huge["MiB"]["beyond the file"]
    held = {"memory": beyond <= LIMIT_MIB, "same": same["largest difference"] <= EXACT}
    size = f"{options.instances} x {DIM} float16"
    print(f"{size}, abmil-gated with sparse coding, {options.threads} threads")
    print(
        f"  {huge['seconds']:.1f} s; "
        + ", ".join(f"{name} {size:.0f} MiB" for name, size in huge["MiB"].items())
    )
    word = _word(held["memory"])
    print(f"  memory beyond the mapped file {beyond:8.0f} MiB   target <= {LIMIT_MIB}   {word}")
    print(f"on {same['instances']} instances, blocks against one piece")
    difference, word = same["largest difference"], _word(held["same"])
    print(f"  largest difference {difference:19.1e}       target <= {EXACT:g}   {word}")
    print(f"  time, ratio {same['blocks / one piece, time']:26.2f}")
    machine = {
        "machine": platform.machine(),
        "threads": options.threads,
        "torch": torch.__version__,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    content = machine | {"instances": options.instances, "huge": huge, "against one piece": same}
    options.out.write_text(json.dumps(content, indent=2) + "\n")
    print(f"written to {options.out}")
    raise SystemExit(not all(held.values()))


def _word(held: bool) -> str:
    return "reached" if held else "MISSED"


if __name__ == "__main__":
    main()
