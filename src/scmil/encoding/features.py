"""Tiles of a slide through an encoder into a bag: reading, transforming and encoding overlap.

Threads read batches of tiles ahead, in the order in which the slide stores them, while the network works on the batch
before. A few batches wait at most, so memory does not depend on the size of the slide.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from scmil import __version__
from scmil.bags.hdf5 import DTYPES, check_dtype, rounded
from scmil.bags.bag import Bag
from scmil.errors import OptionError, SlideError
from scmil.core.memory import memory_is_kept

if TYPE_CHECKING:
    from scmil.encoding.encoders import Encoder
    from scmil.slides.slide import Slide
    from scmil.slides.tiling import Tiling

# Tiles at a time. Measured on two cores, tiles a second of EfficientNet-Lite0: 58 by 8 and by 4, 41 by 16, 36 by 32.
ON_PROCESSOR, ON_GPU = 8, 64
WAITING = 2  # batches a reading thread may be ahead
Pixels = NDArray[np.uint8]


def encode(
    slide: Slide,
    tiling: Tiling,
    encoder: Encoder,
    *,
    batch: int | None = None,
    workers: int = 1,
    dtype: str = "float32",
    progress: Callable[[int], None] | None = None,
) -> Bag:
    """The bag of a slide: one row of features for each tile, in the tiling's order.

    `workers` threads read; `progress` is called with the number of tiles that are done. Without a `batch`, few tiles at a
    time go through a processor, whose memory can then be used again, and many through a GPU. Features that will be written
    as float16 need not be kept in more: `dtype="float16"`.

    >>> import numpy as np
    >>> from scmil.encoding.encoders import load_encoder
    >>> from scmil.slides import find_tissue, open_slide, tile
    >>> from PIL import Image; import tempfile; from pathlib import Path
    >>> path = Path(tempfile.mkdtemp()) / "pink.png"
    >>> Image.new("RGB", (600, 600), (200, 80, 160)).save(path)
    >>> slide = open_slide(path, mpp=0.5)
    >>> bag = encode(slide, tile(slide, find_tissue(slide, "biopsy")), load_encoder("resnet18", random=0))
    >>> bag, bag.xy.tolist(), bag.provenance["side_level0"]
    (Bag('pink', 4 x 512, label=None), [[0, 0], [256, 0], [0, 256], [256, 256]], 256.0)
    """
    if (batch is not None and batch < 1) or workers < 1:
        raise OptionError(f"batch = {batch} and workers = {workers}: both are at least 1.")
    check_dtype(dtype)
    if not len(tiling.xy):
        raise SlideError(f"slide {slide.id!r} has no tiles: no tissue was found, or less of it than a tile needs.")
    features = torch.empty(len(tiling.xy), encoder.dim, dtype=DTYPES[dtype])
    done = bad = 0
    on_processor = encoder.device == "cpu"
    with memory_is_kept() if on_processor else nullcontext():
        for tiles in _read_ahead(slide, tiling, batch or (ON_PROCESSOR if on_processor else ON_GPU), workers):
            rows = encoder(torch.from_numpy(tiles)).cpu()
            features[done : done + len(tiles)] = rounded(rows, dtype, slide.id)
            bad += int((~torch.isfinite(rows)).any(1).sum())  # here, and not of all at the end, which would need copies
            done += len(tiles)
            if progress:
                progress(done)
    if bad:
        raise SlideError(f"slide {slide.id!r}: the encoder gave NaN or infinite features for {bad} of {done} tiles.")
    return Bag(slide.id, features, xy=torch.from_numpy(tiling.xy), provenance=provenance_of(slide, tiling, encoder))


def join_scales(
    slide: Slide,
    tiling: Tiling,
    encoder: Encoder,
    *,
    factor: int = 4,
    batch: int | None = None,
    workers: int = 1,
    dtype: str = "float32",
    progress: Callable[[int], None] | None = None,
) -> Bag:
    """A bag of two scales: beside each tile's features those of its parent, which shows `factor` times as much around it.

    With tiles of 0.5 microns a pixel the parents have 2.0: x20 beside x5, as DSMIL has them.
    """
    parents, parent_of = tiling.parents(factor)
    total = len(parents.xy)

    def in_all(before: int) -> Callable[[int], None] | None:
        return (lambda done: progress(before + done)) if progress else None

    coarse = encode(slide, parents, encoder, batch=batch, workers=workers, dtype=dtype, progress=in_all(0))
    fine = encode(slide, tiling, encoder, batch=batch, workers=workers, dtype=dtype, progress=in_all(total))
    features = torch.cat([fine.features, coarse.features[torch.from_numpy(np.asarray(parent_of))]], 1)
    scales = {"scales_mpp": [tiling.mpp, parents.mpp]}
    return Bag(slide.id, features, xy=fine.xy, provenance={**fine.provenance, **scales})


def provenance_of(slide: Slide, tiling: Tiling, encoder: Encoder) -> dict[str, Any]:
    """Where the features come from: all that is needed to make them again, and to draw on the slide."""
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
    }


def _read_ahead(slide: Slide, tiling: Tiling, batch: int, workers: int) -> Iterator[Pixels]:
    """Batches of tiles in order, read by threads that are a few batches ahead."""
    parts = [tiling.xy[start : start + batch] for start in range(0, len(tiling.xy), batch)]

    def read(part: NDArray[np.int64]) -> Pixels:
        return np.stack([slide.read((int(x), int(y)), tiling.size_px, tiling.mpp) for x, y in part])

    with ThreadPoolExecutor(workers, thread_name_prefix="tiles") as pool:
        waiting: deque[Future[Pixels]] = deque()
        try:
            for part in parts:
                waiting.append(pool.submit(read, part))
                if len(waiting) > workers * WAITING:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:  # after an error nobody waits for tiles that nobody wants
                future.cancel()
