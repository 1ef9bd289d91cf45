"""Download a benchmark from where it was first published, check it, and keep it."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import numpy as np

from scmil.bags.bag import BagSet
from scmil.bags.datasets import classic
from scmil.bags.datasets.originals import MOST_BYTES
from scmil.core.download import cache, download
from scmil.errors import DataError
from scmil.core.files import write_atomically


def fetch(name: str, url: str | None = None) -> Path:
    """Download a benchmark into the cache, unless it is there, and return its file; `url` is another place for it.

    One archive has fox, tiger and elephant: all data sets of the archive are kept, and all of them have to be right.
    """
    if name not in classic.BENCHMARKS:
        raise DataError(f"{name} is not a benchmark that can be downloaded: {', '.join(_downloadable())}.")
    original = classic.BENCHMARKS[name].original
    if original is None:
        raise DataError(f"{name} has no public file that can be downloaded. {classic.remedy(name)}")
    kept = cache() / f"{name}.npz"
    if kept.is_file():
        return kept
    siblings = [b for b in classic.BENCHMARKS.values() if b.original and b.original.url == original.url]
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
        archive = Path(scratch) / original.url.rpartition("/")[2]
        download(url or original.url, archive, most_bytes=MOST_BYTES, secure=False)
        checked = {benchmark.name: classic.checked(benchmark, archive) for benchmark in siblings}
    for sibling, bags in checked.items():
        _keep(bags, kept.parent / f"{sibling}.npz")
    return kept


def _keep(bags: BagSet, path: Path) -> None:
    bag = np.repeat(np.arange(len(bags)), [len(bag.features) for bag in bags])
    features = np.concatenate([bag.features.numpy() for bag in bags])
    content = io.BytesIO()
    np.savez_compressed(content, X=features, bag=bag, y=np.array(bags.labels))
    write_atomically(path, content.getvalue())


def _downloadable() -> list[str]:
    return [benchmark.name for benchmark in classic.BENCHMARKS.values() if benchmark.original]
