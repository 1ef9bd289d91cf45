"""The nuclei of colorectal tissue: instance labels, other content rejected, the remedy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scmil import load_dataset
from scmil.bags import datasets
from scmil.bags.datasets import colon
from scmil.errors import DataError


def save_nuclei(folder: Path, file: str = "colon-nuclei.npz", **changes: np.ndarray) -> Path:
    """Write 3 images with 2 nuclei each, of which the first has an epithelial one."""
    arrays = {
        "X": np.arange(12, dtype=np.float16).reshape(6, 2),
        "bag": np.repeat(np.arange(3), 2),
        "y": np.array([1, 0, 0]),
        "inst_class": np.array([0, 3, 1, 2, 2, 1], dtype=np.int8),
    }
    np.savez(folder / file, **(arrays | changes))
    return folder / file


@pytest.mark.parametrize("file", colon.COLON_FILES)
def test_epithelial_nuclei_are_the_positive_instances(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_nuclei(tmp_path, file)
    expected = colon.nuclei_hash(colon.read_nuclei(path.read_bytes()).bags())
    monkeypatch.setattr(colon, "COLON_SHA256", expected)
    bags = load_dataset("colon-nuclei", data=tmp_path)
    assert bags.labels == (1, 0, 0)
    assert [np.asarray(bag.instance_labels).tolist() for bag in bags] == [[1, 0], [0, 0], [0, 0]]


def test_other_classes_of_nuclei_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_nuclei(tmp_path)
    expected = colon.nuclei_hash(colon.read_nuclei(path.read_bytes()).bags())
    monkeypatch.setattr(colon, "COLON_SHA256", expected)
    save_nuclei(tmp_path, inst_class=np.array([0, 0, 1, 2, 2, 1]))
    with pytest.raises(DataError, match=r"these are not the bags of colon-nuclei \(sha256"):
        load_dataset("colon-nuclei", data=tmp_path)


def test_a_file_without_classes_or_none_is_an_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "colon-nuclei.npz", X=np.ones((1, 1)))
    with pytest.raises(DataError, match=r"expected X, bag, y and inst_class"):
        load_dataset("colon-nuclei", data=tmp_path)
    with pytest.raises(DataError, match=r"colon-nuclei is not on this computer\. Encode the"):
        load_dataset("colon-nuclei", data=tmp_path / "..")
    status = {entry.name: entry for entry in datasets.dataset_status(tmp_path)}
    assert status["colon-nuclei"].ready
    assert status["synthetic"].ready
