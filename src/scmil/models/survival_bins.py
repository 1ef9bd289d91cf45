"""Bins of follow-up times, and the survival between their ends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from scmil.core.shapes import Numbers
from scmil.errors import DataError, OptionError

DEFAULT_BINS = 4
MOST_NUMBERS = 1000


def survival_edges(times: ArrayLike, events: ArrayLike, bins: int = DEFAULT_BINS) -> Numbers:
    """Ends of all bins but the last: quantiles of the times of events.

    Args:
        times: Follow-up times of the training split.
        events: 1 for an event, 0 for a censored time.
        bins: Number of bins; fewer are made if event times are tied.

    Returns:
        Ascending times; at least one.

    Raises:
        DataError: If there is no event.
        OptionError: If there are fewer than two bins.

    >>> survival_edges([1, 2, 3, 4, 9], [1, 1, 1, 1, 0], bins=2).tolist()
    [2.5]
    """
    if not 2 <= bins <= MOST_NUMBERS:
        raise OptionError(f"bins = {bins}: 2 to {MOST_NUMBERS} are expected.")
    observed = np.asarray(times, dtype=float)[np.asarray(events, dtype=bool)]
    if not len(observed):
        raise DataError("the training split has no events, so there are no times for bins.")
    return np.unique(np.quantile(observed, np.linspace(0, 1, bins + 1)[1:-1]))


def bin_ends(edges: Sequence[float], last: float | None = None) -> Numbers:
    """The end of every bin.

    Args:
        edges: Ends of all bins but the last.
        last: End of the last bin; None continues it as long as the one before.

    >>> bin_ends([2.0, 5.0]).tolist(), bin_ends([2.0], 9.0).tolist()
    ([2.0, 5.0, 8.0], [2.0, 9.0])
    """
    before = edges[-2] if len(edges) > 1 else 0.0
    own = last if last is not None and last > edges[-1] else 2 * edges[-1] - before
    return np.array([*edges, own])


def survival_at(
    edges: Sequence[float], survival: ArrayLike, times: ArrayLike, last: float | None = None
) -> Numbers:
    """Survival at any time from that at the ends of the bins, with a constant hazard in each bin.

    Args:
        edges: Ends of all bins but the last.
        survival: Probability of no event through each bin (n, bins).
        times: Times (k,).
        last: End of the last bin; None continues it as long as the one before.

    Returns:
        Survival (n, k), which falls with time.

    >>> survival_at([2.0], [[0.5, 0.25]], [0.0, 1.0, 2.0, 4.0]).round(3).tolist()
    [[1.0, 0.707, 0.5, 0.25]]
    """
    ends = np.array([0.0, *bin_ends(edges, last)])
    log = np.log(np.clip(np.asarray(survival, dtype=float), 1e-12, 1.0))
    log = np.concatenate([np.zeros((len(log), 1)), log], axis=1)
    points = np.atleast_1d(np.asarray(times, dtype=float))
    return np.exp(np.stack([np.interp(points, ends, row) for row in log]))
