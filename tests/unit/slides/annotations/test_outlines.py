"""Outlines that would take minutes to join are rejected, or joined in a moment; those that people
draw stay as they are.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("shapely")

from scmil.errors import DataError
from scmil.slides.annotations import outlines
from scmil.slides.annotations.asap import read_asap
from scmil.slides.annotations.geojson import read_geojson


def written(path: Path, *polygons: list[list[tuple[float, float]]]) -> Path:
    features: list[dict[str, Any]] = [
        {"type": "Feature", "geometry": {"type": "Polygon", "coordinates": rings}, "properties": {}}
        for rings in polygons
    ]
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    return path


def square(x: float, y: float, side: float) -> list[tuple[float, float]]:
    return [(x, y), (x + side, y), (x + side, y + side), (x, y + side), (x, y)]


def scattered(count: int) -> list[tuple[float, float]]:
    draw = random.Random(0)
    return [(draw.random() * 1e4, draw.random() * 1e4) for _ in range(count)]


def test_a_thousand_holes_that_overlap_are_read_in_a_moment(tmp_path: Path) -> None:
    holes = [square(at, at, 50) for at in range(1000)]
    path = written(tmp_path / "holes.geojson", [square(0, 0, 1500), *holes])
    start = time.process_time()
    [region] = read_geojson(path)
    # Alone it takes 0.3 s, and 45 s with the default method of shapely.
    assert time.process_time() < start + 10
    assert region.polygon.area == 1500**2 - (50**2 + 999 * (2 * 50 - 1))


@pytest.mark.parametrize("suffix", ["geojson", "xml"])
def test_a_ring_of_random_points_is_rejected_before_it_is_made_valid(
    tmp_path: Path, suffix: str
) -> None:
    path, points = tmp_path / f"random.{suffix}", scattered(3000)
    if suffix == "geojson":
        written(path, [points])
    else:
        each = "".join(
            f'<Coordinate Order="{i}" X="{x}" Y="{y}"/>' for i, (x, y) in enumerate(points)
        )
        inner = (
            '<Annotation Name="a" Type="Polygon" PartOfGroup="_0">'
            f"<Coordinates>{each}</Coordinates></Annotation>"
        )
        path.write_text(f"<ASAP_Annotations><Annotations>{inner}</Annotations></ASAP_Annotations>")
    start = time.process_time()
    with pytest.raises(
        DataError,
        match=rf"random\.{suffix}: the 3000 lines of its outlines cross more than 209000 times",
    ):
        (read_geojson if suffix == "geojson" else read_asap)(path)
    assert time.process_time() < start + 10


def test_valid_regions_that_cross_each_other_too_often_are_rejected_too(tmp_path: Path) -> None:
    across = [[[(0.0, y), (9e3, y), (9e3, y + 1), (0.0, y + 1)]] for y in range(0, 1600, 4)]
    down = [[[(x, -9.0), (x + 1, -9.0), (x + 1, 9e3), (x, 9e3)]] for x in range(0, 1600, 4)]
    with pytest.raises(DataError, match="cross more than"):
        read_geojson(written(tmp_path / "grid.geojson", *across, *down))


def test_more_points_than_the_limit_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlines, "MOST_POINTS", 9)
    with pytest.raises(DataError, match=r"many\.geojson has 10 points, at most 9 are supported"):
        read_geojson(written(tmp_path / "many.geojson", [square(0, 0, 9)], [square(20, 0, 9)]))


def test_an_outline_that_is_there_twice_is_not_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import math

    monkeypatch.setattr(outlines, "MOST_CROSSINGS", 20)
    circle = [(1e3 * math.cos(turn / 500), 1e3 * math.sin(turn / 500)) for turn in range(3141)]
    one, other = read_geojson(written(tmp_path / "twice.geojson", [circle], [circle]))
    assert one.polygon.equals(other.polygon)
