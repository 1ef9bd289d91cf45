"""Bags of handwritten digits."""

from __future__ import annotations

import numpy as np
import pytest
from benchmark_files import instances

from scmil import load_dataset
from scmil.bags import datasets
from scmil.bags.datasets import digits
from scmil.bags.datasets.classic import content_hash
from scmil.errors import MissingExtraError


def test_a_bag_of_digits_is_positive_if_there_is_a_nine() -> None:
    bags = load_dataset("digits", data="not looked at")
    assert (len(bags), bags.labels.count(1), bags.dim) == (150, 75, 64)
    for bag in bags:
        assert bag.instance_labels is not None
        assert bag.label == int(bag.instance_labels.any())
    assert all(bag.features.min() >= 0 and bag.features.max() <= 1 for bag in bags)
    assert np.mean([len(bag.features) for bag in bags]) == pytest.approx(10, abs=0.5)


def test_no_image_of_a_digit_is_in_two_bags() -> None:
    from sklearn.datasets import load_digits

    drawn, images = (
        np.unique(values, axis=0, return_counts=True)
        for values in (instances(digits.digits()) * 16, load_digits().data)
    )
    available = {
        row.tobytes(): count
        for row, count in zip(images[0].astype(np.float32), images[1], strict=True)
    }
    assert all(count <= available[row.tobytes()] for row, count in zip(*drawn, strict=True))


def test_digits_repeat_for_a_seed() -> None:
    assert content_hash(digits.digits(1)) == content_hash(digits.digits(1))
    assert content_hash(digits.digits(1)) != content_hash(digits.digits(2))


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'scmil\[statistics\]'"):
        load_dataset("digits")
    assert (
        next(entry for entry in datasets.dataset_status() if entry.name == "digits").remedy
        == "pip install 'scmil[statistics]'"
    )
