"""Encode the tiles of a slide into a bag.

Threads read batches of tiles ahead, in the order of the tiling, while the network encodes the
previous batch. Only a few batches are read ahead, so memory does not depend on the size of the
slide.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

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
            slide, tiling, batch or (ON_PROCESSOR if on_processor else ON_GPU), workers
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


def _read_ahead(slide: Slide, tiling: Tiling, batch: int, workers: int) -> Iterator[Pixels]:
    """Yield batches of tiles in order, read by threads a few batches ahead.

    All threads read the same batch, so that the load is spread over the cores. On two cores no
    difference to one thread was measured.
    """
    side = tiling.size_px

    def read(pixels: Pixels, xy: NDArray[np.int64]) -> None:
        for tile, (x, y) in zip(pixels, xy, strict=True):
            tile[:] = slide.read((int(x), int(y)), side, tiling.mpp)

    with ThreadPoolExecutor(workers, thread_name_prefix="tiles") as pool:
        waiting: deque[tuple[Pixels, list[Future[None]]]] = deque()

        def first() -> Pixels:
            pixels, parts = waiting[0]
            for part in parts:
                part.result()
            waiting.popleft()
            return pixels

        try:
            for start in range(0, len(tiling.xy), batch):
                xy = tiling.xy[start : start + batch]
                pixels: Pixels = np.empty((len(xy), side, side, 3), np.uint8)
                each = math.ceil(len(xy) / workers)
                slices = [slice(at, at + each) for at in range(0, len(xy), each)]
                waiting.append((pixels, [pool.submit(read, pixels[s], xy[s]) for s in slices]))
                if len(waiting) > workers * WAITING:
                    yield first()
            while waiting:
                yield first()
        finally:
            for _, parts in waiting:  # not needed after an error
                for part in parts:
                    part.cancel()
