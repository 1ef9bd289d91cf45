"""MATLAB files, also those that scipy does not write or that are damaged."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from bag_tables import PLAIN, PRTOOLS, lists, lower_size_limits, mat, write
from scipy.io import savemat

from scmil.bags.datasets.table import read_bags
from scmil.errors import DataError


def test_a_prtools_data_set_is_read(tmp_path: Path) -> None:
    bags = read_bags(write(tmp_path, mat(x=PRTOOLS), "bags.mat"))
    assert (bags.ids, bags.labels) == (("7", "3"), (0, 1))
    assert lists(bags) == [[[0, 1]], [[2, 3], [4, 5]]]


def test_the_positive_class_of_prtools_is_named_positive(tmp_path: Path) -> None:
    named = {**PRTOOLS, "lablist": np.array(["positive", "negative"])}
    assert read_bags(write(tmp_path, mat(x=named), "bags.mat")).labels == (1, 0)
    cells = {**PRTOOLS, "lablist": np.array([["negative"], ["positive"]], dtype=object)}
    assert read_bags(write(tmp_path, mat(x=cells), "bags.mat")).labels == (0, 1)


@pytest.mark.parametrize("first", [0, 1])
def test_plain_matlab_arrays_are_read(tmp_path: Path, first: int) -> None:
    content = mat(**{**PLAIN, "bag": np.array([0, 1, 1]) + first})
    bags = read_bags(write(tmp_path, content, "bags.mat"))
    assert bags.labels == (1, 0)
    assert lists(bags) == [[[0, 1]], [[2, 3], [4, 5]]]
    single = mat(X=np.ones((1, 4)), bag=np.array([first]), y=np.array([1]))
    assert read_bags(write(tmp_path, single, "single.mat"))[0].features.shape == (1, 4)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"MATLAB it is not", "not a MATLAB file"),
        (mat(z=np.zeros(2)), "no array 'X'"),
        (mat(x={**PRTOOLS, "ident": dict(other=1)}), "without ident.milbag"),
        (mat(x={**PRTOOLS, "nlab": np.array([1, 2])}), "3 instances, 2 labels in nlab, 3 bags"),
        (mat(x={**PRTOOLS, "nlab": np.array([1, 1, 2])}), "bag '3' has the labels '0' and '1'"),
        (
            b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(512),
            r"version 7\.3\. Save it with",
        ),
    ],
)
def test_a_matlab_file_that_cannot_be_used_is_rejected(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    with pytest.raises(DataError, match=reason):
        read_bags(write(tmp_path, content, "bags.mat"))


def test_a_mat_that_expands_a_thousandfold_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = io.BytesIO()
    savemat(
        file, dict(X=np.zeros((1000, 1000)), bag=np.ones(1000), y=np.zeros(1)), do_compression=True
    )
    path = write(tmp_path, file.getvalue(), "bags.mat")
    assert read_bags(path)[0].features.shape == (1000, 1000)
    lower_size_limits(monkeypatch)
    with pytest.raises(DataError, match=r"bags\.mat: compressed data expand to more than"):
        read_bags(path)


@pytest.mark.parametrize("compressed", [False, True])
def test_mat_files_with_all_kinds_of_variables_are_read(tmp_path: Path, compressed: bool) -> None:
    file, other = io.BytesIO(), np.array([["a", np.eye(2)], [{"b": 1}, 1j]], object)
    savemat(
        file,
        {**PLAIN, "more": other, "text": "words", "none": np.zeros((0, 3))},
        do_compression=compressed,
    )
    bags = read_bags(write(tmp_path, file.getvalue(), "bags.mat"))
    assert [bag.features.tolist() for bag in bags] == [[[0, 1]], [[2, 3], [4, 5]]]


def element(kind: int, content: bytes) -> bytes:
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def matrix(kind: int, shape: tuple[int, int], content: bytes, name: bytes = b"") -> bytes:
    """An array of a MATLAB file, of a class with this number."""
    header = (
        element(6, struct.pack("<II", kind, 0))
        + element(5, struct.pack("<ii", *shape))
        + element(1, name)
    )
    return element(14, header + content)


def mat_of(content: bytes) -> bytes:
    return (
        b"MATLAB 5.0 MAT-file".ljust(116) + bytes(8) + struct.pack("<H", 0x0100) + b"IM" + content
    )


@pytest.mark.parametrize("compressed", [False, True])
def test_arrays_in_arrays_without_end_do_not_end_the_process(
    tmp_path: Path, compressed: bool
) -> None:
    inner = matrix(6, (1, 1), element(9, bytes(8)))
    for _ in range(40):
        inner = matrix(1, (1, 1), inner, b"X")
    content = (
        struct.pack("<II", 15, len(zlib.compress(inner))) + zlib.compress(inner)
        if compressed
        else inner
    )
    with pytest.raises(DataError, match=r"bags\.mat: arrays are nested more than 32 levels deep"):
        read_bags(write(tmp_path, mat_of(content), "bags.mat"))


@pytest.mark.parametrize("shape", [(10**9, 1), (2**30, 2**30), (-1, 5)])
@pytest.mark.parametrize("kind", [1, 2, 6])
def test_an_array_of_a_mat_file_has_bytes_for_its_entries(
    tmp_path: Path, shape: tuple[int, int], kind: int
) -> None:
    with pytest.raises(
        DataError, match=rf"bags\.mat: an array of {shape[0]} x {shape[1]} entries, but it has"
    ):
        read_bags(write(tmp_path, mat_of(matrix(kind, shape, bytes(8), b"X")), "bags.mat"))


def test_matlab_writes_whole_numbers_in_as_few_bytes_as_they_need(tmp_path: Path) -> None:
    """And texts as UTF-16 or UTF-8; scipy, whose files are in the other tests, writes neither."""
    parts = matrix(6, (3, 2), element(2, bytes([0, 2, 4, 1, 3, 5])), b"X")
    parts += matrix(6, (3, 1), element(1, bytes([1, 2, 2])), b"bag") + matrix(
        9, (2, 1), element(2, b"\1\0"), b"y"
    )
    parts += matrix(4, (2, 3), element(17, "acbdé ".encode("utf-16-le")), b"ids")
    bags = read_bags(write(tmp_path, mat_of(parts), "bags.mat"))
    assert lists(bags) == [[[0, 1]], [[2, 3], [4, 5]]]
    assert (bags.ids, bags.labels) == (("abé", "cd "), (1, 0))


@pytest.mark.parametrize(
    "part",
    [
        matrix(6, (3, 2), element(9, bytes(40)), b"X"),
        matrix(6, (3, 2), element(77, bytes(48)), b"X"),
        matrix(4, (1, 5), element(16, b"abc"), b"X"),
        matrix(4, (1, 5), element(9, bytes(40)), b"X"),
        matrix(1, (1, 2), matrix(6, (0, 0), b""), b"X"),
        matrix(2, (1, 1), element(5, struct.pack("<i", 4)) + element(1, b"a\0\0\0b\0\0\0"), b"X"),
        element(14, element(6, b"")),
        element(14, bytes(8)),
    ],
)
def test_a_matlab_array_whose_parts_do_not_fit_is_rejected(tmp_path: Path, part: bytes) -> None:
    with pytest.raises(DataError, match=r"bags\.mat: "):
        read_bags(write(tmp_path, mat_of(part), "bags.mat"))


def test_functions_in_a_mat_file_are_passed_over(tmp_path: Path) -> None:
    """scipy crashes over one that is damaged."""
    content = mat(**PLAIN) + matrix(16, (1, 1), bytes(8), b"f") + matrix(17, (1, 1), bytes(8), b"g")
    assert len(read_bags(write(tmp_path, content, "bags.mat"))) == 2
