"""Bins of times come from events, and survival falls between their ends."""

from __future__ import annotations

import numpy as np
import pytest

from scmil.errors import DataError, OptionError
from scmil.models.survival_bins import survival_at, survival_edges


def test_edges_are_quantiles_of_the_events_only() -> None:
    edges = survival_edges([1, 2, 3, 4, 100, 200], [1, 1, 1, 1, 0, 0], bins=4)
    assert edges.tolist() == [1.75, 2.5, 3.25]
    assert survival_edges([5, 5, 5], [1, 1, 1]).tolist() == [5.0]
    with pytest.raises(DataError, match="no events"):
        survival_edges([1, 2], [0, 0])
    with pytest.raises(OptionError, match="bins = 1"):
        survival_edges([1, 2], [1, 1], bins=1)


def test_survival_between_the_bins_falls_from_one() -> None:
    times = np.linspace(0, 12, 25)
    curve = survival_at([2.0, 6.0], [[0.8, 0.5, 0.1]], times, last=12.0)[0]
    assert curve[0] == 1.0
    assert (np.diff(curve) < 0).all()
    assert curve[times.searchsorted(6.0)] == pytest.approx(0.5)
    assert curve[-1] == pytest.approx(0.1)
