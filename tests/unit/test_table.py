"""Tables of bags: what is read, and what is refused."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from scmil.bags.bag import BagSet
from scmil.bags.datasets import load_dataset
from scmil.bags.datasets.table import read_bags
from scmil.errors import DataError


def write(folder: Path, content: str | bytes, name: str = "bags.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def mat(**variables: Any) -> bytes:
    file = io.BytesIO()
    savemat(file, variables)
    return file.getvalue()


PLAIN = dict(X=np.arange(6.0).reshape(3, 2), bag=np.array([0, 1, 1]), y=np.array([1, 0]))
PRTOOLS = dict(
    data=np.arange(6.0).reshape(3, 2), nlab=np.array([[1], [2], [2]]), ident=dict(milbag=np.array([[7], [3], [3]]))
)


def lists(bags: BagSet) -> list[list[list[float]]]:
    return [bag.features.tolist() for bag in bags]


def test_a_csv_may_have_its_columns_and_rows_in_any_order(tmp_path: Path) -> None:
    text = "x,patient,label,bag,y,instance_label\n1,P,1,b,2,0\n\n3,Q,0,a,4,0\n5,P,1,b,6,1\n"
    bags = read_bags(write(tmp_path, text))
    assert (bags.ids, bags.labels, bags.patients) == (("b", "a"), (1, 0), ("P", "Q"))
    assert lists(bags) == [[[1, 2], [5, 6]], [[3, 4]]]
    assert bags[0].instance_labels is not None
    assert bags[0].instance_labels.tolist() == [0, 1]


def test_words_are_classes_and_empty_cells_are_unknown(tmp_path: Path) -> None:
    text = '\ufeffbag,label,patient,x\n"a, 1",LUSC,,1\nb,LUAD,P,2\nc,,P,3\n'
    bags = read_bags(write(tmp_path, text))
    assert (bags.ids, bags.labels, bags.patients) == (("a, 1", "b", "c"), (1, 0, None), (None, "P", "P"))
    assert bags.classes == ("LUAD", "LUSC")


def test_numbers_stay_the_classes_that_they_are(tmp_path: Path) -> None:
    assert read_bags(write(tmp_path, "bag,label,x\na,1,0\nb,1,0\n")).labels == (1, 1)
    assert read_bags(write(tmp_path, "bag,label,x\na,-1,0\nb,1,0\n")).labels == (0, 1)
    assert read_bags(write(tmp_path, "bag,label,x\na,2,0\nb,0,0\n")).classes == ("0", "1", "2")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file is empty. The first line names the columns"),
        ("bag,label,x\n", "a header, but no instance"),
        ("bag;label;x\n", "0 columns are called 'bag'; one is needed. Met: 1 column, not shown"),
        ("bag,x\na,1\n", "0 columns are called 'label'"),
        ("bag,label,label,x\na,1,1,1\n", "2 columns are called 'label'"),
        ("bag,label,patient\na,1,P\n", "there is no feature: all columns are among"),
        ("bag,label,x\na,1,2\na,1,nan\n", r"line 3, column 'x': 'nan', but a finite"),
        ("bag,label,x,y\na,1,2,-inf\n", r"line 2, column 'y': '-inf', but a finite"),
        ("bag,label,x\na,1,1e39\n", r"column 'x': '1e39', but a finite 32-bit number"),
        ("bag,label,x,y\na,1,2,many\n", r"line 2, column 'y': 'many', but a finite"),
        ("bag,label,x,y\na,1,2,3\na,1,2\n", r"line 3 has 3 values, but the header has 4"),
        ("bag,label,x\na,1,2\na,0,2\n", "bag 'a' has the labels '1' and '0'; one is needed"),
        ("bag,label,patient,x\na,1,P,2\na,1,Q,2\n", "bag 'a' has the patients 'P' and 'Q'"),
        ("bag,label,x\na,1.5,2\n", "label 1.5: numbers count the classes from 0 to 999; else use words"),
        ("bag,label,x\na,20190412,2\n", "label 20190412: numbers count"),
        (b"bag,label,x\n\xe4,1,2\n", "byte 12 is not UTF-8. Save the file as UTF-8"),
    ],
)
def test_a_csv_that_cannot_be_used_is_refused_with_the_place(tmp_path: Path, text: str | bytes, reason: str) -> None:
    with pytest.raises(DataError, match=rf"bags\.csv: .*{reason}"):
        read_bags(write(tmp_path, text))


def test_an_npz_may_name_bags_and_patients(tmp_path: Path) -> None:
    content = npz(**PLAIN, ids=["a", "b"], patients=["P", ""], instance_labels=[1, 0, 0])
    bags = read_bags(write(tmp_path, content, "bags.npz"))
    assert (bags.ids, bags.labels, bags.patients) == (("a", "b"), (1, 0), ("P", None))
    assert lists(bags) == [[[0, 1]], [[2, 3], [4, 5]]]
    assert bags[0].instance_labels is not None
    assert read_bags(write(tmp_path, npz(**PLAIN), "plain.npz")).ids == ("0", "1")
    assert read_bags(write(tmp_path, npz(**{**PLAIN, "y": ["yes", "no"]}), "words.npz")).classes == ("no", "yes")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"PK not quite", "not a .npz file. Save X, bag and y with numpy.savez"),
        (npz(**PLAIN)[:-30], "not a .npz file|not plain arrays"),
        (npz(**{**PLAIN, "y": np.array([1, None])}), "pickled objects are refused"),
        (npz(X=PLAIN["X"], bag=PLAIN["bag"]), "no array 'y'"),
        (npz(**{**PLAIN, "X": np.zeros(3)}), r"X has the shape \(3,\)"),
        (npz(**{**PLAIN, "X": np.array([[0, 0], [0, np.nan], [0, 0]])}), r"X\[1, 1\] is nan"),
        (npz(**{**PLAIN, "X": np.full((3, 1), 1e39)}), r"X\[0, 0\] is 1e\+39, but a finite 32-bit"),
        (npz(**{**PLAIN, "bag": [0, 1]}), "X has 3 instances, but bag has 2 entries"),
        (npz(**{**PLAIN, "bag": [0, 1, 1.5]}), "whole numbers"),
        (npz(**{**PLAIN, "bag": [0, 1, np.inf]}), "whole numbers"),
        (npz(**{**PLAIN, "bag": [0, 1, 2]}), "bag goes from 0 to 2, but y has 2 labels"),
        (npz(**{**PLAIN, "bag": [-1, 0, 1]}), "bag goes from -1 to 1"),
        (npz(**{**PLAIN, "y": [0, 1, 1]}), "bag 2 has no instance, but y has 3 labels"),
        (npz(**PLAIN, ids=["a"]), "y has 2 labels, but there are 1 ids"),
        (npz(**PLAIN, patients=["a"]), "y has 2 labels, but there are 1 patients"),
        (npz(**PLAIN, ids=["a", "a"]), "'a' is there twice"),
        (npz(**PLAIN, instance_labels=[1]), "X has 3 instances, but there are 1 instance_labels"),
    ],
)
def test_an_npz_that_cannot_be_used_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read_bags(write(tmp_path, content, "bags.npz"))


def test_the_classical_sparse_format_is_read(tmp_path: Path) -> None:
    text = "# pictures\n0:p7:-1 1:0.5 3:2\n\n1:p7:-1 2:1e-3\n2:p9:1 1:-4 # a fox\n"
    bags = read_bags(write(tmp_path, text, "bags.svm"))
    assert (bags.ids, bags.labels) == (("p7", "p9"), (0, 1))
    np.testing.assert_allclose(bags[0].features, [[0.5, 0, 2], [0, 1e-3, 0]])
    assert lists(bags)[1] == [[-4, 0, 0]]


def test_a_bag_of_the_sparse_format_is_positive_if_an_instance_is(tmp_path: Path) -> None:
    assert read_bags(write(tmp_path, "0:a:-1 1:1\n1:a:1 1:1\n2:b:-1 1:1\n", "bags.svm")).labels == (1, 0)
    assert read_bags(write(tmp_path, "0:a:-1 1:1\n1:a:1 1:1\n", "bags.svm")).labels == (1,)
    assert read_bags(write(tmp_path, "0:a:-1 1:1\n", "bags.svm")).labels == (0,)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no instance with a feature"),
        ("0:a:1\n", "no instance with a feature"),
        ("0:a:1 1:1\n1 1:1\n", "line 2: instance:bag:label index:value ... is needed, met '1 1:1'"),
        ("0:a:1 1:one\n", "line 1: instance:bag:label"),
        ("0:a:inf 1:1\n", "line 1: instance:bag:label"),
        ("0:a:1 0:1\n", "line 1: features are counted from 1"),
        ("0:a:1 9999999:1\n", "line 1: features are counted from 1 to 1000000"),
        ("0:a:1 1:nan\n", r"X\[0, 0\] is nan"),
    ],
)
def test_a_sparse_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read_bags(write(tmp_path, text, "bags.svm"))


def test_a_prtools_data_set_is_read(tmp_path: Path) -> None:
    bags = read_bags(write(tmp_path, mat(x=PRTOOLS), "bags.mat"))
    assert (bags.ids, bags.labels) == (("7", "3"), (0, 1))
    assert lists(bags) == [[[0, 1]], [[2, 3], [4, 5]]]


def test_the_positive_class_of_prtools_is_the_one_that_is_called_so(tmp_path: Path) -> None:
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
        (b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(512), r"version 7\.3\. Save it with"),
    ],
)
def test_a_matlab_file_that_cannot_be_used_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read_bags(write(tmp_path, content, "bags.mat"))


def test_unknown_suffixes_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"suffixes \.csv, \.npz, \.svm, \.mat"):
        read_bags(write(tmp_path, "", "bags.xlsx"))
    with pytest.raises(DataError, match=r"none\.csv: cannot be read \(No such file"):
        read_bags(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DataError, match=r"folder\.csv: cannot be read"):
        read_bags(tmp_path / "folder.csv")


def test_load_dataset_reads_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "bag,label,x\na,1,2\n")
    monkeypatch.chdir(tmp_path)
    for name in (path, str(path), "bags.csv", "./bags.csv"):
        assert load_dataset(name).ids == ("a",)
    with pytest.raises(DataError, match=r"nosuch\.csv: cannot be read"):
        load_dataset("nosuch.csv")
    with pytest.raises(DataError, match="suffixes"):
        load_dataset("folder/musk1")


# ------------------------------------------------------------------------------------------------------------------ bombs


def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a small file can exceed, so that a test needs no gigabytes."""
    monkeypatch.setattr("scmil.core.safe_io.LARGE_BYTES", 2**20)
    monkeypatch.setattr("scmil.bags.datasets.matlab.LARGE_BYTES", 2**20)


def test_an_npz_that_expands_a_thousandfold_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    np.savez_compressed(file, X=np.zeros((1000, 1000)), bag=np.zeros(1000, int), y=np.zeros(1))
    path = write(tmp_path, file.getvalue(), "bags.npz")
    assert read_bags(path)[0].features.shape == (1000, 1000)
    little(monkeypatch)
    with pytest.raises(DataError, match=r"bags\.npz: .*8\d* in memory.*no data, but a bomb"):
        read_bags(path)


def test_a_mat_that_expands_a_thousandfold_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    savemat(file, dict(X=np.zeros((1000, 1000)), bag=np.ones(1000), y=np.zeros(1)), do_compression=True)
    path = write(tmp_path, file.getvalue(), "bags.mat")
    assert read_bags(path)[0].features.shape == (1000, 1000)
    little(monkeypatch)
    with pytest.raises(DataError, match=r"bags\.mat: compressed data that expands to more than"):
        read_bags(path)


@pytest.mark.parametrize("compressed", [False, True])
def test_mat_files_of_all_kinds_come_back(tmp_path: Path, compressed: bool) -> None:
    file, other = io.BytesIO(), np.array([["a", np.eye(2)], [{"b": 1}, 1j]], object)
    savemat(file, {**PLAIN, "more": other, "text": "words", "none": np.zeros((0, 3))}, do_compression=compressed)
    bags = read_bags(write(tmp_path, file.getvalue(), "bags.mat"))
    assert [bag.features.tolist() for bag in bags] == [[[0, 1]], [[2, 3], [4, 5]]]


def element(kind: int, content: bytes) -> bytes:
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def matrix(kind: int, shape: tuple[int, int], content: bytes, name: bytes = b"") -> bytes:
    """An array of a MATLAB file, of a class with this number."""
    header = element(6, struct.pack("<II", kind, 0)) + element(5, struct.pack("<ii", *shape)) + element(1, name)
    return element(14, header + content)


def mat_of(content: bytes) -> bytes:
    return b"MATLAB 5.0 MAT-file".ljust(116) + bytes(8) + struct.pack("<H", 0x0100) + b"IM" + content


@pytest.mark.parametrize("compressed", [False, True])
def test_arrays_in_arrays_without_end_do_not_end_the_process(tmp_path: Path, compressed: bool) -> None:
    inner = matrix(6, (1, 1), element(9, bytes(8)))
    for _ in range(40):
        inner = matrix(1, (1, 1), inner, b"X")
    content = struct.pack("<II", 15, len(zlib.compress(inner))) + zlib.compress(inner) if compressed else inner
    with pytest.raises(DataError, match=r"bags\.mat: arrays in arrays, more than 32 deep"):
        read_bags(write(tmp_path, mat_of(content), "bags.mat"))


@pytest.mark.parametrize("shape", [(10**9, 1), (2**30, 2**30), (-1, 5)])
@pytest.mark.parametrize("kind", [1, 2, 6])
def test_an_array_of_a_mat_file_has_bytes_for_its_entries(tmp_path: Path, shape: tuple[int, int], kind: int) -> None:
    with pytest.raises(DataError, match=rf"bags\.mat: an array of {shape[0]} x {shape[1]} entries, but it has"):
        read_bags(write(tmp_path, mat_of(matrix(kind, shape, bytes(8), b"X")), "bags.mat"))


def test_matlab_writes_whole_numbers_in_as_few_bytes_as_they_need(tmp_path: Path) -> None:
    """And texts as UTF-16 or UTF-8; scipy, whose files are in the other tests, writes neither."""
    parts = matrix(6, (3, 2), element(2, bytes([0, 2, 4, 1, 3, 5])), b"X")
    parts += matrix(6, (3, 1), element(1, bytes([1, 2, 2])), b"bag") + matrix(9, (2, 1), element(2, b"\1\0"), b"y")
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
def test_a_matlab_array_whose_parts_do_not_fit_is_refused(tmp_path: Path, part: bytes) -> None:
    with pytest.raises(DataError, match=r"bags\.mat: "):
        read_bags(write(tmp_path, mat_of(part), "bags.mat"))


def test_functions_in_a_mat_file_are_passed_over(tmp_path: Path) -> None:
    """scipy crashes over one that is damaged."""
    content = mat(**PLAIN) + matrix(16, (1, 1), bytes(8), b"f") + matrix(17, (1, 1), bytes(8), b"g")
    assert len(read_bags(write(tmp_path, content, "bags.mat"))) == 2


def test_a_sparse_table_that_would_fill_the_memory_is_not_made(tmp_path: Path) -> None:
    lines = "".join(f"{i}:{i}:1 1000000:1\n" for i in range(700))
    with pytest.raises(DataError, match=r"bags\.svm: 700 instances with features up to 1000000 have 2800000000 bytes"):
        read_bags(write(tmp_path, lines, "bags.svm"))


@pytest.mark.parametrize("label", ["1e300", "123456789", "-1e18"])
def test_a_label_of_an_svm_file_is_the_number_of_a_class(tmp_path: Path, label: str) -> None:
    with pytest.raises(DataError, match=r"bags\.svm: line 1: label"):
        read_bags(write(tmp_path, f"1:1:{label} 1:1\n", "bags.svm"))


def test_a_cell_of_a_csv_file_that_is_no_cell_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"bags\.csv: not a table \(field larger than field limit"):
        read_bags(write(tmp_path, "bag,label,x\n" + "a" * 200_000 + ",1,0\n"))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "bags.npz")
    with pytest.raises(DataError, match=r"bags\.npz.*this is not a file, but a pipe"):
        read_bags(tmp_path / "bags.npz")
