"""All intervals over patients come from one bootstrap, which works in blocks."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from scmil.stats import bootstrap
from scmil.stats.bootstrap import bootstrap_interval, draw_counts, draw_positions
from scmil.stats.localisation import Hits, froc_intervals, score_tiles
from scmil.studies.model_metrics import interval_of_all
from scmil.viz.atlas.compare import compare_use

RANDOM = np.random.default_rng(0)
SHARES = RANDOM.random((30, 6))
LABELS = np.arange(30) % 2
PATIENTS = [f"p{i // 2}" for i in range(30)]
P = np.stack([1 - SHARES[:, 0], SHARES[:, 0]], 1)
HITS = [Hits(RANDOM.random(2), RANDOM.random(3), unit=patient) for patient in PATIENTS]
TUMOUR, VALUES = list(RANDOM.random((30, 8)) > 0.5), list(RANDOM.random((30, 8)))
INTERVALS: dict[str, Callable[[], Any]] = {
    "mean": lambda: bootstrap_interval(SHARES[:, 0], PATIENTS),
    "metrics": lambda: interval_of_all(LABELS, P, PATIENTS, 0.5),
    "FROC": lambda: froc_intervals(HITS),
    "tiles": lambda: score_tiles(TUMOUR, VALUES, PATIENTS),
    "atlas": lambda: [column.tolist() for column in compare_use(SHARES, LABELS)],
}


@pytest.mark.parametrize("name", INTERVALS)
def test_blocks_do_not_change_an_interval(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = INTERVALS[name]()
    sizes: list[int] = []
    block_sizes = bootstrap._block_sizes

    def record(units: int, draws: int) -> Any:
        for rows in block_sizes(units, draws):
            sizes.append(rows * units)
            yield rows

    monkeypatch.setattr(bootstrap, "_block_sizes", record)
    monkeypatch.setattr(bootstrap, "BLOCK_NUMBERS", 997)
    actual = INTERVALS[name]()
    assert len(sizes) > 10
    assert max(sizes) <= 997
    assert repr(actual) == repr(expected)


@pytest.mark.parametrize("draw", [draw_positions, draw_counts])
def test_resamples_of_many_patients_need_little_memory(draw: Callable[..., Any]) -> None:
    tracemalloc.start()
    for block in draw(300_000, 30, np.random.default_rng(0)):
        assert block.shape[1] == 300_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40_000_000  # all 30 at once are 72 MB; a block is 14 MB, two of them exist


def test_every_resample_has_as_many_units_as_there_are() -> None:
    random = np.random.default_rng(0)
    assert all((block.sum(1) == 9).all() for block in draw_counts(9, 50, random))
    positions = np.concatenate(list(draw_positions(9, 2000, random)))
    assert positions.shape == (2000, 9)
    assert np.bincount(positions.ravel()) / 2000 == pytest.approx(np.ones(9), abs=0.1)
