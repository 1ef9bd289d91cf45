"""Regions as ASAP writes them, in XML, and the tumour of CAMELYON's annotations."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree  # to write; what others wrote is read with defusedxml

from scmil.errors import DataError
from scmil.core.extras import need
from scmil.core.files import write_atomically
from scmil.slides.annotations.geojson import LARGEST_BYTES, Region
from scmil.slides.outlines import check_outlines
from scmil.slides.tissue import polygons

if TYPE_CHECKING:
    from shapely import MultiPolygon

TUMOUR = {"_0", "_1", "tumor", "tumour", "metastases"}  # groups of CAMELYON16 and 17, in small letters
NO_TUMOUR = {"_2", "normal"}  # drawn inside a tumour, to be taken out
HOLES = "_2"
DEEPEST = 16  # elements within each other; ASAP writes 4
WITH_AREA = {"Polygon", "Spline", "Rectangle"}


def read_asap(path: str | Path) -> list[Region]:
    """Read the polygons, splines and rectangles of an ASAP file; dots, and what has fewer than 3 points, have no area.

    Points are taken in the order of their `Order`, a spline is the polygon of its points, numbers may have decimal commas.
    """
    root = _parsed(Path(path))
    if root.tag != "ASAP_Annotations":
        raise DataError(f"{path} is no ASAP file: it begins with {root.tag!r}, and 'ASAP_Annotations' is needed.")
    shapely = need("shapely", "slides")
    drawn = []
    for annotation in root.iter("Annotation"):
        name, group = annotation.get("Name", ""), annotation.get("PartOfGroup", "")
        points = [_point(coordinate, f"{path}: annotation {name!r}") for coordinate in annotation.iter("Coordinate")]
        outline = [(x, y) for _, x, y in sorted(points, key=lambda point: point[0])]
        if annotation.get("Type", "Polygon") in WITH_AREA and len(outline) >= 3:
            drawn.append((name, outline, "" if group == "None" else group))
    check_outlines([outline for _, outline, _ in drawn], path)
    return [Region(name, polygons(shapely.Polygon(outline)), group) for name, outline, group in drawn]


def write_asap(regions: Iterable[Region], path: str | Path) -> None:
    """Write regions as ASAP reads them. ASAP knows no holes: they become polygons of the group `_2`, as in CAMELYON16.

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
    """The content of an ASAP file with these regions."""
    root = ElementTree.Element("ASAP_Annotations")
    annotations, groups = ElementTree.SubElement(root, "Annotations"), ElementTree.SubElement(root, "AnnotationGroups")
    names: dict[str, None] = {}  # in the order of appearance
    for region in regions:
        for part in region.polygon.geoms:
            _annotate(annotations, region.name, region.group, part.exterior)
            names[region.group] = None
            for hole in part.interiors:
                _annotate(annotations, f"{region.name}, hole", HOLES, hole)
                names[HOLES] = None
    for name in filter(None, names):
        group = ElementTree.SubElement(groups, "Group", Name=name, PartOfGroup="None", Color=_colour(name))
        ElementTree.SubElement(group, "Attributes")
    ElementTree.indent(root, "\t")
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def tumour(regions: Iterable[Region]) -> MultiPolygon:
    """The tumour of a CAMELYON annotation: the groups `_0`, `_1`, Tumor and metastases, less the groups `_2` and normal."""
    shapely = need("shapely", "slides")
    regions = list(regions)
    inside = [region.polygon for region in regions if region.group.lower() in TUMOUR]
    outside = [region.polygon for region in regions if region.group.lower() in NO_TUMOUR]
    if regions and not inside:
        met = ", ".join(sorted({repr(region.group) for region in regions}))
        raise DataError(
            f"none of {len(regions)} regions is tumour: their groups are {met}; _0, _1, Tumor or metastases is."
        )
    return polygons(shapely.difference(shapely.union_all(inside), shapely.union_all(outside)))


def _annotate(parent: ElementTree.Element, name: str, group: str, ring: Any) -> None:
    attributes = {"Name": name, "Type": "Polygon", "PartOfGroup": group or "None", "Color": _colour(group)}
    coordinates = ElementTree.SubElement(ElementTree.SubElement(parent, "Annotation", attributes), "Coordinates")
    for order, (x, y) in enumerate(ring.coords[:-1]):  # ASAP closes rings itself
        ElementTree.SubElement(coordinates, "Coordinate", Order=str(order), X=repr(float(x)), Y=repr(float(y)))


def _colour(group: str) -> str:
    return "#c80000" if group.lower() in TUMOUR else "#64ff00"


def _parsed(path: Path) -> Any:
    reader, refusals = need("defusedxml.ElementTree", "slides"), need("defusedxml.common", "slides")
    if not path.is_file():
        raise DataError(f"{path}: there is no such file.")
    if path.stat().st_size > LARGEST_BYTES:
        raise DataError(f"{path} has more than {LARGEST_BYTES // 2**20} MiB: no annotation is that large.")
    depth, root = 0, None
    try:
        for event, element in reader.iterparse(path, ("start", "end"), forbid_dtd=True):
            root = element if root is None else root
            depth += 1 if event == "start" else -1
            if depth > DEEPEST:
                raise DataError(f"{path} has elements nested more than {DEEPEST} deep, which no ASAP file has.")
        return root
    except refusals.DefusedXmlException:
        raise DataError(
            f"{path} declares a document type or entities, which no annotation needs, and is not read."
        ) from None
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # the last two: of an encoding that nobody knows
        raise DataError(f"{path} is not XML: {error}. Save the annotations in ASAP again.") from None


def _point(coordinate: Any, where: str) -> tuple[float, float, float]:
    try:
        order, x, y = (float(coordinate.attrib[key].replace(",", ".")) for key in ("Order", "X", "Y"))
    except (KeyError, ValueError):
        raise DataError(f"{where} has a point {dict(coordinate.attrib)}: Order, X and Y must be numbers.") from None
    if not (math.isfinite(order) and math.isfinite(x) and math.isfinite(y)):
        raise DataError(f"{where} has a point {dict(coordinate.attrib)}, which is not finite.")
    return order, x, y
