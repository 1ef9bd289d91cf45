"""Tables of bags as .npz and .svm files."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from bag_tables import PLAIN, lists, lower_size_limits, npz, write

from scmil.bags.datasets.table import read_bags
from scmil.errors import DataError


def test_an_npz_may_name_bags_and_patients(tmp_path: Path) -> None:
    content = npz(**PLAIN, ids=["a", "b"], patients=["P", ""], instance_labels=[1, 0, 0])
    bags = read_bags(write(tmp_path, content, "bags.npz"))
    assert (bags.ids, bags.labels, bags.patients) == (("a", "b"), (1, 0), ("P", None))
    assert lists(bags) == [[[0, 1]], [[2, 3], [4, 5]]]
    assert bags[0].instance_labels is not None
    assert read_bags(write(tmp_path, npz(**PLAIN), "plain.npz")).ids == ("0", "1")
    assert read_bags(
        write(tmp_path, npz(**{**PLAIN, "y": ["yes", "no"]}), "words.npz")
    ).classes == ("no", "yes")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"PK not quite", "not a .npz file. Save X, bag and y with numpy.savez"),
        (npz(**PLAIN)[:-30], "not a .npz file|not plain arrays"),
        (npz(**{**PLAIN, "y": np.array([1, None])}), "pickled objects are rejected"),
        (npz(X=PLAIN["X"], bag=PLAIN["bag"]), "no array 'y'"),
        (npz(**{**PLAIN, "X": np.zeros(3)}), r"X has the shape \(3,\)"),
        (npz(**{**PLAIN, "X": np.array([[0, 0], [0, np.nan], [0, 0]])}), r"X\[1, 1\] is nan"),
        (npz(**{**PLAIN, "X": np.full((3, 1), 1e39)}), r"X\[0, 0\] is 1e\+39, but a finite 32-bit"),
        (npz(**{**PLAIN, "bag": [0, 1]}), "X has 3 instances, but bag has 2 entries"),
        (npz(**{**PLAIN, "bag": [0, 1, 1.5]}), "vector of integers"),
        (npz(**{**PLAIN, "bag": [0, 1, np.inf]}), "vector of integers"),
        (npz(**{**PLAIN, "bag": [0, 1, 2]}), "bag has values from 0 to 2, but y has 2 labels"),
        (npz(**{**PLAIN, "bag": [-1, 0, 1]}), "bag has values from -1 to 1"),
        (npz(**{**PLAIN, "y": [0, 1, 1]}), "bag 2 has no instance, but y has 3 labels"),
        (npz(**PLAIN, ids=["a"]), "y has 2 labels, but there are 1 ids"),
        (npz(**PLAIN, patients=["a"]), "y has 2 labels, but there are 1 patients"),
        (npz(**PLAIN, ids=["a", "a"]), "two bags have the id 'a'"),
        (npz(**PLAIN, instance_labels=[1]), "X has 3 instances, but there are 1 instance_labels"),
    ],
)
def test_an_npz_that_cannot_be_used_is_rejected(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    with pytest.raises(DataError, match=reason):
        read_bags(write(tmp_path, content, "bags.npz"))


def test_the_classical_sparse_format_is_read(tmp_path: Path) -> None:
    text = "# pictures\n0:p7:-1 1:0.5 3:2\n\n1:p7:-1 2:1e-3\n2:p9:1 1:-4 # a fox\n"
    bags = read_bags(write(tmp_path, text, "bags.svm"))
    assert (bags.ids, bags.labels) == (("p7", "p9"), (0, 1))
    np.testing.assert_allclose(bags[0].features, [[0.5, 0, 2], [0, 1e-3, 0]])
    assert lists(bags)[1] == [[-4, 0, 0]]


def test_a_bag_of_the_sparse_format_is_positive_if_an_instance_is(tmp_path: Path) -> None:
    assert read_bags(write(tmp_path, "0:a:-1 1:1\n1:a:1 1:1\n2:b:-1 1:1\n", "bags.svm")).labels == (
        1,
        0,
    )
    assert read_bags(write(tmp_path, "0:a:-1 1:1\n1:a:1 1:1\n", "bags.svm")).labels == (1,)
    assert read_bags(write(tmp_path, "0:a:-1 1:1\n", "bags.svm")).labels == (0,)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no instance has a feature"),
        ("0:a:1\n", "no instance has a feature"),
        ("0:a:1 1:1\n1 1:1\n", "line 2: '1 1:1', but instance:bag:label index:value ... is needed"),
        ("0:a:1 1:one\n", "line 1: .* but instance:bag:label"),
        ("0:a:inf 1:1\n", "line 1: .* but instance:bag:label"),
        ("0:a:1 0:1\n", "line 1: the index of a feature must be from 1"),
        ("0:a:1 9999999:1\n", "line 1: the index of a feature must be from 1 to 1000000"),
        ("0:a:1 1:nan\n", r"X\[0, 0\] is nan"),
    ],
)
def test_a_sparse_file_that_cannot_be_used_is_rejected(
    tmp_path: Path, text: str, reason: str
) -> None:
    with pytest.raises(DataError, match=reason):
        read_bags(write(tmp_path, text, "bags.svm"))


def test_an_npz_that_expands_a_thousandfold_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = io.BytesIO()
    np.savez_compressed(file, X=np.zeros((1000, 1000)), bag=np.zeros(1000, int), y=np.zeros(1))
    path = write(tmp_path, file.getvalue(), "bags.npz")
    assert read_bags(path)[0].features.shape == (1000, 1000)
    lower_size_limits(monkeypatch)
    with pytest.raises(DataError, match=r"bags\.npz: .*8\d* bytes in memory.*a decompression bomb"):
        read_bags(path)


def test_a_sparse_table_that_would_fill_the_memory_is_not_made(tmp_path: Path) -> None:
    lines = "".join(f"{i}:{i}:1 1000000:1\n" for i in range(700))
    with pytest.raises(
        DataError,
        match=r"bags\.svm: 700 instances with features up to 1000000 need 2800000000 bytes",
    ):
        read_bags(write(tmp_path, lines, "bags.svm"))


@pytest.mark.parametrize("label", ["1e300", "123456789", "-1e18"])
def test_a_label_of_an_svm_file_is_the_number_of_a_class(tmp_path: Path, label: str) -> None:
    with pytest.raises(DataError, match=r"bags\.svm: line 1: label"):
        read_bags(write(tmp_path, f"1:1:{label} 1:1\n", "bags.svm"))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "bags.npz")
    with pytest.raises(DataError, match=r"bags\.npz.*not a regular file, but a pipe"):
        read_bags(tmp_path / "bags.npz")
