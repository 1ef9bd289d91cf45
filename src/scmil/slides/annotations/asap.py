"""Read and write annotations of ASAP (XML), and the tumour regions of CAMELYON."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree  # for writing only; files are read with defusedxml

from scmil.core.atomic import write_atomically
from scmil.core.extras import import_extra
from scmil.errors import DataError
from scmil.slides.annotations.geojson import LARGEST_BYTES, Region
from scmil.slides.annotations.outlines import check_outlines
from scmil.slides.tissue import polygons

if TYPE_CHECKING:
    from shapely import MultiPolygon

# Groups of CAMELYON16 and 17, in lower case.
TUMOUR = {"_0", "_1", "tumor", "tumour", "metastases"}
NO_TUMOUR = {"_2", "normal"}  # drawn inside a tumour and excluded from it
HOLES = "_2"
DEEPEST = 16  # nested elements; ASAP writes 4
WITH_AREA = {"Polygon", "Spline", "Rectangle"}


def read_asap(path: str | Path) -> list[Region]:
    """Read the polygons, splines and rectangles of an ASAP file.

    Dots and annotations with fewer than 3 points are skipped, since they have no area. Points are
    sorted by `Order`, a spline is read as the polygon of its points, and numbers may have decimal
    commas.
    """
    root = _parse_xml(Path(path))
    if root.tag != "ASAP_Annotations":
        raise DataError(
            f"{path} is not an ASAP file: its root element is {root.tag!r}, expected "
            "'ASAP_Annotations'."
        )
    shapely = import_extra("shapely", "slides")
    drawn = []
    for annotation in root.iter("Annotation"):
        name, group = annotation.get("Name", ""), annotation.get("PartOfGroup", "")
        points = [
            _parse_point(coordinate, f"{path}: annotation {name!r}")
            for coordinate in annotation.iter("Coordinate")
        ]
        outline = [(x, y) for _, x, y in sorted(points, key=lambda point: point[0])]
        if annotation.get("Type", "Polygon") in WITH_AREA and len(outline) >= 3:
            drawn.append((name, outline, "" if group == "None" else group))
    check_outlines([outline for _, outline, _ in drawn], path)
    return [
        Region(name, polygons(shapely.Polygon(outline)), group) for name, outline, group in drawn
    ]


def write_asap(regions: Iterable[Region], path: str | Path) -> None:
    """Write regions for ASAP. Holes become polygons of the group `_2`, as in CAMELYON16.

    >>> import tempfile
    >>> from shapely import MultiPolygon, box
    >>> path = Path(tempfile.mkdtemp()) / "slide.xml"
    >>> ring = MultiPolygon([box(0, 0, 9, 9) - box(3, 3, 6, 6)])
    >>> write_asap([Region("lesion", ring, "_0")], path)
    >>> [(region.name, region.group) for region in read_asap(path)], tumour(read_asap(path)).area
    ([('lesion', '_0'), ('lesion, hole', '_2')], 72.0)
    """
    write_atomically(Path(path), asap_bytes(regions))


def asap_bytes(regions: Iterable[Region]) -> bytes:
    """Format regions as an ASAP file."""
    root = ElementTree.Element("ASAP_Annotations")
    annotations, groups = (
        ElementTree.SubElement(root, "Annotations"),
        ElementTree.SubElement(root, "AnnotationGroups"),
    )
    names: dict[str, None] = {}  # in the order of appearance
    for region in regions:
        for part in region.polygon.geoms:
            _add_annotation(annotations, region.name, region.group, part.exterior)
            names[region.group] = None
            for hole in part.interiors:
                _add_annotation(annotations, f"{region.name}, hole", HOLES, hole)
                names[HOLES] = None
    for name in filter(None, names):
        group = ElementTree.SubElement(
            groups, "Group", Name=name, PartOfGroup="None", Color=_colour(name)
        )
        ElementTree.SubElement(group, "Attributes")
    ElementTree.indent(root, "\t")
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def tumour(regions: Iterable[Region]) -> MultiPolygon:
    """The tumour of a CAMELYON annotation.

    These are the groups `_0`, `_1`, Tumor and metastases, without the groups `_2` and normal.
    """
    shapely = import_extra("shapely", "slides")
    regions = list(regions)
    inside = [region.polygon for region in regions if region.group.lower() in TUMOUR]
    outside = [region.polygon for region in regions if region.group.lower() in NO_TUMOUR]
    if regions and not inside:
        groups = ", ".join(sorted({repr(region.group) for region in regions}))
        raise DataError(
            f"none of {len(regions)} regions is tumour: their groups are {groups}; expected _0, "
            "_1, Tumor or metastases."
        )
    return polygons(shapely.difference(shapely.union_all(inside), shapely.union_all(outside)))


def _add_annotation(parent: ElementTree.Element, name: str, group: str, ring: Any) -> None:
    attributes = {
        "Name": name,
        "Type": "Polygon",
        "PartOfGroup": group or "None",
        "Color": _colour(group),
    }
    coordinates = ElementTree.SubElement(
        ElementTree.SubElement(parent, "Annotation", attributes), "Coordinates"
    )
    for order, (x, y) in enumerate(ring.coords[:-1]):  # ASAP closes rings
        ElementTree.SubElement(
            coordinates, "Coordinate", Order=str(order), X=repr(float(x)), Y=repr(float(y))
        )


def _colour(group: str) -> str:
    return "#c80000" if group.lower() in TUMOUR else "#64ff00"


def _parse_xml(path: Path) -> Any:
    reader, exceptions = (
        import_extra("defusedxml.ElementTree", "slides"),
        import_extra("defusedxml.common", "slides"),
    )
    if not path.is_file():
        raise DataError(f"{path}: no such file.")
    if path.stat().st_size > LARGEST_BYTES:
        raise DataError(
            f"{path} has more than {LARGEST_BYTES // 2**20} MiB, too large for annotations."
        )
    depth, root = 0, None
    try:
        for event, element in reader.iterparse(path, ("start", "end"), forbid_dtd=True):
            root = element if root is None else root
            depth += 1 if event == "start" else -1
            if depth > DEEPEST:
                raise DataError(
                    f"{path} has more than {DEEPEST} nested elements, so it is not an ASAP file."
                )
        return root
    except DataError:
        raise
    except exceptions.DefusedXmlException:
        raise DataError(
            f"{path} declares a document type or entities and was not read. Save the annotations "
            "in ASAP again."
        ) from None
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        # The last two are raised for unknown encodings.
        raise DataError(
            f"{path} is not XML: {error}. Save the annotations in ASAP again."
        ) from None


def _parse_point(coordinate: Any, where: str) -> tuple[float, float, float]:
    try:
        order, x, y = (
            float(coordinate.attrib[key].replace(",", ".")) for key in ("Order", "X", "Y")
        )
    except (KeyError, ValueError):
        raise DataError(
            f"{where} has a point {dict(coordinate.attrib)}: Order, X and Y must be numbers."
        ) from None
    if not (math.isfinite(order) and math.isfinite(x) and math.isfinite(y)):
        raise DataError(f"{where} has a point {dict(coordinate.attrib)}, which is not finite.")
    return order, x, y
