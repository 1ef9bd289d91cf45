"""The classical benchmarks, from a folder, from the package `mil`, or downloaded.

The SHA-256 of the labels and 32-bit features of all bags, in their order, is checked each time.
Unlike the hash of a file it is the same for a CSV, an .npz and the published original of the same
bags, so the same seed gives the same folds with each of them.
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
from scmil.core.regular_files import read_regular
from scmil.errors import DataError


@dataclass(frozen=True)
class Original:
    """The original source of a benchmark: an archive, and the file in it."""

    url: str
    member: str

    @property
    def files(self) -> tuple[str, ...]:
        """The file names that are searched for."""
        return (self.member, f"{self.member}.Z", self.url.rpartition("/")[2])


@dataclass(frozen=True)
class Benchmark:
    """A classical data set: a description, the hash of its content, and its sources."""

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
        """The file names that are searched for, in this order."""
        ours = (f"{self.name}.npz", self.csv, f"{self.name}.svm", f"{self.name}.mat")
        return ours + self.collection + (self.original.files if self.original else ())

    @property
    def collection(self) -> tuple[str, ...]:
        """Names of its files in copies of the collection of miproblems.org."""
        if self.original is None or not self.original.member.endswith(".jld"):
            return ()
        title = self.original.member.removesuffix(".jld")
        return (f"{title.lower()}.npz", f"{title}.mat")


_UCI = "https://archive.ics.uci.edu/static/public"
# The server does not offer https; the content is checked against the hash before it is used.
_ANDREWS = "http://www.cs.columbia.edu/~andrews/mil/data/MIL-Data-2002-Musk-Corel-Trec9.tgz"
# A repackaging of the collection of miproblems.org under the MIT licence, at a fixed commit.
_COLLECTION = (
    "https://raw.githubusercontent.com/komartom/MIDatasets.jl/"
    "2d9d9f36750cfc59e5b95b803e53001fc2735a42/data"
)


def _collected(member: str) -> Original:
    return Original(f"{_COLLECTION}/{member}", member)


# MUSK is UCI's: Andrews' musk1norm.svm is standardised over all bags, including test bags.
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
        # The file does not contain patients, so folds cannot be grouped by patient.
        Benchmark(
            "ucsb-breast-cancer",
            "58 images of breast tissue, is it malignant?",
            "3b2639acbd93a3f021722d0d84aff32d525224fda1af3485b82e981b4077cb48",
        ),
        Benchmark(
            "birds-brown-creeper",
            "548 recordings, does a brown creeper sing?",
            "f61e7dad5d1ddc6b27b13d1ba63c61b2f246718e0397bdadad5a1565abd7e2ab",
            original=_collected("BrownCreeper.jld"),
        ),
        Benchmark(
            "birds-winter-wren",
            "548 recordings, does a winter wren sing?",
            "b4d7267d0809fa8af6c864c5774cc283ee07b5def1c99a4459d59b9048f3e439",
            in_package=False,
            original=_collected("WinterWren.jld"),
        ),
        Benchmark(
            "newsgroups-2",
            "100 sets of posts, is one on the topic of the second group?",
            "3056d3db452ca8276881af30afd7572191eed1200bb469c079a837ec336bb5be",
            in_package=False,
            original=_collected("Newsgroups2.jld"),
        ),
        Benchmark(
            "mutagenesis-1",
            "188 molecules as bags of atom pairs, is it mutagenic?",
            "79972fd5c164393addb03bcc48c294a8a2f29d4dcbb0a00286e0d23c36cd5fcc",
            in_package=False,
            original=_collected("Mutagenesis1.jld"),
        ),
        Benchmark(
            "protein",
            "193 proteins, is it of the TrX family?",
            "f030ba2fc35941b38fa1b378aa6bf5218385289679dabd9186852ea9b1470a56",
            original=_collected("Protein.jld"),
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
        Benchmark(
            "corel-african",
            "2 000 pictures, is it of African people and villages?",
            "23c02e0ff4de42f2de4fecaa4152143edcb608b92066f41fc52b27f4b59c98c8",
            in_package=False,
            original=_collected("CorelAfrican.jld"),
        ),
        Benchmark(
            "corel-buses",
            "2 000 pictures, is there a bus?",
            "e4f0cd4db9867a6fce57333a9fa4dc0667c570cc10ad61ede63f3d694fdb14b2",
            in_package=False,
            original=_collected("CorelBuses.jld"),
        ),
    )
}


def load_benchmark(name: str, data: str | Path | None = None, download: bool = False) -> BagSet:
    """Return the bags of a benchmark from the first source; ids are positions."""
    benchmark = BENCHMARKS[name]
    path = find_benchmark(name, data)
    if path is None and download:
        from scmil.bags.datasets.benchmark_download import download_benchmark

        path = download_benchmark(name)
    if path is None:
        raise DataError(f"{name} is not on this computer. {benchmark_remedy(name)}")
    return check_benchmark(benchmark, path)


def find_benchmark(name: str, data: str | Path | None = None) -> Path | None:
    """Return the file that `load_benchmark` reads, or None.

    It is searched in the user's folder, in the package `mil`, and among the downloads.
    """
    return next((path for path in _candidates(BENCHMARKS[name], data) if path.is_file()), None)


def _candidates(benchmark: Benchmark, data: str | Path | None) -> Iterator[Path]:
    folder = data or os.environ.get("SCMIL_DATA")
    if folder:
        if not Path(folder).is_dir():
            origin = "the argument data" if data else "the environment variable SCMIL_DATA"
            raise DataError(
                f"{folder} is not a folder, but {origin} names it. Give the folder with the data "
                "sets."
            )
        yield from (Path(folder) / file for file in benchmark.files)
    # This finds the folder of the package without running its code.
    package = find_spec("mil") if benchmark.in_package else None
    for place in (package and package.submodule_search_locations) or ():
        yield Path(place) / "data" / "datasets" / "csv" / benchmark.csv
    yield cache() / f"{benchmark.name}.npz"


def benchmark_remedy(name: str) -> str:
    """Return how a user can get a benchmark."""
    benchmark = BENCHMARKS[name]
    ways = [
        f"put {benchmark.name}.npz or {benchmark.csv} into a folder and give it with --data or "
        "SCMIL_DATA"
    ]
    ways += ["pip install 'scmil[benchmarks]'"] * benchmark.in_package
    ways += [f"scmil get {name}"] * (benchmark.original is not None)
    return f"Do one of these: {'; '.join(ways)}."


def check_benchmark(benchmark: Benchmark, path: Path) -> BagSet:
    """Read a file and return its bags, or raise if they are not those of the benchmark."""
    try:
        bags = replace(_read_benchmark(benchmark, path), ids=None, classes=("0", "1")).bags()
    except DataError as error:
        raise DataError(f"{path}: cannot be read as {benchmark.name}: {error}") from None
    if (actual := content_hash(bags)) != benchmark.sha256:
        hashes = f"sha256 of the content {actual[:12]}…, expected {benchmark.sha256[:12]}…"
        raise DataError(
            f"{path}: these are not the bags of {benchmark.name} ({hashes}). "
            f"{benchmark_remedy(benchmark.name)}"
        )
    return bags


def content_hash(bags: BagSet) -> str:
    """Return the SHA-256 of label, size and 32-bit features of each bag, in order.

    >>> from scmil.bags.datasets.table import Table
    >>> bags = Table(np.zeros((2, 3), np.float32), np.array([0, 1]), labels=[0, 1]).bags()
    >>> content_hash(bags) == content_hash(bags[::-1])
    False
    """
    sha = hashlib.sha256()
    for bag in bags:
        # Without -0, which some file formats do not preserve.
        features = bag.features.numpy() + np.float32(0)
        sha.update(
            np.array(
                [-1 if bag.label is None else bag.label, *features.shape], dtype="<i8"
            ).tobytes()
        )
        sha.update(features.astype("<f4").tobytes())
    return sha.hexdigest()


def _read_benchmark(benchmark: Benchmark, path: Path) -> Table:
    if path.name == benchmark.csv:
        return _read_package_csv(path)
    if benchmark.original and path.as_posix().endswith(benchmark.original.files):
        return read_original(path, benchmark.original.member)
    return read_table(path)


def _read_package_csv(path: Path) -> Table:
    """Read a CSV file of the package `mil`: label, bag, then the features, without a header."""
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
    registry.register(_benchmark.name, _benchmark.summary)(partial(load_benchmark, _benchmark.name))
