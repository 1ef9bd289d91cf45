"""Read and write regions and tissue as GeoJSON for QuPath."""

from __future__ import annotations

import json
import math
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from scmil.core.atomic import write_atomically
from scmil.core.extras import import_extra
from scmil.core.fingerprint import sha256_of_file
from scmil.core.text import encode_utf8
from scmil.errors import DataError
from scmil.slides.annotations.outlines import Ring, check_outlines
from scmil.slides.tissue import Tissue, polygons

if TYPE_CHECKING:
    from shapely import MultiPolygon

    from scmil.slides.slide import Slide

COLOURS = {
    "tissue": (0, 150, 60),
    "tumor": (200, 0, 0),
    "tumour": (200, 0, 0),
    "ignore*": (180, 180, 180),
}
OTHER_COLOUR = (60, 110, 200)
# Prefixes of the class names whose regions are excluded from tissue.
LEFT_OUT = ("ignore", "exclude", "hole")
NO_ANNOTATIONS = {"detection", "tile", "cell", "tma_core", "root"}
LARGEST_BYTES = 256 * 2**20
DEEPEST = 32  # nested objects; annotations have two or three levels
# As written by `write_geojson`.
DIGEST, HEAD_BYTES = re.compile(rb'"slide_digest": "([0-9a-f]{64})"'), 256
IDS = uuid.UUID("6f1c0f6e-5a0b-5d0c-9b38-0d7f3c1f2a55")


@dataclass(frozen=True, eq=False)
class Region:
    """An annotated area: its name, its polygons in level-0 pixels, and its class or group."""

    name: str
    polygon: MultiPolygon
    group: str = ""


def write_geojson(
    content: Tissue | Iterable[Region], path: str | Path, slide_digest: str | None = None
) -> None:
    """Write tissue or regions for QuPath, one annotation per piece or region.

    With `slide_digest`, `tissue_from_geojson` rejects the file for any other slide; a file that was
    saved by QuPath does not contain it.

    >>> import tempfile
    >>> from shapely import MultiPolygon, box
    >>> path = Path(tempfile.mkdtemp()) / "slide.geojson"
    >>> write_geojson([Region("lesion 1", MultiPolygon([box(0, 0, 40, 30)]), "Tumor")], path)
    >>> [(region.name, region.group, region.polygon.area) for region in read_geojson(path)]
    [('lesion 1', 'Tumor', 1200.0)]
    """
    write_atomically(Path(path), geojson_bytes(content, slide_digest))


def geojson_bytes(content: Tissue | Iterable[Region], slide_digest: str | None = None) -> bytes:
    """Format tissue or regions as a GeoJSON file."""
    regions = _tissue_regions(content) if isinstance(content, Tissue) else list(content)
    seen: Counter[str] = Counter()
    features = []
    for region in regions:
        properties = _properties(region)
        geometry = _geometry(region.polygon)
        # ASCII for any name.
        same = json.dumps([geometry, properties], sort_keys=True)
        number = uuid.uuid5(IDS, f"{same} {seen[same]}")
        seen[same] += 1
        features.append(
            {"type": "Feature", "id": str(number), "geometry": geometry, "properties": properties}
        )
    about = {} if slide_digest is None else {"slide_digest": slide_digest}
    page = {"type": "FeatureCollection", **about, "features": features}
    return encode_utf8(json.dumps(page, ensure_ascii=False, allow_nan=False))


def _tissue_regions(tissue: Tissue) -> list[Region]:
    pieces = [polygons(piece) for piece in tissue.area.geoms]
    return [
        Region(f"tissue {number}", piece, "Tissue") for number, piece in enumerate(pieces, start=1)
    ]


def _properties(region: Region) -> dict[str, Any]:
    properties: dict[str, Any] = {"objectType": "annotation"}
    if region.name:
        properties["name"] = region.name
    if region.group:
        colour = COLOURS.get(region.group.lower(), OTHER_COLOUR)
        properties["classification"] = {"name": region.group, "color": list(colour)}
    return properties


def _geometry(area: MultiPolygon) -> dict[str, Any]:
    each = [
        [[list(xy[:2]) for xy in ring.coords] for ring in (part.exterior, *part.interiors)]
        for part in area.geoms
    ]
    return (
        {"type": "Polygon", "coordinates": each[0]}
        if len(each) == 1
        else {"type": "MultiPolygon", "coordinates": each}
    )


def read_geojson(path: str | Path) -> list[Region]:
    """Read the annotations of a GeoJSON file of QuPath (any version), TRIDENT or other programs.

    Detections, cells and tiles are skipped, and so are points and lines, which have no area.
    """
    drawn: list[tuple[dict[str, Any], list[list[Ring]]]] = []
    areas_expected = False
    for feature in _iterate_features(_parse_geojson(Path(path)), path):
        if _object_type(feature) in NO_ANNOTATIONS:
            continue
        areas_expected = True
        if parts := list(_iterate_polygons(feature.get("geometry"), path)):
            drawn.append((feature, parts))
    if areas_expected and not drawn:
        raise DataError(
            f"{path} contains no polygon. Draw regions with an area, as polygons or with the brush."
        )
    check_outlines([ring for _, parts in drawn for rings in parts for ring in rings], path)
    return [
        Region(_name(feature), _merge_polygons(parts), _class(feature)) for feature, parts in drawn
    ]


def _merge_polygons(parts: list[list[Ring]]) -> MultiPolygon:
    """Merge polygons, each an outer ring and its holes, into one region."""
    shapely = import_extra("shapely", "slides")
    return polygons(
        shapely.union_all([polygons(shapely.Polygon(rings[0], rings[1:])) for rings in parts])
    )


def tissue_from_geojson(path: str | Path, slide: Slide) -> Tissue:
    """Read the tissue of a slide: all regions except the classes Ignore*, Exclude and Hole."""
    shapely = import_extra("shapely", "slides")
    regions = read_geojson(path)
    with Path(path).open("rb") as file:
        made_from = DIGEST.search(file.read(HEAD_BYTES))
    if made_from and made_from[1].decode() != slide.digest:
        raise DataError(
            f"{path} contains the tissue of another slide than {slide.path}. Delete it; the tissue "
            "of this slide will be detected."
        )
    out = [region.polygon for region in regions if region.group.lower().startswith(LEFT_OUT)]
    drawn = [region.polygon for region in regions if not region.group.lower().startswith(LEFT_OUT)]
    if out and not drawn:
        raise DataError(
            f"{path} contains only excluded regions ({len(out)}) and no tissue. Draw the tissue."
        )
    everything = shapely.union_all(drawn)
    area = polygons(shapely.intersection(everything, shapely.box(0, 0, *slide.size)))
    extent = f"{slide.size[0]} x {slide.size[1]}"
    if drawn and area.is_empty:
        raise DataError(
            f"{path}: all regions lie outside slide {slide.id!r} of {extent} pixels. Coordinates "
            "must be level-0 pixels, from the top-left corner of this slide."
        )
    outside = everything.area - area.area
    warnings: tuple[str, ...] = ()
    if outside > 1e-9 * everything.area:
        warnings = (
            f"{100 * outside / everything.area:.2g} % of the regions of {Path(path).name} lie "
            f"outside the slide of {extent} pixels and were clipped.",
        )
    recipe = {
        "method": "geojson",
        "file": Path(path).name,
        "sha256": sha256_of_file(path),
    }
    return Tissue(
        polygons(shapely.difference(area, shapely.union_all(out))),
        slide.id,
        slide.size,
        recipe,
        warnings,
    )


# ------------------------------------------------------------------------------------------ reading


def _parse_geojson(path: Path) -> Any:
    def reject_constant(word: str) -> NoReturn:
        raise DataError(f"{path}: {word} is not a coordinate. All numbers must be finite.")

    if not path.is_file():
        raise DataError(f"{path}: no such file.")
    if path.stat().st_size > LARGEST_BYTES:
        raise DataError(
            f"{path} has more than {LARGEST_BYTES // 2**20} MiB. Save the annotations without the "
            "detections."
        )
    try:
        return json.loads(path.read_bytes(), parse_constant=reject_constant)
    except RecursionError:
        raise DataError(f"{path} is nested too deeply to be GeoJSON.") from None
    except ValueError as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{path} is not JSON: {error}. Export the annotations as GeoJSON."
        ) from None


def _iterate_features(content: Any, path: str | Path, depth: int = 0) -> Iterator[dict[str, Any]]:
    """All features of a file, including nested ones."""
    if depth > DEEPEST:
        raise DataError(
            f"{path} has more than {DEEPEST} levels of nested objects. Export the annotations "
            "again."
        )
    if isinstance(content, list):
        for item in content:
            yield from _iterate_features(item, path, depth + 1)
    elif isinstance(content, dict) and content.get("type") == "FeatureCollection":
        yield from _iterate_features(content.get("features"), path, depth + 1)
    elif isinstance(content, dict) and content.get("type") == "Feature":
        yield content
        for owner in (content, _feature_properties(content)):
            yield from _iterate_features(owner.get("childObjects") or [], path, depth + 1)
    elif isinstance(content, dict) and ("coordinates" in content or "geometries" in content):
        yield {"type": "Feature", "geometry": content}
    else:
        actual = content.get("type") if isinstance(content, dict) else content
        raise DataError(
            f"{path} is not GeoJSON: found {str(actual)[:60]!r}, expected a feature or a geometry."
        )


def _iterate_polygons(geometry: Any, path: str | Path, depth: int = 0) -> Iterator[list[Ring]]:
    """The polygons of a geometry, each as a list of rings."""
    if depth > DEEPEST:
        raise DataError(
            f"{path} has more than {DEEPEST} levels of nested geometries. Export the annotations "
            "again."
        )
    if not isinstance(geometry, dict) or not isinstance(geometry.get("type"), str):
        raise DataError(
            f"{path} has a feature without a geometry. Export the annotations as GeoJSON again."
        )
    kind: str = geometry["type"]
    coordinates: Any = geometry.get("coordinates")
    if kind == "GeometryCollection":
        for part in geometry.get("geometries") or []:
            yield from _iterate_polygons(part, path, depth + 1)
    elif kind in ("Polygon", "MultiPolygon"):
        each = [coordinates] if kind == "Polygon" else coordinates
        try:
            yield from (_rings(rings) for rings in each if rings)
        except (TypeError, ValueError, LookupError, OverflowError) as error:
            raise DataError(f"{path} has a {kind} that cannot be read: {error}.") from None


def _rings(rings: Any) -> list[Ring]:
    points: list[Ring] = [[(float(point[0]), float(point[1])) for point in ring] for ring in rings]
    if not all(math.isfinite(x) and math.isfinite(y) for ring in points for x, y in ring):
        raise ValueError("a coordinate is not finite")
    if any(len(ring) < 3 for ring in points):
        raise ValueError("a ring has fewer than 3 points")
    return points


def _feature_properties(feature: dict[str, Any]) -> dict[str, Any]:
    properties = feature.get("properties")
    return properties if isinstance(properties, dict) else {}


def _object_type(feature: dict[str, Any]) -> str:
    """The object type of QuPath; before version 0.3 it is part of the id, e.g. PathCellObject."""
    kind = _feature_properties(feature).get("objectType") or str(
        feature.get("id") or ""
    ).removeprefix("Path").removesuffix("Object")
    return "tma_core" if kind == "TMACore" else str(kind).lower()


def _name(feature: dict[str, Any]) -> str:
    properties = _feature_properties(feature)
    if "tissue_id" in properties:
        return str(properties.get("name") or f"tissue {properties['tissue_id']}")
    return str(properties.get("name") or "")


def _class(feature: dict[str, Any]) -> str:
    """The class of an object: a name, from QuPath 0.4 on a list of names, or a string."""
    classification = _feature_properties(feature).get("classification")
    if isinstance(classification, dict):
        names = classification.get("names")
        if isinstance(names, list):
            return ": ".join(map(str, names))
        return str(classification.get("name") or "")
    return classification if isinstance(classification, str) else ""
