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
