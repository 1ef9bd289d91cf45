"""How fast does a slide become a bag?   python benchmarks/encode.py

On a painted pyramid of 20 000 pixels a side, ResNet-18 (random weights of a seed: the speed is that of any weights), the
same tiles by

- `ours`:  scmil.features.encode: threads read ahead, the encoder as `scmil encode` runs it;
- `floor`: the same encoder on the same tiles in memory, as many at a time: nothing is read or decoded;
- `plain`: the loop that everybody writes: a torch DataLoader whose workers read one tile at a time with OpenSlide, the usual
           transform, torchvision's network in float32.

They take turns on different parts of the slide, several times, and the medians of their ratios count. Then the whole pipeline
runs on slides of 5 000, 20 000 and 60 000 pixels a side, each in a process of its own, with a network that costs nothing, and
the largest memory of each is printed: `--memory` alone does only that, `--speed` only the first.
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
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, cosine_similarity

from scmil.encoding.encoders import Encoder, load_encoder, registry
from scmil.encoding.features import ON_PROCESSOR, encode
from scmil.core.memory import memory_is_kept
from scmil.slides import find_tissue, open_slide, tile
from scmil.slides.synthetic import paint
from scmil.slides.tiling import Tiling

RESULTS = Path(__file__).parent / "results" / "encode.json"
SIDE_PX, TILES, TURNS = 20_000, 320, 5
BATCH = 32  # of the plain loop; ours and its floor take few tiles at a time, as is best on a processor
FEW = ON_PROCESSOR
MEMORY_SIDES = (5_000, 20_000, 60_000)
OF_FLOOR, OF_PLAIN, AGREES = 0.9, 1.5, 0.999  # the targets
FLAT = 1.25  # the largest memory of the largest slide over that of the smallest


def part(tiling: Tiling, start: int, count: int) -> Tiling:
    from dataclasses import replace

    return replace(tiling, xy=tiling.xy[start : start + count], fraction=tiling.fraction[start : start + count])


def plain_network(encoder: str, seed: int) -> nn.Module:
    """torchvision's network with the weights of ours, as it comes: nothing folded, nothing laid out anew."""
    return registry.build(encoder, random=seed).network


class PlainTiles(torch.utils.data.Dataset[Tensor]):
    """One tile at a time from OpenSlide, with the transform of every tutorial."""

    def __init__(self, path: Path, tiling: Tiling) -> None:
        from scmil.encoding.encoders.torchvision_models import torchvision

        transforms = torchvision().transforms
        self.path, self.xy, self.size = path, tiling.xy, tiling.size_px
        self.transform = transforms.Compose(
            [
                transforms.ToTensor(),
                transforms.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
            ]
        )
        self.slide: Any = None

    def __len__(self) -> int:
        return len(self.xy)

    def __getitem__(self, index: int) -> Tensor:
        import openslide

        if self.slide is None:  # a slide cannot be sent to a worker
            self.slide = openslide.OpenSlide(self.path)
        x, y = map(int, self.xy[index])
        return self.transform(self.slide.read_region((x, y), 0, (self.size, self.size)).convert("RGB"))


def plainly(path: Path, tiling: Tiling, network: nn.Module) -> Tensor:
    loader = torch.utils.data.DataLoader(PlainTiles(path, tiling), BATCH, num_workers=os.cpu_count() or 1)
    with torch.inference_mode():
        return torch.cat([network(batch) for batch in loader])


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    answer = work()
    return time.perf_counter() - start, answer


def speed(turns: int, tiles: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "slide.svs"
        paint(path, size=(SIDE_PX, SIDE_PX), seed=0)
        with open_slide(path) as slide:
            tiling = tile(slide, find_tissue(slide))
            encoder = load_encoder("resnet18", random=0)
            network = plain_network("resnet18", 0)
            starts = np.linspace(0, len(tiling) - tiles, turns + 1).astype(int)
            print(f"{len(tiling)} tiles on the slide; {turns} turns of {tiles}; encoder in {encoder.precision}")
            rates: dict[str, list[float]] = {"ours": [], "floor": [], "plain": []}
            agreement = 1.0
            for turn, start in enumerate(starts):
                some = part(tiling, int(start), tiles)
                pixels = torch.from_numpy(
                    np.stack([slide.read((int(x), int(y)), tiling.size_px, tiling.mpp) for x, y in some.xy])
                )

                def in_memory(pixels: Tensor = pixels) -> Tensor:
                    with memory_is_kept():
                        return torch.cat([encoder(pixels[at : at + FEW]) for at in range(0, len(pixels), FEW)])

                ways: dict[str, Callable[[], Any]] = {
                    "ours": lambda some=some: encode(slide, some, encoder).features,  # type: ignore[misc]
                    "floor": in_memory,
                    "plain": lambda some=some: plainly(path, some, network),  # type: ignore[misc]
                }
                answers = {}
                order = list(ways) if turn % 2 else list(ways)[::-1]
                for name in order:
                    seconds, answers[name] = timed(ways[name])
                    if turn:  # the first turn loads kernels
                        rates[name].append(tiles / seconds)
                agreement = min(agreement, float(cosine_similarity(answers["ours"], answers["plain"]).min()))
                print(
                    f"turn {turn}: " + ", ".join(f"{name} {v[-1]:.1f}" for name, v in rates.items() if v) + " tiles/s"
                )
    of_floor = statistics.median(a / b for a, b in zip(rates["ours"], rates["floor"], strict=True))
    of_plain = statistics.median(a / b for a, b in zip(rates["ours"], rates["plain"], strict=True))
    return {
        "precision": encoder.precision,
        "tiles_per_second": {name: statistics.median(values) for name, values in rates.items()},
        "of_floor": of_floor,
        "of_plain": of_plain,
        "least_cosine_with_plain": agreement,
    }


# -------------------------------------------------------------------------------------------------------------- memory


class Thumbnail(nn.Module):
    """512 numbers of a tile for nearly nothing, so that all tiles of a large slide can be read."""

    def forward(self, x: Tensor) -> Tensor:
        return adaptive_avg_pool2d(x, 13).flatten(1)[:, :507]


def peak_megabytes(side: int, scratch: Path) -> dict[str, Any]:
    """Tile and encode a whole slide; the largest memory that this process ever had."""
    from scmil.bags.hdf5 import write_bag

    encoder = Encoder("thumbnail", 507, Thumbnail(), "none", "none")
    with open_slide(scratch / f"{side}.svs") as slide:
        tiling = tile(slide, find_tissue(slide))
        write_bag(encode(slide, tiling, encoder, dtype="float16"), scratch / f"{side}.h5")
    with open("/proc/self/status") as file:
        peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    return {"side_px": side, "tiles": len(tiling), "peak_mb": peak / 1024}


def memory(sides: tuple[int, ...]) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for side in sides:
            paint(Path(scratch) / f"{side}.svs", size=(side, side), seed=0)
            command = [sys.executable, __file__, "--one", str(side), scratch]
            rows.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
            (Path(scratch) / f"{side}.svs").unlink()
            print("{side_px} px: {tiles} tiles, {peak_mb:.0f} MB at most".format(**rows[-1]))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--tiles", type=int, default=TILES)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(peak_megabytes(int(asked.one[0]), Path(asked.one[1]))))
        return
    both = asked.speed == asked.memory
    page: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    page["machine"] = f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}, torch {torch.__version__}"
    reached = []
    if asked.speed or both:
        page["speed"] = found = speed(asked.turns, asked.tiles)
        reached += [
            verdict(f"of the floor {found['of_floor']:.2f}", found["of_floor"] >= OF_FLOOR, f"at least {OF_FLOOR}"),
            verdict(
                f"of the plain loop {found['of_plain']:.2f}", found["of_plain"] >= OF_PLAIN, f"at least {OF_PLAIN}"
            ),
            verdict(
                f"least cosine with the plain loop's features {found['least_cosine_with_plain']:.5f}",
                found["least_cosine_with_plain"] > AGREES,
                f"above {AGREES}",
            ),
        ]
    if asked.memory or both:
        page["memory"] = rows = memory(MEMORY_SIDES)
        growth = rows[-1]["peak_mb"] / rows[0]["peak_mb"]
        reached.append(
            verdict(f"memory of the largest over the smallest {growth:.2f}", growth <= FLAT, f"at most {FLAT}")
        )
    RESULTS.write_text(json.dumps(page, indent=2) + "\n")
    sys.exit(not all(reached))


def verdict(said: str, holds: bool, target: str) -> bool:
    print(f"{said}  ({target}: {'holds' if holds else 'MISSED'})")
    return holds


if __name__ == "__main__":
    main()
