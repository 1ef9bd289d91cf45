from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("shapely")

from shapely import MultiPolygon, box

from scmil.errors import DataError
from scmil.slides.annotations.asap import write_asap
from scmil.slides.annotations.geojson import Region, write_geojson
from scmil.slides.annotations.lookup import find_annotation, find_ground_truth, read_lesions

LESION, NECROSIS = (
    MultiPolygon([box(0, 0, 10, 10) - box(2, 2, 4, 4)]),
    MultiPolygon([box(20, 0, 30, 10)]),
)


def drawn(path: Path, **areas: MultiPolygon) -> Path:
    regions = [Region(name, area, name) for name, area in areas.items()]
    (write_asap if path.suffix == ".xml" else write_geojson)(regions, path)
    return path


@pytest.mark.parametrize("suffix", [".xml", ".geojson"])
def test_both_formats_give_the_same_areas_with_holes(tmp_path: Path, suffix: str) -> None:
    path = drawn(tmp_path / f"slide{suffix}", Tumor=LESION, Necrosis=NECROSIS)
    assert [read_lesions(path, group).area for group in (None, "tumor", "Necrosis", "any")] == [
        96,
        96,
        100,
        196,
    ]


def test_decimal_commas_are_read(tmp_path: Path) -> None:
    path = drawn(tmp_path / "slide.xml", _0=MultiPolygon([box(0.5, 0.5, 2.5, 2.5)]))
    path.write_text(path.read_text().replace(".5", ",5"))
    assert read_lesions(path).area == 4


def test_a_missing_class_is_rejected_with_the_existing_ones(tmp_path: Path) -> None:
    path = drawn(tmp_path / "slide.geojson", Stroma=LESION)
    with pytest.raises(
        DataError,
        match=r"slide\.geojson: none of 1 regions is tumour.*Give the class of the tumour",
    ):
        read_lesions(path)
    with pytest.raises(
        DataError,
        match=r"slide\.geojson has no region of the class 'Tumor'; its classes are 'Stroma'\.",
    ):
        read_lesions(path, "Tumor")


def test_the_file_of_asap_comes_first_and_names_cannot_leave_the_folder(tmp_path: Path) -> None:
    drawn(tmp_path / "a.geojson", Tumor=LESION)
    assert find_annotation("a", tmp_path) == tmp_path / "a.geojson"
    drawn(tmp_path / "a.xml", Tumor=LESION)
    assert find_annotation("a", tmp_path) == tmp_path / "a.xml"
    with pytest.raises(DataError, match=r"slide '\.\./a' has a name that is not a file name"):
        find_annotation("../a", tmp_path)


def test_a_slide_without_ground_truth_has_a_reason(tmp_path: Path) -> None:
    (tmp_path / "empty.geojson").write_text('{"type": "FeatureCollection", "features": []}')
    drawn(tmp_path / "tumor.xml", _0=LESION)
    assert find_ground_truth(tmp_path, "tumor", 1) == (
        read_lesions(tmp_path / "tumor.xml"),
        "tumor.xml",
    )
    assert find_ground_truth(tmp_path, "empty", 1) == (
        None,
        "positive by its label, and no tumour in empty.geojson",
    )
    normal, source = find_ground_truth(tmp_path, "empty", None)
    assert (normal is not None and normal.is_empty, source) == (True, "empty.geojson")
