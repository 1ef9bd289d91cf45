"""Tiles become QuPath detections: one polygon each, closed, with numbers."""

from __future__ import annotations

import json
import tracemalloc
import uuid
from pathlib import Path

import numpy as np
import pytest

from scmil.errors import DataError
from scmil.viz.drawing import qupath as detections
from scmil.viz.drawing.qupath import write_detections

shapely = pytest.importorskip("shapely")

NAMES = [("low", (10, 20, 30)), ("high", (200, 210, 220))]


def tiles(n: int) -> np.ndarray:
    return np.stack([np.arange(n) % 100, np.arange(n) // 100], 1) * 300


def test_detections_have_the_fields_that_qupath_reads(tmp_path: Path) -> None:
    path = tmp_path / "a.geojson"
    values = {"attention": np.array([0.25, 0.75]), "top_atom": np.array([np.nan, 7])}
    write_detections(path, "a", tiles(2), 256.5, values, np.array([1, 0]), NAMES)
    page = json.loads(path.read_text())
    assert page["type"] == "FeatureCollection"
    for feature in page["features"]:
        assert feature["type"] == "Feature"
        assert str(uuid.UUID(feature["id"])) == feature["id"]
        assert feature["properties"]["objectType"] == "detection"
        [ring] = feature["geometry"]["coordinates"]
        assert ring[0] == ring[-1]
        assert len(ring) == 5
    first, second = page["features"]
    assert shapely.geometry.shape(second["geometry"]).bounds == (300, 0, 556.5, 256.5)
    assert first["properties"]["classification"] == {"name": "high", "color": [200, 210, 220]}
    # A number that is none is left out.
    assert first["properties"]["measurements"] == {"attention": 0.25}
    assert second["properties"]["measurements"] == {"attention": 0.75, "top_atom": 7}
    assert first["id"] != second["id"]


def test_the_same_tiles_give_the_same_file_and_no_tiles_a_valid_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_detections(tmp_path / name, "slide", tiles(5), 256, {"attention": np.ones(5)})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    write_detections(tmp_path / "none", "slide", np.zeros((0, 2)), 256, {})
    assert json.loads((tmp_path / "none").read_text())["features"] == []


def test_memory_does_not_grow_with_the_number_of_tiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detections, "AT_A_TIME", 200)
    n, peaks = 1_000, []
    for times in (1, 3):
        xy, values = (
            tiles(n * times),
            {"attention": np.random.default_rng(0).uniform(size=n * times)},
        )
        tracemalloc.start()
        write_detections(tmp_path / "a.geojson", "slide", xy, 256, values)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (tmp_path / "a.geojson").stat().st_size > 2 * peaks[1]
    assert peaks[1] < 1.5 * peaks[0]


def test_measurements_of_wrong_shape_or_infinite_value_raise(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"'attention' has shape \(3,\), expected one number per tile"
    ):
        write_detections(tmp_path / "a", "slide", tiles(2), 256, {"attention": np.ones(3)})
    with pytest.raises(DataError, match="'ratio' of slide 'slide' is infinite for 1 of 2 tiles"):
        write_detections(tmp_path / "a", "slide", tiles(2), 256, {"ratio": np.array([1, np.inf])})
    assert not list(tmp_path.iterdir())
