from __future__ import annotations

from pathlib import Path

import pytest

from scmil.errors import DataError
from scmil.slides.annotations import asap
from scmil.slides.annotations.asap import read_asap, tumour, write_asap
from scmil.slides.annotations.geojson import Region

shapely = pytest.importorskip("shapely")
pytest.importorskip("defusedxml")

CAMELYON = Path(__file__).parents[3] / "data" / "camelyon16" / "tumor_001_derived_from_ncrf.xml"


def annotation(points: str, group: str = "_0", kind: str = "Polygon", name: str = "a") -> str:
    """Points are `order:x:y`, with blanks between."""
    coordinates = "".join(
        '<Coordinate Order="{}" X="{}" Y="{}" />'.format(*point.split(":"))
        for point in points.split()
    )
    attributes = f'Name="{name}" Type="{kind}" PartOfGroup="{group}" Color="#F4FA58"'
    return f"<Annotation {attributes}><Coordinates>{coordinates}</Coordinates></Annotation>"


def saved(tmp_path: Path, *annotations: str, before: str = "") -> Path:
    path = tmp_path / "slide.xml"
    body = f"<ASAP_Annotations><Annotations>{''.join(annotations)}</Annotations></ASAP_Annotations>"
    path.write_text(f'<?xml version="1.0"?>{before}{body}')
    return path


def region(left: float, top: float, side: float, group: str) -> Region:
    return Region(
        group, shapely.MultiPolygon([shapely.box(left, top, left + side, top + side)]), group
    )


SQUARE = "0:0:0 1:10:0 2:10:10 3:0:10"


# ------------------------------------------------------------------------------------------ reading


def test_points_are_taken_in_their_order(tmp_path: Path) -> None:
    # 10 comes after 2.
    [square] = read_asap(saved(tmp_path, annotation("2:10:10 0:0:0 10:0:10 1:10:0")))
    assert square.polygon.equals(shapely.box(0, 0, 10, 10))


def test_decimal_commas_are_read(tmp_path: Path) -> None:
    [square] = read_asap(saved(tmp_path, annotation("0:0,5:0 1:10,5:0 2:10.5:10 3:0.5:10")))
    assert square.polygon.bounds == (0.5, 0, 10.5, 10)


def test_names_and_groups_are_read(tmp_path: Path) -> None:
    one, other = read_asap(
        saved(tmp_path, annotation(SQUARE, "metastases", name="lesion"), annotation(SQUARE, "None"))
    )
    assert (one.name, one.group, other.group) == ("lesion", "metastases", "")


def test_only_what_has_an_area_is_a_region(tmp_path: Path) -> None:
    shapes = [
        annotation(SQUARE, kind=kind)
        for kind in ("Polygon", "Spline", "Rectangle", "Dot", "PointSet")
    ]
    assert len(read_asap(saved(tmp_path, *shapes, annotation("0:1:1 1:2:2")))) == 3
    assert read_asap(saved(tmp_path)) == []


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ("0:a:0 1:1:0 2:1:1", "annotation 'a' has a point .*: Order, X and Y must be numbers"),
        ("0:nan:0 1:1:0 2:1:1", "which is not finite"),
        ("0:1e999:0 1:1:0 2:1:1", "which is not finite"),
    ],
)
def test_points_that_are_no_numbers_are_rejected(tmp_path: Path, points: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_asap(saved(tmp_path, annotation(points)))


def test_a_point_without_coordinates_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Order, X and Y must be numbers"):
        read_asap(
            saved(
                tmp_path,
                '<Annotation Name="a"><Coordinates><Coordinate Order="0" /></Coordinates>'
                "</Annotation>",
            )
        )


LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))


@pytest.mark.parametrize(
    "before",
    [
        f'<!DOCTYPE x [<!ENTITY l0 "ha">{LAUGHS}]>',  # a kilobyte that becomes a terabyte
        '<!DOCTYPE x [<!ENTITY secret SYSTEM "file:///etc/hostname">]>',
        '<!DOCTYPE x SYSTEM "http://127.0.0.1:9/x.dtd">',
        "<!DOCTYPE x>",
    ],
)
def test_files_that_attack_are_rejected(tmp_path: Path, before: str) -> None:
    with pytest.raises(DataError, match="declares a document type or entities"):
        read_asap(saved(tmp_path, annotation(SQUARE), before=before))


def test_other_files_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "slide.xml"
    with pytest.raises(DataError, match="no such file"):
        read_asap(path)
    path.write_text("<ASAP_Annotations><Annotations>")
    with pytest.raises(DataError, match="is not XML"):
        read_asap(path)
    path.write_text('<Annotations MicronsPerPixel="0.25"></Annotations>')
    with pytest.raises(
        DataError, match="its root element is 'Annotations', expected 'ASAP_Annotations'"
    ):
        read_asap(path)
    monkeypatch.setattr(asap, "LARGEST_BYTES", 10)
    with pytest.raises(DataError, match="too large for annotations"):
        read_asap(path)


# ------------------------------------------------------------------------------------------ writing


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    parts = shapely.MultiPolygon([shapely.box(0.25, 0, 10, 10), shapely.box(20, 20, 1e6 / 3, 30)])
    write_asap([Region('a <"&', parts, "Tumor"), region(50, 50, 5, "")], tmp_path / "slide.xml")
    read = read_asap(tmp_path / "slide.xml")
    assert [(one.name, one.group) for one in read] == [('a <"&', "Tumor")] * 2 + [("", "")]
    assert shapely.union_all([one.polygon for one in read[:2]]).equals(parts)
    assert '<Group Name="Tumor" PartOfGroup="None"' in (tmp_path / "slide.xml").read_text()


# ------------------------------------------------------------------------------------------- tumour


def test_the_tumour_is_its_groups_less_the_holes() -> None:
    regions = [
        region(0, 0, 10, "_0"),
        region(5, 0, 10, "_1"),
        region(100, 0, 10, "Tumor"),
        region(2, 2, 4, "_2"),
    ]
    assert tumour([*regions, region(500, 0, 10, "something else")]).area == 150 + 100 - 16
    assert tumour([region(0, 0, 10, "metastases"), region(0, 0, 5, "normal")]).area == 75


def test_no_regions_are_no_tumour_and_unknown_groups_are_rejected() -> None:
    assert tumour([]).is_empty
    with pytest.raises(DataError, match="none of 1 regions is tumour: their groups are 'lymph'"):
        tumour([region(0, 0, 10, "lymph")])


def test_the_annotation_of_a_camelyon_slide_is_read() -> None:
    regions = read_asap(CAMELYON)
    assert len(regions) == CAMELYON.read_text().count("<Annotation ")
    assert {one.group for one in regions} <= {"_0", "_1", "_2"}
    area = tumour(regions)
    assert area.is_valid
    left, top, right, bottom = area.bounds
    assert 0 < left < right < 97_792  # the size of tumor_001
    assert 0 < top < bottom < 221_184
    assert shapely.union_all([one.polygon for one in regions]).area >= area.area > 0


def test_elements_that_are_nested_deeply_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "deep.xml"
    path.write_text(
        "<ASAP_Annotations>"
        + "<Annotation>" * 100_000
        + "</Annotation>" * 100_000
        + "</ASAP_Annotations>"
    )
    with pytest.raises(DataError, match=r"^[^:]*has more than 16 nested elements"):
        read_asap(path)
