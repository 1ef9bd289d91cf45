"""The probabilities of a patient from those of the slides."""

from __future__ import annotations

import numpy as np
import pytest

from scmil.stats.groups import pool_slides


def test_the_largest_probability_of_the_second_of_two_classes_counts() -> None:
    p = np.array([[0.9, 0.1], [0.3, 0.7], [0.6, 0.4]])
    assert pool_slides(p, "max").tolist() == pytest.approx([0.3, 0.7])
    assert pool_slides(p).tolist() == pytest.approx([0.6, 0.4])


def test_the_largest_probabilities_of_several_classes_sum_to_one() -> None:
    p = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]])
    assert pool_slides(p, "max").tolist() == pytest.approx([0.8 / 1.7, 0.8 / 1.7, 0.1 / 1.7])
