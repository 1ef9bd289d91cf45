"""Download a benchmark from where it was first published, check it, and keep it."""

from __future__ import annotations

import io
import tempfile
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import numpy as np

from scmil.bags import BagSet
from scmil.datasets import classic
from scmil.datasets.originals import MOST_BYTES
from scmil.errors import DataError
from scmil.files import write_atomically

BLOCK = 2**16
PATIENCE_S = 60  # without a byte from the server


def fetch(name: str, url: str | None = None) -> Path:
    """Download a benchmark into the cache, unless it is there, and return its file; `url` is another place for it.

    One archive has fox, tiger and elephant: all data sets of the archive are kept, and all of them have to be right.
    """
    if name not in classic.BENCHMARKS:
        raise DataError(f"{name} is not a benchmark that can be downloaded: {', '.join(_downloadable())}.")
    original = classic.BENCHMARKS[name].original
    if original is None:
        raise DataError(f"{name} has no public file that can be downloaded. {classic.remedy(name)}")
    kept = classic.cache() / f"{name}.npz"
    if kept.is_file():
        return kept
    siblings = [b for b in classic.BENCHMARKS.values() if b.original and b.original.url == original.url]
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
        archive = Path(scratch) / original.url.rpartition("/")[2]
        download(url or original.url, archive)
        checked = {benchmark.name: classic.checked(benchmark, archive) for benchmark in siblings}
    for sibling, bags in checked.items():
        _keep(bags, kept.parent / f"{sibling}.npz")
    return kept


def download(url: str, path: Path) -> None:
    """Write what a URL gives to a new file, with a progress bar on the terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    if urlsplit(url).scheme not in ("https", "http"):
        raise DataError(f"{url}: only https and http are downloaded. For a file on this computer use --data.")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    try:
        with (
            urlopen(Request(url, headers={"User-Agent": "scmil"}), timeout=PATIENCE_S) as answer,
            path.open("xb") as file,
            Progress(*columns, console=Console(stderr=True)) as bar,
        ):
            length = answer.headers.get("Content-Length")
            task = bar.add_task(path.name, total=int(length) if length else None)
            while block := answer.read(BLOCK):
                file.write(block)
                bar.advance(task, len(block))
                if file.tell() > MOST_BYTES:
                    raise DataError(f"{url}: more than {MOST_BYTES >> 20} MB. This is not the file that was meant.")
            if length and file.tell() != int(length):
                raise DataError(f"{url}: ended after {file.tell()} of {length} bytes. Try again.")
    except (OSError, HTTPException) as error:
        raise DataError(f"{url}: cannot be downloaded ({error}). Try again, or get the file another way.") from None


def _keep(bags: BagSet, path: Path) -> None:
    bag = np.repeat(np.arange(len(bags)), [len(bag.features) for bag in bags])
    features = np.concatenate([bag.features.numpy() for bag in bags])
    content = io.BytesIO()
    np.savez_compressed(content, X=features, bag=bag, y=np.array(bags.labels))
    write_atomically(path, content.getvalue())


def _downloadable() -> list[str]:
    return [benchmark.name for benchmark in classic.BENCHMARKS.values() if benchmark.original]
