"""Conformal intervals of numbers: their coverage, and patients with several slides."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scmil.errors import DataError
from scmil.stats.conformal import conformal_half_width, interval_coverage


def test_intervals_of_numbers_cover_nine_of_ten_new_patients() -> None:
    generator = np.random.default_rng(0)
    covered = []
    for _ in range(400):
        truth, other = generator.normal(size=(2, 29))
        half = conformal_half_width(truth, np.zeros(29), 0.1)
        covered.append(interval_coverage(other, np.zeros(29), half).coverage)
    assert np.mean(covered) == pytest.approx(0.9, abs=0.015)


def test_the_slides_of_a_patient_are_one_interval() -> None:
    truth, predicted = [1.0, 3.0, 5.0], [1.0, 1.0, 2.0]
    assert conformal_half_width(truth, predicted, 0.4, ["a", "a", "b"]) == 3.0
    assert interval_coverage(truth, predicted, 1.0, ["a", "a", "b"])[:2] == (2, 0.5)
    assert conformal_half_width(truth, predicted, 0.1) == math.inf
    with pytest.raises(DataError, match="above 0 and below 1"):
        conformal_half_width(truth, predicted, 1.0)
