"""Download a benchmark from its original source, check it, and store it."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import numpy as np

from scmil.bags.bag import BagSet
from scmil.bags.datasets import classic
from scmil.bags.datasets.originals import MOST_BYTES
from scmil.core.atomic import write_atomically
from scmil.core.download import cache, download
from scmil.errors import DataError


def download_benchmark(name: str, url: str | None = None) -> Path:
    """Download a benchmark to the cache, unless it exists there, and return its file.

    `url` replaces the original address. Fox, tiger and elephant are in one archive: all data sets
    of an archive are checked, and stored if all are valid.
    """
    if name not in classic.BENCHMARKS:
        raise DataError(
            f"{name} cannot be downloaded. Benchmarks that can: {', '.join(_downloadable())}."
        )
    original = classic.BENCHMARKS[name].original
    if original is None:
        raise DataError(
            f"{name} has no public file that can be downloaded. {classic.benchmark_remedy(name)}"
        )
    stored = cache() / f"{name}.npz"
    if stored.is_file():
        return stored
    siblings = [
        b for b in classic.BENCHMARKS.values() if b.original and b.original.url == original.url
    ]
    stored.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=stored.parent) as scratch:
        archive = Path(scratch) / original.url.rpartition("/")[2]
        download(url or original.url, archive, most_bytes=MOST_BYTES, secure=False)
        checked = {
            benchmark.name: classic.check_benchmark(benchmark, archive) for benchmark in siblings
        }
    for sibling, bags in checked.items():
        _store(bags, stored.parent / f"{sibling}.npz")
    return stored


def _store(bags: BagSet, path: Path) -> None:
    """Write the bags as an .npz file."""
    bag = np.repeat(np.arange(len(bags)), [len(bag.features) for bag in bags])
    features = np.concatenate([bag.features.numpy() for bag in bags])
    content = io.BytesIO()
    np.savez_compressed(content, X=features, bag=bag, y=np.array(bags.labels))
    write_atomically(path, content.getvalue())


def _downloadable() -> list[str]:
    return [benchmark.name for benchmark in classic.BENCHMARKS.values() if benchmark.original]
