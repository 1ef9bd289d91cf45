"""How fast does a slide become a bag?   python benchmarks/encode.py

ResNet-18 with random weights encodes the same tiles of a slide of 20 000 pixels a side by

- `ours`:  scmil's `encode`: threads read ahead, with the settings of `scmil encode`;
- `floor`: the same encoder on the same batches of tiles in memory: nothing is read or decoded;
- `plain`: a torch DataLoader whose workers read one tile at a time with OpenSlide, the usual
           transform, and torchvision's network in float32.

They take turns on different regions of the slide; the figures are medians of the ratios. `--cards`
measures `ours` and `floor` of the cards of ResNet-18, a ViT-S/16 and a ViT-L/16
(encode_cards.py), the gain of bfloat16 where the processor computes in it, and the peak memory
of the ViT-S/16 on slides of 5 000 and 20 000 pixels a side. Then the whole pipeline runs on slides
of 5 000, 20 000 and 60 000 pixels a side, each in its own process with a trivial network, and the
peak memory of each is printed. `--memory` runs only this part, `--speed` only the first.
`--tiles` bounds the number of tiles of each measurement.
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
from encode_cards import CARD_SIDES, CARDS, MEMORY_CARD, OF_CARD_FLOOR, card_speed, encode_file
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, cosine_similarity

from scmil.core.memory import memory_is_kept
from scmil.encoding.encoders import Encoder, load_encoder, registry
from scmil.encoding.features import ON_PROCESSOR, encode
from scmil.slides import find_tissue, open_slide, tile
from scmil.slides.synthetic import paint
from scmil.slides.tiling import Tiling

RESULTS = Path(__file__).parent / "results" / "encode.json"
SIDE_PX, TILES, TURNS = 20_000, 320, 5
# Of the plain loop; ours and the floor use smaller batches, which are faster on a CPU.
BATCH = 32
FEW = ON_PROCESSOR
MEMORY_SIDES = (5_000, 20_000, 60_000)
OF_FLOOR, OF_PLAIN, AGREES = 0.9, 1.5, 0.999  # the targets
FLAT = 1.25  # largest accepted ratio of peak memory, largest slide to smallest


def part(tiling: Tiling, start: int, count: int) -> Tiling:
    from dataclasses import replace

    return replace(
        tiling, xy=tiling.xy[start : start + count], fraction=tiling.fraction[start : start + count]
    )


def plain_network(encoder: str, seed: int) -> nn.Module:
    """torchvision's network with the weights of ours, without any optimisation."""
    return registry.build(encoder, random=seed).network


class PlainTiles(torch.utils.data.Dataset[Tensor]):
    """One tile at a time from OpenSlide, with the usual transform."""

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

        if self.slide is None:  # a slide cannot be pickled
            self.slide = openslide.OpenSlide(self.path)
        x, y = map(int, self.xy[index])
        return self.transform(
            self.slide.read_region((x, y), 0, (self.size, self.size)).convert("RGB")
        )


def plainly(path: Path, tiling: Tiling, network: nn.Module) -> Tensor:
    loader = torch.utils.data.DataLoader(
        PlainTiles(path, tiling), BATCH, num_workers=os.cpu_count() or 1
    )
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
            print(f"{len(tiling)} tiles; {turns} turns of {tiles}; encoder in {encoder.precision}")
            rates: dict[str, list[float]] = {"ours": [], "floor": [], "plain": []}
            agreement = 1.0
            for turn, start in enumerate(starts):
                some = part(tiling, int(start), tiles)
                pixels = torch.from_numpy(
                    np.stack(
                        [
                            slide.read((int(x), int(y)), tiling.size_px, tiling.mpp)
                            for x, y in some.xy
                        ]
                    )
                )

                def in_memory(pixels: Tensor = pixels) -> Tensor:
                    with memory_is_kept():
                        return torch.cat(
                            [encoder(pixels[at : at + FEW]) for at in range(0, len(pixels), FEW)]
                        )

                ways: dict[str, Callable[[], Any]] = {
                    "ours": lambda some=some: encode_file(path, some, encoder),  # type: ignore[misc]
                    "floor": in_memory,
                    "plain": lambda some=some: plainly(path, some, network),  # type: ignore[misc]
                }
                answers = {}
                order = list(ways) if turn % 2 else list(ways)[::-1]
                for name in order:
                    seconds, answers[name] = timed(ways[name])
                    if turn:  # the first turn loads kernels
                        rates[name].append(tiles / seconds)
                agreement = min(
                    agreement, float(cosine_similarity(answers["ours"], answers["plain"]).min())
                )
                print(
                    f"turn {turn}: "
                    + ", ".join(f"{name} {v[-1]:.1f}" for name, v in rates.items() if v)
                    + " tiles/s"
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


# ------------------------------------------------------------------------------------------- memory


class Thumbnail(nn.Module):
    """A trivial network, so that all tiles of a large slide can be encoded."""

    def forward(self, x: Tensor) -> Tensor:
        return adaptive_avg_pool2d(x, 13).flatten(1)[:, :507]


def peak_megabytes(side: int, scratch: Path, card: str) -> dict[str, Any]:
    """Tile and encode a whole slide, and return the peak memory of this process."""
    from scmil.bags.hdf5 import write_bag

    thumbnail = Encoder("thumbnail", 507, Thumbnail(), "none", "none")
    encoder = load_encoder(card, random=0) if card else thumbnail
    with open_slide(scratch / f"{side}.svs") as slide:
        tiling = tile(slide, find_tissue(slide), size_px=encoder.size_px)
        write_bag(encode(slide, tiling, encoder, dtype="float16"), scratch / f"{side}.h5")
    with open("/proc/self/status") as file:
        peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    return {"side_px": side, "tiles": len(tiling), "peak_mb": peak / 1024}


def memory(sides: tuple[int, ...], card: str = "") -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for side in sides:
            paint(Path(scratch) / f"{side}.svs", size=(side, side), seed=0)
            command = [sys.executable, __file__, "--one", str(side), scratch, card]
            rows.append(
                json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            )
            (Path(scratch) / f"{side}.svs").unlink()
            print("{side_px} px: {tiles} tiles, {peak_mb:.0f} MB at most".format(**rows[-1]))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--cards", action="store_true")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--tiles", type=int, default=TILES)
    parser.add_argument("--sides", type=int, nargs="+", default=CARD_SIDES, help="with --cards")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        side, scratch, card = arguments.one
        print(json.dumps(peak_megabytes(int(side), Path(scratch), card)))
        return
    both = not (arguments.speed or arguments.memory or arguments.cards)
    out: Path = arguments.out
    page: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    processor = platform.processor() or platform.machine()
    page["machine"] = f"{os.cpu_count()} cores, {processor}, torch {torch.__version__}"
    reached = []
    if arguments.speed or both:
        page["speed"] = found = speed(arguments.turns, arguments.tiles)
        reached += [
            verdict(
                f"of the floor {found['of_floor']:.2f}",
                found["of_floor"] >= OF_FLOOR,
                f"at least {OF_FLOOR}",
            ),
            verdict(
                f"of the plain loop {found['of_plain']:.2f}",
                found["of_plain"] >= OF_PLAIN,
                f"at least {OF_PLAIN}",
            ),
            verdict(
                f"smallest cosine with the plain loop {found['least_cosine_with_plain']:.5f}",
                found["least_cosine_with_plain"] > AGREES,
                f"above {AGREES}",
            ),
        ]
    if arguments.cards or both:
        page["cards"] = {
            name: card_speed(name, arguments.turns, min(tiles, arguments.tiles))
            for name, tiles in CARDS.items()
        }
        for name, found in page["cards"].items():
            reached.append(
                verdict(
                    f"{name}: of the floor {found['of_floor']:.3f}",
                    found["of_floor"] >= OF_CARD_FLOOR,
                    f"at least {OF_CARD_FLOOR}",
                )
            )
        page["card_memory"] = rows = memory(tuple(arguments.sides), MEMORY_CARD)
        reached.append(grows_little(rows, MEMORY_CARD))
    if arguments.memory or both:
        page["memory"] = rows = memory(MEMORY_SIDES)
        reached.append(grows_little(rows, "trivial network"))
    out.write_text(json.dumps(page, indent=2) + "\n")
    sys.exit(not all(reached))


def grows_little(rows: list[dict[str, Any]], network: str) -> bool:
    growth = rows[-1]["peak_mb"] / rows[0]["peak_mb"]
    measured = f"{network}: memory of the largest slide over the smallest {growth:.2f}"
    return verdict(measured, growth <= FLAT, f"at most {FLAT}")


def verdict(measured: str, holds: bool, target: str) -> bool:
    print(f"{measured}  ({target}: {'reached' if holds else 'MISSED'})")
    return holds


if __name__ == "__main__":
    main()
