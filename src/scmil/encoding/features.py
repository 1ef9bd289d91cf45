"""Encode the tiles of a slide into a bag.

Threads read batches of tiles ahead, in the order of the tiling; on a processor they take turns with
the network, unless reading is slow. Only a few batches are read ahead, so memory does not depend on
the size of the slide.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from scmil import __version__
from scmil.bags.bag import Bag
from scmil.bags.hdf5 import DTYPES, check_dtype, rounded
from scmil.core.memory import memory_is_kept
from scmil.errors import OptionError, SlideError

if TYPE_CHECKING:
    from scmil.encoding.encoders import Encoder
    from scmil.slides.slide import Slide
    from scmil.slides.tiling import Tiling

# Tiles per batch. Measured on two cores with EfficientNet-Lite0: 58 tiles/s with batches of 4 and
# 8, 41 with 16, 36 with 32.
ON_PROCESSOR, ON_GPU = 8, 64
WAITING = 2  # batches per thread that are read ahead
# On a processor the network continues when the next batch is read, or after this time; after some
# batches in a row that took longer, it does not wait any more.
PATIENCE_S, TOO_SLOW = 0.005, 3
Pixels = NDArray[np.uint8]


def encode(
    slide: Slide,
    tiling: Tiling,
    encoder: Encoder,
    *,
    batch: int | None = None,
    workers: int | None = None,
    dtype: str = "float32",
    progress: Callable[[int], None] | None = None,
) -> Bag:
    """Encode the tiles of a slide: one row of features per tile, in the order of the tiling.

    Args:
        slide: The slide.
        tiling: Its tiles, see `tile`.
        encoder: The encoder, see `load_encoder`.
        batch: Tiles per batch; None chooses 8 on a CPU and 64 on a GPU.
        workers: Number of threads that read tiles; None chooses the number of threads of torch, at
            most 8.
        dtype: Type of the features, "float32" or "float16".
        progress: Called with the number of encoded tiles after each batch.

    Returns:
        The bag, with the coordinates of the tiles and the provenance of the features.

    Raises:
        OptionError: If `batch`, `workers` or `dtype` is invalid.
        SlideError: If there are no tiles, the slide cannot be read, or features are not finite.

    >>> import numpy as np
    >>> from scmil.encoding.encoders import load_encoder
    >>> from scmil.slides import find_tissue, open_slide, tile
    >>> from PIL import Image; import tempfile; from pathlib import Path
    >>> path = Path(tempfile.mkdtemp()) / "pink.png"
    >>> Image.new("RGB", (600, 600), (200, 80, 160)).save(path)
    >>> slide = open_slide(path, mpp=0.5)
    >>> tiling = tile(slide, find_tissue(slide, "biopsy"))
    >>> bag = encode(slide, tiling, load_encoder("resnet18", random=0))
    >>> bag, bag.xy.tolist(), bag.provenance["side_level0"]
    (Bag('pink', 4 x 512, label=None), [[0, 0], [256, 0], [0, 256], [256, 256]], 256.0)
    """
    if workers is None:
        workers = min(torch.get_num_threads(), ON_PROCESSOR)
    if (batch is not None and batch < 1) or workers < 1:
        raise OptionError(f"batch = {batch} and workers = {workers}; both must be at least 1.")
    check_dtype(dtype)
    if not len(tiling.xy):
        raise SlideError(
            f"slide {slide.id!r} has no tiles: no tissue was found, or less than a tile needs."
        )
    features = torch.empty(len(tiling.xy), encoder.dim, dtype=DTYPES[dtype])
    done = bad = 0
    on_processor = encoder.device == "cpu"
    with memory_is_kept() if on_processor else nullcontext():
        for tiles in _read_ahead(
            slide,
            tiling,
            batch or (ON_PROCESSOR if on_processor else ON_GPU),
            workers,
            in_turn=on_processor,
        ):
            rows = encoder(torch.from_numpy(tiles)).cpu()
            features[done : done + len(tiles)] = rounded(rows, dtype, slide.id)
            # Per batch: a check of all features at the end would need a copy.
            bad += int((~torch.isfinite(rows)).any(1).sum())
            done += len(tiles)
            if progress:
                progress(done)
    if bad:
        raise SlideError(
            f"slide {slide.id!r}: the encoder returned NaN or infinite features for {bad} of "
            f"{done} tiles. Try --precision float32."
        )
    return Bag(
        slide.id,
        features,
        xy=torch.from_numpy(tiling.xy),
        provenance=provenance_of(slide, tiling, encoder),
    )


def join_scales(
    slide: Slide,
    tiling: Tiling,
    encoder: Encoder,
    *,
    factor: int = 4,
    batch: int | None = None,
    workers: int | None = None,
    dtype: str = "float32",
    progress: Callable[[int], None] | None = None,
) -> Bag:
    """Encode the tiles of a slide at two scales and concatenate their features.

    Each tile gets the features of its parent, which is `factor` times as wide. Tiles of 0.5 microns
    per pixel have parents of 2.0 microns per pixel: x20 and x5, as in DSMIL.
    """
    parents, parent_of = tiling.parents(factor)
    total = len(parents.xy)

    def in_all(before: int) -> Callable[[int], None] | None:
        return (lambda done: progress(before + done)) if progress else None

    coarse = encode(
        slide, parents, encoder, batch=batch, workers=workers, dtype=dtype, progress=in_all(0)
    )
    fine = encode(
        slide, tiling, encoder, batch=batch, workers=workers, dtype=dtype, progress=in_all(total)
    )
    features = torch.cat(
        [fine.features, coarse.features[torch.from_numpy(np.asarray(parent_of))]], 1
    )
    scales = {"scales_mpp": [tiling.mpp, parents.mpp]}
    return Bag(slide.id, features, xy=fine.xy, provenance={**fine.provenance, **scales})


def provenance_of(slide: Slide, tiling: Tiling, encoder: Encoder) -> dict[str, Any]:
    """The provenance of features: all that is needed to compute them again and to draw heatmaps."""
    return {
        "format": "scmil",
        "scmil": __version__,
        "encoder": encoder.name,
        "encoder_digest": encoder.digest,
        "size_px": tiling.size_px,
        "mpp": tiling.mpp,
        "overlap_px": tiling.overlap_px,
        "side_level0": tiling.side,
        "slide_mpp": tiling.slide_mpp,
        "slide_size": list(tiling.slide_size),
        **({} if tiling.slide_digest is None else {"slide_digest": tiling.slide_digest}),
        "mpp_source": slide.mpp_source,
        "vendor": slide.vendor,
        "precision": encoder.precision,
        **encoder.details,
    }


class _TileBatch(NamedTuple):
    """Tiles that are being read, and the parts of the work."""

    pixels: Pixels
    parts: list[Future[None]]

    def result(self) -> Pixels:
        for part in self.parts:
            part.result()
        return self.pixels


def _read_ahead(
    slide: Slide, tiling: Tiling, batch: int, workers: int, in_turn: bool
) -> Iterator[Pixels]:
    """Yield batches of tiles in order, read by threads a few batches ahead.

    All threads read the same batch. `in_turn`: reading and the network take turns as long as
    reading is fast. Beside each other they compete for the same cores, and a thread of the network
    that is interrupted delays the others. Slow storage is read beside the network.
    """
    slow = 0 if in_turn else TOO_SLOW
    with ThreadPoolExecutor(workers, thread_name_prefix="tiles") as pool:
        waiting: deque[_TileBatch] = deque()
        try:
            for start in range(0, len(tiling.xy), batch):
                waiting.append(
                    _start_reading(pool, slide, tiling, slice(start, start + batch), workers)
                )
                if slow < TOO_SLOW:
                    slow = slow + 1 if wait(waiting[-1].parts, PATIENCE_S).not_done else 0
                if len(waiting) > workers * WAITING:
                    yield waiting[0].result()
                    waiting.popleft()
            while waiting:
                yield waiting[0].result()
                waiting.popleft()
        finally:
            for unfinished in waiting:  # not needed after an error
                for part in unfinished.parts:
                    part.cancel()


def _start_reading(
    pool: ThreadPoolExecutor, slide: Slide, tiling: Tiling, which: slice, workers: int
) -> _TileBatch:
    """Start to read a batch, in equal parts for all threads."""
    side, xy = tiling.size_px, tiling.xy[which]
    pixels: Pixels = np.empty((len(xy), side, side, 3), np.uint8)

    def read(part: slice) -> None:
        for tile, (x, y) in zip(pixels[part], xy[part], strict=True):
            tile[:] = slide.read((int(x), int(y)), side, tiling.mpp)

    each = math.ceil(len(xy) / workers)
    slices = [slice(at, at + each) for at in range(0, len(xy), each)]
    return _TileBatch(pixels, [pool.submit(read, part) for part in slices])
