"""How long does a browser wait for a tile of the viewer?   python benchmarks/viewer.py

A synthetic slide of 20 000 pixels a side is served over HTTP as by `scmil view`. Four readers
request tiles at once: at random positions and levels all tiles of a screen, one after another. No
tile is requested twice, so that none comes from the cache. The target is 95 % of the tiles in less
than 100 ms. The readers are threads of another process, as a browser is another process.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from scmil.bags.bag import Bag
from scmil.core.atomic import write_atomically
from scmil.models.model import build_model
from scmil.models.score_files import FORMAT, PAGE, write_scores
from scmil.models.tile_scores import score_bag
from scmil.slides.synthetic import paint
from scmil.viz.viewer import Library, Server
from scmil.viz.viewer.pixels import TILE_PX, depth

RESULTS = Path(__file__).parent / "results" / "viewer.json"
SIDE_PX, READERS, TILES = 20_000, 4, 400  # tiles per reader
SCREEN = (5, 3)  # tiles of 256 pixels on a laptop's screen
TARGET_MS = 100.0


def walk(seed: int, count: int) -> list[tuple[int, int, int]]:
    """Level, column and row of the tiles that a reader requests."""
    generator = np.random.default_rng(seed)
    finest = depth((SIDE_PX, SIDE_PX))
    tiles: list[tuple[int, int, int]] = []
    while len(tiles) < count:
        level = int(generator.integers(finest - 5, finest + 1))
        columns = math.ceil(SIDE_PX / 2 ** (finest - level) / TILE_PX)
        left, top = (int(generator.integers(0, max(columns - screen, 0) + 1)) for screen in SCREEN)
        tiles += [
            (level, x, y)
            for y in range(top, min(top + SCREEN[1], columns))
            for x in range(left, min(left + SCREEN[0], columns))
        ]
    return tiles[:count]


def make_walks(count: int) -> list[list[tuple[int, int, int]]]:
    """The tiles of each reader; no tile is requested twice."""
    seen: set[tuple[int, int, int]] = set()
    walks = []
    for reader in range(READERS):
        fresh = [tile for tile in dict.fromkeys(walk(reader, 4 * count)) if tile not in seen][
            :count
        ]
        seen.update(fresh)
        walks.append(fresh)
    return walks


def read(port: int, prefix: str, cookie: str, count: int) -> list[dict[str, Any]]:
    """Run all readers at once, and return the time of each request."""
    taken: list[dict[str, Any]] = []

    def look(tiles: list[tuple[int, int, int]]) -> None:
        connection = HTTPConnection("127.0.0.1", port)
        for level, x, y in tiles:
            start = time.perf_counter()
            connection.request(
                "GET", f"{prefix}/dz/0/{level}/{x}_{y}.jpg", headers={"Cookie": cookie}
            )
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"{answer.status}: {content.decode()}")
            taken.append(
                {"ms": 1000 * (time.perf_counter() - start), "level": level, "bytes": len(content)}
            )

    readers = [Thread(target=look, args=(tiles,)) for tiles in make_walks(count)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return taken


def make(folder: Path) -> Library:
    """Write a slide and the scores of a model for `scmil view`."""
    import torch

    print(f"creating {SIDE_PX} x {SIDE_PX} pixels …", flush=True)
    paint(folder / "slides" / "slide.svs", size=(SIDE_PX, SIDE_PX), seed=0)
    places = torch.tensor(
        [(x, y) for x in range(0, SIDE_PX, 2048) for y in range(0, SIDE_PX, 2048)]
    )
    bag = Bag(
        "slide", torch.randn(len(places), 8, generator=torch.Generator().manual_seed(0)), xy=places
    )
    scores = score_bag(build_model(8, 2, "abmil-gated", embed=[8], seed=0), bag)
    write_scores(scores, folder)
    line = {
        "label": None,
        "predicted": scores.predicted,
        "probabilities": scores.probabilities.tolist(),
    }
    page = {"format": FORMAT, "classes": list(scores.classes), "slides": {"slide": line}}
    write_atomically(folder / PAGE, json.dumps(page).encode())
    return Library([folder], folder / "slides")


def measure(count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(make(Path(folder)))
        thread = Thread(target=server.run)
        thread.start()
        try:
            given = [str(server.port), server.path(""), server.cookie]
            command = [sys.executable, __file__, "--read", *given, "--tiles", str(count)]
            taken = json.loads(
                subprocess.run(command, check=True, capture_output=True, text=True).stdout
            )
        finally:
            server.stop()
            thread.join()
    times = np.array([one["ms"] for one in taken])
    levels = sorted({one["level"] for one in taken}, reverse=True)
    finest = depth((SIDE_PX, SIDE_PX))
    by_level = {
        f"1/{2 ** (finest - level)}": round(
            float(np.percentile([one["ms"] for one in taken if one["level"] == level], 95)), 1
        )
        for level in levels
    }
    return {
        "requests": len(times),
        **{f"p{part}_ms": round(float(np.percentile(times, part)), 1) for part in (50, 95, 99)},
        "largest_ms": round(float(times.max()), 1),
        "under_100_ms": round(float((times < TARGET_MS).mean()), 4),
        "p95_ms_by_scale": by_level,
        "kilobytes_a_tile": round(float(np.mean([one["bytes"] for one in taken])) / 1000, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--tiles", type=int, default=TILES, help="requested by each reader")
    parser.add_argument(
        "--read", nargs=3, metavar=("PORT", "PREFIX", "COOKIE"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.read:
        port, prefix, cookie = options.read
        print(json.dumps(read(int(port), prefix, cookie, options.tiles)))
        return 0
    busy = os.getloadavg()[0]
    result = measure(options.tiles)
    reached = result["p95_ms"] < TARGET_MS
    for name, value in result.items():
        print(f"{name:>18}  {value}")
    print(f"95 % under {TARGET_MS:.0f} ms with {READERS} readers: {'yes' if reached else 'NO'}")
    machine = {
        "processors": os.cpu_count(),
        "load_before": round(busy, 2),
        "python": platform.python_version(),
    }
    page = {
        "side_px": SIDE_PX,
        "readers": READERS,
        **result,
        "target_ms": TARGET_MS,
        "met": reached,
        "machine": machine,
    }
    write_atomically(RESULTS, (json.dumps(page, indent=1) + "\n").encode())
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
