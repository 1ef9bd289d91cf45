"""The classical benchmarks, from a folder, from the package `mil`, or downloaded; whichever it was, they are the same.

One SHA-256 a data set, taken over the labels and the 32-bit features of its bags in their order, is checked each time.
It says more than the hash of a file: a CSV, an .npz and the published original that hold the same bags all pass, and the
same seed gives the same folds with each of them.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from scmil.bags.bag import BagSet
from scmil.bags.datasets import registry
from scmil.bags.datasets.originals import read_original
from scmil.bags.datasets.table import Table, positions, read_table
from scmil.bags.datasets.table_files import check_features
from scmil.core.download import cache
from scmil.errors import DataError
from scmil.core.safe_io import read_regular


@dataclass(frozen=True)
class Original:
    """Where a benchmark was first published: an archive, and the file in it."""

    url: str
    member: str

    @property
    def files(self) -> tuple[str, ...]:
        """The names under which a folder may hold it."""
        return (self.member, f"{self.member}.Z", self.url.rpartition("/")[2])


@dataclass(frozen=True)
class Benchmark:
    """One classical data set: what it is, the hash of its content, where it can be had."""

    name: str
    summary: str
    sha256: str
    in_package: bool = True
    original: Original | None = None

    @property
    def csv(self) -> str:
        """The name of its file in the package `mil`."""
        return self.name.replace("-", "_") + ".csv"

    @property
    def files(self) -> tuple[str, ...]:
        """The names under which a folder may hold it, in the order in which they are tried."""
        ours = (f"{self.name}.npz", self.csv, f"{self.name}.svm", f"{self.name}.mat")
        return ours + (self.original.files if self.original else ())


_UCI = "https://archive.ics.uci.edu/static/public"
# Not https, which the server does not offer; the content is checked against the hash before it is used.
_ANDREWS = "http://www.cs.columbia.edu/~andrews/mil/data/MIL-Data-2002-Musk-Corel-Trec9.tgz"
# MUSK is UCI's: Andrews' musk1norm.svm is standardised over all bags, those that will be tested included.
BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            "musk1",
            "92 molecules, is it a musk?",
            "900813cc4fb8df591fa0083d6190b8207571ad1bcddb675c0a2ca7fc33aa0f05",
            original=Original(f"{_UCI}/74/musk+version+1.zip", "clean1.data"),
        ),
        Benchmark(
            "musk2",
            "102 molecules with many shapes each",
            "efc49c88afaf9b93db8d9dacea5e1702fd6fb35226faed031f092d5ac6acb6e4",
            original=Original(f"{_UCI}/75/musk+version+2.zip", "clean2.data"),
        ),
        Benchmark(
            "fox",
            "200 pictures, is there a fox?",
            "136edad478385982b39add2973e93e44f038c66214aed60bfa410f771339ea9d",
            in_package=False,
            original=Original(_ANDREWS, "Fox/data_100x100.svm"),
        ),
        Benchmark(
            "tiger",
            "200 pictures, is there a tiger?",
            "c58d9739b4bda3ae4c18b535d562b14dc2c3677661f010b013dfec4cccd5b687",
            in_package=False,
            original=Original(_ANDREWS, "Tiger/data_100x100.svm"),
        ),
        Benchmark(
            "elephant",
            "200 pictures, is there an elephant?",
            "16b1487c72c0990c16d0bca2fbf51ec466f12d15c8f25ba5db8b41a32746cf1a",
            original=Original(_ANDREWS, "Elephant/data_100x100.svm"),
        ),
        # The file does not say which image is of which patient, so folds cannot be grouped by patient.
        Benchmark(
            "ucsb-breast-cancer",
            "58 images of breast tissue, is it malignant?",
            "3b2639acbd93a3f021722d0d84aff32d525224fda1af3485b82e981b4077cb48",
        ),
        Benchmark(
            "birds-brown-creeper",
            "548 recordings, does a brown creeper sing?",
            "f61e7dad5d1ddc6b27b13d1ba63c61b2f246718e0397bdadad5a1565abd7e2ab",
        ),
        Benchmark(
            "protein",
            "193 proteins, is it of the TrX family?",
            "f030ba2fc35941b38fa1b378aa6bf5218385289679dabd9186852ea9b1470a56",
        ),
        Benchmark(
            "web-recommendation-1",
            "75 web pages of links, would the user like it?",
            "50707b96b9e08ad3e5962bdc63d8c309f9602dbee4cc65245311b22b430b5b97",
        ),
        Benchmark(
            "corel-dogs",
            "2 000 pictures, is there a dog?",
            "e1fad1e7d3c6a7f54e184cf38b68e2339a9a35969670bd13e0a15f9bc8a2d678",
        ),
    )
}


def load(name: str, data: str | Path | None = None, download: bool = False) -> BagSet:
    """All bags of a benchmark from the first place that has it; bags are called by their position."""
    benchmark = BENCHMARKS[name]
    path = locate(name, data)
    if path is None and download:
        from scmil.bags.datasets.benchmark_download import fetch

        path = fetch(name)
    if path is None:
        raise DataError(f"{name} is not on this computer. {remedy(name)}")
    return checked(benchmark, path)


def locate(name: str, data: str | Path | None = None) -> Path | None:
    """The file that `load` would read, or None: the user's folder, then the package `mil`, then what was downloaded."""
    return next((path for path in _candidates(BENCHMARKS[name], data) if path.is_file()), None)


def _candidates(benchmark: Benchmark, data: str | Path | None) -> Iterator[Path]:
    folder = data or os.environ.get("SCMIL_DATA")
    if folder:
        if not Path(folder).is_dir():
            origin = "the argument data" if data else "the environment variable SCMIL_DATA"
            raise DataError(f"{folder} is not a folder, but {origin} says so. Name the folder with the data sets.")
        yield from (Path(folder) / file for file in benchmark.files)
    package = find_spec("mil") if benchmark.in_package else None  # finds the folder without running anything in it
    for place in (package and package.submodule_search_locations) or ():
        yield Path(place) / "data" / "datasets" / "csv" / benchmark.csv
    yield cache() / f"{benchmark.name}.npz"


def remedy(name: str) -> str:
    """What a user can do to get a benchmark."""
    benchmark = BENCHMARKS[name]
    ways = [f"put {benchmark.name}.npz or {benchmark.csv} into a folder and name it with --data or SCMIL_DATA"]
    ways += ["pip install 'scmil[benchmarks]'"] * benchmark.in_package
    ways += [f"scmil get {name}"] * (benchmark.original is not None)
    return f"Do one of these: {'; '.join(ways)}."


def checked(benchmark: Benchmark, path: Path) -> BagSet:
    """Read a file and hand its bags out if they are those of the benchmark."""
    try:
        bags = replace(_read(benchmark, path), ids=None, classes=("0", "1")).bags()
    except DataError as error:
        raise DataError(f"{path}: cannot be read as {benchmark.name}: {error}") from None
    if (met := content_hash(bags)) != benchmark.sha256:
        expected = f"sha256 of the content {met[:12]}…, expected {benchmark.sha256[:12]}…"
        raise DataError(f"{path}: these are not the bags of {benchmark.name} ({expected}). {remedy(benchmark.name)}")
    return bags


def content_hash(bags: BagSet) -> str:
    """SHA-256 over label, size and 32-bit features of each bag, in order.

    >>> from scmil.bags.datasets.table import Table
    >>> bags = Table(np.zeros((2, 3), np.float32), np.array([0, 1]), labels=[0, 1]).bags()
    >>> content_hash(bags) == content_hash(bags[::-1])
    False
    """
    sha = hashlib.sha256()
    for bag in bags:
        features = bag.features.numpy() + np.float32(0)  # no -0, which some files have and others lose
        sha.update(np.array([-1 if bag.label is None else bag.label, *features.shape], dtype="<i8").tobytes())
        sha.update(features.astype("<f4").tobytes())
    return sha.hexdigest()


def _read(benchmark: Benchmark, path: Path) -> Table:
    if path.name == benchmark.csv:
        return _read_package_csv(path)
    if benchmark.original and path.as_posix().endswith(benchmark.original.files):
        return read_original(path, benchmark.original.member)
    return read_table(path)


def _read_package_csv(path: Path) -> Table:
    """No header; the columns are label, bag, then the features."""
    try:
        rows = np.loadtxt(io.BytesIO(read_regular(path)), delimiter=",", ndmin=2)
    except (OSError, ValueError) as error:
        raise DataError(str(error)) from None
    if rows.shape[1] < 3:
        raise DataError(f"{rows.shape[1]} columns; label, bag and features are needed")
    ids, bag = positions(rows[:, 1].tolist())
    labels = rows[np.unique(bag, return_index=True)[1], 0].astype(int).tolist()
    return Table(check_features(rows[:, 2:]), bag, labels, ids)


for _benchmark in BENCHMARKS.values():
    registry.register(_benchmark.name, _benchmark.summary)(partial(load, _benchmark.name))
