"""Regions as GeoJSON that QuPath opens and saves: tissue goes out, is corrected by hand, and comes back."""

from __future__ import annotations

import hashlib
import json
import math
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from scmil.errors import DataError
from scmil.core.extras import need
from scmil.core.files import utf8, write_atomically
from scmil.slides.outlines import Ring, check_outlines
from scmil.slides.tissue import Tissue, polygons

if TYPE_CHECKING:
    from shapely import MultiPolygon

    from scmil.slides.slide import Slide

COLOURS = {"tissue": (0, 150, 60), "tumor": (200, 0, 0), "tumour": (200, 0, 0), "ignore*": (180, 180, 180)}
OTHER_COLOUR = (60, 110, 200)
LEFT_OUT = ("ignore", "exclude", "hole")  # beginnings of the class names whose regions are no tissue
NO_ANNOTATIONS = {"detection", "tile", "cell", "tma_core", "root"}
LARGEST_BYTES = 256 * 2**20
DEEPEST = 32  # objects within objects; people nest two or three
DIGEST, HEAD_BYTES = re.compile(rb'"slide_digest": "([0-9a-f]{64})"'), 256  # as `write_geojson` puts it
IDS = uuid.UUID("6f1c0f6e-5a0b-5d0c-9b38-0d7f3c1f2a55")


@dataclass(frozen=True, eq=False)
class Region:
    """An area that somebody drew: its name, its polygons in level-0 pixels, and the class or group it belongs to."""

    name: str
    polygon: MultiPolygon
    group: str = ""


def write_geojson(content: Tissue | Iterable[Region], path: str | Path, slide_digest: str | None = None) -> None:
    """Write tissue, one annotation a piece, or regions, one annotation each, as QuPath opens them.

    With `slide_digest`, `tissue_from_geojson` rejects the file for any other slide; what QuPath saves again has none.

    >>> import tempfile
    >>> from shapely import MultiPolygon, box
    >>> path = Path(tempfile.mkdtemp()) / "slide.geojson"
    >>> write_geojson([Region("lesion 1", MultiPolygon([box(0, 0, 40, 30)]), "Tumor")], path)
    >>> [(region.name, region.group, region.polygon.area) for region in read_geojson(path)]
    [('lesion 1', 'Tumor', 1200.0)]
    """
    write_atomically(Path(path), geojson_bytes(content, slide_digest))


def geojson_bytes(content: Tissue | Iterable[Region], slide_digest: str | None = None) -> bytes:
    """The content of a GeoJSON file with this tissue or these regions."""
    regions = _pieces(content) if isinstance(content, Tissue) else list(content)
    seen: Counter[str] = Counter()
    features = []
    for region in regions:
        properties = _properties(region)
        geometry = _geometry(region.polygon)
        same = json.dumps([geometry, properties], sort_keys=True)  # plain ASCII, whatever the names are
        number = uuid.uuid5(IDS, f"{same} {seen[same]}")
        seen[same] += 1
        features.append({"type": "Feature", "id": str(number), "geometry": geometry, "properties": properties})
    about = {} if slide_digest is None else {"slide_digest": slide_digest}
    page = {"type": "FeatureCollection", **about, "features": features}
    return utf8(json.dumps(page, ensure_ascii=False, allow_nan=False))


def _pieces(tissue: Tissue) -> list[Region]:
    pieces = [polygons(piece) for piece in tissue.area.geoms]
    return [Region(f"tissue {number}", piece, "Tissue") for number, piece in enumerate(pieces, start=1)]


def _properties(region: Region) -> dict[str, Any]:
    properties: dict[str, Any] = {"objectType": "annotation"}
    if region.name:
        properties["name"] = region.name
    if region.group:
        colour = COLOURS.get(region.group.lower(), OTHER_COLOUR)
        properties["classification"] = {"name": region.group, "color": list(colour)}
    return properties


def _geometry(area: MultiPolygon) -> dict[str, Any]:
    each = [[[list(xy[:2]) for xy in ring.coords] for ring in (part.exterior, *part.interiors)] for part in area.geoms]
    return (
        {"type": "Polygon", "coordinates": each[0]} if len(each) == 1 else {"type": "MultiPolygon", "coordinates": each}
    )


def read_geojson(path: str | Path) -> list[Region]:
    """Read the annotations of a GeoJSON file: from QuPath old and new, from TRIDENT, or plain features and geometries.

    Detections, cells and tiles are passed over, and so are points and lines, since they have no area.
    """
    drawn: list[tuple[dict[str, Any], list[list[Ring]]]] = []
    areas_expected = False
    for feature in _features(_parsed(Path(path)), path):
        if _kind(feature) in NO_ANNOTATIONS:
            continue
        areas_expected = True
        if parts := list(_areas(feature.get("geometry"), path)):
            drawn.append((feature, parts))
    if areas_expected and not drawn:
        raise DataError(f"{path} has no polygon: draw regions with an area, as polygons or with the brush.")
    check_outlines([ring for _, parts in drawn for rings in parts for ring in rings], path)
    return [Region(_name(feature), _joined(parts), _class(feature)) for feature, parts in drawn]


def _joined(parts: list[list[Ring]]) -> MultiPolygon:
    """One region of polygons, each an outer ring and its holes."""
    shapely = need("shapely", "slides")
    return polygons(shapely.union_all([polygons(shapely.Polygon(rings[0], rings[1:])) for rings in parts]))


def tissue_from_geojson(path: str | Path, slide: Slide) -> Tissue:
    """Take the tissue of a slide from a file: all regions together, less those of the classes Ignore*, Exclude and Hole."""
    shapely = need("shapely", "slides")
    regions = read_geojson(path)
    with Path(path).open("rb") as file:
        made_from = DIGEST.search(file.read(HEAD_BYTES))
    if made_from and made_from[1].decode() != slide.digest:
        raise DataError(
            f"{path} was found on another slide than {slide.path}. Delete it, and the tissue of this slide is found."
        )
    out = [region.polygon for region in regions if region.group.lower().startswith(LEFT_OUT)]
    drawn = [region.polygon for region in regions if not region.group.lower().startswith(LEFT_OUT)]
    if out and not drawn:
        raise DataError(f"{path} has only regions to leave out ({len(out)}), and none that is tissue.")
    everything = shapely.union_all(drawn)
    area = polygons(shapely.intersection(everything, shapely.box(0, 0, *slide.size)))
    extent = f"{slide.size[0]} x {slide.size[1]}"
    if drawn and area.is_empty:
        raise DataError(
            f"{path}: all regions lie outside slide {slide.id!r} of {extent} pixels. Coordinates must be level-0 pixels, "
            "from the top-left corner of this slide."
        )
    outside = everything.area - area.area
    warnings: tuple[str, ...] = ()
    if outside > 1e-9 * everything.area:
        warnings = (
            f"{100 * outside / everything.area:.2g} % of the regions of {Path(path).name} lie outside the slide of {extent} "
            "pixels and were cut off.",
        )
    recipe = {
        "method": "geojson",
        "file": Path(path).name,
        "sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest(),
    }
    return Tissue(polygons(shapely.difference(area, shapely.union_all(out))), slide.id, slide.size, recipe, warnings)


# ------------------------------------------------------------------------------------------------------------ reading


def _parsed(path: Path) -> Any:
    def refuse(word: str) -> NoReturn:
        raise DataError(f"{path}: {word} is no coordinate. All numbers must be finite.")

    if not path.is_file():
        raise DataError(f"{path}: there is no such file.")
    if path.stat().st_size > LARGEST_BYTES:
        raise DataError(
            f"{path} has more than {LARGEST_BYTES // 2**20} MiB. Save the annotations without the detections."
        )
    try:
        return json.loads(path.read_bytes(), parse_constant=refuse)
    except RecursionError:
        raise DataError(f"{path} is nested too deeply to be GeoJSON.") from None
    except ValueError as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is not JSON: {error}. Export the annotations as GeoJSON.") from None


def _features(content: Any, path: str | Path, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Every feature of a file, with those that lie inside others."""
    if depth > DEEPEST:
        raise DataError(f"{path} is nested too deeply: objects within objects, more than {DEEPEST} times.")
    if isinstance(content, list):
        for item in content:
            yield from _features(item, path, depth + 1)
    elif isinstance(content, dict) and content.get("type") == "FeatureCollection":
        yield from _features(content.get("features"), path, depth + 1)
    elif isinstance(content, dict) and content.get("type") == "Feature":
        yield content
        for owner in (content, _own(content)):
            yield from _features(owner.get("childObjects") or [], path, depth + 1)
    elif isinstance(content, dict) and ("coordinates" in content or "geometries" in content):
        yield {"type": "Feature", "geometry": content}
    else:
        met = content.get("type") if isinstance(content, dict) else content
        raise DataError(f"{path} is not GeoJSON: {str(met)[:60]!r} is met where a feature or a geometry is needed.")


def _areas(geometry: Any, path: str | Path, depth: int = 0) -> Iterator[list[Ring]]:
    """The polygons of a geometry, each as its rings."""
    if depth > DEEPEST:
        raise DataError(f"{path} is nested too deeply: geometries within geometries, more than {DEEPEST} times.")
    if not isinstance(geometry, dict) or not isinstance(geometry.get("type"), str):
        raise DataError(f"{path} has a feature without a geometry. Export the annotations as GeoJSON again.")
    kind: str = geometry["type"]
    coordinates: Any = geometry.get("coordinates")
    if kind == "GeometryCollection":
        for part in geometry.get("geometries") or []:
            yield from _areas(part, path, depth + 1)
    elif kind in ("Polygon", "MultiPolygon"):
        each = [coordinates] if kind == "Polygon" else coordinates
        try:
            yield from (_rings(rings) for rings in each if rings)
        except (TypeError, ValueError, IndexError, OverflowError) as error:
            raise DataError(f"{path} has a {kind} that cannot be read: {error}.") from None


def _rings(rings: Any) -> list[Ring]:
    points: list[Ring] = [[(float(point[0]), float(point[1])) for point in ring] for ring in rings]
    if not all(math.isfinite(x) and math.isfinite(y) for ring in points for x, y in ring):
        raise ValueError("a coordinate is not finite")
    if any(len(ring) < 3 for ring in points):
        raise ValueError("a ring has fewer than 3 points")
    return points


def _own(feature: dict[str, Any]) -> dict[str, Any]:
    properties = feature.get("properties")
    return properties if isinstance(properties, dict) else {}


def _kind(feature: dict[str, Any]) -> str:
    """What QuPath takes an object for; before version 0.3 the id said it, such as PathCellObject."""
    kind = _own(feature).get("objectType") or str(feature.get("id") or "").removeprefix("Path").removesuffix("Object")
    return "tma_core" if kind == "TMACore" else str(kind).lower()


def _name(feature: dict[str, Any]) -> str:
    properties = _own(feature)
    if "tissue_id" in properties:
        return str(properties.get("name") or f"tissue {properties['tissue_id']}")
    return str(properties.get("name") or "")


def _class(feature: dict[str, Any]) -> str:
    """The class of an object: a name, or from QuPath 0.4 on a list of names, or in other tools' files a plain word."""
    met = _own(feature).get("classification")
    if isinstance(met, dict):
        names = met.get("names")
        return ": ".join(map(str, names)) if isinstance(names, list) else str(met.get("name") or "")
    return met if isinstance(met, str) else ""
