from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scmil.errors import DataError
from scmil.slides.annotations import geojson
from scmil.slides.annotations.geojson import (
    Region,
    read_geojson,
    tissue_from_geojson,
    write_geojson,
)
from scmil.slides.tissue import Tissue

shapely = pytest.importorskip("shapely")

SQUARE = [[[0, 0], [100, 0], [100, 100], [0, 100], [0, 0]]]
POLYGON = {"type": "Polygon", "coordinates": SQUARE}


@dataclass
class Blank:
    """A slide that nobody reads."""

    size: tuple[int, int] = (1000, 800)
    id: str = "blank"
    digest: str | None = None


def feature(geometry: Any = POLYGON, **properties: Any) -> dict[str, Any]:
    return {"type": "Feature", "geometry": geometry, "properties": properties}


def square(left: int, top: int, side: int, group: str = "Tissue") -> dict[str, Any]:
    box = shapely.box(left, top, left + side, top + side)
    return feature(json.loads(shapely.to_geojson(box)), classification={"name": group})


def saved(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "regions.geojson"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def tissue_of(tmp_path: Path, *features: dict[str, Any]) -> Tissue:
    return tissue_from_geojson(saved(tmp_path, list(features)), Blank())  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------ writing


def test_tissue_goes_out_and_comes_back_the_same(tmp_path: Path) -> None:
    ring = shapely.box(0, 0, 500.123456789, 400) - shapely.box(100, 100, 200, 200)
    written = Tissue(
        shapely.MultiPolygon([ring, shapely.box(600, 600, 700, 700)]), "blank", (1000, 800)
    )
    write_geojson(written, tmp_path / "tissue.geojson")
    read = tissue_from_geojson(tmp_path / "tissue.geojson", Blank())  # type: ignore[arg-type]
    assert read.area.equals(written.area)
    assert (read.slide_id, read.slide_size, read.warnings) == ("blank", (1000, 800), ())
    assert (read.recipe["method"], read.recipe["file"]) == ("geojson", "tissue.geojson")


def test_the_file_is_what_qupath_opens(tmp_path: Path) -> None:
    write_geojson(
        Tissue(shapely.MultiPolygon([shapely.box(0, 0, 9, 9)]), "s", (10, 10)),
        tmp_path / "tissue.geojson",
    )
    content = json.loads((tmp_path / "tissue.geojson").read_text())
    assert content["type"] == "FeatureCollection"
    [piece] = content["features"]
    assert piece["properties"]["objectType"] == "annotation"
    assert piece["properties"]["classification"] == {"name": "Tissue", "color": [0, 150, 60]}
    assert str(uuid.UUID(piece["id"])) == piece["id"]
    [ring] = piece["geometry"]["coordinates"]
    assert ring[0] == ring[-1]


def test_the_same_regions_have_the_same_ids_and_twins_have_different_ones(tmp_path: Path) -> None:
    regions = [Region("a", shapely.MultiPolygon([shapely.box(0, 0, 9, 9)])) for _ in range(2)]
    contents = []
    for name in ("one", "two"):
        write_geojson(regions, tmp_path / name)
        contents.append((tmp_path / name).read_bytes())
    assert contents[0] == contents[1]
    assert len({one["id"] for one in json.loads(contents[0])["features"]}) == 2


def test_a_slide_without_tissue_is_a_file_without_features(tmp_path: Path) -> None:
    write_geojson(Tissue(shapely.MultiPolygon(), "s", (10, 10)), tmp_path / "none.geojson")
    assert read_geojson(tmp_path / "none.geojson") == []
    assert tissue_from_geojson(tmp_path / "none.geojson", Blank()).area.is_empty  # type: ignore[arg-type]


def test_a_region_of_two_parts_stays_one_region(tmp_path: Path) -> None:
    both = shapely.MultiPolygon([shapely.box(0, 0, 9, 9), shapely.box(20, 20, 30, 30)])
    write_geojson([Region("Grüße", both, "Tumor")], tmp_path / "one.geojson")
    [region] = read_geojson(tmp_path / "one.geojson")
    assert (region.name, region.group, region.polygon.equals(both)) == ("Grüße", "Tumor", True)


# ------------------------------------------------------------------------------------------ reading


@pytest.mark.parametrize(
    "content",
    [
        feature(),
        [feature()],
        {"type": "FeatureCollection", "features": [feature()]},
        POLYGON,
        {"type": "MultiPolygon", "coordinates": [SQUARE]},
        {
            "type": "GeometryCollection",
            "geometries": [POLYGON, {"type": "Point", "coordinates": [5, 5]}],
        },
        {"type": "Polygon", "coordinates": [SQUARE[0][:-1]]},  # not closed
        {
            "type": "Polygon",
            "coordinates": [[[*xy, 0.0] for xy in SQUARE[0]]],
            "plane": {"c": -1, "z": 0, "t": 0},
        },
        {"type": "FeatureCollection", "crs": {"type": "name"}, "features": [feature(tissue_id=0)]},
    ],
)
def test_every_way_to_write_a_polygon_is_read(tmp_path: Path, content: Any) -> None:
    [region] = read_geojson(saved(tmp_path, content))
    assert region.polygon.area == 10_000


@pytest.mark.parametrize(
    ("properties", "name", "group"),
    [
        (dict(classification={"name": "Tumor", "colorRGB": -65536}, name="a"), "a", "Tumor"),
        (
            dict(classification={"names": ["Tumor", "Positive"], "color": [200, 0, 0]}),
            "",
            "Tumor: Positive",
        ),
        (dict(classification="Tumor"), "", "Tumor"),
        (dict(measurements=[{"name": "Area", "value": 3}]), "", ""),
        (dict(measurements={"Area": 3}, objectType="annotation"), "", ""),
        (dict(tissue_id=3), "tissue 3", ""),
    ],
)
def test_names_and_classes_of_old_and_new_versions_are_read(
    tmp_path: Path, properties: dict[str, Any], name: str, group: str
) -> None:
    [region] = read_geojson(saved(tmp_path, feature(**properties)))
    assert (region.name, region.group) == (name, group)


def test_properties_may_be_missing(tmp_path: Path) -> None:
    content = [
        {"type": "Feature", "geometry": POLYGON, "properties": None},
        {"type": "Feature", "geometry": POLYGON},
    ]
    assert [region.name for region in read_geojson(saved(tmp_path, content))] == ["", ""]


def test_detections_cells_and_tiles_are_passed_over(tmp_path: Path) -> None:
    old = {**feature(), "id": "PathCellObject"}
    others = [feature(objectType=kind) for kind in ("detection", "tile", "cell", "root")]
    assert (
        len(
            read_geojson(
                saved(tmp_path, [old, *others, {**feature(), "id": "PathAnnotationObject"}])
            )
        )
        == 1
    )
    assert read_geojson(saved(tmp_path, others)) == []


def test_objects_within_objects_are_read(tmp_path: Path) -> None:
    content = feature(name="outer", childObjects=[feature(name="inner")])
    assert [region.name for region in read_geojson(saved(tmp_path, content))] == ["outer", "inner"]


def test_a_polygon_that_crosses_itself_becomes_valid(tmp_path: Path) -> None:
    bow = {"type": "Polygon", "coordinates": [[[0, 0], [20, 20], [20, 0], [0, 20], [0, 0]]]}
    [region] = read_geojson(saved(tmp_path, bow))
    assert region.polygon.is_valid
    assert region.polygon.area == 200


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{ not JSON", "is not JSON: .* Export the annotations as GeoJSON"),
        ("\udcff", "is not JSON"),
        ("[" * 100_000, "levels of nested|nested too deeply"),
        ('{"childObjects":' * 3, "is not JSON"),
        ({"slides": []}, "is not GeoJSON: found 'None', expected a feature"),
        (3, "is not GeoJSON: found '3'"),
        ({"type": "FeatureCollection"}, "is not GeoJSON"),
        ({"type": "Feature", "properties": {}}, "a feature without a geometry"),
        (
            feature({"type": "Point", "coordinates": [1, 2]}),
            "contains no polygon. Draw regions with an area",
        ),
        (
            '{"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [NaN, 1]]]}',
            "NaN is not a coordinate",
        ),
        (
            '{"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1e999, 1]]]}',
            "a coordinate is not finite",
        ),
        ({"type": "Polygon", "coordinates": [[[0, 0], [1, 0]]]}, "a ring has fewer than 3 points"),
        (
            {"type": "Polygon", "coordinates": [[[0, 0], [1], [1, 1]]]},
            "a Polygon that cannot be read",
        ),
        ({"type": "Polygon", "coordinates": [["a", "b", "c"]]}, "a Polygon that cannot be read"),
        (
            {"type": "Polygon", "coordinates": [[[0, 0], {"a": 1}, [1, 1]]]},
            "a Polygon that cannot be read",
        ),
        ({"type": "MultiPolygon", "coordinates": 3}, "a MultiPolygon that cannot be read"),
    ],
)
def test_files_that_are_wrong_are_rejected(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "regions.geojson"
    path.write_bytes(
        (content if isinstance(content, str) else json.dumps(content)).encode(
            errors="surrogateescape"
        )
    )
    with pytest.raises(DataError, match=message):
        read_geojson(path)


def test_objects_and_geometries_nested_without_end_are_rejected(tmp_path: Path) -> None:
    child, geometry = feature(), dict(POLYGON)
    for _ in range(50):
        child = feature(childObjects=[child])
        geometry = {"type": "GeometryCollection", "geometries": [geometry]}
    for content in (child, geometry):
        with pytest.raises(DataError, match=r"levels of nested|nested too deeply"):
            read_geojson(saved(tmp_path, content))


def test_a_missing_and_an_enormous_file_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_geojson(tmp_path / "none.geojson")
    monkeypatch.setattr(geojson, "LARGEST_BYTES", 2**20)
    with pytest.raises(DataError, match="more than 1 MiB"):
        read_geojson(saved(tmp_path, " " * (2**20 + 1)))


# ----------------------------------------------------------------------------------- back to tissue


@pytest.mark.parametrize("group", ["Ignore*", "Exclude", "hole"])
def test_regions_to_leave_out_are_taken_from_the_others(tmp_path: Path, group: str) -> None:
    tissue = tissue_of(tmp_path, square(50, 50, 100, group), square(0, 0, 100), square(80, 0, 100))
    assert tissue.area.area == 180 * 100 - 100 * 50  # drawn twice counts once
    assert tissue.area.is_valid


def test_only_regions_to_leave_out_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"only excluded regions \(1\)"):
        tissue_of(tmp_path, square(0, 0, 100, "Ignore*"))


def test_what_lies_outside_the_slide_is_cut_off_and_reported(tmp_path: Path) -> None:
    tissue = tissue_of(tmp_path, square(900, 0, 200))
    assert tissue.area.bounds == (900, 0, 1000, 200)
    [warning] = tissue.warnings
    assert warning.startswith(
        "50 % of the regions of regions.geojson lie outside the slide of 1000 x 800 pixels"
    )


def test_regions_that_all_lie_outside_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"all regions lie outside slide 'blank' of 1000 x 800 pixels.* level-0 pixels",
    ):
        tissue_of(tmp_path, square(5000, 0, 200))
