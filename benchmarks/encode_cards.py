"""The speed and the memory of cards, for `python benchmarks/encode.py --cards`.

Each turn measures A, B, B, A: A is scmil's `encode`, which reads the slide, and B is the network
alone on the same batches in memory. The ratio of a turn is that of the sums, so that a load that
rises or falls steadily does not change it, and the result is the median over the turns. The ratio
of processor time also counts the time in which threads of the network wait for each other.

The slide is an Aperio file with JPEG tiles of 256 px (quality 85, 4:2:2) at the resolution of the
tiles. It is opened again for each measurement, so that no decoded pixel is left of an earlier one;
the file is in the memory of the system. Beside the ratio are the processor times per tile of the
network, of reading, and of decoding each JPEG tile once, which is the least that reading takes.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scmil.core.memory import memory_is_kept
from scmil.encoding.encoders import Encoder, load_encoder
from scmil.encoding.encoders.optimise import computes_bfloat16
from scmil.encoding.features import ON_PROCESSOR, encode
from scmil.slides import find_tissue, open_slide, tile
from scmil.slides.synthetic import paint
from scmil.slides.tiling import Tiling

# ResNet-18, ViT-S/16 and ViT-L/16, with tiles per measurement: a few seconds each on two cores.
CARDS = {"resnet18": 320, "kaiko-vits16": 192, "uni": 32}
OF_CARD_FLOOR = 0.95  # the target
QUALITY = 85  # of the JPEG tiles
MEMORY_CARD, CARD_SIDES = "kaiko-vits16", (5_000, 20_000)


class Turn(NamedTuple):
    """Seconds of two ways in one turn, by the clock and of the processor."""

    first: float
    second: float
    first_processor: float
    second_processor: float


def interleave(first: Callable[[], object], second: Callable[[], object], turns: int) -> list[Turn]:
    """Time two ways in the order A B B A and B A A B in turn, after one round that loads kernels.

    Args:
        first: A.
        second: B.
        turns: Number of turns.

    Returns:
        The sums of both measurements of each way, for each turn.
    """
    first(), second()
    found = []
    for number in range(turns):
        order = "ABBA" if number % 2 == 0 else "BAAB"
        clock, processor = dict.fromkeys("AB", 0.0), dict.fromkeys("AB", 0.0)
        for way in order:
            start, used = time.perf_counter(), time.process_time()
            (first if way == "A" else second)()
            clock[way] += time.perf_counter() - start
            processor[way] += time.process_time() - used
        found.append(Turn(clock["A"], clock["B"], processor["A"], processor["B"]))
    return found


def card_speed(name: str, turns: int, tiles: int) -> dict[str, Any]:
    """The speed of a card with random weights against its network alone, on the same tiles."""
    encoder = load_encoder(name, random=0)
    side = max(4, 2 * math.isqrt(tiles) + 2) * encoder.size_px
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "slide.svs"
        paint(path, size=(side, side), seed=0, quality=QUALITY)
        with open_slide(path) as slide:
            storage = slide.storage_tile
            some = first_tiles(tile(slide, find_tissue(slide), size_px=encoder.size_px), tiles)
            read = [slide.read((int(x), int(y)), some.size_px, some.mpp) for x, y in some.xy]
            pixels = torch.from_numpy(np.stack(read))
        found = interleave(
            lambda: encode_file(path, some, encoder), lambda: in_batches(encoder, pixels), turns
        )
        reading, decoding = (
            processor_ms_of_reading(path, some),
            processor_ms_of_decoding(path, some),
        )
    ratios = [turn.second / turn.first for turn in found]
    result = {
        "precision": encoder.precision,
        "tiles": len(pixels),
        "turns": turns,
        "tiles_per_second": {
            "ours": 2 * len(pixels) / statistics.median(turn.first for turn in found),
            "floor": 2 * len(pixels) / statistics.median(turn.second for turn in found),
        },
        "of_floor": statistics.median(ratios),
        "of_floor_range": [min(ratios), max(ratios)],
        "of_floor_processor_time": statistics.median(
            turn.second_processor / turn.first_processor for turn in found
        ),
        "processor_ms_per_tile": {
            "network": 500
            * statistics.median(turn.second_processor for turn in found)
            / len(pixels),
            "reading": reading,
            "decoding": decoding,
        },
        "slide": {
            "side_px": side,
            "tile_px": some.size_px,
            "stored_tile_px": storage,
            "jpeg": f"quality {QUALITY}, 4:2:2",
        },
        "bfloat16_gain": bfloat16_gain(name, pixels[: max(ON_PROCESSOR, tiles // 4)], turns),
        "load": [before, os.getloadavg()[0]],
    }
    print(f"{name}: {result}", flush=True)
    return result


def encode_file(path: Path, tiling: Tiling, encoder: Encoder) -> Tensor:
    """Open a slide and encode its tiles; a slide that stays open would keep decoded pixels."""
    with open_slide(path) as slide:
        return encode(slide, tiling, encoder).features


def processor_ms_of_reading(path: Path, tiling: Tiling) -> float:
    """Processor time per tile of reading with one thread, the opening of the slide included."""
    start = time.process_time()
    with memory_is_kept(), open_slide(path) as slide:
        for x, y in tiling.xy:
            slide.read((int(x), int(y)), tiling.size_px, tiling.mpp)
    return 1000 * (time.process_time() - start) / len(tiling)


def processor_ms_of_decoding(path: Path, tiling: Tiling) -> float:
    """Processor time per tile of decoding each JPEG tile under the tiles once, and nothing else."""
    import tifffile

    from scmil.slides.readers.jpeg import decode_strictly

    with tifffile.TiffFile(path) as file:
        page = file.pages.first
        columns = -(-page.imagewidth // page.tilewidth)
        last = tiling.size_px - 1
        needed = {
            (y // page.tilelength) * columns + x // page.tilewidth
            for left, top in tiling.xy.tolist()
            for x in (left, left + last)
            for y in (top, top + last)
        }
        contents = []
        for index in sorted(needed):
            file.filehandle.seek(page.dataoffsets[index])
            contents.append(file.filehandle.read(page.databytecounts[index]))
        with memory_is_kept():
            start = time.process_time()
            for content in contents:
                decode_strictly(page, content)
            return 1000 * (time.process_time() - start) / len(tiling)


def first_tiles(tiling: Tiling, count: int) -> Tiling:
    """The first tiles of a slide."""
    return replace(tiling, xy=tiling.xy[:count], fraction=tiling.fraction[:count])


def in_batches(encoder: Encoder, pixels: Tensor) -> Tensor:
    """Encode tiles in memory, with the batches of `encode`."""
    step = ON_PROCESSOR
    with memory_is_kept():
        return torch.cat([encoder(pixels[at : at + step]) for at in range(0, len(pixels), step)])


def bfloat16_gain(name: str, pixels: Tensor, turns: int) -> float | None:
    """Tiles per second in bfloat16 over those in float32; None where it is not native."""
    if not computes_bfloat16(torch.device("cpu")):
        return None
    single, half = (
        load_encoder(name, random=0, precision=precision) for precision in ("float32", "bfloat16")
    )
    found = interleave(lambda: in_batches(single, pixels), lambda: in_batches(half, pixels), turns)
    return statistics.median(turn.first / turn.second for turn in found)
