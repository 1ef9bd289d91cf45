"""The published files of the benchmarks, and the .Z compression of some of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmark_files import compress

from scmil.bags.datasets.originals import read_original, uncompress
from scmil.errors import DataError


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "rows of different lengths"),
        (b"M,M_1,1,2,1.\nM,M_2,1,1.\n", "rows of different lengths"),
        (b"M,M_1,1,two,1.\n", "a feature is not a number"),
        (b"M,M_1,1,2,1.\nM,M_2,1,2,0.\n", r"bag 'M' has the labels '1\.' and '0\.'"),
        (b"\x1f\x9d\x80", "codes of 0 bits"),
        (b"\x1f\x9d\x90\x61\xff\xff", r"a damaged \.Z file"),
    ],
)
def test_a_damaged_original_is_rejected(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "clean1.data").write_bytes(content)
    with pytest.raises(DataError, match=reason):
        read_original(tmp_path / "clean1.data", "clean1.data")


@pytest.mark.parametrize("clear_after", [None, 5000])
@pytest.mark.parametrize("longest", [10, 12, 16])
def test_unix_compress_is_undone(longest: int, clear_after: int | None) -> None:
    generator = np.random.default_rng(0)
    for size in (0, 1, 2, 300, 20_000):
        content = bytes(generator.choice(list(b"0123456789,-\n"), size).tolist())
        assert uncompress(compress(content, longest, clear_after)) == content


def test_a_long_run_of_one_byte_uses_words_that_are_just_being_made() -> None:
    assert uncompress(compress(b"a" * 5000)) == b"a" * 5000


def test_a_z_file_that_expands_without_end_is_not_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its words grow with each code: 130 kB become 2 GB, and the list of words as many again."""
    content = compress(b"a" * 100_000)
    assert len(content) < 1000
    monkeypatch.setattr("scmil.bags.datasets.originals.MOST_BYTES", 50_000)
    with pytest.raises(DataError, match="more than 50000 bytes"):
        uncompress(content)


def write_jld(path: Path, bags: list[np.ndarray], labels: list[int]) -> None:
    """Write bags as Julia's JLD does: references to matrices stored by columns."""
    import h5py

    with h5py.File(path, "w") as file:
        group = file.create_group("_refs")
        stored = [group.create_dataset(f"{i:08d}", data=bag.T) for i, bag in enumerate(bags)]
        references = np.array([one.ref for one in stored], dtype=h5py.ref_dtype)
        file.create_dataset("X", data=references)
        file["y"] = np.array(labels)


def test_the_bags_of_a_jld_file_are_its_matrices(tmp_path: Path) -> None:
    bags = [np.arange(6.0).reshape(3, 2), np.ones((1, 2))]
    write_jld(tmp_path / "Toy.jld", bags, [-1, 1])
    table = read_original(tmp_path / "Toy.jld", "Toy.jld")
    assert list(table.labels) == [0, 1]
    assert table.bag.tolist() == [0, 0, 0, 1]
    assert np.array_equal(table.features, np.concatenate(bags))


@pytest.mark.parametrize(
    ("bags", "labels", "reason"),
    [
        ([np.ones((1, 2)), np.ones((1, 3))], [0, 1], "bags of different dimensions"),
        ([np.ones((1, 2))], [0, 1], "1 bags and 2 labels"),
        ([np.ones(2)], [0], "one matrix per label"),
    ],
)
def test_other_jld_files_are_rejected(
    tmp_path: Path, bags: list[np.ndarray], labels: list[int], reason: str
) -> None:
    write_jld(tmp_path / "Toy.jld", bags, labels)
    with pytest.raises(DataError, match=reason):
        read_original(tmp_path / "Toy.jld", "Toy.jld")


def test_a_damaged_jld_file_is_rejected(tmp_path: Path) -> None:
    import h5py

    path = tmp_path / "Toy.jld"
    path.write_bytes(b"no")
    with pytest.raises(DataError, match="damaged, or not a file of JLD"):
        read_original(path, "Toy.jld")
    with h5py.File(path, "w") as file:
        file["X"], file["y"] = np.ones(3), np.ones(3)
    with pytest.raises(DataError, match="'X' does not hold references"):
        read_original(path, "Toy.jld")
